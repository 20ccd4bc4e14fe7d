"""Tests of KubeApi against an HTTP server: requests, responses, and the conversion of all errors."""

from __future__ import annotations

import base64
import gc
import re
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from urllib3.exceptions import ProtocolError

from provisioner import __version__
from provisioner.kube import errors, wire
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.protocol import ANSWER_BYTES, PAGE_BYTES, Request, Timeouts
from tests.support.kubeconfig import write_kubeconfig
from tests.support.wire_server import DROP, HANG, Answer, WireServer, as_json, running

_PYTHON = re.compile(r"object has|indices|NoneType|codec|Errno|Caused by|Max retries|_Pool|<|>")
SHORT = Timeouts(connect_seconds=0.3, read_seconds=0.3)
PODS = "/api/v1/pods"


@pytest.fixture
def server() -> Iterator[WireServer]:
    with running() as started:
        yield started


@pytest.fixture
def api(server: WireServer, tmp_path: Path) -> KubeApi:
    return connect(str(write_kubeconfig(tmp_path / "config", server.url, user={"token": "secret"})))


def test_connections_have_keep_alive_and_no_automatic_retries(api: KubeApi) -> None:
    """Without keep-alive, a watch behind a proxy that silently drops idle connections would stay open indefinitely."""
    options = api._pool.connection_pool_kw
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options["socket_options"]
    assert options["retries"].total is False


def test_request_has_credentials_user_agent_and_query(server: WireServer, api: KubeApi) -> None:
    server.answer(f"GET {PODS}/x", as_json({"kind": "Pod"}))
    assert api.get(f"{PODS}/x", {"a": "b c,d=e"}) == {"kind": "Pod"}
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["user-agent"] == f"tpu-provisioner/{__version__}"
    assert request.query == {"a": "b c,d=e"}


_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


@pytest.mark.parametrize(
    ("call", "method", "content_type", "accept"),
    [
        (lambda api: api.post("/p", {"x": 1}), "POST", "json", "application/json"),
        (lambda api: api.put("/p", {"x": 1}), "PUT", "json", "application/json"),
        (lambda api: api.patch("/p", {"x": 1}), "PATCH", "merge-patch+json", _METADATA),
        (lambda api: api.patch("/p", {"x": 1}, strategic=True), "PATCH", "strategic-merge-patch+json", _METADATA),
        (lambda api: api.apply("/p", {"x": 1}, manager="m"), "PATCH", "apply-patch+yaml", _METADATA),
    ],
)
def test_write_has_its_body_and_content_type(
    server: WireServer, api: KubeApi, call: Any, method: str, content_type: str, accept: str
) -> None:
    """The content type determines how a patch is applied. The Accept header of a patch requests only metadata."""
    server.answer(f"{method} /p", as_json({"ok": True}))
    assert call(api) == {"ok": True}
    (request,) = server.requests
    assert (request.json, request.headers["content-type"]) == ({"x": 1}, f"application/{content_type}")
    assert request.headers["accept"] == accept
    # Without `force`, the API server would reject each later apply of an object that a user has edited.
    assert request.query == ({"fieldManager": "m", "force": "true"} if "apply" in content_type else {})


def test_delete_with_uid_has_a_precondition(server: WireServer, api: KubeApi) -> None:
    """An object that was recreated under the same name must not be deleted."""
    server.answer("DELETE /p", as_json({}))
    api.delete("/p", uid="u1")
    assert server.requests[0].json["preconditions"] == {"uid": "u1"}


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
def test_call_is_not_repeated_after_503(server: WireServer, api: KubeApi, method: str) -> None:
    """Only the caller knows whether a repetition is safe, even after a 503 with Retry-After."""
    server.answer(f"{method.upper()} /p", Answer(status=503, headers={"retry-after": "0"}))
    arguments = () if method in ("get", "delete") else ({},)
    with pytest.raises(errors.Unavailable):
        getattr(api, method)("/p", *arguments)
    assert len(server.requests) == 1


