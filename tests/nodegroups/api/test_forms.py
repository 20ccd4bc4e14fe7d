"""What the API server is told of a form."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.nodegroups.api.codec import Array, Flag, Form, Map, Moment, Rule, Struct, Text, Whole
from provisioner.nodegroups.api.crds import openapi

TEXT = Text(about="A text.", most=5, pattern="[a-z]+")


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
                fixed=True,
                rules=(Rule(cel="self.a", message="a must be", field="a"),),
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
    rule = Rule(cel="has(self.a)", message="a is needed")
    inner = Struct(about="B.", fields={"a": TEXT}, rules=(rule,))
    written = openapi(Struct(about="A.", fields={"b": inner}, required=("b",), fixed=True))
    assert written["properties"]["b"]["x-kubernetes-validations"] == [
        {"rule": "has(self.a)", "message": "a is needed"},
        {"rule": "self == oldSelf", "message": "b cannot be changed; make the object anew"},
    ]
