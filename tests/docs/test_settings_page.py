"""docs/settings.md says what the code says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A test starts Python.
pytestmark = pytest.mark.timeout(60)

_ROOT = Path(__file__).parents[2]


def test_the_page_of_settings_is_what_the_options_make() -> None:
    """Whoever changes an option runs `make docs`."""
    made = subprocess.run(
        [sys.executable, str(_ROOT / "docs" / "settings_table.py")],
        # Of this checkout, whatever the virtual environment has installed.
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert made.stdout == (_ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
