"""docs/node-group-fields.md says what the definitions say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A test starts Python.
pytestmark = pytest.mark.timeout(60)

_ROOT = Path(__file__).parents[2]


def test_the_page_of_node_groups_is_what_the_definitions_make() -> None:
    """Whoever changes a field runs `make docs`."""
    made = subprocess.run(
        [sys.executable, str(_ROOT / "docs" / "node_group_table.py")],
        # Of this checkout, whatever the virtual environment has installed.
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert made.stdout == (_ROOT / "docs" / "node-group-fields.md").read_text(encoding="utf-8")
