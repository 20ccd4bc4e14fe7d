"""docs/api.md says what the API serves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.slices import api

#: A test starts Python.
pytestmark = pytest.mark.timeout(60)

_ROOT = Path(__file__).parents[2]


def test_the_page_of_the_api_is_what_the_types_make() -> None:
    """Whoever changes a type runs `make docs`; each type and each field has its meaning."""
    made = subprocess.run(
        [sys.executable, str(_ROOT / "docs" / "api_table.py")],
        # Of this checkout, whatever the virtual environment has installed.
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    page = (_ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert made.stdout == page
    described = api.description()
    assert [name for name in described["components"]["schemas"] if f"## `{name}`" not in page] == []
    assert [path for path in described["paths"] if f"`{path}`" not in page] == []
