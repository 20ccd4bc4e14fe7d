"""Fixture with a simulated Go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.localcluster import GoHome


@pytest.fixture
def go_home(tmp_path: Path) -> GoHome:
    """Return an empty home directory for a simulated Go."""
    return GoHome(root=tmp_path)
