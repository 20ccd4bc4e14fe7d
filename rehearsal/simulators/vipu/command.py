"""A `vipu` command with verbs and options of the real command, which calls a simulated server.

Known features of the real command that are simulated: the verbs and options below; the configuration file in HCL, and
environment variables with the names of the options; a create writes a file into ~/.ipuof.conf.d; a configuration is
preceded by a line of text unless one GCD is requested. Possibly stricter than the real command: it rejects a
configuration file with an access key that other users can read, and options that a verb does not use.

Columns and lines of the printed tables follow public examples of the real command: "list partitions" in the READMEs of
graphcore/examples, "list allocations" and "list ipu-attrs" in the chapter on allocations of Graphcore's V-IPU User
Guide.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

_VERSION = "1.18.0"
_DEFAULT_PORT = "8090"
_CONNECTION_OPTIONS = ("api-host", "api-port", "api-user-id", "api-access-key")
_SETTING = re.compile(r'\s*([a-z-]+)\s*=\s*"([^"]*)"\s*')
_OPTIONS_OF = {
    ("list", "partitions"): (),
    ("list", "allocations"): (),
    ("list", "ipu-attrs"): (),
    ("get", "partition"): ("gcd", "ipu_configs", "ipuof_configs"),
    ("create", "partition"): ("size", "allocation", "cluster", "reconfigurable"),
    ("remove", "partition"): (),
}
_LONGEST_SECONDS = 3600


_IPU_ATTRIBUTES = (("board ipu index", ""), ("board type", "M2000"), ("clock", "1330MHz"))


def render(header: Sequence[str], rows: Sequence[Sequence[str]], *, rule_first: bool) -> str:
    """Return a table; with `rule_first`, a line of dashes is above the header as well."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        (" " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in [header, *rows]
    ]
    rule = "-" * (sum(widths) + 3 * len(widths))
    return "\n".join([*([rule] if rule_first else []), lines[0], rule, *lines[1:], rule]) + "\n"


