"""What a field of the API can hold: its documentation and bounds, which the API server checks.

A field is declared once, by an annotated field of a dataclass (`declared`). `openapi` writes its form for a
CustomResourceDefinition, `provisioner.nodegroups.api.codec` reads and writes the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from provisioner.model import bounds

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text."""

    about: str
    most: int = bounds.OBJECT_NAME
    #: The whole text's form in the syntax that Go and Python share, without anchors; empty for any.
    pattern: str = ""
    #: What a text of that form is, for docs/node-group-fields.md: "a zone such as us-central1-c".
    meaning: str = ""
    #: The only texts that are valid; empty for any.
    choices: tuple[str, ...] = ()
    least: int = 0
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number."""

    about: str
    least: int = 0
    most: int = 2**31 - 1
    default: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """True or false."""

    about: str
    default: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time as RFC 3339 has it."""

    about: str
    default: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A list of alike."""

    about: str
    items: Form
    most: int
    #: The field that is different in each; empty for none.
    key: str = ""
    default: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Texts by name."""

    about: str
    values: Text
    most: int
    default: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Something that must hold of several fields together."""

    #: In the Common Expression Language, of `self`.
    cel: str
    message: str
    #: The field that is wrong where one is.
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """An object with fields of its own."""

    about: str
    fields: Mapping[str, Form]
    required: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Whether each field stays as it is, and absent where it is absent.
    fixed: bool = False
    #: Whether all of it stays as it is.
    all_fixed: bool = False
    default: Mapping[str, Any] | None = field(default=None)


Form = Text | Whole | Flag | Moment | Array | Map | Struct


def choice(about: str, choices: Iterable[str]) -> Text:
    """Return the form of one of a few texts."""
    return Text(about=about, choices=tuple(map(str, choices)))


def openapi(form: Form) -> Json:
    """Return the structural schema of a form."""
    written: Json = {"description": form.about, **_constraints(form)}
    if form.default is not None:
        written["default"] = dict(form.default) if isinstance(form.default, Mapping) else form.default
    return written


def _constraints(form: Form) -> Json:
    match form:
        case Text():
            return _text(form)
        case Whole():
            width = "int32" if form.most < 2**31 else "int64"
            return {"type": "integer", "format": width, "minimum": form.least, "maximum": form.most}
        case Flag():
            return {"type": "boolean"}
        case Moment():
            return {"type": "string", "format": "date-time"}
        case Array():
            return _array(form)
        case Map():
            return {"type": "object", "additionalProperties": openapi(form.values), "maxProperties": form.most}
        case Struct():
            return _struct(form)
    assert_never(form)


def _text(form: Text) -> Json:
    if form.choices:
        return {"type": "string", "enum": list(form.choices)}
    written: Json = {"type": "string", "maxLength": form.most}
    if form.least:
        written["minLength"] = form.least
    if form.pattern:
        written["pattern"] = f"^{form.pattern}$"
    return written


def _array(form: Array) -> Json:
    written: Json = {"type": "array", "items": openapi(form.items), "maxItems": form.most}
    if form.key:
        written |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [form.key]}
    return written


def _struct(form: Struct) -> Json:
    properties = {name: openapi(each) for name, each in form.fields.items()}
    for name in form.fields if form.fixed else ():
        stays = {"rule": "self == oldSelf", "message": f"{name} cannot be changed; make the object anew"}
        properties[name].setdefault("x-kubernetes-validations", []).append(stays)
    written: Json = {"type": "object", "properties": properties}
    if form.required:
        written["required"] = list(form.required)
    validations = [_rule(rule) for rule in form.rules] + list(_of_changes(form))
    if validations:
        written["x-kubernetes-validations"] = validations
    return written


def _rule(rule: Rule) -> Json:
    written = {"rule": rule.cel, "message": rule.message}
    return written | ({"fieldPath": f".{rule.field}"} if rule.field else {})


def _of_changes(form: Struct) -> Iterator[Json]:
    if form.all_fixed:
        yield {"rule": "self == oldSelf", "message": "spec cannot be changed; make the object anew"}
    # A rule of a field itself is not asked when the field comes or goes.
    loose = [name for name, each in form.fields.items() if name not in form.required and each.default is None]
    if loose and form.fixed:
        yield {
            "rule": " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in loose),
            "message": f"{', '.join(loose)} can be neither added nor taken away; make the object anew",
        }
