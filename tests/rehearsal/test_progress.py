"""Tests of the progress of a build on a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from rehearsal.commands.progress import ProgressLine

BUILD = [
    "building 2 programs from source, once: etcd, kwok",
    "building etcd (1/2) ...",
    "building etcd (1/2): 80 packages compiled, 10 s so far",
    "building etcd (1/2): done in 20 s",
    "building kwok (2/2) ...",
    "the API server answers",
]


class Terminal(io.StringIO):
    """Stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO) -> list[str]:
    return [line.rpartition("\r\x1b[K")[2] for line in stream.getvalue().split("\n")]


def test_terminal_has_one_line_for_the_whole_build() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    for text in BUILD:
        line.show(text, prefix="1.0 s  ")
    assert shown(stream) == [
        "1.0 s  building 2 programs from source, once: etcd, kwok",
        "1.0 s  the API server answers",
        "",
    ]


def test_step_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer step would continue in the next row, which the sequence that erases a line does not erase."""
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    line = ProgressLine(stream)
    line.show(BUILD[2])
    assert len(shown(stream)[0]) < 20
    line.close()
    assert shown(stream) == [""]


def test_log_has_a_line_for_each_program_without_repetitions() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    for text in BUILD:
        line.show(text)
    line.close()
    assert stream.getvalue().splitlines() == [text for text in BUILD if "so far" not in text]
