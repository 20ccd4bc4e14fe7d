"""Types for decoded objects with the lines of their fields, and for findings; functions that search decoded JSON."""

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from provisioner.model import bounds

#: Keys and indexes from the object down to a field.
Path = tuple[str | int, ...]
_MAX_KEY = 80


class Severity(Enum):
    """Consequence of a finding for the object."""

    #: The object or a part of it gets no node pool, usually because the API server or the provisioner rejects it.
    ERROR = "error"
    #: No node pool is planned, and the provisioner reports no problem. Users may intend this.
    NOT_SERVED = "not_served"
    #: The object probably contains a mistake, which does not prevent its node pools.
    WARNING = "warning"
    NOTE = "note"

    @property
    def refused(self) -> bool:
        """Whether the object, or a part of it, gets no node pool."""
        return self in (Severity.ERROR, Severity.NOT_SERVED)


class Document(NamedTuple):
    """Object as decoded JSON, with its source if it was read from a file."""

    #: Decoded JSON. If YAML aliases repeat a value, it is one Python object at several paths.
    value: Any
    #: Name of the file; "-" for standard input, empty if the object was not read from a file.
    source: str = ""
    #: Returns the line of a field, or of its nearest existing parent; 0 if the object was not read from a file.
    line_of: Callable[[Path], int] = lambda _: 0

    @property
    def raw(self) -> dict[str, Any]:
        """The value; empty if the value is not a JSON object."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def line(self) -> int:
        """The object's first line; 0 if the object was not read from a file."""
        return self.line_of(())


class Finding(NamedTuple):
    """Message about an object."""

    document: Document
    #: Path of the field, which may not exist; empty if the message is about the whole object.
    path: Path
    message: str
    severity: Severity
    #: Kind, namespace and name of the object; empty if the message itself names the object.
    subject: str = ""
    #: Reason of the Event with this message; empty without such an Event, or if admission leaves it out.
    reason: str = ""
    #: Name of the group of pods whose slice the message is about; empty if the message is not about one slice.
    group_name: str = ""
    slices: int = 1
    #: Whether admission may deny the object for this finding, for example because Google sells no such slice.
    impossible: bool = False

    @property
    def line(self) -> int:
        """The line of the field; 0 if the object was not read from a file."""
        return self.document.line_of(self.path)

    def __str__(self) -> str:
        times = f" ({self.slices} slices)" if self.slices > 1 else ""
        place = f"{self.document.source}:{self.line}" if self.line else dotted(self.path)
        return ": ".join(filter(None, (place, self.subject, self.reason, f"{self.message}{times}")))


def objects_of(document: Document) -> Iterator[Document]:
    """Yield the items if the document is a Kubernetes list, otherwise the document itself."""
    kind, items = document.raw.get("kind"), document.raw.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield document
        return
    for place, item in enumerate(items):
        yield Document(item, document.source, partial(_line_within, document.line_of, place))


def _line_within(line_of: Callable[[Path], int], index: int, path: Path) -> int:
    return line_of(("items", index, *path))


def mappings_in(value: object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield all JSON objects in a value with their paths, in the order of the text, without copies by YAML aliases."""
    seen: set[int] = set()
    # The stack has one iterator for each level of nesting; an entry for each value would need far more memory.
    todo: list[Iterator[tuple[Path, Any]]] = [iter([((), value)])]
    while todo:
        for path, value_ in todo[-1]:
            if not isinstance(value_, (dict, list)) or id(value_) in seen:
                continue
            seen.add(id(value_))
            if isinstance(value_, dict):
                yield path, value_
            todo.append(_inside(path, value_))
            break
        else:
            todo.pop()


def _inside(path: Path, container: dict[str, Any] | list[Any]) -> Iterator[tuple[Path, Any]]:
    items = container.items() if isinstance(container, dict) else enumerate(container)
    return (((*path, step), child) for step, child in items if isinstance(child, (dict, list)))


def value_at(value: object, path: Path) -> Any:
    """Return the value of a field; None if the field does not exist."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def dotted(path: Path) -> str:
    """Return a path as Kubernetes writes it, such as "spec.containers[0].image"; empty for an empty path."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            key = bounds.cut(step, _MAX_KEY)
            text += f".{key}" if step.isidentifier() else f"[{key}]"
    return text.removeprefix(".")
