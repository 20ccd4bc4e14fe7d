"""Which Host headers are answered: against DNS rebinding, by which a hostile web page reads what its visitor can reach.

A browser that such a page leads astray sends the page's own name, which is a public one with dots. Addresses, names
without dots and names of the cluster's own DNS are no such names.
"""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

#: Services, and GKE's DNS endpoint of a control plane: the API server's proxy hands on the Host that it was called by.
_SUFFIXES = (".svc", ".svc.cluster.local", ".gke.goog")
_PORT = re.compile(r":[0-9]*$")
_REJECTED = (
    "this server does not answer to the name in the Host header; use an IP address, localhost (kubectl port-forward) "
    "or NAME.NAMESPACE.svc, and have a reverse proxy set Host to the Service's name\n"
)


class KnownHosts:
    """Answers 421 to requests for hosts that are not this server."""

    def __init__(self, app: ASGIApp) -> None:
        """Hand all other requests to `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        app = self._app
        if not is_known(Headers(scope=scope).get("host", "")):
            app = PlainTextResponse(_REJECTED, 421)
        await app(scope, receive, send)


def is_known(host: str) -> bool:
    """Whether a Host header, with or without a port, names this server; one that is empty comes from no browser."""
    name = _PORT.sub("", host).lower().removesuffix(".")
    return not {".", ":"} & set(name) or _is_address(name) or name.endswith(_SUFFIXES)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
