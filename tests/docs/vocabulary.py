"""Reads texts that users see from the source of the controllers: log lines, reasons and messages."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from provisioner.nodegroups.planning import events as node_group_events
from provisioner.partitions.planning import events as partition_events
from provisioner.slices.messages.notices import EventReason

_PACKAGE = Path(__file__).parents[2] / "provisioner"
_LEVELS = frozenset({"warning", "error", "exception", "critical"})
#: Character that replaces an inserted value in a text.
_GAP = "\0"


@functools.cache
def _sources() -> dict[str, str]:
    return {file.relative_to(_PACKAGE).as_posix(): file.read_text("utf-8") for file in _PACKAGE.rglob("*.py")}


@functools.cache
def _tree(file: str) -> ast.Module:
    return ast.parse(_sources()[file])


def _trees(having: str = "") -> Iterator[ast.Module]:
    """Yield the syntax trees of the files that contain a text. Parsing all files would take a second or two."""
    return (_tree(file) for file, text in _sources().items() if having in text)


def pattern_of(node: ast.expr) -> str | None:
    """Return a regular expression for a text; None if the expression contains no constant text."""
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=values):
            parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in values]
            return "".join(parts) if any(isinstance(part, ast.Constant) for part in values) else None
        case _:
            return None


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the patterns of all texts in an expression, but not of parts of f-strings."""
    if isinstance(node, ast.expr) and (pattern := pattern_of(node)) is not None:
        yield pattern
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


@functools.cache
def log_events() -> set[str]:
    """Return patterns of events that are logged as warnings or errors, also by an alias of a logging method."""
    found: set[str] = set()
    for tree in _trees("_log."):
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            aliases = {
                target.id
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and any(map(_is_loud, ast.walk(node.value)))
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and call.args and (_is_loud(call.func) or _is_one_of(call.func, aliases)):
                    found |= set(_texts(call.args[0]))
    for tree in _trees("failed_event="):
        for argument in ast.walk(tree):
            if isinstance(argument, ast.keyword) and argument.arg == "failed_event":
                found |= set(_texts(argument.value))
    return found


def _is_loud(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in _LEVELS
        and isinstance(node.value, ast.Name)
        # `log` is a logger that is bound to one object, such as a node group.
        and node.value.id in ("_log", "log")
    )


def _is_one_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def reasons_of_slices() -> set[str]:
    return {value for name, value in vars(EventReason).items() if name.isupper()}


def event_reasons() -> set[str]:
    of_others = {
        value
        for module in (node_group_events, partition_events)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    return reasons_of_slices() | of_others - {node_group_events.API_VERSION}


def literal_reasons() -> set[str]:
    """Return reasons of Events that are literals. None are allowed, because the tests would not find them."""
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


@functools.cache
def words() -> str:
    """Return all texts in the code, each also with spaces instead of underscores."""
    lines = []
    for tree in _trees():
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)):
                    lines.append(text)
                case ast.JoinedStr(values=values):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else _GAP for part in values]
                    lines.append("".join(parts))
    return "\n".join([*lines, *(line.replace("_", " ") for line in lines)])
