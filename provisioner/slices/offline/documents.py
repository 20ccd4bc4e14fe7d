"""Objects, and where their fields are written.

An object is decoded JSON, whoever decoded it. One that was read from a file also has the lines of its fields.
"""

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
_MOST_CHARACTERS = 80


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A value in a text, and its line; an alias is the same node once more."""

    line: int
    #: JSON: dict, list, str, int, float, bool or None.
    value: Any
    #: By key or index; empty for a scalar.
    children: dict[str, Node] | list[Node] | None = None
    #: The lines of the keys, where they may differ from those of their values.
    key_lines: dict[str, int] | None = None
    #: Characters, all aliases expanded.
    size: int = 1


class Document(NamedTuple):
    """One object."""

    #: As decoded; aliases of YAML are one value in several places.
    value: Any
    #: The file; "-" for standard input, empty where it comes from none.
    source: str = ""
    #: The lines; None where there is no text.
    node: Node | None = None

    @property
    def raw(self) -> dict[str, Any]:
        """The object; empty where it is none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def line(self) -> int:
        """Its first line; 0 where there is no text."""
        return self.node.line if self.node is not None else 0

    @property
    def size(self) -> int:
        """Its characters, all aliases expanded; 0 where there is no text, and whoever decoded it has bounded it."""
        return self.node.size if self.node is not None else 0

    def line_of(self, path: Path) -> int:
        """Return the line of a field, or of the nearest one above it that is there; 0 where there is no text."""
        node, line = self.node, self.line
        for step in path:
            children = node.children if node is not None else None
            if isinstance(children, dict) and isinstance(step, str) and step in children:
                line = ((node and node.key_lines) or {}).get(step, children[step].line)
                node = children[step]
            elif isinstance(children, list) and isinstance(step, int) and step < len(children):
                node = children[step]
                line = node.line
            else:
                return line
        return line


def objects_of(document: Document) -> Iterator[Document]:
    """Yield the objects of a document: those of a list, else the one that it is."""
    kind, items = document.raw.get("kind"), document.raw.get("items")
    if not (isinstance(kind, str) and kind.endswith(_LIST_SUFFIX) and isinstance(items, list)):
        yield document
        return
    fields = document.node.children if document.node is not None else None
    nodes = fields["items"].children if isinstance(fields, dict) else None
    for place, item in enumerate(items):
        yield Document(item, document.source, nodes[place] if isinstance(nodes, list) else None)


def mappings_in(value: object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield all objects in a value with their paths, in the order of the text; what aliases name only once."""
    todo: list[tuple[Path, Any]] = [((), value)] if isinstance(value, (dict, list)) else []
    seen: set[int] = set()
    while todo:
        path, found = todo.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, dict):
            yield path, found
        items = found.items() if isinstance(found, dict) else enumerate(found)
        # Most values are texts, which have nothing in them.
        inner = [((*path, step), child) for step, child in items if isinstance(child, (dict, list))]
        todo += reversed(inner)


def value_at(value: object, path: Path) -> Any:
    """Return the value of a field; None where it is not there."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def dotted(path: Path) -> str:
    """Return a path as Kubernetes writes it: "spec.containers[0].image"; empty for the object itself."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{_cut(step)}" if step.isidentifier() else f"[{_cut(step)}]"
    return text.removeprefix(".")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
