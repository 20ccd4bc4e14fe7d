"""Servers with small apps for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Serve, servers


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start
