"""Endpoints without a server: bodies in, answers out."""

from __future__ import annotations

import time

from provisioner.runtime.endpoints import Endpoint
from provisioner.runtime.pages import Content


def answer_of(endpoint: Endpoint, body: bytes) -> Content:
    """Return the whole answer to a body."""
    content = endpoint.begin(body, time.perf_counter())
    return content() if callable(content) else content
