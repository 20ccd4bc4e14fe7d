"""Manifests, with the line of each field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Keys and indexes from the object down to a field.
Path = tuple[str | int, ...]
#: The API server takes no larger request.
MOST_BYTES = 3 * 1024 * 1024
#: Kinds that only hold others.
_LIST_SUFFIX = "List"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Node:
    """A value and its line; an alias is the same node once more."""

    line: int
    #: JSON: dict, list, str, int, float, bool or None.
    value: Any
    #: By key or index; empty for a scalar.
    children: dict[str, Node] | list[Node] | None = None
    #: The lines of the keys, where they may differ from those of their values.
    key_lines: dict[str, int] | None = None
    #: Characters, all aliases expanded.
    size: int = 1


class Problem(NamedTuple):
    """Something that is wrong with a file or a line of it."""

    source: str
    #: From 1; 0 for the file as a whole.
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.message}" if self.line else f"{self.source}: {self.message}"


class Document(NamedTuple):
    """One object of a manifest."""

    #: The file; "-" for standard input.
    source: str
    node: Node

    @property
    def raw(self) -> dict[str, Any]:
        """The object; empty where it is none."""
        return self.node.value if isinstance(self.node.value, dict) else {}

    @property
    def line(self) -> int:
        """Its first line."""
        return self.node.line

    def line_of(self, path: Path) -> int:
        """Return the line of a field, or of the nearest one above it that is there."""
        node, line = self.node, self.node.line
        for step in path:
            children = node.children
            if isinstance(children, dict) and isinstance(step, str) and step in children:
                line = (node.key_lines or {}).get(step, children[step].line)
                node = children[step]
            elif isinstance(children, list) and isinstance(step, int) and step < len(children):
                node = children[step]
                line = node.line
            else:
                return line
        return line

    def problem(self, message: str, path: Path = ()) -> Problem:
        """Return what is wrong with a field."""
        return Problem(source=self.source, line=self.line_of(path), message=message)


def objects_of(document: Document) -> Iterator[Document]:
    """Yield the objects of a document: those of a list, else the one that it is."""
    kind, items = document.raw.get("kind"), document.node.children
    listed = items.get("items") if isinstance(items, dict) else None
    is_list = isinstance(kind, str) and kind.endswith(_LIST_SUFFIX) and isinstance(document.raw.get("items"), list)
    if not is_list or listed is None or not isinstance(listed.children, list):
        yield document
        return
    for node in listed.children:
        yield Document(source=document.source, node=node)


def walk(document: Document) -> Iterator[tuple[Path, Node]]:
    """Yield all fields with their nodes; what aliases name only once."""
    todo: list[tuple[Path, Node]] = [((), document.node)]
    seen: set[int] = set()
    while todo:
        path, node = todo.pop()
        yield path, node
        if node.children is None or id(node) in seen:
            continue
        seen.add(id(node))
        items = node.children.items() if isinstance(node.children, dict) else enumerate(node.children)
        todo += [((*path, step), child) for step, child in items]
