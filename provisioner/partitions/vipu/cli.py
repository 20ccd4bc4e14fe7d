"""A V-IPU server as the `vipu` command line shows it: the one surface of V-IPU that is published.

What is not known of that surface is assumed here, in `tables.py`, `errors.py`, `config.py` and `credentials.py`, and
nowhere else; docs/partitions.md lists it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions.vipu import config, credentials, errors, tables
from provisioner.partitions.vipu.credentials import Credentials, CredentialsError
from provisioner.partitions.vipu.errors import Verb
from provisioner.partitions.vipu.process import Bounds, Ended, Runner, Runs, StartError
from provisioner.partitions.vipu.protocol import VipuError
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionRequest

_AGENTS_KEPT_SECONDS = 600.0
#: Of ids and allocations that are handed to the command: none is taken for an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,252}")
_NO_CREDENTIALS = Credentials(config="", secrets=())
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """How the command is run."""

    #: A path, or a name on PATH.
    command: str = "vipu"
    #: Folder of a mounted Secret (`credentials.py`), read for each call; None: the server is not in secure mode.
    credentials: Path | None = None
    #: A call is killed after this time; before that it waits at most as long for its turn.
    read_seconds: float = 30.0
    create_seconds: float = 300.0
    remove_seconds: float = 120.0
    #: So many reads, and so many changes, run at a time.
    most_at_once: int = 4
    #: Of stdout and stderr each.
    most_output_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a command that ended by itself had to say."""

    code: int
    stdout: str
    stderr: str
    known: Credentials

    def words(self) -> str:
        """Return what it said to people, without secrets."""
        said = self.stderr.strip() or self.stdout.strip() or f"vipu ended with exit code {self.code} and without a word"
        return self.known.hidden(said)

    def parsed(self, parse: Callable[[str], _Read], subject: str) -> _Read:
        """Return what it printed as something that can be used. Raises VipuError."""
        try:
            return parse(self.stdout)
        except ValueError as error:
            words = self.known.hidden(f"what vipu printed cannot be read: {error}")
            raise VipuError(errors.unsent(words), subject) from None


