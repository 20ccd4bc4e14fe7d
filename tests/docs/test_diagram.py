"""docs/architecture.svg is what its text says, and names what is there."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "provisioner"


def test_the_picture_is_what_its_text_makes() -> None:
    """Whoever changes the text runs `make docs`."""
    made = subprocess.run(
        [sys.executable, str(_ROOT / "docs" / "diagram.py")], check=True, capture_output=True, text=True
    )
    assert made.stdout == (_ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")


def test_every_file_and_folder_in_the_picture_is_there() -> None:
    """A picture that names what was moved is worse than none."""
    words = " ".join(ET.parse(_ROOT / "docs" / "architecture.svg").getroot().itertext())
    named = re.findall(r"[a-z_]+/(?:[a-z_]+(?:/|\.py))?", words)
    assert len(named) >= 10
    for name in named:
        assert (_PACKAGE / name).exists() or (_PACKAGE / "slices" / name).exists(), name
