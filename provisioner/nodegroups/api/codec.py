"""Converts JSON of API objects to dataclasses and back. Names in JSON are camel case, unless `Annotated` has one."""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from provisioner.kube import fields

Json = dict[str, Any]
T = TypeVar("T")

#: Marks an attribute whose fields are inlined: in JSON, they are fields of the containing object.
INLINE = object()
_LARGEST = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A field of a dataclass, with its form in JSON."""

    attribute: str
    name: str
    kind: Any
    inlined: bool
    required: bool
    #: Whether an empty value is written, because an absent field is invalid or gets a default that is not empty.
    always: bool
    read: Callable[[Any], Any]


def read(cls: Callable[..., T], raw: object) -> T:
    """Read a dataclass. Raises ValueError if a value is invalid, TypeError if a required enum is missing."""
    given = fields.mapping(raw)
    values: dict[str, Any] = {}
    for part in parts_of(cls):
        if part.inlined:
            values[part.attribute] = read(part.kind, given)
        elif given.get(part.name) is not None:
            values[part.attribute] = part.read(given[part.name])
        elif part.required:
            # Objects that were created under an earlier CRD may lack a required field, which is then empty.
            values[part.attribute] = part.kind()
    return cls(**values)


def write(record: object) -> Json:
    """Return a record as JSON. Omits the value None and, unless `Part.always` is true, empty values, 0 and False."""
    written: Json = {}
    for part in parts_of(cast("Callable[..., Any]", type(record))):
        value = getattr(record, part.attribute)
        if part.inlined:
            written |= write(value)
        elif value is not None and (value or part.always):
            written[part.name] = _plain(value)
    return written


@functools.cache
def parts_of(cls: Callable[..., Any]) -> tuple[Part, ...]:
    """Return the fields of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_part(field_, hints[field_.name]) for field_ in dataclasses.fields(cast("Any", cls)))


def _part(field_: dataclasses.Field[Any], hint: Any) -> Part:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    first, *rest = field_.name.split("_")
    name = next((mark for mark in marks if isinstance(mark, str)), first + "".join(word.title() for word in rest))
    required = field_.default is dataclasses.MISSING and field_.default_factory is dataclasses.MISSING
    return Part(
        attribute=field_.name,
        name=name,
        kind=_bare(hint),
        inlined=INLINE in marks,
        required=required,
        always=required or (field_.default is not dataclasses.MISSING and bool(field_.default)),
        read=_reader(hint),
    )


def _bare(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return next(arg for arg in get_args(hint) if arg is not types.NoneType)
    return hint


def _reader(hint: Any) -> Callable[[Any], Any]:
    kind = _bare(hint)
    if get_origin(kind) is tuple:
        entry = _reader(get_args(kind)[0])
        return lambda raw: tuple([entry(item) for item in _typed(list, raw)])
    if get_origin(kind) is Mapping:
        return lambda raw: {_typed(str, key): _typed(str, value) for key, value in _typed(dict, raw).items()}
    if kind is datetime:
        return lambda raw: fields.parse_timestamp(raw) or _refuse(raw, datetime)
    if issubclass(kind, Enum):
        choices = {choice.value: choice for choice in kind}
        return lambda raw: choices.get(_typed(str, raw)) or _refuse(raw, kind)
    if dataclasses.is_dataclass(kind):
        return lambda raw: read(cast("type[Any]", kind), _typed(dict, raw))
    return functools.partial(_typed, kind)


def _typed(kind: type, raw: Any) -> Any:
    if type(raw) is not kind or (isinstance(raw, int) and abs(raw) >= _LARGEST):
        _refuse(raw, kind)
    return raw


def _refuse(raw: Any, kind: type) -> NoReturn:
    raise ValueError(f"{fields.shown(raw)} is no {kind.__name__}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, datetime):
        return fields.format_time(value)
    # A StrEnum becomes a plain string, as in JSON that was read.
    return str(value) if isinstance(value, str) else value
