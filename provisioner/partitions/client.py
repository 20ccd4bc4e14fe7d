"""Client in the init container of a pod: polls the API until the pod's partition is active.

The client gives up after a final status (`_FINAL`), after 401 for 300 s, or when `patience_seconds` would be exceeded.
The HTTP modules are imported in `sender`, so that `--help` starts faster.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provisioner.partitions import names

#: Time-out of a request in seconds; the API responds within 30 s.
_TIMEOUT_SECONDS = 40.0
#: Minimum of `patience_seconds`.
_SHORTEST_SECONDS = 1.0
_LONGEST_ANSWER = 1024 * 1024
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 30.0
#: Maximum seconds of a Retry-After header. Higher values are reduced to this.
_LONGEST_RETRY_AFTER_SECONDS = 120.0
#: Time in seconds for which status 401 is retried: the kubelet may replace the token, or a new token is accepted late.
_UNAUTHORIZED_SECONDS = 300.0
#: Minimum interval in seconds between two prints of an unchanged message.
_SAY_SECONDS = 60.0
#: Mode of the file with the configuration: every container of the pod may read the file, as any user.
_MODE = 0o644
_FINAL = frozenset({400, 403, 404, 405, 409, 410, 413, 415, 422})


class NotServed(Exception):  # noqa: N818 - it names the pod
    """The API's response counts as final, so the client gives up."""


class GaveUp(Exception):  # noqa: N818 - the name says what the client did
    """The client received no configuration within `patience_seconds`."""


class Unreachable(Exception):  # noqa: N818 - the name says that the server is unreachable
    """A request could not be sent, or got no complete response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Response to one request."""

    status: int
    retry_after: str = ""
    body: bytes = b""

    def json(self) -> Mapping[str, Any]:
        """Return the body as a JSON object, empty if it is not one."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


#: Arguments: token, body, time-out in seconds. Raises Unreachable unless the whole response arrives in time.
Send = Callable[[str, bytes, float], Reply]


@dataclass(slots=True, kw_only=True)
class Client:
    """Polls the API until the partition of one pod is active."""

    #: Request body: namespace, pod, uid, size.
    asked: Mapping[str, Any]
    send: Send
    #: Reads the token. Called for each request, because the kubelet replaces the token. Raises OSError.
    token: Callable[[], str]
    say: Callable[[str], None]
    #: Returns a random number from 0 to 1.
    chance: Callable[[], float]
    sleep: Callable[[float], object] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    #: Time in seconds after which the client gives up; None for no limit.
    patience_seconds: float | None = None
    _failures: int = field(default=0, init=False)
    _unauthorized_since: float | None = field(default=None, init=False)
    _said: tuple[str, float] = field(default=("", float("-inf")), init=False)

    def fetch(self) -> str:
        """Return the IPUoF configuration; block until it is available. Raises NotServed or GaveUp."""
        patience = inf if self.patience_seconds is None else max(self.patience_seconds, _SHORTEST_SECONDS)
        until = self.monotonic() + patience
        body = json.dumps(self.asked).encode()
        while True:
            why, wait_seconds = "", 0.0
            try:
                reply = self.send(self.token(), body, min(_TIMEOUT_SECONDS, until - self.monotonic()))
            except (Unreachable, OSError) as error:
                why, wait_seconds = str(error), self._back_off()
            else:
                outcome = self._take(reply)
                if isinstance(outcome, str):
                    return outcome
                why, wait_seconds = outcome
            self._tell(why)
            if self.monotonic() + wait_seconds >= until:
                raise GaveUp(f"there is no partition after {self.patience_seconds:g} s: {why}")
            self.sleep(wait_seconds)

    def _take(self, reply: Reply) -> str | tuple[str, float]:
        """Return the configuration, or the reason to wait and the wait in seconds. Raises NotServed."""
        body = reply.json()
        text = str(body.get("error") or body.get("message") or f"the answer was {reply.status}")
        if reply.status == 401:
            now = self.monotonic()
            since = self._unauthorized_since = self._unauthorized_since or now
            if now - since >= _UNAUTHORIZED_SECONDS:
                raise NotServed(text)
        else:
            self._unauthorized_since = None
        if reply.status in _FINAL:
            raise NotServed(text)
        if reply.status == 200 and body.get("config"):
            return json.dumps(body["config"], indent=1) + "\n"
        if reply.status == 202:
            # Status 202 is no failure, so the next back-off begins with its first wait.
            self._failures = 0
        return text, self._retry_after(reply)

    def _retry_after(self, reply: Reply) -> float:
        """Return the wait in seconds: Retry-After plus up to 50 % at random; without a valid header, the back-off."""
        text = reply.retry_after
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            return self._back_off()
        return min(float(text), _LONGEST_RETRY_AFTER_SECONDS) * (1.0 + self.chance() / 2)

    def _back_off(self) -> float:
        most = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return most * (0.5 + self.chance() / 2)

    def _tell(self, why: str) -> None:
        last, at = self._said
        now = self.monotonic()
        if why != last or now - at >= _SAY_SECONDS:
            self.say(why)
            self._said = (why, now)


def sender(server: str, ca_file: str | None = None) -> Send:
    """Return a `Send` for the API at a URL. With https, `ca_file` or the system's authorities verify the server."""
    import http.client  # noqa: PLC0415 - see the module's docstring
    import socket  # noqa: PLC0415
    import ssl  # noqa: PLC0415
    import threading  # noqa: PLC0415

    parts = urlsplit(server)
    host, port = parts.hostname or "", parts.port

    def connect(seconds: float) -> http.client.HTTPConnection:
        if parts.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=seconds)
        try:
            # The file is read for each request, because the kubelet replaces it when the authority changes.
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise Unreachable(f"the authorities in {ca_file} cannot be read: {error}") from error
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)

    def exchange(connection: http.client.HTTPConnection, token: str, body: bytes) -> Reply:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request("POST", names.ROOT, body, headers)
            answer = connection.getresponse()
            return Reply(
                status=answer.status, retry_after=answer.getheader("Retry-After", ""), body=answer.read(_LONGEST_ANSWER)
            )
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(f"the certificate of {server} is not trusted: {error.verify_message}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Causes are an unknown host name, a reset connection, a response that is not HTTP, or an invalid token.
            raise Unreachable(f"{server} does not answer: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()

    def send(token: str, body: bytes, seconds: float) -> Reply:
        connection = connect(seconds)
        outcomes: list[Reply | Exception] = []

        def run() -> None:
            try:
                outcomes.append(exchange(connection, token, body))
            except Exception as error:  # noqa: BLE001 - it is raised below
                outcomes.append(error)

        # The request runs in a thread, because the socket's time-out covers neither the name lookup nor a slow answer.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcomes:
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)
            raise Unreachable(f"{server} has not answered in {seconds:g} s")
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return outcomes[0]

    return send


def write_file(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader sees an incomplete file. Raises OSError."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), _MODE)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
