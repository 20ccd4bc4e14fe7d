"""Responses of an app with routes, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from provisioner.runtime.lanes import Busy
from provisioner.runtime.resources import client_of, is_json, make_app


async def describe(request: Request) -> Response:
    return PlainTextResponse(f"{request.path_params.get('name')} {is_json(request)} {client_of(request)}")


async def busy(_request: Request) -> Response:
    raise Busy


APP = make_app(
    [
        Route("/things/{name}", describe),
        Route("/things/{name}", describe, methods=["DELETE"]),
        Route("/things", describe, methods=["POST"]),
        Route("/busy", busy),
    ]
)


def ask(method: str, path: str, media_type: str = "", client: tuple[str, int] | None = ("10.0.0.7", 1)) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", media_type.encode())] if media_type else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": client}
    asyncio.run(APP(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        pytest.param("GET", "/things/a", 200, "a False 10.0.0.7", id="a name"),
        pytest.param("HEAD", "/things/a", 200, "a False 10.0.0.7", id="its head, whose body the server drops"),
        pytest.param("DELETE", "/things/a", 200, "a False 10.0.0.7", id="another method of the same path"),
        pytest.param("GET", "/things/a/b", 404, "not found; available: /busy /things /things/{name}\n", id="two names"),
        pytest.param("GET", "/things/a/", 404, "not found; ", id="a slash at the end"),
        pytest.param("GET", "/things/", 404, "not found; ", id="an empty name"),
        pytest.param("PUT", "/things/a", 405, "Method Not Allowed", id="an unknown method"),
        pytest.param("GET", "/things", 405, "Method Not Allowed", id="GET of a path that takes POST"),
        pytest.param("GET", "/busy", 503, "too many requests at once\n", id="no place"),
    ],
)
def test_request_of_a_path_and_method_gets_its_response(method: str, path: str, status: int, body: str) -> None:
    head, *pieces = ask(method, path)
    assert head["status"] == status
    assert b"".join(piece["body"] for piece in pieces).decode().startswith(body)
    headers = dict(head["headers"])
    assert (b"allow" in headers) == (status == 405)
    assert (headers.get(b"retry-after") == b"1") == (status == 503)


@pytest.mark.parametrize(
    ("media_type", "json"),
    [("application/json", True), ("Application/JSON; charset=utf-8", True), ("text/plain", False), ("", False)],
)
def test_body_is_json_only_by_its_media_type(media_type: str, json: bool) -> None:
    assert ask("POST", "/things", media_type)[1]["body"].decode() == f"None {json} 10.0.0.7"


def test_client_of_an_ended_connection_is_empty() -> None:
    assert ask("GET", "/things/a", client=None)[1]["body"] == b"a False "
