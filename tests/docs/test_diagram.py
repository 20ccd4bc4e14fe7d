"""Tests that the pictures in docs name existing paths and phases."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from provisioner.slices.planning.memory.state import Phase

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "provisioner"


def test_every_path_in_the_picture_exists() -> None:
    words = " ".join(ET.parse(_ROOT / "docs" / "develop" / "architecture.svg").getroot().itertext())
    named = re.findall(r"[a-z_]+/(?:[a-z_]+(?:/|\.py))?", words)
    assert len(named) >= 10
    for name in named:
        assert _has_code(_PACKAGE / name) or _has_code(_PACKAGE / "slices" / name), name


def _has_code(path: Path) -> bool:
    """Return whether a file exists, or a folder with Python files; a cache of compiled modules does not count."""
    return path.is_file() or any(path.glob("*.py"))


def test_phases_in_the_picture_are_those_of_the_code() -> None:
    text = (_ROOT / "docs" / "slice-life.txt").read_text(encoding="utf-8")
    drawn = set(re.findall(r"(?m)^(?:box|step) +(\w+)", text))
    assert drawn == {phase.value for phase in Phase} | {"pending"}
