"""Stand-ins for Go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.localcluster import GoHome


@pytest.fixture
def go_home(tmp_path: Path) -> GoHome:
    """Give a home without anything in it."""
    return GoHome(root=tmp_path)
