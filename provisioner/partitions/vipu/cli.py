"""A V-IPU server as the `vipu` command line shows it: the one surface of V-IPU that is published.

What is not known of it is assumed here, in `tables.py` and in `errors.py`; docs/partitions.md lists it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions.vipu import errors, tables
from provisioner.partitions.vipu.errors import Verb
from provisioner.partitions.vipu.process import Ended, Runner, StartError
from provisioner.partitions.vipu.protocol import Allocation, Partition, PartitionRequest, VipuError

#: A call is killed after this time.
_READ_SECONDS, _REMOVE_SECONDS = 30.0, 120.0
#: Of stdout and stderr each.
_MOST_OUTPUT_BYTES = 4 << 20
_AGENTS_KEPT_SECONDS = 600.0
#: Of ids and allocations that are handed to the command: none is taken for an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,252}")
#: Of an IPUoF configuration: a device takes about 300 bytes, and a partition has 64, or 256 over several domains.
MOST_BYTES = 1 << 20

CONFIG_FILE = "vipu-cli.hcl"
USER_FILE = "user-id"
KEY_FILE = "access-key"
#: What stands in a string of HCL for itself.
_PLAIN = re.compile(r"[ !#-\[\]-~]+")
_TEMPLATE = re.compile(r"[$%]\{")
_KEY = re.compile(r'api[-_]access[-_]key"?\s*[=:]\s*"([^"\n]+)"')
_HIDDEN = "***"
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who this process is to a server in secure mode; a key is in a private file, never in arguments or logs."""

    #: HCL; it has the access key.
    config: str = field(default="", repr=False)
    #: What must never be seen.
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def hidden(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def read_credentials(folder: Path) -> Credentials:
    """Read the mounted `vipu-cli.hcl`, else `user-id` and `access-key`; ValueError where they cannot be used."""
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
    """Return what a file has; None where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a command that ended by itself had to say."""

    verb: Verb
    #: Such as "create partition tpup-1".
    subject: str
    #: What it was given.
    names: tuple[str, ...]
    ended: Ended
    known: Credentials

    def words(self) -> str:
        """Return what it said to people, without secrets."""
        said = self.ended.stderr.strip() or self.ended.stdout.strip()
        return self.known.hidden(said or f"vipu ended with exit code {self.ended.code} and no output")

    def failed(self) -> VipuError:
        """Return what its words mean, where it failed."""
        return VipuError(errors.failure_of(self.verb, self.words(), self.names), self.subject)

    def parsed(self, parse: Callable[[str], _Read]) -> _Read:
        """Return what it printed as something that can be used. Raises VipuError."""
        if self.ended.code != 0:
            raise self.failed()
        try:
            return parse(self.ended.stdout)
        except ValueError as error:
            words = self.known.hidden(f"what vipu printed cannot be read: {error}")
            raise VipuError(errors.unsent(words), self.subject) from None

    def check_done(self) -> None:
        """Raise VipuError where it does not say that it changed what it was to change."""
        ended = self.ended
        if ended.code != 0 or not (errors.is_success(ended.stdout) or errors.is_success(ended.stderr)):
            raise self.failed()


@dataclass(slots=True, kw_only=True)
class VipuCommand:
    """One V-IPU server, asked by running a command for each call."""

    host: str
    port: int
    #: A path, or a name on PATH.
    command: str = "vipu"
    #: Folder of a mounted Secret (`read_credentials`), read for each call; None: the server is not in secure mode.
    credentials: Path | None = None
    create_seconds: float = 300.0
    monotonic: Callable[[], float] = time.monotonic
    runner: Runner = field(default_factory=Runner)
    _agents: Mapping[str, int] = field(default_factory=dict, init=False)
    _agents_read_at: float | None = field(default=None, init=False)

    def list_allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations that this user may use; without a name where the server knows none."""
        answer = self._run(Verb.READ, "list", "allocations")
        if answer.ended.code != 0 and errors.is_unsupported(answer.words()):
            return (Allocation(name=""),)
        listed = answer.parsed(tables.allocations)
        agents = {agent for each, known in listed if each.ipus is None for agent in known}
        return tables.with_ipus(listed, self._ipus_of(agents))

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user sees."""
        return self._run(Verb.READ, "list", "partitions").parsed(tables.partitions)

    def create_partition(self, request: PartitionRequest) -> None:
        """Make a partition, and wait for the answer."""
        options = ["--size", str(request.size)]
        names = [request.id]
        if request.allocation:
            options += ["--allocation", request.allocation]
            names.append(request.allocation)
        if request.reconfigurable:
            options.append("--reconfigurable")
        self._run(Verb.CREATE, "create", "partition", request.id, *options, names=tuple(names)).check_done()

    def remove_partition(self, partition_id: str) -> None:
        """Remove a partition, and wait for the answer."""
        self._run(Verb.REMOVE, "remove", "partition", partition_id, names=(partition_id,)).check_done()

    def ipuof_config(self, partition_id: str) -> str:
        """Return the IPUoF configuration of a partition with one GCD."""
        arguments = ("get", "partition", partition_id, "--gcd", "0", "--ipuof-configs")
        return self._run(Verb.GET, *arguments, names=(partition_id,)).parsed(parse_config)

    def close(self) -> None:
        """Kill the commands that run; they end in failures as any that was killed."""
        self.runner.close()

    def _ipus_of(self, agents: set[str]) -> Mapping[str, int]:
        now = self.monotonic()
        is_recent = self._agents_read_at is not None and now - self._agents_read_at < _AGENTS_KEPT_SECONDS
        if not agents or (is_recent and agents <= self._agents.keys()):
            return self._agents
        # The number of IPUs is worth having, and not worth failing for: without it the server's answers decide.
        with contextlib.suppress(VipuError):
            self._agents = self._run(Verb.READ, "list", "ipu-attrs").parsed(tables.ipus_of_agents)
            self._agents_read_at = now
        return self._agents

    def _run(self, verb: Verb, *arguments: str, names: tuple[str, ...] = ()) -> _Answer:
        """Run the command to its end, or raise VipuError; `names` are those of its arguments that others chose."""
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
                ended = self.runner.run(words, _environment(home), home, seconds=seconds, most_bytes=_MOST_OUTPUT_BYTES)
        except (StartError, ValueError) as error:
            raise VipuError(errors.unsent(str(error)), subject) from None
        except OSError as error:
            raise VipuError(errors.unsent(f"cannot prepare a folder for vipu: {error.strerror}"), subject) from None
        if ended.code is None:
            text = f"vipu did not exit: {ended.cause}. {known.hidden(ended.stderr)}"
            raise VipuError(errors.failure_of(verb, text, whole=False), subject)
        return _Answer(verb=verb, subject=subject, names=names, ended=ended, known=known)


def parse_config(text: str) -> str:
    """Return the JSON that `vipu get partition --ipuof-configs` has printed, behind words. Raises ValueError."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise ValueError(f"the IPUoF configuration has more than {MOST_BYTES} bytes")
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
    """Give a command a folder of its own: a create writes a file into its home that nobody here reads."""
    with tempfile.TemporaryDirectory(prefix="vipu-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        if known.config:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(home / CONFIG_FILE, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(known.config)
        yield home


def _environment(home: Path) -> dict[str, str]:
    """Return what the command is to see of the environment; variables of our own process are none of its business."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
