"""Stand-ins for Go, and one real cluster for the end-to-end tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal import localcluster
from tests.support.localcluster import GoHome, Kube


@pytest.fixture
def go_home(tmp_path: Path) -> GoHome:
    """Give a home without anything in it."""
    return GoHome(root=tmp_path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[localcluster.LocalCluster]:
    """Give a running cluster."""
    with localcluster.start(tmp_path_factory.mktemp("local") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kube(cluster: localcluster.LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """Give an administrator of the running cluster."""
    kube = Kube(cluster.kubeconfig, tmp_path_factory.mktemp("kubeconfig"))
    yield kube
    kube.close()
