"""Calls of one VM to a Kubernetes API server, over its own connection, with its own trust and credentials.

No retries, no caches. Not thread-safe.
"""

from __future__ import annotations

import http.client
import json
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class GuestError(Exception):
    """A step did not succeed; the guest retries it later."""


class JoinError(GuestError):
    """An attempt to join failed; the text is like that of kubeadm or the startup script."""


class ServerError(GuestError):
    """The API server rejected a call or could not be reached; in the latter case `status` is 0."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}" if status else text)
        self.status = status


_TIMEOUT_SECONDS = 10.0
JSON = "application/json"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Address of an API server, its certificate authorities (empty to trust any), and the caller's credentials."""

    host: str
    port: int
    authority_pem: str = ""
    token: str = field(default="", repr=False)
    certificate_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)


class Client(Protocol):
    """Interface of a guest's connection."""

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content_type: str = JSON
    ) -> dict[str, Any]:
        """Make one call and return the body of its response. Raises ServerError."""

    def close(self) -> None:
        """Close the connection."""


class HttpsClient:
    """One connection, which is opened for the first call."""

    def __init__(self, access: Access) -> None:
        self._headers = {"Accept": JSON, "User-Agent": "simulated-kubelet"}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._connection = http.client.HTTPSConnection(
            access.host, access.port, context=_context(access), timeout=_TIMEOUT_SECONDS
        )

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content_type: str = JSON
    ) -> dict[str, Any]:
        """Make one call and return the body of its response. Raises ServerError."""
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            self._connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
            response = self._connection.getresponse()
            answer = json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise ServerError(0, f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict) or response.status >= http.HTTPStatus.MULTIPLE_CHOICES:
            message = answer.get("message", "") if isinstance(answer, dict) else ""
            raise ServerError(response.status, message or "no reason given")
        return answer

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._connection.close()


def _context(access: Access) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.authority_pem:
        context.load_verify_locations(cadata=access.authority_pem)
    else:
        # Like kubeadm, read cluster-info from an unverified server, because its signature verifies the content.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if access.certificate_pem:
        # Python's ssl module reads client certificates only from files.
        with tempfile.TemporaryDirectory(prefix="simulated-kubelet-") as folder:
            pair = Path(folder) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(access.certificate_pem + access.key_pem)
            context.load_cert_chain(pair)
    return context
