"""Objects, where their fields are written, and what is found of them.

An object is decoded JSON, whoever decoded it. One that was read from a file also has the lines of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from provisioner.model import bounds

#: Keys and indexes from the object down to a field.
Path = tuple[str | int, ...]
#: Kinds that only hold others.
_LIST_SUFFIX = "List"
_MOST_CHARACTERS = 80


class Severity(Enum):
    """What a finding means for the object."""

    #: The API server or the provisioner rejects it, or a part of it: there is no node pool.
    ERROR = "error"
    #: The provisioner leaves it alone and says nothing of it: there is no node pool, which may be meant.
    NOT_SERVED = "not_served"
    #: There is a node pool, and something about it is probably not meant.
    WARNING = "warning"
    NOTE = "note"

    @property
    def refused(self) -> bool:
        """Whether there is no node pool."""
        return self in (Severity.ERROR, Severity.NOT_SERVED)


class Finding(NamedTuple):
    """Something that is said of an object."""

    document: Document
    #: Of the field that it is about, which need not be there; empty: the object as a whole.
    path: Path
    message: str
    severity: Severity
    #: Kind, namespace and name; empty for what the API server rejects in the text of the object.
    subject: str = ""
    #: Of the Event that says so; empty where no Event does.
    reason: str = ""
    #: The slice that it is about; empty where it is about all.
    group_name: str = ""
    slices: int = 1
    #: Nobody's nodes serve it: Google sells none like that, or the object contradicts itself.
    impossible: bool = False

    @property
    def line(self) -> int:
        """The line of the field; 0 where there is no text."""
        return self.document.line_of(self.path)

    @property
    def field(self) -> str:
        """The field as Kubernetes writes it, such as "spec.replicatedJobs[0].replicas"; empty for the object."""
        return dotted(self.path)

    def __str__(self) -> str:
        times = f" ({self.slices} slices)" if self.slices > 1 else ""
        place = f"{self.document.source}:{self.line}" if self.line else self.field
        return ": ".join(filter(None, (place, self.subject, self.reason, f"{self.message}{times}")))


class Document(NamedTuple):
    """One object."""

    #: As decoded; aliases of YAML are one value in several places.
    value: Any
    #: The file; "-" for standard input, empty where it comes from none.
    source: str = ""
    #: The line of a field, or of the nearest one above it that is there; 0 where there is no text.
    line_of: Callable[[Path], int] = lambda _: 0

    @property
    def raw(self) -> dict[str, Any]:
        """The object; empty where it is none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def line(self) -> int:
        """Its first line; 0 where there is no text."""
        return self.line_of(())


def objects_of(document: Document) -> Iterator[Document]:
    """Yield the objects of a document: those of a list, else the one that it is."""
    kind, items = document.raw.get("kind"), document.raw.get("items")
    if not (isinstance(kind, str) and kind.endswith(_LIST_SUFFIX) and isinstance(items, list)):
        yield document
        return
    for place, item in enumerate(items):
        yield Document(item, document.source, partial(_line_within, document.line_of, place))


def _line_within(line_of: Callable[[Path], int], place: int, path: Path) -> int:
    return line_of(("items", place, *path))


def mappings_in(value: object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield all objects in a value with their paths, in the order of the text; what aliases name only once."""
    seen: set[int] = set()
    # One a level, for there may be hundreds of thousands of values.
    todo: list[Iterator[tuple[Path, Any]]] = [iter([((), value)])]
    while todo:
        for path, found in todo[-1]:
            if not isinstance(found, (dict, list)) or id(found) in seen:
                continue
            seen.add(id(found))
            if isinstance(found, dict):
                yield path, found
            todo.append(_inside(path, found))
            break
        else:
            todo.pop()


def _inside(path: Path, found: dict[str, Any] | list[Any]) -> Iterator[tuple[Path, Any]]:
    items = found.items() if isinstance(found, dict) else enumerate(found)
    # Most values are texts, which have nothing in them.
    return (((*path, step), child) for step, child in items if isinstance(child, (dict, list)))


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
            key = bounds.cut(step, _MOST_CHARACTERS)
            text += f".{key}" if step.isidentifier() else f"[{key}]"
    return text.removeprefix(".")
