"""What stands between an HTTP server and its apps: the bound on bodies, failures, connections that end."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from provisioner.runtime.repeats import Repeats, place_of

_log = structlog.get_logger(__name__)


class Guarded:
    """Limits what an app is sent; if the app fails, answers 500 and logs it."""

    def __init__(self, app: ASGIApp, *, body_bytes: int, draining: Callable[[], bool]) -> None:
        """While `draining`, each answer is the last of its connection."""
        self._draining = draining
        self._repeats = Repeats()
        self._app = RequestBodyLimitMiddleware(app, max_body_size=body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        names = {name for name, _ in scope["headers"]}
        unread = bool(names & {b"content-length", b"transfer-encoding"})
        started = False

        async def receive_and_note() -> Message:
            nonlocal unread
            message = await receive()
            unread = bool(message.get("more_body", False))
            return message

        async def send_and_close(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if unread or self._draining():
                    # Otherwise the rest of the body would still be read, however long.
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        try:
            await self._app(scope, receive_and_note, send_and_close)
        except ClientDisconnect:
            # The app was reading the body.
            return
        except Exception as error:  # noqa: BLE001
            # The edge of the process: whatever fails in an app, the client gets an answer.
            left_out = self._repeats.left_out(place_of(error))
            if left_out is not None:
                about = {"method": scope["method"], "path": scope["path"]}
                _log.error("http_request.failed", **about, left_out=left_out, exc_info=error)
            if not started:
                await PlainTextResponse("internal error; see the log\n", 500)(scope, receive, send_and_close)
