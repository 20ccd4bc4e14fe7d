"""The adapter that runs the `vipu` command, against a simulated command and server."""

from __future__ import annotations

import io
import json
import os
import random
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.partitions.vipu.cli import Ended, Runner, VipuCommand
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionRequest, PartitionState, VipuError
from rehearsal.simulators.vipu import command
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.faults import CREATE, GET, LIST_ALLOCATIONS, LIST_IPUS, LIST_PARTITIONS, Fault, FaultKind
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.settings import VipuSettings
from tests.support.waiting import wait_for

#: Long time-out, because each command takes 0.1 s of CPU time to start, and the machine may be busy.
pytestmark = pytest.mark.timeout(30)
KEY = "open-sesame"
ALLOCATIONS = {
    "ours": {"cluster": "c16", "agents": ["ag0", "ag1", "ag2", "ag3"]},
    "small": {"cluster": "c16", "agents": ["ag4"]},
    "theirs": {"cluster": "c16", "agents": ["ag5", "ag6"]},
}
USERS = {
    "us": {"key": KEY, "allocations": ["ours", "small"]},
    "them": {"key": "key-of-others", "allocations": ["small", "theirs"]},
}
_FAULTY, _CREATES = 0.4, 0.6
#: Faults that `test_failed_change_has_no_effect_unless_its_outcome_is_unknown` injects into the simulated server.
_FAULTS = (
    Fault(kind=FaultKind.REFUSED, grpc_code="Aborted", message="later"),
    Fault(kind=FaultKind.REFUSED, grpc_code="", message="the hamster is tired"),
    Fault(kind=FaultKind.CREATE_FAILS),
    Fault(kind=FaultKind.CREATE_LEAKS),
    Fault(kind=FaultKind.REMOVE_LEAKS),
    Fault(kind=FaultKind.HTTP_ERROR),
    Fault(kind=FaultKind.HTTP_ERROR, before_effect=False),
    Fault(kind=FaultKind.HTTP_ERROR, code=0, before_effect=False),
    Fault(kind=FaultKind.HTTP_ERROR, code=502, body="<html>Bad Gateway</html>", before_effect=False),
)


