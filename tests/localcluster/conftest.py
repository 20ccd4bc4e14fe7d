"""Fixture with a home directory for a fake `go`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.localcluster import GoHome


@pytest.fixture
def go_home(tmp_path: Path) -> GoHome:
    return GoHome(root=tmp_path)
