"""YAML as kubectl reads it, with lines; hostile texts included."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from provisioner.cli import yamltext
from provisioner.cli.yamltext import read_documents

#: Some texts are as large as the API server takes them, and the machine may be busy.
pytestmark = pytest.mark.timeout(60)


def read(text: str) -> list[Any]:
    """Return the values of all documents; there is nothing wrong with them."""
    documents, problems = read_documents("f", text)
    assert problems == []
    return [each.node.value for each in documents]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("a: 4", {"a": 4}, id="a number"),
        pytest.param('a: "4"', {"a": "4"}, id="a number in quotes"),
        pytest.param("a: !!str 4", {"a": "4"}, id="a number that is tagged as a text"),
        pytest.param("a: 4.5e1", {"a": 45.0}, id="a number with a point"),
        pytest.param("a: 0x1F", {"a": 31}, id="hexadecimal"),
        pytest.param("a: 010", {"a": 8}, id="octal"),
        pytest.param("a: -1_000", {"a": -1000}, id="underscores"),
        pytest.param("a: yes\nb: off\nc: True", {"a": True, "b": False, "c": True}, id="truth values"),
        pytest.param("a:\nb: ~\nc: null", {"a": None, "b": None, "c": None}, id="nothing"),
        pytest.param("a: 2026-01-01\nb: 1:30", {"a": "2026-01-01", "b": "1:30"}, id="dates and times are texts"),
        pytest.param("a: 2x2x2", {"a": "2x2x2"}, id="a topology"),
        pytest.param(f"a: {'9' * 100}", {"a": "9" * 100}, id="more digits than any number has"),
        pytest.param("4: a\ntrue: b", {"4": "a", "true": "b"}, id="keys are texts"),
        pytest.param("c: &a {b: 1}\nd: *a", {"c": {"b": 1}, "d": {"b": 1}}, id="an alias"),
        pytest.param(
            "d: &a {b: 1, c: 2}\ne: {<<: *a, c: 3}", {"d": {"b": 1, "c": 2}, "e": {"b": 1, "c": 3}}, id="a merge"
        ),
        pytest.param('{"a":\n\t"x\\ty"}', {"a": "x\ty"}, id="JSON that is indented by tabs"),
        pytest.param('{"a": "\\ud83d\\ude00 \\ud800"}', {"a": "\U0001f600 �"}, id="JSON's surrogates"),
    ],
)
def test_values(text: str, want: Any) -> None:
    """As kubectl sends them to the API server."""
    assert read(text) == [want]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("a: 1\n\tb: 2", 2, "indent with spaces, not tabs", id="a tab"),
        pytest.param("a: [1,\nb: 3\n", 4, "flow sequence that begins in line 3", id="a bracket that is not closed"),
        pytest.param("a: 1\nb: c: d", 2, "mapping values are not allowed", id="a colon too many"),
        pytest.param("a: 1\n  b: 2", 2, "mapping values are not allowed", id="indented too far"),
        pytest.param("a: 1\nb: 2\na: 3", 3, "key 'a' is there twice, first in line 3", id="a key that comes twice"),
        pytest.param("a: &x\n  b: *x", 2, "inside of what it stands for", id="an alias of itself"),
        pytest.param("a: *x", 1, "names no anchor", id="an alias of nothing"),
        pytest.param("? [a]\n: b", 1, "as a key", id="a list as a key"),
        pytest.param("a: 1\nb: \x00", 2, "U+0000 is not allowed", id="a character that YAML forbids"),
        pytest.param("a:\n" + " [\n" * 20_000, 101, "nested deeper than 100", id="deep nesting"),
        pytest.param("- " * 5_000, 1, "nested deeper than 100", id="deep nesting by indentation"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, words: str) -> None:
    """And the other documents are read all the same."""
    documents, problems = read_documents("f", f"first: 1\n---\n{text}\n---\nlast: 1\n")
    assert [(each.source, each.line) for each in problems] == [("f", line + 2)] or "U+0000" in words
    assert words in problems[0].message
    if "U+0000" not in words:
        assert documents[0].raw == {"first": 1}
        assert documents[-1].raw == {"last": 1}


def test_a_yaml_bomb_is_not_expanded() -> None:
    """Nine to the power of nine texts in ten lines."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    documents, problems = read_documents("f", "\n".join(lines))
    assert documents == []
    assert "its aliases expanded" in problems[0].message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" + "x, " * 60 + "]", id="in a list"),
        pytest.param("\n".join(f"k{n}: 1" for n in range(40)), id="keys and values"),
        pytest.param("a: 1\n---\n" * 30, id="in several documents"),
        pytest.param("a: &a [1, 2]\nb: [" + "*a, " * 60 + "]", id="aliases"),
        pytest.param("a: &a {b: 1, c: 2, d: 3}\ne:\n  <<: [" + "*a, " * 20 + "]", id="merges"),
    ],
)
def test_no_more_values_are_read_than_a_file_of_a_person_has(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes time to read each; here no more than fifty."""
    assert read_documents("f", text)[1] == []
    monkeypatch.setattr(yamltext, "_MOST_VALUES", 50)
    (problem, *_) = read_documents("f", text)[1]
    assert "has more than 50 values; split the file" in problem.message


def test_lines_of_fields_and_of_what_is_not_there() -> None:
    """The nearest field above it."""
    documents, _ = read_documents("f", "# a remark\na:\n  b:\n    - c: 1\n    - &x\n      d: 2\ne: *x\n---\nf: 1\n")
    document, other = documents
    assert document.line == 2
    assert document.line_of(("a", "b", 0, "c")) == 4
    assert document.line_of(("a", "b", 1, "d")) == 6
    assert document.line_of(("a", "b", 7)) == 3
    assert document.line_of(("a", "nothing", "at", "all")) == 2
    assert document.line_of(("e",)) == 7
    assert other.line_of(("f",)) == 9


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("---\n" * 100_000, id="nothing but separators"),
        pytest.param("# remark\n" * 200_000, id="nothing but remarks"),
        pytest.param("%YAML 1.1\n" * 1000, id="nothing but directives"),
        pytest.param("a: " + "x" * 1_500_000, id="one long text"),
        pytest.param("[" + "[]," * 100_000 + "]", id="many lists"),
        pytest.param("a:\n" + "- &x b\n" * 50_000, id="an anchor again and again"),
        pytest.param('"' + "\\" * 100_000, id="backslashes"),
        pytest.param("a: |\n  " + "y\n  " * 100_000, id="a block of many lines"),
        pytest.param("!" * 100_000, id="a tag"),
        pytest.param("{" * 90 + "a: 1" + "}" * 90, id="as deep as is allowed"),
        pytest.param("&a " * 1000, id="anchors of nothing"),
        pytest.param("\n" * 5_000 + "a: '%'\n---\nb: 1\n", id="a percent sign after many empty lines"),
        pytest.param(
            f"a: &a {{{', '.join(f'k{n}: 1' for n in range(5_000))}}}\nb:\n  <<: [{', '.join(['*a'] * 20_000)}]",
            id="one mapping merged again and again",
        ),
        pytest.param("a: 1\r\n" * 50_000, id="thousands of keys that are there twice"),
        pytest.param("? " * 5_000, id="keys of keys"),
        pytest.param("- !!binary x\n" * 50_000, id="tags"),
    ],
)
def test_large_texts_end(text: str) -> None:
    """In time, with documents or with words."""
    documents, problems = read_documents("f", text)
    assert isinstance(documents, list)
    assert all(each.line >= 1 for each in problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-/.", max_size=8), inner, max_size=4),
    max_leaves=20,
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1), JSON, min_size=1))
def test_json_is_yaml(value: dict[str, Any]) -> None:
    """Whatever JSON is read is read as JSON."""
    assert read(json.dumps(value)) == [value]


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`,? \n\t\\<~01.") | st.characters(), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but documents and problems comes of a text, and what it refuses PyYAML or kubectl refuses as well."""
    documents, problems = read_documents("f", text)
    assert all(1 <= each.line <= text.count("\n") + 2 for each in problems)
    for each in documents:
        assert yaml.safe_dump(each.raw) is not None