def test_only_a_read_is_repeated_if_its_connection_breaks(server: WireServer, api: KubeApi) -> None:
    """Open connections break when an API server is replaced, and admission must still read the owners of pods."""
    for method in ("GET", "POST"):
        server.answer(f"{method} /p", DROP, as_json({"ok": True}))
    assert api.get("/p") == {"ok": True}
    with pytest.raises(errors.Unavailable):
        api.post("/p", {})
    assert [request.method for request in server.requests] == ["GET", "GET", "POST"]


def test_both_attempts_of_a_read_share_one_time_out(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delete that follows a read must be sent before the lease ends."""
    allowed: list[Any] = []

    def request(*_: Any, timeout: urllib3.Timeout, **__: Any) -> None:
        allowed.append(timeout.total)
        raise ProtocolError("the connection broke")

    monkeypatch.setattr(api._pool, "request", request)
    monkeypatch.setattr("provisioner.kube.api.time", SimpleNamespace(monotonic=lambda: 0.7 * len(allowed)))
    with pytest.raises(errors.Unavailable):
        api.get("/late", timeouts=Timeouts(connect_seconds=0.1, read_seconds=0.8))
    assert allowed == pytest.approx([0.9, 0.2])


def test_redirect_is_an_error(server: WireServer, api: KubeApi) -> None:
    """If the client followed a redirect, the token would be sent to another address."""
    server.answer("GET /p", Answer(status=302, headers={"location": "/elsewhere"}))
    with pytest.raises(errors.Unavailable):
        api.get("/p")
    assert [request.path for request in server.requests] == ["/p"]


@pytest.mark.parametrize(
    ("status", "want"),
    [
        *((status, errors.Invalid) for status in (400, 405, 422)),
        *((status, errors.Unavailable) for status in (408, 500, 503, 504)),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Gone),
        (429, errors.TooManyRequests),
    ],
)
@pytest.mark.parametrize("as_stream", [False, True], ids=["call", "stream"])
def test_each_status_raises_its_error(
    server: WireServer, api: KubeApi, status: int, want: type[errors.ClusterError], *, as_stream: bool
) -> None:
    server.answer("GET /p", as_json({"kind": "Status", "message": "m" * 300, "reason": "R"}, status=status))
    with pytest.raises(want) as caught:
        api.stream("/p", {}, timeouts=SHORT) if as_stream else api.get("/p")
    assert type(caught.value) is want
    assert (caught.value.status, caught.value.reason) == (status, "R")
    assert caught.value.message == "m" * 255 + "…"


@pytest.mark.parametrize(
    ("headers", "body", "want"),
    [
        pytest.param({"retry-after": "7"}, {}, 7.0, id="header"),
        pytest.param({}, {"details": {"retryAfterSeconds": 3}}, 3.0, id="Status details"),
        pytest.param({"retry-after": "Fri, 31 Dec"}, {}, 0.0, id="a date"),
        pytest.param({}, {"details": "x"}, 0.0, id="nothing useful"),
    ],
)
def test_pause_requested_by_the_server_is_in_the_error(
    server: WireServer, api: KubeApi, headers: dict[str, str], body: Any, want: float
) -> None:
    server.answer("GET /p", as_json(body, status=429, headers=headers))
    with pytest.raises(errors.TooManyRequests) as caught:
        api.get("/p")
    assert want == caught.value.retry_after_seconds


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff\xfe{", b'{"a":' + b"[" * 100_000], ids=range(5))
def test_response_that_is_no_object_is_malformed(server: WireServer, api: KubeApi, body: bytes) -> None:
    """Proxies respond 200 with bodies of any kind. An error status without JSON still raises its error."""
    server.answer("GET /p", Answer(body=body), Answer(status=403, body=body))
    with pytest.raises(errors.Malformed) as caught:
        api.get("/p")
    assert not isinstance(caught.value, ValueError)
    with pytest.raises(errors.Forbidden):
        api.get("/p")


@pytest.mark.parametrize(
    "body",
    [
        {"items": 5, "metadata": {"resourceVersion": "1"}},
        {"metadata": {"resourceVersion": "1"}},
        {"items": [], "metadata": None},
        {"items": [], "metadata": {}},
        {"items": [], "metadata": {"resourceVersion": "1", "continue": 7}},
    ],
)
def test_list_without_items_or_metadata_is_malformed(server: WireServer, api: KubeApi, body: Any) -> None:
    """A response without items must not count as an empty list, because node pools would be deleted."""
    server.answer("GET /p", as_json(body))
    with pytest.raises(errors.Malformed):
        api.list_page(Request("GET", "/p"))


@pytest.mark.parametrize(
    ("metadata_only", "accept"),
    [
        (False, "application/json"),
        # The header also accepts whole objects, for servers that cannot convert objects to metadata.
        (True, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"),
    ],
    ids=["objects", "metadata"],
)
def test_page_is_requested_with_limit_and_token_and_read(
    server: WireServer, api: KubeApi, metadata_only: bool, accept: str
) -> None:
    """API servers, which are written in Go, encode an empty list as null."""
    server.answer("GET /p", as_json({"items": None, "metadata": {"resourceVersion": "9", "continue": "t"}}))
    request = Request("GET", "/p", query={"labelSelector": "a"}, metadata_only=metadata_only)
    page = api.list_page(request, limit=2, continue_token="s")
    assert (page.items, page.resource_version, page.continue_token) == ([], "9", "t")
    assert server.requests[0].query == {"labelSelector": "a", "limit": "2", "continue": "s"}
    assert server.requests[0].headers["accept"] == accept


def test_lines_are_yielded_before_the_stream_ends_regardless_of_chunks(server: WireServer, api: KubeApi) -> None:
    """A chunk may contain several lines, or a part of one."""
    server.answer("GET /p", Answer(lines=[b'{"a"', b':1}\n{"b":2}\n\n{"c', b'":3}\n', HANG]))
    got = []
    with api.stream("/p", {}, timeouts=Timeouts(read_seconds=5)) as stream:
        for line in stream:
            got.append(line)
            if len(got) == 3:
                break
    assert got == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param([b'{"a":1}\n{"b"', DROP], "broke", id="cut off in a line"),
        pytest.param([b'{"a":1}\n', DROP], "broke", id="cut off between lines"),
        pytest.param([b'{"a":1}\n{"b"'], "middle of a line", id="ended in a line"),
        pytest.param([b'{"a":1}\n', HANG], "nothing was received for 0.3 s", id="hung"),
    ],
)
def test_stream_that_breaks_yields_its_whole_lines_and_raises_unavailable(
    server: WireServer, api: KubeApi, lines: list[Any], words: str
) -> None:
    server.answer("GET /p", Answer(lines=lines))
    got = []
    with pytest.raises(errors.Unavailable, match=words), api.stream("/p", {}, timeouts=SHORT) as stream:
        got.extend(iter(stream))
    with api.stream("/p", {}, timeouts=SHORT) as stream:
        assert next(iter(stream)) == b'{"a":1}'


def test_close_of_a_stream_wakes_its_reader_immediately(server: WireServer, api: KubeApi) -> None:
    """A process that must end cannot wait for a read time-out."""
    server.answer("GET /p", Answer(lines=[{"a": 1}, HANG]))
    stream = api.stream("/p", {}, timeouts=Timeouts(read_seconds=60))
    first = threading.Event()

    def read() -> None:
        with stream:
            for _ in stream:
                first.set()

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        assert first.wait(5)
        stream.close()
        reading.result(timeout=1)


def test_line_without_end_is_malformed(server: WireServer, api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server must not be able to fill the memory of the client."""
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 1000)
    server.answer("GET /p", Answer(lines=[b"x" * 600] * 4))
    with pytest.raises(errors.Malformed), api.stream("/p", {}, timeouts=SHORT) as stream:
        list(stream)


