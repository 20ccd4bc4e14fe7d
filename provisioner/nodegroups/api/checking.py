"""Read raw JSON by the forms of the API: total, bounded, and with a sentence for what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import assert_never

from provisioner.kube import fields
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.nodegroups.api.forms import Array, Flag, Form, Json, Map, Moment, Struct, Text, Whole

#: Stands for a value that is not taken.
_NOTHING = object()


class Checker:
    """Reads raw JSON by forms; `problem` is the first thing that is wrong, empty for none."""

    def __init__(self) -> None:
        self.problem = ""

    def checked(self, form: Struct, raw: object, where: str) -> Json:
        """Return what is valid of an object, with defaults; whatever else is in it is left out, and noted."""
        return fields.mapping(self._struct(form, fields.mapping(raw), where))

    def _value(self, form: Form, raw: object, where: str) -> object:
        match form:
            case Text():
                return self._text(form, raw, where)
            case Whole():
                return self._whole(form, raw, where)
            case Flag():
                return raw if isinstance(raw, bool) else self._wrong(where, raw, "neither true nor false")
            case Moment():
                return parse_timestamp(raw) or self._wrong(where, raw, "not an RFC 3339 time")
            case Array():
                return self._array(form, raw, where)
            case Map():
                return self._map(form, raw, where)
            case Struct():
                return self._struct(form, raw, where)
        assert_never(form)

    def _refuse(self, problem: str) -> object:
        self.problem = self.problem or problem
        return _NOTHING

    def _wrong(self, where: str, raw: object, why: str) -> object:
        return self._refuse(f"{where} {fields.shown(raw)} is {why}")

    def _text(self, form: Text, raw: object, where: str) -> object:
        if not isinstance(raw, str):
            return self._wrong(where, raw, "not a text")
        if form.choices:
            return raw if raw in form.choices else self._wrong(where, raw, f"none of {', '.join(form.choices)}")
        if len(raw) > form.most:
            return self._refuse(bounds.too_long(where, raw, form.most))
        if len(raw) < form.least or (form.pattern and not re.fullmatch(form.pattern, raw)):
            return self._refuse(f"{where} {bounds.quoted(raw)} is not {form.meaning}")
        return raw

    def _whole(self, form: Whole, raw: object, where: str) -> object:
        if isinstance(raw, bool) or not isinstance(raw, int):
            return self._wrong(where, raw, "not a whole number")
        return raw if form.least <= raw <= form.most else self._wrong(where, raw, f"not in {form.least} to {form.most}")

    def _array(self, form: Array, raw: object, where: str) -> object:
        if not isinstance(raw, list):
            return self._wrong(where, raw, "not a list")
        if len(raw) > form.most:
            return self._refuse(f"{where} {bounds.too_many('entries', len(raw), form.most)}")
        values = [self._value(form.items, each, f"{where}[{index}]") for index, each in enumerate(raw)]
        kept = [value for value in values if value is not _NOTHING]
        if not form.key:
            return kept
        by_key: dict[object, object] = {}
        for value in kept:
            by_key.setdefault(fields.mapping(value).get(form.key), value)
        if len(by_key) < len(kept):
            self._refuse(f"{where} has two entries with the same {form.key}")
        return list(by_key.values())

    def _map(self, form: Map, raw: object, where: str) -> object:
        if not isinstance(raw, dict):
            return self._wrong(where, raw, "not an object")
        if len(raw) > form.most:
            return self._refuse(f"{where} {bounds.too_many('entries', len(raw), form.most)}")
        values = {
            key: self._value(form.values, value, f"{where}[{bounds.cut(key)}]")
            for key, value in raw.items()
            if isinstance(key, str)
        }
        return {key: value for key, value in values.items() if value is not _NOTHING}

    def _struct(self, form: Struct, raw: object, where: str) -> object:
        if not isinstance(raw, dict):
            return self._wrong(where, raw, "not an object")
        found: Json = {}
        sound = True
        for name, each in form.fields.items():
            given = raw[name] if raw.get(name) is not None else each.default
            if given is not None:
                value = self._value(each, dict(given) if isinstance(given, Mapping) else given, f"{where}.{name}")
                sound = sound and value is not _NOTHING
                found |= {name: value} if value is not _NOTHING else {}
            elif name in form.required:
                self._refuse(f"{where}.{name} is missing")
                sound = False
        # Rules are about objects whose fields are valid.
        broken = next((rule for rule in form.rules if sound and not rule.holds(found)), None)
        if broken is not None:
            self._refuse(f"{where}: {broken.message}")
        return found
