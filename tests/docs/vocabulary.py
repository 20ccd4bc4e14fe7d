"""What the controller's code may say to people, read from its source: log lines, readiness, reasons, alerts."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from provisioner import constants
from provisioner.nodegroups.planning import events as node_group_events
from provisioner.partitions.planning import events as partition_events

_PACKAGE = Path(__file__).parents[2] / "provisioner"
_LEVELS = frozenset({"warning", "error", "exception", "critical"})
#: Where the lines of /readyz and /healthz are worded, and by what they get there: names that are assigned, and
#: functions that are called with them.
_READINESS = {
    "runtime/status.py": ({"text"}, {"stopped"}),
    "runtime/resources.py": (set[str](), {"_BUSY"}),
    "admission/files.py": (set[str](), {"_DATED"}),
    "webhook/app.py": (set[str](), {"_STOPPED"}),
    "nodegroups/observe.py": (set[str](), {"problem"}),
    "partitions/observe.py": (set[str](), {"problem"}),
    "slices/observe.py": (set[str](), {"problem"}),
    "kube/reflector.py": ({"_set_problem", "_absent", "_fruitless"}, {"problem"}),
    "kube/watches.py": (set[str](), {"problem"}),
    "slices/suppliers/gke/identity_check.py": ({"_set_problem"}, {"problem", "doubt"}),
}
#: Lines of a function that says what is wrong.
_WORDED_BY = {
    "kube/watches.py": {"doubt_of"},
    "nodegroups/observe.py": {"doubt"},
    "partitions/observe.py": {"doubt"},
    "slices/suppliers/gke/identity_check.py": {"autopilot_refusal"},
    "webhook/app.py": {"problems"},
}
#: In place of what is filled in.
_GAP = "\0"
#: Where readiness may come from: `Loop.problems`, and what is assigned to its field.
READINESS_SOURCES = {
    "not_synced(self.watches)",
    "self._problems",
    "()",
    "(self.identity.problem,) if self.identity.problem else ()",
    "(self.pools.problem,) if self.pools.problem else ()",
}


@functools.cache
def _sources() -> dict[str, str]:
    return {file.relative_to(_PACKAGE).as_posix(): file.read_text("utf-8") for file in _PACKAGE.rglob("*.py")}


@functools.cache
def _tree(file: str) -> ast.Module:
    return ast.parse(_sources()[file])


def _trees(having: str = "") -> Iterator[ast.Module]:
    """Yield the trees of the files whose text has something: to parse and walk through all takes a second or two."""
    return (_tree(file) for file, text in _sources().items() if having in text)


def pattern_of(node: ast.expr) -> str | None:
    """Return the regular expression of a text; None for what is no text with words of its own."""
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=values):
            parts = [re.escape(str(each.value)) if isinstance(each, ast.Constant) else ".+" for each in values]
            return "".join(parts) if any(isinstance(each, ast.Constant) for each in values) else None
        case _:
            return None


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the patterns of all texts in an expression, parts of texts left out."""
    if isinstance(node, ast.expr) and (pattern := pattern_of(node)) is not None:
        yield pattern
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


@functools.cache
def log_events() -> set[str]:
    """Patterns of the events that are logged as a warning or an error, directly or by an alias of the method."""
    found: set[str] = set()
    for tree in _trees("_log."):
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            aliases = {
                target.id
                for each in ast.walk(function)
                if isinstance(each, ast.Assign) and any(map(_is_loud, ast.walk(each.value)))
                for target in each.targets
                if isinstance(target, ast.Name)
            }
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and call.args and (_is_loud(call.func) or _is_one_of(call.func, aliases)):
                    found |= set(_texts(call.args[0]))
    return found


def _is_loud(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in _LEVELS
        and isinstance(node.value, ast.Name)
        and node.value.id == "_log"
    )


def _is_one_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def readiness_lines() -> set[str]:
    """Patterns of the lines that /readyz and /healthz may answer, other than `ok`."""
    found: set[str] = set()
    for file, (calls, names) in _READINESS.items():
        for node in ast.walk(_tree(file)):
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if name in calls:
                    found |= _problem(first)
                case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value) if name in names:
                    found |= _problem(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in names:
                    found |= _problem(value)
                case ast.FunctionDef(name=name) if name in _WORDED_BY.get(file, ()):
                    for each in ast.walk(node):
                        if isinstance(each, ast.Return) and each.value is not None:
                            found |= _problem(each.value)
    return found - {"", "ok"}


def _problem(value: ast.expr) -> set[str]:
    # Without the end of the line.
    return {pattern.removesuffix(re.escape("\n")) for pattern in _texts(value)}


def readiness_sources() -> set[str]:
    """List the expressions that become readiness in `slices/loop.py`."""
    found: set[str] = set()
    for node in ast.walk(_tree("slices/loop.py")):
        match node:
            case ast.FunctionDef(name="problems", body=[*_, ast.Return(value=ast.Tuple(elts=parts))]):
                found |= {ast.unparse(part.value if isinstance(part, ast.Starred) else part) for part in parts}
            case ast.Assign(targets=[ast.Attribute(attr="_problems")], value=value):
                found.add(ast.unparse(value))
    return found


@functools.cache
def alert_kinds() -> set[str]:
    """List the kinds of alerts that are made."""
    return {
        str(keyword.value.value) if isinstance(keyword.value, ast.Constant) else ast.unparse(keyword.value)
        for tree in _trees("Alert(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Alert"
        for keyword in node.keywords
        if keyword.arg == "kind"
    }


def event_reasons() -> set[str]:
    """List the reasons of Events: constants of two words or more, each with a capital, and those of other products."""
    of_pools = {
        value
        for name, value in vars(constants).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch(r"([A-Z]+[a-z]+){2,}[A-Za-z]*", value)
    }
    of_others = {
        value
        for module in (node_group_events, partition_events)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    return of_pools | of_others - {node_group_events.API_VERSION} | set(map(str, node_group_events.WARNED_OF))


def literal_reasons() -> set[str]:
    """List reasons of Events that are no constants: there must be none, or nobody would find them."""
    return {
        ast.unparse(keyword.value)
        for tree in _trees('reason="')
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "reason"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
        and re.fullmatch(r"[A-Z][A-Za-z]+", keyword.value.value)
    }


def matched(patterns: Sequence[str], text: str) -> list[str]:
    """Return the patterns that a text matches as a whole."""
    return [pattern for pattern in patterns if re.fullmatch(pattern, text)]


@functools.cache
def words() -> str:
    """Return all texts of the code, a gap where something is filled in; those with underscores with spaces, too."""
    lines = []
    for tree in _trees():
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)):
                    lines.append(text)
                case ast.JoinedStr(values=values):
                    parts = [str(each.value) if isinstance(each, ast.Constant) else _GAP for each in values]
                    lines.append("".join(parts))
    return "\n".join([*lines, *(line.replace("_", " ") for line in lines)])
