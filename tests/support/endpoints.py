"""Endpoints without a server: bodies in, answers out."""

from __future__ import annotations

import asyncio
import time

from provisioner.kube.protocol import Api, Timeouts
from provisioner.kube.reader import Read
from provisioner.runtime.endpoints import Endpoint, Later
from provisioner.runtime.pages import Content


def answer_of(endpoint: Endpoint, body: bytes) -> Content:
    """Return the whole answer to a body."""
    content = endpoint.begin(body, time.perf_counter())
    return asyncio.run(_ended(content)) if isinstance(content, Later) else content


async def _ended(later: Later) -> Content:
    return (await later.wait()).answer()


class Reads:
    """Reads of an `Api`, at once."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def read(self, path: str, timeouts: Timeouts) -> Read:
        """Return one object."""
        found = self._api.get(path, timeouts=timeouts)
        return Read(load=lambda: found)

    def close(self) -> None:
        """Nothing is held."""
