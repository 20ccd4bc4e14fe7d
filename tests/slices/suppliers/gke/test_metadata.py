"""Tests of the values that are read from the metadata server, which may be missing or invalid."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from provisioner.cli.start import inferred_words
from provisioner.google.metadata import read_surroundings
from tests.support.recording_server import Answer, Recorded, RecordingServer

VALUES = {
    "project/project-id": b"my-project",
    "instance/zone": b"projects/123/zones/us-east5-b",
    "instance/attributes/cluster-location": b"us-east5\n",
    "instance/attributes/cluster-name": b"my-cluster",
}


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as running:
        running.answer = answer
        yield running


def answer(request: Recorded) -> Answer:
    google = {"Metadata-Flavor": "Google"}
    if request.headers.get("metadata-flavor") != "Google":
        return Answer(status=403, headers=google, body=b"no")
    value = VALUES.get(request.path.removeprefix("/computeMetadata/v1/"))
    if value is None:
        return Answer(status=404, headers=google, body=b"<html>" + b"x" * 2000)
    return Answer(body=value, headers=google)


def test_surroundings_on_gke_are_complete(server: RecordingServer) -> None:
    assert read_surroundings({"GCE_METADATA_HOST": server.host}) == {
        "project": "my-project",
        "location": "us-east5",
        "zone": "us-east5-b",
        "cluster": "my-cluster",
    }


def test_surroundings_outside_gke_have_no_cluster(server: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(VALUES, "instance/attributes/cluster-location")
    monkeypatch.delitem(VALUES, "instance/attributes/cluster-name")
    assert read_surroundings({"GCE_METADATA_HOST": server.host}) == {
        "project": "my-project",
        "zone": "us-east5-b",
    }


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(Answer(body=b"welcome to my router"), id="something else that listens there"),
        pytest.param(Answer(status=500, body=b"", headers={"Metadata-Flavor": "Google"}), id="a broken server"),
        pytest.param(Answer(hang_up=True), id="a connection that breaks"),
    ],
)
def test_invalid_answers_of_the_metadata_server_are_ignored(server: RecordingServer, strange: Answer) -> None:
    server.answer = strange
    assert read_surroundings({"GCE_METADATA_HOST": server.host}) == {}


def test_slow_server_is_asked_once(server: RecordingServer) -> None:
    release = threading.Event()
    server.answer = Answer(body=b"late", wait_for=release)
    assert read_surroundings({"GCE_METADATA_HOST": server.host}, timeout_seconds=0.05) == {}
    release.set()
    assert len(server.requests) == 1


@pytest.mark.parametrize("host", ["127.0.0.1:1", "127.0.0.1:nonsense"])
def test_missing_metadata_server_is_ignored(host: str) -> None:
    assert read_surroundings({"GCE_METADATA_HOST": host}) == {}


def test_inferred_zone_is_reported_with_its_source() -> None:
    """The message names the zone of the controller's machine, which may differ from the zone of the TPUs."""
    (words,) = inferred_words({"GCP_ZONE": "us-east5-b", "GCP_CLUSTER": ""})
    assert words.startswith("GCP_ZONE is not set; using us-east5-b, the zone of this machine. Node pools are created")
