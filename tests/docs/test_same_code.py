"""Tests of the command that proves that a commit changes only comments and docstrings."""

from __future__ import annotations

import pytest

from tests.support.same_code import code_of

SOURCE = '''"""Module."""
LIMIT = 3  # Pods for each host.


def test_limit() -> None:
    """The limit is positive."""
    assert LIMIT > 0
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('"""Module."""\n', '"""Another text\n\nof several lines."""\n', id="docstring of the module"),
        pytest.param('"""Module."""\n', "", id="docstring removed"),
        pytest.param("# Pods for each host.", "# Maximum number of pods.", id="comment"),
        pytest.param("assert LIMIT > 0", "assert (\n        LIMIT > 0\n    )", id="line breaks"),
        pytest.param("    assert LIMIT > 0\n", "    assert LIMIT > 0\n    pass\n", id="empty statement"),
    ],
)
def test_code_is_the_same_without_comments_and_docstrings(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_of(SOURCE.replace(old, new)) == code_of(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("LIMIT = 3", "LIMIT = 4", id="value"),
        pytest.param("assert LIMIT > 0", 'assert LIMIT > 0, "text"', id="text that is no docstring"),
        pytest.param("def test_limit", "def test_bound", id="name of a test"),
    ],
)
def test_change_of_code_is_found(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_of(SOURCE.replace(old, new)) != code_of(SOURCE)


def test_names_of_tests_may_differ_on_request() -> None:
    renamed = SOURCE.replace("def test_limit", "def test_bound")
    assert code_of(renamed, renames=True) == code_of(SOURCE, renames=True)
    assert code_of(SOURCE.replace("LIMIT", "BOUND"), renames=True) != code_of(SOURCE, renames=True)
