"""What is written as YAML is read as what it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provisioner.cli.yamltext import read_documents
from provisioner.cli.yamlwriting import yaml_of

#: What a text of YAML may have in it: letters that have no place there cannot have been read.
_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], include_characters="\n\t"), max_size=12)
_WORDS = st.sampled_from(["y", "N", "on", "1e3", "0o17", "0b1", "+.5", ".5e3", "1_0", "~", "", "null", "0x1F", "1:30"])
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Words first: they are what goes wrong.
    | _WORDS
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | _TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100)
@given(values=st.lists(st.dictionaries(_TEXTS, _VALUES, min_size=1, max_size=3), min_size=1, max_size=3))
@example(values=[{"a": " x\n y\n"}, {"a": "\n"}, {"a": "x \n\n"}, {"a": "\tx\n"}, {"a": "---\n"}, {"a": "# x\n"}])
@example(values=[{"y": "y", "1e3": "1e3", "a": ["on", ["x"], {}]}])
def test_what_is_written_is_read_as_it_was(values: list[dict[str, Any]]):
    found, problems = read_documents("a.yaml", yaml_of(values))
    assert not problems
    assert [each.value for each in found] == values


@pytest.mark.parametrize("text", ["y", "No", "1e3", "0o17", "+.5"])
def test_texts_that_kubectl_would_take_for_something_else_are_quoted(text: str):
    assert yaml_of([{"a": text}]) == f"a: '{text}'\n"


def test_values_in_several_places_are_written_in_each():
    shared = {"b": 1}
    assert yaml_of([{"c": shared, "d": shared}]) == "c:\n  b: 1\nd:\n  b: 1\n"
