"""The REST API over TLS, with real sockets: the certificates that init containers trust, and their replacement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from provisioner.admission.files import CertificateLoop, Files
from provisioner.admission.keeper import make_keys
from provisioner.admission.rotation import Keys
from provisioner.partitions.client import Unreachable, sender
from provisioner.partitions.rest.api import make_rest
from provisioner.runtime.http import HttpServer
from tests.support.partitions_api import Ground
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(30)

ANYWHERE = "127.0.0.1:0"
#: Host name that resolves to the server, like the name of a Service.
HOST = "localhost"


def make(*names: str) -> Keys:
    return make_keys(names or (HOST,), now=datetime.now(UTC), valid=timedelta(days=1))


class Place:
    """Files of a certificate and an authority, and a REST API that is served with them over TLS."""

    def __init__(self, folder: Path) -> None:
        self.ground = Ground()
        self.files = Files(certificate=folder / "tls.crt", key=folder / "tls.key")
        self.authority = folder / "ca.crt"
        self.servers: list[HttpServer] = []
        self.certificate: CertificateLoop | None = None

    def write(self, keys: Keys) -> None:
        self.files.certificate.write_text(keys.certificate_pem)
        self.files.key.write_text(keys.key_pem)
        self.authority.write_text(keys.authority_pem)

    def start(self, *, api: str = ANYWHERE, api_tls: str = ANYWHERE, files: bool = True) -> list[int]:
        """Serve, and return the ports."""
        given = self.files if files else None
        self.servers, self.certificate = make_rest(api, api_tls, given, self.ground.kube, self.ground.sources())
        if self.certificate is not None:
            self.certificate.start()
        for server in self.servers:
            server.start()
        return [server.ports[0] for server in self.servers]

    def problems(self) -> Sequence[str]:
        assert self.certificate is not None
        return self.certificate.problems()

    def stop(self) -> None:
        for part in (*self.servers, *filter(None, [self.certificate])):
            part.stop()

    def ask(self, port: int, *, scheme: str = "https", host: str = HOST) -> str:
        """Request a pod's partition as its init container does; return the configuration."""
        pod = self.ground.pods.get(("ml", "train"))
        if pod is None:
            pod, _ = self.ground.placed()
        asked = {"namespace": "ml", "pod": "train", "uid": pod.uid, "size": 4}
        send = sender(f"{scheme}://{host}:{port}", str(self.authority) if scheme == "https" else None)
        reply = send(self.ground.token(pod), json.dumps(asked).encode(), 20.0)
        assert reply.status == 200, reply
        return json.dumps(reply.json()["config"])


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("given", "schemes"),
    [
        pytest.param({}, ["http", "https"], id="both at the same time"),
        pytest.param({"files": False}, ["http"], id="no certificate"),
        pytest.param({"api_tls": "0"}, ["http"], id="no address for TLS"),
        pytest.param({"api": "0"}, ["https"], id="no address for plain HTTP"),
        pytest.param({"api": "0", "api_tls": "0"}, [], id="no address at all"),
    ],
)
def test_servers_follow_the_addresses_and_the_certificate(
    place: Place, given: dict[str, Any], schemes: list[str]
) -> None:
    """Pods that were created before the certificate existed still use the URL in plain HTTP."""
    place.write(make())
    for port, scheme in zip(place.start(**given), schemes, strict=True):
        assert place.ask(port, scheme=scheme) == '{"partition": "the configuration"}'


@pytest.mark.parametrize(
    ("spoil", "want"),
    [
        pytest.param(
            lambda place: place.authority.write_text(make().authority_pem), "is not trusted", id="another authority"
        ),
        pytest.param(lambda place: place.write(make("other.example")), "is not trusted: Hostname", id="another host"),
        pytest.param(lambda place: place.authority.unlink(), "cannot be read: .*No such file", id="no file"),
        pytest.param(lambda place: place.authority.write_text("?"), "cannot be read", id="no authority in the file"),
    ],
)
def test_client_sends_no_token_to_an_untrusted_server(
    place: Place, spoil: Callable[[Place], object], want: str
) -> None:
    """Otherwise an attacker between client and server would get the token."""
    place.write(make())
    spoil(place)
    _, port = place.start()
    with pytest.raises(Unreachable, match=want):
        place.ask(port)
    assert place.ground.kube.reviews == []


def test_client_with_an_https_url_sends_no_token_in_plain_http(place: Place) -> None:
    place.write(make())
    plain, _ = place.start()
    with pytest.raises(Unreachable, match="does not answer"):
        place.ask(plain)
    assert place.ground.kube.reviews == []


def test_replaced_certificate_is_served_and_trusted_without_a_restart(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-written pair of files has no effect."""
    monkeypatch.setattr("provisioner.admission.files._LOOK_SECONDS", 0.01)
    place.write(make())
    _, port = place.start()
    place.ask(port)
    with structlog.testing.capture_logs() as lines:
        place.files.key.write_text("half of")
        wait_for(lambda: [line for line in lines if line["event"] == "api_certificate.problem"], what="the problem")
        place.ask(port)
        assert place.problems() == ()
        place.write(make())
        wait_for(lambda: [line for line in lines if line["event"] == "certificate.served"], what="the new one")
        place.ask(port)


def test_missing_certificate_is_reported_once_and_prevents_readiness(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Secret with the certificate may be created later."""
    monkeypatch.setattr("provisioner.admission.files._LOOK_SECONDS", 0.01)
    with structlog.testing.capture_logs() as lines:
        plain, port = place.start()
        assert ["cannot be served" in problem for problem in place.problems()] == [True]
        with pytest.raises(Unreachable):
            place.ask(port, host="127.0.0.1")
        place.ask(plain, scheme="http")
        place.write(make())
        wait_for(lambda: not place.problems(), what="the certificate")
    place.ask(port)
    said = [line["problem"] for line in lines if line["event"] == "api_certificate.problem"]
    assert len(said) == len(set(said)) >= 1
