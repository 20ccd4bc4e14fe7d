"""What tests of the runtime share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from provisioner.runtime import logs


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Leave logging as it was, whatever a test configures."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    libraries = [logging.getLogger(name) for name in logs._CHATTY]
    loggers = structlog.get_config()
    before = [(library.level, library.propagate) for library in libraries]
    yield
    logging.captureWarnings(False)
    structlog.configure(**loggers)
    root.handlers[:] = handlers
    root.setLevel(level)
    for library, (old_level, old_propagate) in zip(libraries, before, strict=True):
        library.setLevel(old_level)
        library.propagate = old_propagate