def _refused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("refused", id="nobody listens"),
        pytest.param("http://name.invalid", id="no such name"),
        pytest.param("https-on-http", id="TLS with a server that speaks none"),
        pytest.param("garbage", id="an answer that is no HTTP"),
        pytest.param("silent", id="a server that never answers"),
        pytest.param("closing", id="a server that hangs up"),
    ],
)
@pytest.mark.parametrize("as_stream", [False, True], ids=["call", "stream"])
def test_transport_error_becomes_unavailable(server: WireServer, tmp_path: Path, url: str, *, as_stream: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        replies = {"garbage": b"what?\r\n\r\n", "closing": b""}
        if url in replies:

            def serve() -> None:
                connection, _ = listener.accept()
                connection.recv(4096)
                connection.sendall(replies[url])
                connection.close()

            threading.Thread(target=serve, daemon=True).start()
        addresses = {
            "refused": f"http://127.0.0.1:{_refused_port()}",
            "https-on-http": server.url.replace("http:", "https:"),
        }
        address = addresses.get(url, f"http://127.0.0.1:{listener.getsockname()[1]}")
        if url.startswith("http:"):
            address = url
        api = connect(str(write_kubeconfig(tmp_path / "config", address)))

        def fail() -> tuple[weakref.ref[Any], bool, int]:
            held = threading.Event()
            try:
                api.stream("/p", {}, timeouts=SHORT) if as_stream else api.post("/p", {}, timeouts=SHORT)
            except errors.Unavailable as error:
                return weakref.ref(held), error.__cause__ is not None, error.status
            pytest.fail("it did not fail")

        gc.disable()
        held, has_cause, status = fail()
        gc.enable()
    # A failure that refers to itself would keep the caller's variables until the next garbage collection.
    assert (held(), has_cause, status) == (None, True, 0)


def test_error_of_a_refused_connection_contains_its_reason(tmp_path: Path) -> None:
    """urllib3 classifies a refused connection as a time-out."""
    server = f"http://127.0.0.1:{_refused_port()}"
    with pytest.raises(errors.Unavailable) as caught:
        connect(str(write_kubeconfig(tmp_path / "config", server))).get("/api")
    assert str(caught.value) == f"GET /api: {server} can't be reached: Connection refused"


def test_failed_refresh_of_credentials_is_unavailable(server: WireServer, api: KubeApi) -> None:
    """Exec plugins and token files may raise any exception, which must not end the thread of a watch."""

    def broken(configuration: object) -> None:
        raise KeyError("token")

    api._configuration.refresh_api_key_hook = broken
    with pytest.raises(errors.Unavailable, match="credentials"):
        api.get("/p")
    assert server.requests == []


def test_refreshed_token_is_sent(server: WireServer, api: KubeApi) -> None:
    """A token is valid for an hour, but the process runs longer. A line end in the file is ignored."""
    server.answer("GET /p", as_json({}))

    def refresh(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = "Bearer newer\n"

    api._configuration.refresh_api_key_hook = refresh
    api.get("/p")
    assert server.requests[0].headers["authorization"] == "Bearer newer"


def _ca_pem() -> bytes:
    return ssl.DER_cert_to_PEM_cert(b"not a real certificate").encode()


@pytest.mark.parametrize(
    ("cluster", "trusted"),
    [
        pytest.param({"certificate-authority-data": "DATA"}, True, id="inline"),
        pytest.param({"certificate-authority": "FILE"}, True, id="file"),
        pytest.param({}, False, id="public roots"),
        pytest.param(
            {"certificate-authority-data": "DATA", "insecure-skip-tls-verify": True},
            False,
            id="nothing is verified, so nothing is trusted",
        ),
    ],
)
def test_client_knows_its_trusted_certificates(tmp_path: Path, cluster: dict[str, Any], *, trusted: bool) -> None:
    """The certificates are used to prove that the kubeconfig and GCP_CLUSTER are the same cluster."""
    (tmp_path / "ca.pem").write_bytes(_ca_pem())
    values = {"DATA": base64.b64encode(_ca_pem()).decode(), "FILE": str(tmp_path / "ca.pem")}
    settings = {key: values.get(value, value) if isinstance(value, str) else value for key, value in cluster.items()}
    api = connect(str(write_kubeconfig(tmp_path / "config", "https://k8s.example", cluster=settings)))
    assert api.ca_pem == (_ca_pem() if trusted else None)
    assert (api.server, api.context_name) == ("https://k8s.example", "here")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "there is no kubeconfig at", id="missing"),
        pytest.param(b"", "file is empty", id="nothing"),
        pytest.param(b"- a", "does not have clusters, contexts and users", id="a list"),
        pytest.param(b"hello", "does not have clusters, contexts and users", id="a word"),
        pytest.param(b"a: [", "line 1, column 5 is not valid YAML", id="no YAML"),
        pytest.param(b"\xff\xfe\x00\x01", "it is not UTF-8 text", id="no text"),
        pytest.param(b"kind: Config", "Expected key current-context", id="no context"),
        pytest.param(b"contexts: 5\nclusters: x\nusers:\n", "does not have clusters", id="wrong types"),
        pytest.param(
            b"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: []\nusers: []\n",
            "Expected object with name c in",
            id="a context without its cluster",
        ),
        pytest.param(
            b"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
            b"clusters: [{name: c, cluster: {server: 'https://s', certificate-authority: gone.pem}}]\n"
            b"users: [{name: u, user: {}}]\n",
            "gone.pem",
            id="a missing CA file",
        ),
    ],
)
def test_error_of_an_invalid_kubeconfig_contains_the_mistake(tmp_path: Path, content: bytes | None, words: str) -> None:
    """The message contains the path of the file, and no terms of Python."""
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.KubeconfigError) as caught:
        connect(str(path))
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    assert not _PYTHON.search(message.replace(str(tmp_path), ""))


