"""The pictures of docs are what their texts say, and the one of the architecture names what is there."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from provisioner.slices.planning.memory.state import Phase

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "provisioner"
_DIAGRAM = runpy.run_path(str(_ROOT / "docs" / "diagram.py"))
_SOURCES: tuple[Path, ...] = _DIAGRAM["SOURCES"]


@pytest.mark.parametrize("source", _SOURCES, ids=lambda source: source.name)
def test_the_picture_is_what_its_text_makes(source: Path) -> None:
    """Whoever changes the text runs `make docs`."""
    made = _DIAGRAM["draw"](source.read_text(encoding="utf-8"))
    assert made == source.with_suffix(".svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", _SOURCES, ids=lambda source: source.name)
def test_each_picture_is_on_a_page(source: Path) -> None:
    """Otherwise nobody sees it."""
    pages = (page.read_text("utf-8") for page in (_ROOT / "docs").glob("*.md"))
    assert any(f"]({source.with_suffix('.svg').name})" in page for page in pages)


def test_every_file_and_folder_in_the_picture_is_there() -> None:
    """A picture that names what was moved is worse than none."""
    words = " ".join(ET.parse(_ROOT / "docs" / "architecture.svg").getroot().itertext())
    named = re.findall(r"[a-z_]+/(?:[a-z_]+(?:/|\.py))?", words)
    assert len(named) >= 10
    for name in named:
        assert (_PACKAGE / name).exists() or (_PACKAGE / "slices" / name).exists(), name


def test_the_life_of_a_slice_is_that_of_the_code() -> None:
    """Each phase is drawn."""
    text = (_ROOT / "docs" / "slice-life.txt").read_text(encoding="utf-8")
    drawn = set(re.findall(r"(?m)^(?:box|step) +(\w+)", text))
    assert drawn == {phase.value for phase in Phase} | {"pending"}