def partitions(listed: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of partitions."""
    allocation = ["Allocation"] if any("allocation" in item for item in listed) else []
    header = ["Partition", *allocation, "Cluster", "ILDs", "GW Routing", "ILD Routing", "Size", "GCDs", "State"]
    rows = [
        [
            item["id"],
            *([item["allocation"]] if allocation else []),
            item["cluster"],
            "1",
            "DEFAULT",
            "RINGSWNC",
            str(item["size"]),
            "1",
            item["state"],
        ]
        for item in listed
    ]
    return render(header, rows, rule_first=False)


def allocations(listed: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of allocations."""
    rows = [[item["name"], " ".join(item["agents"])] for item in listed]
    return render(["Allocation ID", "Agents"], rows, rule_first=True)


def ipu_attributes(ipus: Sequence[Sequence[Any]]) -> str:
    """Return the table of attributes of IPUs, which are given as agent and index. Repeated cells are empty."""
    rows: list[list[str]] = []
    before = ""
    for agent, index in ipus:
        for number, (attribute, value) in enumerate(_IPU_ATTRIBUTES):
            shown_agent = agent if number == 0 and agent != before else ""
            shown_index = str(index) if number == 0 else ""
            rows.append([shown_agent, shown_index, attribute, value or str(index)])
        before = agent
    return render(["Agent", "IPU", "Attribute", "Value"], rows, rule_first=False)


class _FailedError(Exception):
    """The command ends with an error; the text is the message for the user."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _FailedError(message)


def _parser() -> _Parser:
    parser = _Parser(prog="vipu", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--config")
    parser.add_argument("-H", "--api-host")
    parser.add_argument("--api-port")
    parser.add_argument("--api-user-id")
    parser.add_argument("--api-access-key")
    parser.add_argument("--server-version", action="store_true")
    parser.add_argument("--size", type=int)
    parser.add_argument("--allocation")
    parser.add_argument("--cluster")
    parser.add_argument("--reconfigurable", action="store_true", default=None)
    parser.add_argument("--gcd", type=int)
    parser.add_argument("--ipu-configs", action="store_true", default=None)
    parser.add_argument("--ipuof-configs", action="store_true", default=None)
    return parser


class _Connection:
    def __init__(self, options: argparse.Namespace, environment: Mapping[str, str]) -> None:
        found = _settings_of(options.config)
        for name in _CONNECTION_OPTIONS:
            variable = environment.get("VIPU_CLI_" + name.replace("-", "_").upper())
            given = getattr(options, name.replace("-", "_"))
            found[name] = given or variable or found.get(name, "")
        if not found["api-host"]:
            raise _FailedError("no V-IPU server: api-host is not set")
        self.host, self.port = found["api-host"], found["api-port"] or _DEFAULT_PORT
        self._headers = {"x-user-id": found["api-user-id"], "x-access-key": found["api-access-key"]}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the body of the response. Raises _FailedError with the message that the command prints."""
        try:
            sent = None if body is None else json.dumps(body)
            port = int(self.port)
            with contextlib.closing(
                http.client.HTTPConnection(self.host, port, timeout=_LONGEST_SECONDS)
            ) as connection:
                connection.request(method, path, body=sent, headers=self._headers)
                answer = connection.getresponse()
                status, raw = answer.status, answer.read()
        except ConnectionRefusedError as error:
            words = f"connection error: desc = dial tcp {self.host}:{self.port}: connect: connection refused"
            raise _FailedError(_status("Unavailable", words)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _FailedError(_status("Unavailable", "transport is closing")) from error
        try:
            read: dict[str, Any] = json.loads(raw)
        except ValueError as error:
            raise _FailedError(_status("Internal", "malformed answer")) from error
        if status != http.client.OK:
            raise _FailedError(_status(read.get("code", ""), read.get("message", "")))
        return read


def _status(code: str, words: str) -> str:
    return f"rpc error: code = {code} desc = {words}" if code else words


def _settings_of(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        mode, text = stat.S_IMODE(Path(path).stat().st_mode), Path(path).read_text("utf-8")
    except OSError as error:
        raise _FailedError(f"cannot read the configuration file: {error.strerror}") from error
    found = {}
    for line in text.splitlines():
        match = _SETTING.fullmatch(line)
        if match is not None:
            found[match[1]] = match[2]
        elif line.strip():
            raise _FailedError("cannot read the configuration file: invalid HCL")
    if "api-access-key" in found and mode & 0o077:
        raise _FailedError("the configuration file can be read by others")
    return found


def run(
    arguments: Sequence[str], environment: Mapping[str, str], stdout: TextIO | None = None, stderr: TextIO | None = None
) -> int:
    """Run the command and return its exit code."""
    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    doing = ""
    try:
        options = _parser().parse_intermixed_args(list(arguments))
        verb, name = _verb_of(options)
        doing = " ".join(verb) + (f" ({name})" if name else "")
        connection = _Connection(options, environment)
        if not verb:
            stdout.write(f"version: v{_VERSION}\nhost: {connection.host}:{connection.port}\n")
            return 0
        output = _act(verb, name, options, connection)
        _leave_file(verb, name, environment)
        stdout.write(output)
    except _FailedError as error:
        stderr.write(f"{doing}: failed: {error}\n" if doing else f"Error: {error}\n")
        return 1
    return 0


def _verb_of(options: argparse.Namespace) -> tuple[tuple[str, ...], str]:
    words = options.words
    if options.server_version:
        return (), ""
    verb = (words[0], words[1]) if len(words) > 1 else ("", "")
    if verb not in _OPTIONS_OF:
        raise _FailedError(f'unknown command "{" ".join(words)}" for "vipu"')
    wanted = 2 if verb[0] == "list" else 3
    if len(words) != wanted:
        raise _FailedError(f"accepts {wanted - 2} arg(s), received {len(words) - 2}")
    known = {option for group in _OPTIONS_OF.values() for option in group}
    for option in sorted(known - set(_OPTIONS_OF[verb])):
        if getattr(options, option) is not None:
            raise _FailedError(f"unknown flag: --{option.replace('_', '-')}")
    return verb, "" if wanted == 2 else words[2]


def _act(verb: tuple[str, ...], name: str, options: argparse.Namespace, connection: _Connection) -> str:
    path = f"/v1/partitions/{name}"
    match verb:
        case "list", "partitions":
            answer = connection.ask("GET", "/v1/partitions")
            return partitions(answer["partitions"])
        case "list", "allocations":
            answer = connection.ask("GET", "/v1/allocations")
            return allocations(answer["allocations"])
        case "list", _:
            answer = connection.ask("GET", "/v1/ipus")
            return ipu_attributes(answer["ipus"])
        case "get", _:
            answer = connection.ask("GET", path)
            shown = json.dumps(answer["config"], indent=2) + "\n"
            return shown if options.gcd is not None else f"IPUoF configuration of {name}:\n{shown}"
        case "create", _:
            answer = connection.ask("POST", "/v1/partitions", _asked(name, options))
        case _:
            answer = connection.ask("DELETE", path)
    if not answer["done"]:
        raise _FailedError(_status("DeadlineExceeded", "context deadline exceeded"))
    return f"{verb[0]} partition ({name}): success.\n"


def _asked(name: str, options: argparse.Namespace) -> dict[str, Any]:
    if options.size is None:
        raise _FailedError('required flag(s) "size" not set')
    return {
        "id": name,
        "size": options.size,
        "allocation": options.allocation or "",
        "cluster": options.cluster or "",
        "reconfigurable": bool(options.reconfigurable),
    }


def _leave_file(verb: tuple[str, ...], name: str, environment: Mapping[str, str]) -> None:
    folder = Path(environment.get("HOME") or "/") / ".ipuof.conf.d"
    try:
        if verb[0] == "create":
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.conf").write_text("{}\n", "utf-8")
        elif verb[0] == "remove":
            (folder / f"{name}.conf").unlink(missing_ok=True)
    except OSError as error:
        raise _FailedError(f"cannot write the IPUoF configuration file: {error.strerror}") from error


def install(folder: Path) -> Path:
    """Write an executable `vipu` into a folder; return its path. It starts this interpreter without site-packages."""
    package_root = Path(__file__).parents[3]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vipu"
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import sys\n"
        f"sys.path.insert(0, {str(package_root)!r})\n"
        "from rehearsal.simulators.vipu.__main__ import main\n"
        "main()\n",
        "utf-8",
    )
    path.chmod(0o755)
    return path