def test_service_account_is_used_inside_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_bytes(_ca_pem())
    base = "kubernetes.config.incluster_config."
    monkeypatch.setattr(base + "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(base + "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    api = connect(environ=environ)
    assert (api.server, api.context_name) == ("https://10.0.0.1:443", "in-cluster")
    assert api.ca_pem == _ca_pem()
    (tmp_path / "token").unlink()
    with pytest.raises(errors.KubeconfigError, match="service account"):
        connect(environ=environ)


def test_kubeconfig_takes_precedence_over_the_service_account(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "https://k8s.example")
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for api in (
        connect(str(path), environ=inside),
        connect(environ={**inside, "KUBECONFIG": f"{tmp_path / 'missing'}:{path}"}),
    ):
        assert api.context_name == "here"


def test_page_above_its_limit_raises_too_large(server: WireServer, api: KubeApi) -> None:
    """Content-Length may be missing. A page with a single object may exceed the limit."""
    body = b'{"metadata":{"resourceVersion":"1"},"items":[{"x":"' + b"y" * PAGE_BYTES + b'"}]}'
    server.answer("GET /p", Answer(body=body), Answer(lines=[body[:PAGE_BYTES], body[PAGE_BYTES:]]), Answer(body=body))
    for _ in range(2):
        with pytest.raises(errors.TooLarge, match="GET /p: the answer has more than 4,194,304 bytes"):
            api.list_page(Request("GET", "/p"), limit=2)
    page = api.list_page(Request("GET", "/p"), limit=1)
    assert (len(page.items), page.size_bytes) == (1, len(body))


def test_response_above_the_general_limit_raises_too_large(server: WireServer, api: KubeApi) -> None:
    server.answer("GET /p/x", Answer(lines=[b"x" * (ANSWER_BYTES // 16)] * 17))
    with pytest.raises(errors.TooLarge, match="GET /p/x: the answer has more than 16,777,216 bytes"):
        api.get("/p/x")
