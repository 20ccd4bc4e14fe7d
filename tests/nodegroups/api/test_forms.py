"""A form means the same for the API server and for whoever reads by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.nodegroups.api.checking import Checker
from provisioner.nodegroups.api.forms import Array, Flag, Form, Map, Moment, Rule, Struct, Text, Whole, openapi

TEXT = Text(about="A text.", most=5, pattern="[a-z]+", meaning="a word")


@pytest.mark.parametrize(
    ("form", "want"),
    [
        pytest.param(
            TEXT, {"description": "A text.", "type": "string", "maxLength": 5, "pattern": "^[a-z]+$"}, id="a text"
        ),
        pytest.param(
            Text(about="A.", most=5, least=1, default="x"),
            {"description": "A.", "type": "string", "maxLength": 5, "minLength": 1, "default": "x"},
            id="a text of at least one character, with a default",
        ),
        pytest.param(
            Text(about="A.", choices=("X", "Y")),
            {"description": "A.", "type": "string", "enum": ["X", "Y"]},
            id="a choice",
        ),
        pytest.param(
            Whole(about="A.", least=1, most=9),
            {"description": "A.", "type": "integer", "format": "int32", "minimum": 1, "maximum": 9},
            id="a number",
        ),
        pytest.param(
            Whole(about="A.", most=2**40),
            {"description": "A.", "type": "integer", "format": "int64", "minimum": 0, "maximum": 2**40},
            id="a large number",
        ),
        pytest.param(
            Flag(about="A.", default=False), {"description": "A.", "type": "boolean", "default": False}, id="a flag"
        ),
        pytest.param(Moment(about="A."), {"description": "A.", "type": "string", "format": "date-time"}, id="a time"),
        pytest.param(
            Array(about="A.", items=Flag(about="B."), most=3),
            {"description": "A.", "type": "array", "items": {"description": "B.", "type": "boolean"}, "maxItems": 3},
            id="a list",
        ),
        pytest.param(
            Map(about="A.", values=Text(about="B.", most=2), most=3),
            {
                "description": "A.",
                "type": "object",
                "additionalProperties": {"description": "B.", "type": "string", "maxLength": 2},
                "maxProperties": 3,
            },
            id="a map",
        ),
        pytest.param(
            Struct(
                about="A.",
                fields={"a": Flag(about="B."), "b": Flag(about="C.")},
                required=("a",),
                fixed=("a", "b"),
                rules=(Rule(cel="self.a", message="a must be", holds=lambda value: value["a"], field="a"),),
            ),
            {
                "description": "A.",
                "type": "object",
                "properties": {
                    name: {
                        "description": about,
                        "type": "boolean",
                        "x-kubernetes-validations": [
                            {"rule": "self == oldSelf", "message": f"{name} cannot be changed; make the object anew"}
                        ],
                    }
                    for name, about in (("a", "B."), ("b", "C."))
                },
                "required": ["a"],
                "x-kubernetes-validations": [
                    {"rule": "self.a", "message": "a must be", "fieldPath": ".a"},
                    {
                        "rule": "has(self.b) == has(oldSelf.b)",
                        "message": "b can be neither added nor taken away; make the object anew",
                    },
                ],
            },
            id="an object with rules, one field that may be absent, and none that may change",
        ),
    ],
)
def test_what_the_api_server_is_told(form: Form, want: dict[str, Any]) -> None:
    assert openapi(form) == want


def test_an_object_that_may_not_change_keeps_its_own_rules() -> None:
    rule = Rule(cel="has(self.a)", message="a is needed", holds=lambda value: "a" in value)
    inner = Struct(about="B.", fields={"a": TEXT}, rules=(rule,))
    written = openapi(Struct(about="A.", fields={"b": inner}, required=("b",), fixed=("b",)))
    assert written["properties"]["b"]["x-kubernetes-validations"] == [
        {"rule": "has(self.a)", "message": "a is needed"},
        {"rule": "self == oldSelf", "message": "b cannot be changed; make the object anew"},
    ]


@pytest.mark.parametrize(
    ("form", "raw", "want"),
    [
        pytest.param(TEXT, 5, "spec.f 5 is not a text", id="a number for a text"),
        pytest.param(TEXT, "a b", "spec.f 'a b' is not a word", id="a text of another form"),
        pytest.param(TEXT, "ab\n", "spec.f 'ab\\n' is not a word", id="a line end"),
        pytest.param(
            TEXT, "abcdef", "spec.f 'abcdef' has 6 characters, and at most 5 are read; shorten it", id="too long a text"
        ),
        pytest.param(
            Text(about="A.", least=1, meaning="a name"), "", "spec.f '' is not a name", id="a text that is empty"
        ),
        pytest.param(Text(about="A.", choices=("X", "Y")), "Z", "spec.f 'Z' is none of X, Y", id="none of the choices"),
        pytest.param(Text(about="A.", choices=("X", "Y")), [], "spec.f a list is not a text", id="a list for a choice"),
        pytest.param(Whole(about="A."), "5", "spec.f '5' is not a whole number", id="a text for a number"),
        pytest.param(Whole(about="A."), True, "spec.f True is not a whole number", id="a truth for a number"),
        pytest.param(Whole(about="A."), 1.5, "spec.f 1.5 is not a whole number", id="a fraction"),
        pytest.param(Whole(about="A.", least=1, most=9), 0, "spec.f 0 is not in 1 to 9", id="too small a number"),
        pytest.param(
            Whole(about="A.", least=1, most=9),
            10**5000,
            "spec.f a number of hundreds of digits is not in 1 to 9",
            id="far too large a number",
        ),
        pytest.param(Flag(about="A."), "true", "spec.f 'true' is neither true nor false", id="a text for a truth"),
        pytest.param(Moment(about="A."), "today", "spec.f 'today' is not an RFC 3339 time", id="a day for a time"),
        pytest.param(Array(about="A.", items=TEXT, most=2), {}, "spec.f a dict is not a list", id="no list"),
        pytest.param(
            Array(about="A.", items=TEXT, most=2),
            ["a", "b", "c"],
            "spec.f has 3 entries, and at most 2 are read; use fewer",
            id="too many entries",
        ),
        pytest.param(
            Array(about="A.", items=TEXT, most=2), ["a", 5], "spec.f[1] 5 is not a text", id="one entry is wrong"
        ),
        pytest.param(
            Array(about="A.", items=Struct(about="B.", fields={"k": TEXT}), most=2, key="k"),
            [{"k": "a"}, {"k": "a"}],
            "spec.f has two entries with the same k",
            id="a key twice",
        ),
        pytest.param(Map(about="A.", values=TEXT, most=2), [], "spec.f a list is not an object", id="no map"),
        pytest.param(
            Map(about="A.", values=TEXT, most=1),
            {"a": "b", "c": "d"},
            "spec.f has 2 entries, and at most 1 are read; use fewer",
            id="too many keys",
        ),
        pytest.param(Map(about="A.", values=TEXT, most=2), {"a": 5}, "spec.f[a] 5 is not a text", id="a wrong value"),
        pytest.param(Struct(about="A.", fields={}), "x", "spec.f 'x' is not an object", id="no object"),
        pytest.param(
            Struct(about="A.", fields={"a": TEXT}, required=("a",)), {}, "spec.f.a is missing", id="a field is missing"
        ),
        pytest.param(
            Struct(about="A.", fields={"a": TEXT}, required=("a",)),
            {"a": None},
            "spec.f.a is missing",
            id="null stands for what is missing",
        ),
        pytest.param(
            Struct(
                about="A.",
                fields={"a": TEXT},
                rules=(Rule(cel="", message="a is needed", holds=lambda value: "a" in value),),
            ),
            {},
            "spec.f: a is needed",
            id="a rule is broken",
        ),
    ],
)
def test_what_is_wrong_with_a_value(form: Form, raw: object, want: str) -> None:
    checker = Checker()
    value = checker.checked(Struct(about="All.", fields={"f": form}), {"f": raw}, "spec")
    assert checker.problem == want
    assert value in ({}, {"f": {}}, {"f": ["a"]}, {"f": [{"k": "a"}]})


def test_a_default_stands_for_what_is_absent_or_null() -> None:
    inner = Struct(about="A.", fields={"b": Flag(about="B.", default=True)}, default={})
    form = Struct(about="A.", fields={"a": inner, "c": Text(about="C.", default="x")})
    assert Checker().checked(form, {}, "spec") == {"a": {"b": True}, "c": "x"}
    assert Checker().checked(form, {"a": None, "c": None}, "spec") == {"a": {"b": True}, "c": "x"}
    assert Checker().checked(form, {"a": {"b": False}, "c": ""}, "spec") == {"a": {"b": False}, "c": ""}


def test_rules_are_not_asked_of_what_is_broken_anyway() -> None:
    rule = Rule(cel="", message="never", holds=lambda value: value["a"] == "x")
    form = Struct(about="A.", fields={"a": TEXT}, required=("a",), rules=(rule,))
    checker = Checker()
    checker.checked(form, {"a": 5}, "spec")
    assert checker.problem == "spec.a 5 is not a text"


def test_the_first_problem_is_the_one_that_is_told() -> None:
    form = Struct(about="A.", fields={"a": TEXT, "b": TEXT})
    checker = Checker()
    assert checker.checked(form, {"a": 5, "b": 6}, "spec") == {}
    assert checker.problem == "spec.a 5 is not a text"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.just("a"), inner, max_size=4),
)


@given(ANYTHING)
def test_anything_at_all_is_read(raw: object) -> None:
    inner = Struct(about="A.", fields={"a": TEXT, "b": Map(about="B.", values=TEXT, most=2)}, required=("a",))
    form = Struct(about="A.", fields={"a": Array(about="A.", items=inner, most=2, key="a"), "b": inner})
    value = Checker().checked(form, raw, "spec")
    # What comes out is read again as it is, if it is whole.
    assert Checker().checked(form, value, "spec") == value
