"""Failures that last are told once."""

from __future__ import annotations

from provisioner.runtime import repeats
from provisioner.runtime.repeats import Lasting


def test_a_failure_is_told_once_until_its_words_change_or_it_ends() -> None:
    """And whoever succeeds learns whether it failed before."""
    lasting, told = Lasting(), []
    for words in ("away", "away", "refused", "refused"):
        lasting.fails("read", words, lambda words=words: told.append(words))
    assert told == ["away", "refused"]
    assert lasting.ended("read")
    assert not lasting.ended("read")
    lasting.fails("read", "refused", lambda: told.append("again"))
    assert told == ["away", "refused", "again"]


def test_so_many_are_remembered() -> None:
    """Of more, the one that failed longest ago is told again."""
    lasting, told = Lasting(), []
    for number in range(repeats._MOST_LASTING + 1):
        lasting.fails(str(number), "away", lambda: None)
    lasting.fails("0", "away", lambda: told.append("first"))
    lasting.fails(str(repeats._MOST_LASTING), "away", lambda: told.append("last"))
    assert told == ["first"]
