"""The adapter that runs the `vipu` command, against a simulated command and server."""

from __future__ import annotations

import io
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.partitions.vipu.cli import CommandSettings, VipuCommand
from provisioner.partitions.vipu.process import Ended, Runner
from provisioner.partitions.vipu.protocol import Allocation, PartitionRequest, VipuError
from rehearsal.simulators.vipu import command
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.faults import (
    CREATE,
    LIST_ALLOCATIONS,
    LIST_IPUS,
    LIST_PARTITIONS,
    REMOVE,
    Fault,
    FaultKind,
)
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.settings import VipuSettings
from tests.partitions.vipu.conformance import ALLOCATIONS, USERS, VipuContract
from tests.support.waiting import wait_for

#: A command takes 0.1 s of processor time to start, and the machine may be busy.
pytestmark = pytest.mark.timeout(30)
KEY = "open-sesame"


class InThisProcess(Runner):
    """Runs the simulated command without a process of its own."""

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, seconds: float, most_bytes: int
    ) -> Ended:
        """Run it."""
        assert (environment["HOME"], seconds > 0, most_bytes > 0) == (str(folder), True, True)
        stdout, stderr = io.StringIO(), io.StringIO()
        code = command.run(arguments[1:], environment, stdout, stderr)
        return Ended(code=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


@dataclass
class CommandGround:
    """The adapter, the simulated server that it asks, and what the adapter was made with."""

    vipu: VipuCommand
    simulator: VipuSimulator
    settings: CommandSettings

    @property
    def world(self) -> World:
        """The server's memory."""
        return self.simulator.world

    def with_clock(self, monotonic: Callable[[], float]) -> VipuCommand:
        """Return an adapter with a clock of its own."""
        return VipuCommand(self.simulator.host, self.simulator.port, self.settings, monotonic=monotonic)

    def with_(self, **changes: Any) -> VipuCommand:
        """Return an adapter with other settings."""
        return VipuCommand(self.simulator.host, self.simulator.port, replace(self.settings, **changes))


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated command."""
    return command.install(tmp_path_factory.mktemp("bin"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The folder of a mounted Secret, readable by the group as kubelets make it."""
    folder = tmp_path / "secret"
    folder.mkdir()
    for name, content in (("user-id", "us\n"), ("access-key", f"{KEY}\n")):
        (folder / name).write_text(content, "utf-8")
        (folder / name).chmod(0o644)
    return folder


@pytest.fixture
def ground(executable: Path, secret: Path) -> Iterator[CommandGround]:
    """The adapter as user `us` of a server in secure mode whose creates take no time."""
    server = VipuSettings(allocations=ALLOCATIONS, users=USERS, secure=True, create_seconds=0, remove_seconds=0)
    with VipuSimulator(server, rng=random.Random(1)) as simulator:
        settings = CommandSettings(command=str(executable), credentials=secret)
        vipu = VipuCommand(simulator.host, simulator.port, settings)
        yield CommandGround(vipu, simulator, settings)
        vipu.close()


class TestTheContract(VipuContract):
    """The contract. Processes of their own are the matter of the tests below, and each takes 0.1 s."""

    @pytest.fixture
    def ground(self, ground: CommandGround) -> CommandGround:
        """The same, but that commands run in this process."""
        simulator = ground.simulator
        return replace(
            ground, vipu=VipuCommand(simulator.host, simulator.port, ground.settings, runner=InThisProcess())
        )


def _failed(call: Callable[..., object], *arguments: object) -> VipuError:
    with pytest.raises(VipuError) as caught:
        call(*arguments)
    return caught.value


def _request(name: str = "p1") -> PartitionRequest:
    return PartitionRequest(id=name, size=1, allocation="ours")


def _processes(marker: str) -> list[str]:
    """Return the command lines of all processes that have the marker in theirs, or in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                seen = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
            if marker.encode() in seen:
                found.append(seen.decode(errors="replace"))
    return found


@pytest.mark.parametrize(
    ("method", "call", "kind"),
    [
        (CREATE, lambda vipu: vipu.create_partition(_request()), FailureKind.UNKNOWN_OUTCOME),
        (LIST_PARTITIONS, lambda vipu: vipu.list_partitions(), FailureKind.UNAVAILABLE),
    ],
)
def test_a_command_that_hangs_is_killed_with_its_children(
    ground: CommandGround,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    call: Callable[[VipuCommand], object],
    kind: FailureKind,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ground.simulator.inject(Fault(kind=FaultKind.COMMAND_HANGS, method=method))
    now = [0.0]
    vipu = ground.with_clock(lambda: now[0])
    errors: list[VipuError] = []
    thread = threading.Thread(target=lambda: errors.append(_failed(call, vipu)))
    thread.start()
    marker = str(tmp_path / "vipu-")
    wait_for(lambda: len(_processes(marker)) == 2, what="the command and its child")
    now[0] = 301.0
    thread.join()
    assert errors[0].failure.kind is kind
    assert "it took too long" in errors[0].failure.message
    wait_for(lambda: not _processes(marker), what="the end of both")
    assert list(tmp_path.glob("vipu-*")) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(kind=FaultKind.COMMAND_DIES), "it was killed by SIGKILL"),
        (Fault(kind=FaultKind.COMMAND_FLOODS), "it wrote too much"),
    ],
)
def test_a_command_that_dies_or_floods_leaves_the_outcome_of_a_change_open(
    ground: CommandGround, fault: Fault, words: str
) -> None:
    ground.simulator.inject(fault)
    vipu = ground.with_(most_output_bytes=100_000)
    failure = _failed(vipu.create_partition, _request()).failure
    assert (failure.kind, words in failure.message) == (FailureKind.UNKNOWN_OUTCOME, True)
    failure = _failed(vipu.list_partitions).failure
    assert (failure.kind, words in failure.message) == (FailureKind.UNAVAILABLE, True)


@pytest.mark.parametrize(
    ("body", "code", "kind"),
    [
        ("", 0, FailureKind.UNKNOWN_OUTCOME),
        ("create partition (p1): maybe.\n", 0, FailureKind.UNKNOWN_OUTCOME),
        ("create partition (p1): failed: partition 'p1' already exists\n", 0, FailureKind.ALREADY_EXISTS),
        ("create partition (p1): success.\n", 1, FailureKind.UNKNOWN_OUTCOME),
        ("panic: runtime error\n", 2, FailureKind.UNKNOWN_OUTCOME),
    ],
)
def test_a_create_is_done_only_when_the_command_says_so(
    ground: CommandGround, body: str, code: int, kind: FailureKind
) -> None:
    ground.simulator.inject(Fault(kind=FaultKind.COMMAND_GARBLES, body=body, exit_code=code, method=CREATE))
    assert _failed(ground.vipu.create_partition, _request()).failure.kind is kind


def test_a_list_that_cannot_be_read_is_an_error_that_names_the_line(ground: CommandGround) -> None:
    body = " Partition | Size | State\n----\n p1 | 4 | ACTIVE\n p2 | 4\n----\n"
    ground.simulator.inject(Fault(kind=FaultKind.COMMAND_GARBLES, body=body, method=LIST_PARTITIONS))
    failure = _failed(ground.vipu.list_partitions).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert "line 4 has 2 cells, and the header 3: ' p2 | 4'" in failure.message


def test_warnings_on_stderr_are_no_failure(ground: CommandGround) -> None:
    ground.simulator.inject(Fault(kind=FaultKind.COMMAND_WARNS, message="failed to check for updates: timeout"))
    ground.vipu.create_partition(_request())
    assert [item.id for item in ground.vipu.list_partitions()] == ["p1"]


def test_the_access_key_is_in_no_argument_environment_log_or_exception(
    ground: CommandGround, secret: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ground.simulator.inject(Fault(kind=FaultKind.HANG, method=CREATE, seconds=60))
    vipu = ground.with_(create_seconds=60.0)
    answers: list[VipuError] = []
    thread = threading.Thread(target=lambda: answers.append(_failed(vipu.create_partition, _request("p-seen"))))
    thread.start()
    (seen,) = wait_for(lambda: _processes("p-seen"), what="the command")
    assert KEY not in seen
    assert str(secret) not in seen
    config = next(word for word in seen.split("\0") if word.endswith(".hcl"))
    assert stat.S_IMODE(Path(config).stat().st_mode) == 0o600
    assert KEY in Path(config).read_text("utf-8")
    vipu.close()
    thread.join()
    assert answers[0].failure.kind is FailureKind.UNKNOWN_OUTCOME
    assert not Path(config).exists()
    # A command that repeats the key in whatever it says is not repeated.
    for kind, text in (("body", f"bad key {KEY}\n"), ("message", f"bad key {KEY}\n")):
        garbled = FaultKind.COMMAND_GARBLES if kind == "body" else FaultKind.REFUSED
        ground.simulator.clear()
        ground.simulator.inject(Fault(kind=garbled, **{kind: text}))
        for call in (ground.vipu.list_partitions, lambda: ground.vipu.create_partition(_request())):
            error = _failed(call)
            assert "bad key" in str(error)
            assert KEY not in f"{error!r} {error} {error.failure} {error.__cause__!r}"
    assert KEY not in "".join(capfd.readouterr())
    assert KEY not in repr(vars(ground.vipu))


def test_the_file_that_vipu_admin_writes_is_handed_on_as_it_is(ground: CommandGround, tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "vipu-cli.hcl").write_text(f'api-user-id = "us"\napi-access-key = "{KEY}"\n', "utf-8")
    assert len(ground.with_(credentials=folder).list_allocations()) == 2


def test_a_secret_that_is_changed_is_used_from_then_on(ground: CommandGround, secret: Path) -> None:
    ground.simulator.set(users={"us": {"key": "rotated", "allocations": ["small"]}})
    assert _failed(ground.vipu.list_partitions).failure.kind is FailureKind.PERMISSION
    (secret / "access-key").write_text("rotated", "utf-8")
    assert ground.vipu.list_partitions() == ()


def test_without_the_files_of_the_secret_nothing_is_sent(ground: CommandGround, tmp_path: Path) -> None:
    failure = _failed(ground.with_(credentials=tmp_path / "none").create_partition, _request()).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert "has neither vipu-cli.hcl nor user-id and access-key" in failure.message
    assert ground.simulator.calls == ()


def test_outside_of_secure_mode_there_is_no_configuration_file(ground: CommandGround) -> None:
    ground.simulator.set(secure=False)
    assert [item.name for item in ground.with_(credentials=None).list_allocations()] == ["ours", "small", "theirs"]


@pytest.mark.parametrize(
    ("name", "words"), [("no-such-program", "No such file"), ("/proc/version", "Permission denied")]
)
def test_a_command_that_cannot_be_run_changes_nothing(ground: CommandGround, name: str, words: str) -> None:
    failure = _failed(ground.with_(command=name).create_partition, _request()).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert f"cannot run {name}: {words}" in failure.message


def test_the_command_is_found_on_the_path_and_sees_nothing_of_our_environment(
    ground: CommandGround, executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{executable.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("VIPU_CLI_API_PORT", "1")
    monkeypatch.setenv("HOME", "/nonexistent")
    ground.with_(command="vipu").create_partition(_request())
    assert [item.id for item in ground.world.all_partitions()] == ["p1"]


def test_no_folder_for_the_command_means_that_nothing_is_sent(
    ground: CommandGround, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    failure = _failed(ground.vipu.create_partition, _request()).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert failure.message == "cannot prepare a folder for vipu: No such file or directory"


def test_ipus_are_counted_once_and_again_for_agents_that_are_new_or_after_a_while(ground: CommandGround) -> None:
    now = [0.0]
    vipu = ground.with_clock(lambda: now[0])
    for _ in range(2):
        assert [item.ipus for item in vipu.list_allocations()] == [16, 4]
    assert ground.simulator.count(LIST_IPUS) == 1
    ground.simulator.set(users={"us": {"key": KEY, "allocations": ["ours", "theirs"]}})
    assert [item.ipus for item in vipu.list_allocations()] == [16, 8]
    assert ground.simulator.count(LIST_IPUS) == 2
    now[0] = 601.0
    ground.simulator.inject(Fault(kind=FaultKind.HTTP_ERROR, method=LIST_IPUS))
    assert [item.ipus for item in vipu.list_allocations()] == [16, 8]
    assert ground.simulator.count(LIST_IPUS) == 3


def test_ipus_that_cannot_be_counted_are_not_known(ground: CommandGround) -> None:
    ground.simulator.inject(Fault(kind=FaultKind.COMMAND_GARBLES, body="no attributes today\n", method=LIST_IPUS))
    assert [item.ipus for item in ground.vipu.list_allocations()] == [None, None]


def test_a_version_without_allocations_has_one_of_which_nothing_is_known(ground: CommandGround) -> None:
    fault = Fault(kind=FaultKind.REFUSED, grpc_code="Unimplemented", message="no", method=LIST_ALLOCATIONS)
    ground.simulator.inject(fault)
    assert ground.vipu.list_allocations() == (Allocation(name=""),)


def test_so_many_changes_run_at_once_and_the_next_waits_for_its_turn(ground: CommandGround) -> None:
    ground.simulator.inject(Fault(kind=FaultKind.HANG, method=CREATE, seconds=600))
    vipu = ground.with_(most_at_once=1, create_seconds=60.0, remove_seconds=0.1)
    errors: list[VipuError] = []
    thread = threading.Thread(target=lambda: errors.append(_failed(vipu.create_partition, _request())))
    thread.start()
    wait_for(lambda: _processes(f"--api-port\0{ground.simulator.port}"), what="the command")
    failure = _failed(vipu.remove_partition, "p1").failure
    assert (failure.kind, failure.message) == (FailureKind.UNAVAILABLE, "1 other calls took too long")
    assert vipu.list_partitions() == ()
    vipu.close()
    thread.join()
    assert errors[0].failure.kind is FailureKind.UNKNOWN_OUTCOME
    assert _failed(vipu.list_partitions).failure.message == "this process is ending"
    assert ground.simulator.count(REMOVE) == 0
