"""Tests that the recording in the README shows the output of the current commands, and is valid SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.docs import recording
from tests.docs.shell import ROOT

#: Long time-out, because some commands import Google's libraries.
pytestmark = pytest.mark.timeout(60)


def test_recording_shows_the_output_of_the_commands() -> None:
    """If this test fails after a change of the output, run `make docs`."""
    assert recording.FILE.read_text(encoding="utf-8") == recording.draw(list(recording.scenes()))


def test_recording_is_valid_and_comes_before_the_first_command_of_the_readme() -> None:
    root = ET.fromstring(recording.FILE.read_text(encoding="utf-8"))
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    place = readme.find(f"]({recording.FILE.relative_to(ROOT).as_posix()})")
    assert -1 < place < readme.index("```bash")


def test_recording_that_is_too_long_or_too_high_is_rejected() -> None:
    with pytest.raises(ValueError, match="more than 30"):
        recording.draw([recording.Scene("a", "b", 31)])
    with pytest.raises(ValueError, match="do not fit"):
        recording.draw([recording.Scene("a", "b\n" * 40, 1)])
