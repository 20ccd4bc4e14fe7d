"""Maps dataclasses to the JSON and to the schema of API objects. Pure.

`Annotated[str, Text(about="...")]` declares a field; a string after the form is its name in JSON, by default the
attribute's name in camel case. The API server has validated all values; another type raises ValueError or TypeError.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from provisioner.kube import fields
from provisioner.model import bounds

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    about: str
    #: Default of an absent field; None if it has no default.
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(_Form):
    """Form of a string."""

    most: int = bounds.OBJECT_NAME
    #: Regular expression for the whole string, without anchors, in syntax common to Go and Python; empty allows any.
    pattern: str = ""
    #: Noun phrase for a string of that pattern, for error messages and docs/node-groups/fields.md.
    meaning: str = ""
    #: The only valid strings; empty if any string is valid.
    choices: tuple[str, ...] = ()
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(_Form):
    """Form of an integer."""

    least: int = 0
    most: int = 2**31 - 1


class Flag(_Form):
    """Form of a boolean."""


class Moment(_Form):
    """Form of a time in RFC 3339."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array(_Form):
    """Form of a list."""

    items: Form
    most: int
    #: Field whose value identifies an item and is unique in the list; empty if items have no such field.
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(_Form):
    """Form of a mapping from strings to strings."""

    values: Text
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition on several fields of an object, which the API server checks."""

    #: Expression in the Common Expression Language; `self` is the object.
    cel: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct(_Form):
    """Form of an object with its own fields."""

    fields: Mapping[str, Form]
    required: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Whether each field is immutable, and cannot be added or removed.
    fixed: bool = False
    #: Whether the object as a whole is immutable.
    all_fixed: bool = False


Form = Text | Whole | Flag | Moment | Array | Map | Struct


def choice(about: str, choices: Iterable[str]) -> Text:
    """Return the form of a string that must be one of `choices`."""
    return Text(about=about, choices=tuple(map(str, choices)))


T = TypeVar("T")

#: Marks an attribute whose fields are inlined: in JSON, they are fields of the containing object.
INLINE = object()
_LARGEST = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    attribute: str
    name: str
    hint: Any
    #: None if the fields of the attribute are inlined (INLINE).
    form: Form | None
    #: Whether an empty value is written. A field whose form has a default is written even if this is False.
    always: bool
    defaulted: bool
    read: Callable[[Any], Any]


_CLASSES: dict[type, Struct] = {}


def declared(
    about: str,
    *,
    required: tuple[str, ...] = (),
    rules: tuple[Rule, ...] = (),
    fixed: bool = False,
    all_fixed: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Declare a dataclass as an object of the API. If `required` is empty, fields without a default are required."""

    def declare(cls: type[T]) -> type[T]:
        _CLASSES[cls] = Struct(about=about, fields={}, required=required, rules=rules, fixed=fixed, all_fixed=all_fixed)
        return cls

    return declare


@functools.cache
def struct_of(cls: type) -> Struct:
    """Return the form of a declared dataclass."""
    whole = _CLASSES[cls]
    found: dict[str, Form] = {}
    required: list[str] = []
    rules = list(whole.rules)
    for part in _parts(cls):
        if part.form is None:
            inner = struct_of(_bare(part.hint))
            found |= inner.fields
            required += inner.required
            rules += inner.rules
        else:
            found[part.name] = part.form
            required += () if part.defaulted else (part.name,)
    return replace(whole, fields=found, required=whole.required or tuple(required), rules=tuple(rules))


def read(cls: Callable[..., T], raw: object) -> T:
    """Read a declared dataclass from JSON. Raises ValueError or TypeError if a value has another type."""
    given = fields.mapping(raw)
    values: dict[str, Any] = {}
    for part in _parts(cls):
        if part.form is None:
            values[part.attribute] = read(_bare(part.hint), given)
        elif given.get(part.name) is not None:
            values[part.attribute] = part.read(given[part.name])
        elif not part.defaulted:
            # Objects that were created under an earlier CRD may lack the field.
            values[part.attribute] = _bare(part.hint)()
    return cls(**values)


def write(record: object) -> Json:
    """Return a record as JSON: fields with their defaults are included, empty fields are left out."""
    written: Json = {}
    for part in _parts(cast("Callable[..., Any]", type(record))):
        value = getattr(record, part.attribute)
        if part.form is None:
            written |= write(value)
        elif value is not None and (value or part.always or part.form.default is not None):
            written[part.name] = _plain(value)
    return written


@functools.cache
def _parts(cls: Callable[..., Any]) -> tuple[_Part, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_part(cls, each, hints[each.name]) for each in dataclasses.fields(cast("Any", cls)))


def _part(cls: Callable[..., Any], each: dataclasses.Field[Any], hint: Any) -> _Part:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    first, *rest = each.name.split("_")
    name = next((mark for mark in marks if isinstance(mark, str)), first + "".join(word.title() for word in rest))
    default = each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default
    form: Form | None = next((mark for mark in marks if isinstance(mark, Form)), None)
    if form is None and INLINE not in marks:
        form = struct_of(_bare(hint))
    if form is not None and default is not dataclasses.MISSING and default and not isinstance(default, tuple):
        form = replace(form, default=_plain(default))
    required = _CLASSES[cast("type", cls)].required
    return _Part(
        attribute=each.name,
        name=name,
        hint=hint,
        form=form,
        always=default is dataclasses.MISSING or name in required,
        defaulted=default is not dataclasses.MISSING,
        read=_reader(hint),
    )


def _bare(hint: Any) -> Any:
    """Return a type without its annotations and without None."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not types.NoneType)
    return hint


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that reads a value of this type from JSON."""
    kind = _bare(hint)
    if get_origin(kind) is tuple:
        entry = _reader(get_args(kind)[0])
        return lambda raw: tuple([entry(each) for each in _typed(list, raw)])
    if get_origin(kind) is Mapping:
        return lambda raw: {_typed(str, key): _typed(str, each) for key, each in _typed(dict, raw).items()}
    if kind is datetime:
        return _moment
    if issubclass(kind, Enum):
        choices = {each.value: each for each in kind}
        return lambda raw: choices.get(_typed(str, raw)) or _refuse(raw, kind)
    if dataclasses.is_dataclass(kind):
        return lambda raw: read(cast("type[Any]", kind), _typed(dict, raw))
    return functools.partial(_typed, kind)


def _typed(kind: type, raw: Any) -> Any:
    if type(raw) is not kind or (isinstance(raw, int) and abs(raw) >= _LARGEST):
        _refuse(raw, kind)
    return raw


def _moment(raw: Any) -> datetime:
    return fields.parse_timestamp(raw) or _refuse(raw, datetime)


def _refuse(raw: Any, kind: type) -> NoReturn:
    raise ValueError(f"{fields.shown(raw)} is no {kind.__name__}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, datetime):
        return fields.format_time(value)
    # A StrEnum becomes a plain string, as in JSON that was read.
    return str(value) if isinstance(value, str) else value