class InThisProcess(Runner):
    """A runner that runs the simulated command in the test process."""

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, seconds: float, max_bytes: int
    ) -> Ended:
        assert (environment["HOME"], seconds > 0, max_bytes > 0) == (str(folder), True, True)
        stdout, stderr = io.StringIO(), io.StringIO()
        code = command.run(arguments[1:], environment, stdout, stderr)
        return Ended(code=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


class Says(Runner):
    """A runner that starts no program and returns a given output."""

    def __init__(self, code: int | None, stdout: str = "", stderr: str = "", cause: str = "") -> None:
        super().__init__()
        self.ended = Ended(code=code, stdout=stdout, stderr=stderr, cause=cause)

    def run(self, *_arguments: object, **_options: object) -> Ended:
        return self.ended


@dataclass
class Ground:
    """The adapter, which calls as user `us`, and the simulated server that it calls."""

    vipu: VipuCommand
    simulator: VipuSimulator

    @property
    def world(self) -> World:
        return self.simulator.world

    def with_(self, **changes: Any) -> VipuCommand:
        return replace(self.vipu, **changes)


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return command.install(tmp_path_factory.mktemp("bin"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Folder of a mounted Secret, whose files have the kubelet's default mode 0644."""
    folder = tmp_path / "secret"
    folder.mkdir()
    for name, content in (("user-id", "us\n"), ("access-key", f"{KEY}\n")):
        (folder / name).write_text(content, "utf-8")
        (folder / name).chmod(0o644)
    return folder


@pytest.fixture
def ground(executable: Path, secret: Path) -> Iterator[Ground]:
    """An adapter and its server in secure mode, on which creates and removes take no time."""
    server = VipuSettings(allocations=ALLOCATIONS, users=USERS, secure=True, create_seconds=0, remove_seconds=0)
    with VipuSimulator(server, rng=random.Random(1)) as simulator:
        vipu = VipuCommand(host=simulator.host, port=simulator.port, command=str(executable), credentials=secret)
        yield Ground(vipu, simulator)
        vipu.close()


@pytest.fixture
def quick(ground: Ground) -> Ground:
    """Return `ground` with a runner that runs commands in the test process, because each process takes 0.1 s."""
    return replace(ground, vipu=replace(ground.vipu, runner=InThisProcess()))


def _failed(call: Callable[..., object], *arguments: object) -> VipuError:
    with pytest.raises(VipuError) as caught:
        call(*arguments)
    return caught.value


def _kind(call: Callable[..., object], *arguments: object) -> FailureKind:
    return _failed(call, *arguments).failure.kind


def _request(name: str = "p1", size: int = 1, allocation: str = "ours") -> PartitionRequest:
    return PartitionRequest(id=name, size=size, allocation=allocation)


def _processes(marker: str) -> list[str]:
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


@pytest.mark.parametrize("cause", ["it took too long", "it wrote too much", "it was killed by SIGKILL"])
def test_change_whose_command_is_killed_has_an_unknown_outcome(quick: Ground, cause: str) -> None:
    vipu = quick.with_(runner=Says(None, "create partition (p1): success.\n", "already exists", cause))
    failure = _failed(vipu.create_partition, _request()).failure
    assert (failure.kind, cause in failure.message) == (FailureKind.UNKNOWN_OUTCOME, True)
    failure = _failed(vipu.list_partitions).failure
    assert (failure.kind, cause in failure.message) == (FailureKind.UNAVAILABLE, True)


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
def test_create_succeeds_only_if_the_command_reports_success(
    quick: Ground, body: str, code: int, kind: FailureKind
) -> None:
    assert _kind(quick.with_(runner=Says(code, body)).create_partition, _request()) is kind


def test_unreadable_list_is_an_error_that_names_the_line(quick: Ground) -> None:
    body = " Partition | Size | State\n----\n p1 | 4 | ACTIVE\n p2 | 4\n----\n"
    failure = _failed(quick.with_(runner=Says(0, body)).list_partitions).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert "line 4 has 2 cells, and the header 3: ' p2 | 4'" in failure.message


def test_warning_on_stderr_does_not_fail_a_create(quick: Ground) -> None:
    warning = "failed to check for updates: timeout"
    quick.with_(runner=Says(0, "create partition (p1): success.\n", warning)).create_partition(_request())


def test_access_key_is_in_no_argument_environment_log_or_exception(
    ground: Ground, secret: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ground.simulator.inject(Fault(kind=FaultKind.HANG, method=CREATE, seconds=60))
    vipu = ground.with_(create_seconds=60.0)
    with ThreadPoolExecutor(1) as thread:
        failed = thread.submit(_kind, vipu.create_partition, _request("p-seen"))
        (seen,) = wait_for(lambda: _processes("p-seen"), what="the command")
        assert KEY not in seen
        assert str(secret) not in seen
        config = next(word for word in seen.split("\0") if word.endswith(".hcl"))
        assert stat.S_IMODE(Path(config).stat().st_mode) == 0o600
        assert KEY in Path(config).read_text("utf-8")
        vipu.close()
    assert failed.result() is FailureKind.UNKNOWN_OUTCOME
    assert not Path(config).exists()
    # Even if a command prints the key, the error does not contain the key.
    for runner in (Says(0, f"bad key {KEY}\n"), Says(1, "", f"bad key {KEY}\n")):
        vipu = ground.with_(runner=runner)
        for call in (vipu.list_partitions, lambda vipu=vipu: vipu.create_partition(_request())):
            error = _failed(call)
            assert "bad key" in str(error)
            assert KEY not in f"{error!r} {error} {error.failure} {error.__cause__!r}"
    assert KEY not in "".join(capfd.readouterr())
    assert KEY not in repr(ground.vipu)


def test_changed_secret_is_used_by_the_next_call(quick: Ground, secret: Path) -> None:
    quick.simulator.set(users={"us": {"key": "rotated", "allocations": ["small"]}})
    assert _failed(quick.vipu.list_partitions).failure.kind is FailureKind.PERMISSION
    (secret / "access-key").write_text("rotated", "utf-8")
    assert quick.vipu.list_partitions() == ()


def test_call_without_the_files_of_the_secret_is_not_sent(quick: Ground, tmp_path: Path) -> None:
    failure = _failed(quick.with_(credentials=tmp_path / "none").create_partition, _request()).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert "has neither vipu-cli.hcl nor user-id and access-key" in failure.message
    assert quick.simulator.calls == ()


def test_server_without_secure_mode_needs_no_credentials(quick: Ground) -> None:
    quick.simulator.set(secure=False)
    assert [item.name for item in quick.with_(credentials=None).list_allocations()] == ["ours", "small", "theirs"]


@pytest.mark.parametrize(
    ("name", "words"), [("no-such-program", "No such file"), ("/proc/version", "Permission denied")]
)
def test_command_that_cannot_be_started_is_unavailable(ground: Ground, name: str, words: str) -> None:
    failure = _failed(ground.with_(command=name).create_partition, _request()).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert f"cannot run {name}: {words}" in failure.message


def test_command_is_found_in_path_and_gets_a_minimal_environment(
    ground: Ground, executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{executable.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("VIPU_CLI_API_PORT", "1")
    monkeypatch.setenv("HOME", "/nonexistent")
    ground.with_(command="vipu").create_partition(_request())
    assert [item.id for item in ground.world.all_partitions()] == ["p1"]


def test_call_without_a_temporary_folder_is_not_sent(
    quick: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    failure = _failed(quick.vipu.create_partition, _request()).failure
    assert failure.kind is FailureKind.UNAVAILABLE
    assert failure.message == "cannot prepare a folder for vipu: No such file or directory"


def test_ipus_are_counted_again_only_for_new_agents_or_after_ten_minutes(quick: Ground) -> None:
    now = [0.0]
    vipu = quick.with_(monotonic=lambda: now[0])
    for _ in range(2):
        assert [item.ipus for item in vipu.list_allocations()] == [16, 4]
    assert quick.simulator.count(LIST_IPUS) == 1
    quick.simulator.set(users={"us": {"key": KEY, "allocations": ["ours", "theirs"]}})
    assert [item.ipus for item in vipu.list_allocations()] == [16, 8]
    assert quick.simulator.count(LIST_IPUS) == 2
    now[0] = 601.0
    quick.simulator.inject(Fault(kind=FaultKind.HTTP_ERROR, method=LIST_IPUS))
    assert [item.ipus for item in vipu.list_allocations()] == [16, 8]
    assert quick.simulator.count(LIST_IPUS) == 3


def test_ipus_are_unknown_until_they_were_counted_once(quick: Ground) -> None:
    quick.simulator.inject(Fault(kind=FaultKind.REFUSED, message="no attributes today", method=LIST_IPUS))
    assert [item.ipus for item in quick.vipu.list_allocations()] == [None, None]


def test_server_that_does_not_know_allocations_has_one_without_a_name(quick: Ground) -> None:
    fault = Fault(kind=FaultKind.REFUSED, grpc_code="Unimplemented", message="no", method=LIST_ALLOCATIONS)
    quick.simulator.inject(fault)
    assert quick.vipu.list_allocations() == (Allocation(name=""),)


def _states(ground: Ground) -> dict[str, str]:
    return {item.id: item.state for item in ground.world.all_partitions()}


def test_created_partition_is_listed_with_all_reported_fields(quick: Ground) -> None:
    quick.vipu.create_partition(_request(size=8))
    expected = Partition(id="p1", size=8, state=PartitionState.ACTIVE, state_text="ACTIVE", cluster="c16")
    assert quick.vipu.list_partitions() == (expected,)
    (made,) = quick.world.all_partitions()
    assert (made.allocation, made.reconfigurable, made.user) == ("ours", True, "us")
    assert len(json.loads(quick.vipu.ipuof_config("p1"))["devices"]) == 8


def test_server_chooses_options_that_the_request_leaves_out(quick: Ground) -> None:
    quick.world.change_settings({"picks_allocation": True})
    quick.vipu.create_partition(PartitionRequest(id="p1", size=16, reconfigurable=False))
    quick.vipu.create_partition(PartitionRequest(id="p2", size=4))
    made = [(item.allocation, item.reconfigurable) for item in quick.world.all_partitions()]
    assert made == [("ours", False), ("small", True)]


def test_second_create_gives_already_exists_and_second_remove_not_found(quick: Ground) -> None:
    quick.vipu.create_partition(_request(size=2))
    assert _kind(quick.vipu.create_partition, _request(size=4)) is FailureKind.ALREADY_EXISTS
    assert [item.size for item in quick.world.all_partitions()] == [2]
    quick.vipu.remove_partition("p1")
    assert _states(quick) == {}
    assert _kind(quick.vipu.remove_partition, "p1") is FailureKind.NOT_FOUND


def test_create_without_enough_free_ipus_is_a_stockout(quick: Ground) -> None:
    quick.vipu.create_partition(_request("p1", 1))
    assert _kind(quick.vipu.create_partition, _request("p2", 16)) is FailureKind.STOCKOUT
    assert set(_states(quick)) == {"p1"}


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(_request(size=3), id="a size that is no power of two"),
        pytest.param(_request(size=128), id="a size that no server has"),
        pytest.param(_request(name="p" * 40), id="an id that is too long"),
        pytest.param(_request(name="--reconfigurable"), id="an id that looks like an option"),
        pytest.param(_request(allocation="--help"), id="an allocation that looks like an option"),
        pytest.param(_request(allocation="theirs"), id="an allocation of others"),
        pytest.param(_request(allocation="not enough IPUs"), id="an allocation with a name like an error"),
    ],
)
def test_create_that_can_never_succeed_is_invalid(quick: Ground, request_: PartitionRequest) -> None:
    assert _kind(quick.vipu.create_partition, request_) is FailureKind.INVALID
    assert _states(quick) == {}


@pytest.mark.parametrize("method", [LIST_ALLOCATIONS, LIST_PARTITIONS, GET])
def test_failed_read_is_an_error_and_not_an_empty_list(quick: Ground, method: str) -> None:
    quick.vipu.create_partition(_request())
    read = {
        LIST_ALLOCATIONS: quick.vipu.list_allocations,
        LIST_PARTITIONS: quick.vipu.list_partitions,
        GET: lambda: quick.vipu.ipuof_config("p1"),
    }[method]
    for code in (0, 503):
        quick.world.faults.add(Fault(kind=FaultKind.HTTP_ERROR, code=code, method=method, count=1))
        assert _kind(read) is FailureKind.UNAVAILABLE
    assert read()


@pytest.mark.parametrize("seed", range(4))
def test_failed_change_has_no_effect_unless_its_outcome_is_unknown(quick: Ground, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        if rng.random() < _FAULTY:
            quick.world.faults.clear()
            quick.world.faults.add(rng.choice(_FAULTS))
        name, size, allocation = f"p{rng.randrange(6)}", rng.choice((1, 2, 3, 4, 16)), rng.choice(("ours", "small"))
        before = {item.id: item for item in quick.world.all_partitions()}
        creates = rng.random() < _CREATES
        kind = None
        try:
            if creates:
                quick.vipu.create_partition(_request(name, size, allocation))
            else:
                quick.vipu.remove_partition(name)
        except VipuError as error:
            kind = error.failure.kind
        after = {item.id: item for item in quick.world.all_partitions()}
        if kind is None:
            assert (name in before, name in after) == (not creates, creates)
            assert not creates or after[name].size == size
        elif kind is not FailureKind.UNKNOWN_OUTCOME:
            assert after == before
        quick.world.faults.clear()
        assert {item.id: item.state_text for item in quick.vipu.list_partitions()} == _states(quick)