class VipuCommand:
    """One V-IPU server, asked by running a command for each call."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: CommandSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        runner: Runs | None = None,
    ) -> None:
        self._settings = settings
        self._address = ("--api-host", host, "--api-port", str(port))
        self._monotonic = monotonic
        self._runner = runner or Runner(monotonic=monotonic)
        self._reads = threading.BoundedSemaphore(settings.most_at_once)
        self._changes = threading.BoundedSemaphore(settings.most_at_once)
        self._agents: Mapping[str, int] = {}
        self._agents_read_at: float | None = None

    def list_allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations that this user may make partitions in.

        A server of a version without allocations has one without a name, of which nothing is known.
        """
        subject = "list allocations"
        answer = self._run(Verb.READ, ("list", "allocations"), subject)
        if answer.code != 0 and errors.is_unsupported(answer.words()):
            return (Allocation(name=""),)
        listed = self._good(answer, Verb.READ, subject).parsed(tables.allocations, subject)
        agents = {agent for item in listed if item.ipus is None for agent in item.agents}
        return tables.with_ipus(listed, self._ipus_of(agents))

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user sees."""
        return self._read(("list", "partitions"), "list partitions").parsed(tables.partitions, "list partitions")

    def create_partition(self, request: PartitionRequest) -> None:
        """Make a partition, and wait for the answer."""
        subject = f"create partition {request.id}"
        arguments = ["create", "partition", _checked(request.id, subject), "--size", str(request.size)]
        if request.allocation:
            arguments += ["--allocation", _checked(request.allocation, subject)]
        if request.reconfigurable:
            arguments.append("--reconfigurable")
        self._change(Verb.CREATE, arguments, subject, request.id, request.allocation)

    def remove_partition(self, partition_id: str) -> None:
        """Remove a partition, and wait for the answer."""
        subject = f"remove partition {partition_id}"
        arguments = ["remove", "partition", _checked(partition_id, subject)]
        self._change(Verb.REMOVE, arguments, subject, partition_id)

    def ipuof_config(self, partition_id: str) -> str:
        """Return the IPUoF configuration of a partition with one GCD."""
        subject = f"get partition {partition_id}"
        arguments = ("get", "partition", _checked(partition_id, subject), "--gcd", "0", "--ipuof-configs")
        answer = self._run(Verb.GET, arguments, subject)
        return self._good(answer, Verb.GET, subject, partition_id).parsed(config.parse, subject)

    def close(self) -> None:
        """Kill the commands that run; they end in failures as any that was killed."""
        self._runner.close()

    def _ipus_of(self, agents: set[str]) -> Mapping[str, int]:
        now = self._monotonic()
        is_recent = self._agents_read_at is not None and now - self._agents_read_at < _AGENTS_KEPT_SECONDS
        if not agents or (is_recent and agents <= self._agents.keys()):
            return self._agents
        subject = "list ipu-attrs"
        # The number of IPUs is worth having, and not worth failing for: without it the server's answers decide.
        with contextlib.suppress(VipuError):
            self._agents = self._read(("list", "ipu-attrs"), subject).parsed(tables.ipus_of_agents, subject)
            self._agents_read_at = now
        return self._agents

    def _read(self, arguments: Sequence[str], subject: str) -> _Answer:
        return self._good(self._run(Verb.READ, arguments, subject), Verb.READ, subject)

    def _good(self, answer: _Answer, verb: Verb, subject: str, *names: str) -> _Answer:
        """Return the answer of a command that reads. Raises VipuError where it failed."""
        if answer.code != 0:
            raise VipuError(errors.failure_of(verb, answer.words(), names), subject)
        return answer

    def _change(self, verb: Verb, arguments: Sequence[str], subject: str, *names: str) -> None:
        answer = self._run(verb, arguments, subject)
        if answer.code == 0 and (errors.is_success(answer.stdout) or errors.is_success(answer.stderr)):
            return
        raise VipuError(errors.failure_of(verb, answer.words(), names), subject)

    def _run(self, verb: Verb, arguments: Sequence[str], subject: str) -> _Answer:
        """Run the command to its end. Raises VipuError where it had none of its own."""
        settings = self._settings
        seconds = {Verb.CREATE: settings.create_seconds, Verb.REMOVE: settings.remove_seconds}.get(
            verb, settings.read_seconds
        )
        turn = self._changes if verb.changes else self._reads
        if not turn.acquire(timeout=seconds):
            raise VipuError(errors.unsent(f"{settings.most_at_once} other calls took too long"), subject)
        try:
            known = self._credentials(subject)
            bounds = Bounds(seconds=seconds, bytes=settings.most_output_bytes)
            ended = self._run_as(known, arguments, subject, bounds)
        finally:
            turn.release()
        if ended.code is None:
            words = f"vipu did not end by itself: {ended.cause}. {known.hidden(ended.stderr)}"
            raise VipuError(errors.unfinished(verb, words), subject)
        return _Answer(code=ended.code, stdout=ended.stdout, stderr=ended.stderr, known=known)

    def _run_as(self, known: Credentials, arguments: Sequence[str], subject: str, bounds: Bounds) -> Ended:
        try:
            with _home(known) as home:
                options = ("--config", str(home / credentials.CONFIG_FILE)) if known.config else ()
                words = (self._settings.command, *arguments, *self._address, *options)
                return self._runner.run(words, _environment(home), home, bounds)
        except StartError as error:
            raise VipuError(errors.unsent(str(error)), subject) from None
        except OSError as error:
            raise VipuError(errors.unsent(f"cannot prepare a folder for vipu: {error.strerror}"), subject) from None

    def _credentials(self, subject: str) -> Credentials:
        if self._settings.credentials is None:
            return _NO_CREDENTIALS
        try:
            return credentials.read(self._settings.credentials)
        except CredentialsError as error:
            raise VipuError(errors.unsent(str(error)), subject) from None


def _checked(name: str, subject: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise VipuError(Failure(kind=FailureKind.INVALID, message=f"{name!r} cannot be asked for"), subject)
    return name


@contextlib.contextmanager
def _home(known: Credentials) -> Iterator[Path]:
    """Give a command a folder of its own: a create writes a file into its home that nobody here reads."""
    with tempfile.TemporaryDirectory(prefix="vipu-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        if known.config:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(home / credentials.CONFIG_FILE, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(known.config)
        yield home


def _environment(home: Path) -> dict[str, str]:
    """Return what the command is to see of the environment; variables of our own process are none of its business."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
