"""What users read when something is wrong with the way to the API server or to GKE."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from provisioner import kube
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from tests.support.gke import CLUSTER_NAME

_PYTHON = re.compile(r"object|indices|NoneType|codec|Errno|Caused by|Max retries|_Pool|<|>")


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "file is empty", id="nothing"),
        pytest.param(b"- a", "does not have clusters, contexts and users", id="a list"),
        pytest.param(b"hello", "does not have clusters, contexts and users", id="a word"),
        pytest.param(b"a: [", "line 1, column 5 is not valid YAML", id="no YAML"),
        pytest.param(b"\xff\xfe\x00\x01", "it is not UTF-8 text", id="no text"),
        pytest.param(b"kind: Config", "Expected key current-context", id="no context"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(tmp_path: Path, content: bytes, words: str) -> None:
    """The file is named, and no word of Python is in the message."""
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(kube.KubeconfigError) as caught:
        kube.connect(str(path))
    message = str(caught.value)
    assert words in message
    assert not _PYTHON.search(message.replace(str(tmp_path), ""))


def test_a_refused_connection_is_called_refused(tmp_path: Path) -> None:
    """And no time-out."""
    server = f"http://127.0.0.1:{_closed_port()}"
    path = tmp_path / "config"
    path.write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n",
        encoding="utf-8",
    )
    api = kube.connect(str(path))
    with pytest.raises(kube.ClusterError) as caught:
        api.get("/api")
    api.close()
    assert str(caught.value) == f"GET /api: {server} can't be reached: Connection refused"


def test_a_dead_endpoint_is_told_in_plain_words() -> None:
    """As an operator says it."""
    endpoint = f"http://127.0.0.1:{_closed_port()}"
    client = GkeClient(CLUSTER_NAME, endpoint=endpoint)
    with pytest.raises(GkeError) as caught:
        client.list_node_pools()
    assert caught.value.failure.message == "The server cannot be reached: Connection refused."
