"""YAML and its line numbers, read as kubectl reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.cli.manifests import read_documents
from provisioner.slices.offline.documents import objects_of

#: Long time-out, because Hypothesis can take more than the default time on a busy machine.
pytestmark = pytest.mark.timeout(60)


def read(text: str | bytes) -> list[Any]:
    documents, problems = read_documents("f", text)
    assert problems == []
    return [document.value for document in documents]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param('a: 4\nb: "4"\nc: !!str 4', {"a": 4, "b": "4", "c": "4"}, id="numbers and texts"),
        pytest.param("a: 4.5e+1\nb: 0x1F\nc: 010", {"a": 45.0, "b": 31, "c": 8}, id="other forms of numbers"),
        pytest.param("a: yes\nb: off\nc: True", {"a": True, "b": False, "c": True}, id="truth values"),
        pytest.param("a:\nb: ~\nc: null", {"a": None, "b": None, "c": None}, id="nothing"),
        pytest.param("a: 2026-01-01\nb: 1:30\nc: 1:30.5", {"a": "2026-01-01", "b": "1:30", "c": "1:30.5"}, id="times"),
        pytest.param("a: 2x2x2", {"a": "2x2x2"}, id="a topology"),
        pytest.param("4: a\ntrue: b", {"4": "a", "true": "b"}, id="keys are texts"),
        pytest.param("c: &a {b: 1}\nd: *a", {"c": {"b": 1}, "d": {"b": 1}}, id="an alias"),
        pytest.param(
            "d: &a {b: 1, c: 2}\ne:\n  <<: *a\n  c: 3", {"d": {"b": 1, "c": 2}, "e": {"b": 1, "c": 3}}, id="a merge"
        ),
        pytest.param('{"a":\n\t"x\\ty"}', {"a": "x\ty"}, id="JSON that is indented by tabs"),
        pytest.param("a: é".encode("utf-16"), {"a": "é"}, id="UTF-16"),
        pytest.param("\ufeffa: é", {"a": "é"}, id="a byte order mark"),
    ],
)
def test_values_are_read_as_kubectl_reads_them(text: str | bytes, want: Any) -> None:
    assert read(text) == [want]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("a: 1\n\t- b: 2", 2, "tab", id="a tab"),
        pytest.param("a: [1,\nb: 3\n", 4, "flow sequence that begins in line 3", id="a bracket that is not closed"),
        pytest.param("a: 1\nb: c: d", 2, "mapping values are not allowed", id="a colon too many"),
        pytest.param("a: 1\nb: 2\na: 3", 3, "key 'a' occurs twice, first in line 3", id="a key that comes twice"),
        pytest.param("a: *x", 1, "undefined alias", id="an alias of nothing"),
        pytest.param("? [a]\n: b", 1, "a key is a mapping or a list", id="a list as a key"),
        pytest.param(f"a: {'9' * 5000}", -2, "is not YAML", id="more digits than Python reads"),
    ],
)
def test_invalid_yaml_is_reported_with_its_line_if_known(text: str, line: int, words: str) -> None:
    documents, problems = read_documents("f", f"first: 1\n---\n{text}\n---\nlast: 1\n")
    assert [(problem.source, problem.line) for problem in problems] == [("f", line + 2)]
    assert words in problems[0].message
    assert [document.raw for document in documents] == [{"first": 1}]


@pytest.mark.parametrize("content", [b"a: 1\nb: \x00", b"a: 1\nb: \xff"], ids=["a control character", "no UTF-8"])
def test_manifest_with_invalid_characters_is_reported_with_its_line(content: bytes) -> None:
    documents, [problem] = read_documents("f", content)
    assert (documents, problem.line) == ([], 2)
    assert "is not YAML: " in problem.message


def test_a_yaml_bomb_is_not_expanded() -> None:
    """Aliases in nine lines represent 9 to the power of 9 texts; each alias must remain one value."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    [found] = read("\n".join(lines))
    assert found["i"][0] is found["i"][8]


def test_missing_field_has_the_line_of_its_nearest_parent() -> None:
    documents, _ = read_documents("f", "# a remark\na:\n  b:\n    - c: 1\n    - &x\n      d: 2\ne: *x\n---\nf: 1\n")
    document, other = documents
    assert document.line == 2
    assert document.line_of(("a", "b", 0, "c")) == 4
    assert document.line_of(("a", "b", 1, "d")) == 6
    assert document.line_of(("a", "b", 7)) == 3
    assert document.line_of(("a", "nothing", "at", "all")) == 2
    assert document.line_of(("e",)) == 7
    assert other.line_of(("f",)) == 9


def test_items_of_a_list_have_their_lines_in_the_file() -> None:
    [document], _ = read_documents("f", "kind: List\nitems:\n- a: 1\n- b:\n    c: 2\n")
    first, second = objects_of(document)
    assert (first.line, second.line, second.line_of(("b", "c"))) == (3, 4, 5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-/.", max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc", min_size=1), JSON, min_size=1))
def test_json_is_read_as_yaml(value: dict[str, Any]) -> None:
    assert read(json.dumps(value, ensure_ascii=False)) == [value]


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`,? \n\t\\<~01.") | st.characters(), max_size=60))
def test_any_text_gives_documents_or_problems(text: str) -> None:
    documents, problems = read_documents("f", text)
    assert isinstance(documents, list)
    assert all(0 <= problem.line <= text.count("\n") + 2 for problem in problems)
