"""The IPUoF configuration as the `vipu` command prints it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.partitions.vipu.config import MOST_BYTES, ConfigError, parse

TEXTS = st.text('ab{}[]"\\\n é', max_size=6)
VALUES = st.none() | st.integers() | TEXTS | st.lists(TEXTS, max_size=3) | st.dictionaries(TEXTS, TEXTS, max_size=3)


@given(
    st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3) | st.lists(VALUES, min_size=1, max_size=3),
    st.sampled_from(["", "Partition p1:\n", "Warning: old client\n\nIPUoF configuration:\n"]),
    st.sampled_from([None, 2]),
)
def test_the_document_is_found_behind_the_words_before_it(document: object, words: str, indent: int | None) -> None:
    assert json.loads(parse(words + json.dumps(document, indent=indent))) == document


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no JSON"),
        ("no such thing\n", "there is no JSON"),
        ('{"devices": [', "is not JSON"),
        ('{"devices": []}\n{"devices": []}\n', "is not JSON"),
        ("{}", "is empty"),
        ("[" * 100_000, "is not JSON"),
        ('{"a": "' + "x" * MOST_BYTES + '"}', "more than 1048576 bytes"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text)
