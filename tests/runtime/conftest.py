"""Servers with small apps for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Serve, servers


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts servers, which are stopped after the test."""
    with servers() as start:
        yield start
