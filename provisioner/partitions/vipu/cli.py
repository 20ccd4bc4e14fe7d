"""Calls V-IPU servers by the `vipu` command. Assumes unpublished details, which docs/partitions/vipu.md lists."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions.vipu import errors, tables
from provisioner.partitions.vipu.errors import Verb
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionRequest, VipuError

#: Maximum duration in seconds of a read and of a remove, after which the command is killed.
_READ_SECONDS, _REMOVE_SECONDS = 30.0, 120.0
_MAX_OUTPUT_BYTES = 2 << 20
_AGENTS_KEPT_SECONDS = 600.0
#: Matches valid ids and allocations in arguments of the command, but no text that could be taken for an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,252}")
#: Maximum bytes of an IPUoF configuration, which has about 300 bytes for each device.
MAX_BYTES = 1 << 20

CONFIG_FILE = "vipu-cli.hcl"
USER_FILE = "user-id"
KEY_FILE = "access-key"
#: Characters that need no escape in a string of HCL.
_PLAIN = re.compile(r"[ !#-\[\]-~]+")
_TEMPLATE = re.compile(r"[$%]\{")
_KEY = re.compile(r'api[-_]access[-_]key"?\s*[=:]\s*"([^"\n]+)"')
_HIDDEN = "***"
#: First and maximum pause in seconds between checks for the end of a process. Pauses grow, as creates may take minutes.
_LOOK_SECONDS, _LATEST_LOOK_SECONDS = 0.002, 0.05
#: Maximum seconds that `close` waits while another thread starts a program, because the start may hang.
_CLOSE_SECONDS = 0.2
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Identity of this process at a server in secure mode. The key is in a private file, never in arguments or logs."""

    #: Configuration in HCL, including the access key.
    config: str = field(default="", repr=False)
    #: Access keys, which must never appear in output.
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def hidden(self, text: str) -> str:
        """Return a text with the secrets replaced."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def read_credentials(folder: Path) -> Credentials:
    """Read `vipu-cli.hcl` if it exists, otherwise `user-id` and `access-key`. Raises ValueError for unusable files."""
    config = _content(folder / CONFIG_FILE)
    if config is not None:
        return Credentials(config=config, secrets=tuple(_KEY.findall(config)))
    user, key = _content(folder / USER_FILE), _content(folder / KEY_FILE)
    if user is None or key is None:
        raise ValueError(f"{folder} has neither {CONFIG_FILE} nor {USER_FILE} and {KEY_FILE}")
    lines = []
    for name, option, value in ((USER_FILE, "api-user-id", user.strip()), (KEY_FILE, "api-access-key", key.strip())):
        if _PLAIN.fullmatch(value) is None or _TEMPLATE.search(value):
            raise ValueError(f"{folder / name} is empty, or has characters that a line of HCL cannot hold")
        lines.append(f'{option} = "{value}"\n')
    return Credentials(config="".join(lines), secrets=(key.strip(),))


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None


class StartError(Exception):
    """The program could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Outcome of a program."""

    #: Exit code; None if the program was killed or exceeded a limit.
    code: int | None
    stdout: str
    stderr: str
    #: Reason why there is no exit code; empty if there is one.
    cause: str = ""


class Runner:
    """Runs programs with limits on time and output, and kills their process groups. The output is kept in memory."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, seconds: float, max_bytes: int
    ) -> Ended:
        """Run a program until it ends or exceeds the limit on time, stdout or stderr. Raises StartError."""
        deadline = self._monotonic() + seconds
        with _memory() as stdout, _memory() as stderr:
            process = self._start(arguments, environment, folder, (stdout, stderr))
            try:
                with contextlib.suppress(OSError):
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (max_bytes + 1, max_bytes + 1))
                cause = self._watch(process, deadline)
            finally:
                self._end(process)
            if any(os.fstat(io.fileno()).st_size > max_bytes for io in (stdout, stderr)):
                cause = "it wrote too much"
            elif not cause and process.returncode < 0:
                cause = f"it was killed by {signal.Signals(-process.returncode).name}"
            texts = [_text(io, max_bytes) for io in (stdout, stderr)]
        return Ended(code=None if cause else process.returncode, stdout=texts[0], stderr=texts[1], cause=cause)

    def close(self) -> None:
        """Kill the running programs, and start no others."""
        self._closed = True
        held = self._lock.acquire(timeout=_CLOSE_SECONDS)
        try:
            for pid in tuple(self._running):
                _kill_group(pid)
        finally:
            if held:
                self._lock.release()

    def _start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: tuple[IO[bytes], IO[bytes]],
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise StartError("this process is ending")
            try:
                process = subprocess.Popen(
                    list(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=output[0],
                    stderr=output[1],
                    cwd=folder,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"cannot run {arguments[0]}: {error.strerror or error}") from None
            self._running.add(process.pid)
            return process

    def _watch(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        """Wait until the program ends or the deadline passes. Return why to kill it, empty if it ended on its own."""
        pause_seconds = _LOOK_SECONDS
        while not _has_ended(process):
            if self._monotonic() >= deadline:
                return "it took too long"
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LATEST_LOOK_SECONDS)
        return ""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # The process has not been reaped, so its PID still identifies its group, and cannot belong to another process.
        with self._lock:
            _kill_group(process.pid)
            self._running.discard(process.pid)
        process.wait()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _memory() -> IO[bytes]:
    # The output is kept in memory, because a full file system would truncate a file without an error.
    return os.fdopen(os.memfd_create("output"), "w+b")


def _text(file: IO[bytes], max_bytes: int) -> str:
    file.seek(0)
    return file.read(max_bytes).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    verb: Verb
    #: Start of the command line, such as "create partition tpup-1".
    subject: str
    names: tuple[str, ...]
    ended: Ended
    known: Credentials

    def words(self) -> str:
        output = self.ended.stderr.strip() or self.ended.stdout.strip()
        return self.known.hidden(output or f"vipu ended with exit code {self.ended.code} and no output")

    def failed(self) -> VipuError:
        return VipuError(errors.failure_of(self.verb, self.words(), self.names), self.subject)

    def parsed(self, parse: Callable[[str], _Read]) -> _Read:
        if self.ended.code != 0:
            raise self.failed()
        try:
            return parse(self.ended.stdout)
        except ValueError as error:
            words = self.known.hidden(f"what vipu printed cannot be read: {error}")
            raise VipuError(errors.unsent(words), self.subject) from None

    def check_done(self) -> None:
        ended = self.ended
        if ended.code != 0 or not (errors.is_success(ended.stdout) or errors.is_success(ended.stderr)):
            raise self.failed()


@dataclass(slots=True, kw_only=True)
class VipuCommand:
    """A V-IPU server, called by running a command as one of the server's users.

    - Any thread may call any method. Each method ends within a limited time, even if the server does not respond,
      and raises only VipuError.
    - **Idempotent by id.** A second create of an id ends in ALREADY_EXISTS and changes nothing; a remove of an unknown
      id ends in NOT_FOUND. A call whose answer was lost may therefore be sent again.
    - **UNKNOWN_OUTCOME**: a create or remove was lost on its way, took too long, or failed with an unknown message. It
      may have taken effect, or may take effect later. Any other failure means that nothing was changed.
    - STOCKOUT: a create found too few contiguous free IPUs.
    - **Lists are complete**, including partitions of other users that this user may see. Otherwise, the call fails.
    """

    host: str
    port: int
    #: Path of the program, or its name on PATH.
    command: str = "vipu"
    #: Folder of a mounted Secret (`read_credentials`), read for each call; None if the server is not in secure mode.
    credentials: Path | None = None
    create_seconds: float = 300.0
    monotonic: Callable[[], float] = time.monotonic
    runner: Runner = field(default_factory=Runner)
    _agents: Mapping[str, int] = field(default_factory=dict, init=False)
    _agents_read_at: float | None = field(default=None, init=False)

    def list_allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations that this user may use, or a single unnamed allocation if V-IPU cannot list them."""
        answer = self._run(Verb.READ, "list", "allocations")
        if answer.ended.code != 0 and errors.is_unsupported(answer.words()):
            return (Allocation(name=""),)
        listed = answer.parsed(tables.allocations)
        agents = {agent for allocation, known in listed if allocation.ipus is None for agent in known}
        return tables.with_ipus(listed, self._ipus_of(agents))

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user may see."""
        return self._run(Verb.READ, "list", "partitions").parsed(tables.partitions)

    def create_partition(self, request: PartitionRequest) -> None:
        """Create a partition, which may become active later. Takes seconds to minutes."""
        options = ["--size", str(request.size)]
        names = [request.id]
        if request.allocation:
            options += ["--allocation", request.allocation]
            names.append(request.allocation)
        if request.reconfigurable:
            options.append("--reconfigurable")
        self._run(Verb.CREATE, "create", "partition", request.id, *options, names=tuple(names)).check_done()

    def remove_partition(self, partition_id: str) -> None:
        """Remove a partition, even if it is in use."""
        self._run(Verb.REMOVE, "remove", "partition", partition_id, names=(partition_id,)).check_done()

    def ipuof_config(self, partition_id: str) -> str:
        """Return the IPUoF configuration of a partition with one GCD: a JSON document for the Poplar SDK."""
        arguments = ("get", "partition", partition_id, "--gcd", "0", "--ipuof-configs")
        return self._run(Verb.GET, *arguments, names=(partition_id,)).parsed(parse_config)

    def close(self) -> None:
        """Kill the running commands; their calls fail."""
        self.runner.close()

    def _ipus_of(self, agents: set[str]) -> Mapping[str, int]:
        now = self.monotonic()
        is_recent = self._agents_read_at is not None and now - self._agents_read_at < _AGENTS_KEPT_SECONDS
        if not agents or (is_recent and agents <= self._agents.keys()):
            return self._agents
        # A failure is ignored: without the numbers of IPUs, the server itself rejects partitions that do not fit.
        with contextlib.suppress(VipuError):
            self._agents = self._run(Verb.READ, "list", "ipu-attrs").parsed(tables.ipus_of_agents)
            self._agents_read_at = now
        return self._agents

    def _run(self, verb: Verb, *arguments: str, names: tuple[str, ...] = ()) -> _Answer:
        """Run the command to its end, or raise VipuError. `names` has the ids and allocations in `arguments`."""
        subject = " ".join(arguments[:3])
        for name in names:
            if _NAME.fullmatch(name) is None:
                raise VipuError(Failure(kind=FailureKind.INVALID, message=f"{name!r} is not a valid name"), subject)
        seconds = (
            self.create_seconds if verb is Verb.CREATE else _REMOVE_SECONDS if verb is Verb.REMOVE else _READ_SECONDS
        )
        try:
            known = read_credentials(self.credentials) if self.credentials is not None else Credentials()
            with _home(known) as home:
                options = ("--config", str(home / CONFIG_FILE)) if known.config else ()
                words = (self.command, *arguments, "--api-host", self.host, "--api-port", str(self.port), *options)
                ended = self.runner.run(words, _environment(home), home, seconds=seconds, max_bytes=_MAX_OUTPUT_BYTES)
        except (StartError, ValueError) as error:
            raise VipuError(errors.unsent(str(error)), subject) from None
        except OSError as error:
            raise VipuError(errors.unsent(f"cannot prepare a folder for vipu: {error.strerror}"), subject) from None
        if ended.code is None:
            text = f"vipu did not exit: {ended.cause}. {known.hidden(ended.stderr)}"
            raise VipuError(errors.failure_of(verb, text, whole=False), subject)
        return _Answer(verb=verb, subject=subject, names=names, ended=ended, known=known)


def parse_config(text: str) -> str:
    """Return the JSON that `vipu get partition --ipuof-configs` printed after other text. Raises ValueError."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ValueError(f"the IPUoF configuration has more than {MAX_BYTES} bytes")
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")), None)
    if begin is None:
        raise ValueError("there is no JSON in the IPUoF configuration")
    document = "\n".join(lines[begin:]).strip() + "\n"
    try:
        read = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the IPUoF configuration is not JSON: {str(error)[:200]}") from None
    if not read:
        raise ValueError("the IPUoF configuration is empty")
    return document


@contextlib.contextmanager
def _home(known: Credentials) -> Iterator[Path]:
    """Yield a temporary home folder with the configuration. `vipu create` writes a file there, which is not used."""
    with tempfile.TemporaryDirectory(prefix="vipu-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        if known.config:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(home / CONFIG_FILE, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(known.config)
        yield home


def _environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
