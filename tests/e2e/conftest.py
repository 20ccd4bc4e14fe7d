"""Fixtures of all end-to-end tests: a shared local control plane and simulated GKE, and a namespace for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import Timeouts, collection_path
from provisioner.workloads import JOBSET, LEADER_WORKER_SET, PLAIN_JOB, RAY_CLUSTER
from rehearsal import localcluster
from rehearsal.demos import ProvisionerProcess, Rehearsal
from tests.e2e.kit import EAGER, PATIENCE_SECONDS, Ground, placement_policies, simulator_settings

#: Time-outs of deletes of whole collections. Under load, the API server deletes only 100 objects per second.
_MANY_OBJECTS = Timeouts(connect_seconds=5.0, read_seconds=PATIENCE_SECONDS)


class Shared:
    """The provisioner of all tests that do not start their own. Only one provisioner may run at a time."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._process: ProvisionerProcess | None = None

    def running(self) -> ProvisionerProcess:
        if self._process is None:
            self._process = self._rehearsal.provisioner(environment=EAGER, name="shared")
            self._process.start()
        return self._process

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stop() == 0
            self._process = None


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """The local control plane and the simulated GKE."""
    with Rehearsal(directory=tmp_path_factory.mktemp("e2e") / "cluster", settings=simulator_settings()) as rehearsal:
        yield rehearsal


@pytest.fixture(scope="session")
def shared(rehearsal: Rehearsal) -> Iterator[Shared]:
    shared = Shared(rehearsal)
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def leaderworkersets(rehearsal: Rehearsal) -> None:
    """Run the LeaderWorkerSet controller. It is no part of `rehearsal`, so other tests do not wait for its start."""
    if localcluster.LWS.name not in rehearsal.cluster.component_names:
        rehearsal.cluster.add(localcluster.LWS)


@pytest.fixture(scope="module")
def kueue(rehearsal: Rehearsal) -> None:
    """Run Kueue; its first build takes ten minutes."""
    _add(rehearsal, localcluster.KUEUE)


@pytest.fixture(scope="module")
def kuberay(rehearsal: Rehearsal) -> None:
    """Run KubeRay; its first build takes minutes."""
    _add(rehearsal, localcluster.KUBERAY)


@pytest.fixture(scope="module")
def policies(rehearsal: Rehearsal) -> Iterator[None]:
    with placement_policies(rehearsal):
        yield


def _add(rehearsal: Rehearsal, operator: localcluster.Operator) -> None:
    """Add an operator, or skip the test unless TPU_PROVISIONER_OPERATORS is 1: building an operator takes minutes."""
    if os.environ.get("TPU_PROVISIONER_OPERATORS") != "1":
        pytest.skip(f"{operator.title} takes long to build and to start: run make test-operators")
    rehearsal.cluster.add(operator)


@contextmanager
def own_ground(rehearsal: Rehearsal, shared: Shared) -> Iterator[Ground]:
    """Yield a namespace. Afterwards, delete pools, faults and changed settings, and fail if a log has a crash."""
    ground = Ground(rehearsal)
    ground.gke.reset_calls()
    settings = ground.gke.settings.as_json()
    logs = {path: path.stat().st_size for path in _logs(rehearsal)}
    try:
        yield ground
    finally:
        _clear_up(ground, shared, settings)
    crashes = [
        line
        for path in _logs(rehearsal)
        for line in path.read_text(encoding="utf-8")[logs.get(path, 0) :].splitlines()
        if "crashed" in line or "Traceback" in line
    ]
    assert crashes == []


@pytest.fixture
def ground(rehearsal: Rehearsal, shared: Shared) -> Iterator[Ground]:
    with own_ground(rehearsal, shared) as ground:
        yield ground


@pytest.fixture
def provisioner(shared: Shared) -> ProvisionerProcess:
    return shared.running()


@pytest.fixture
def alone(ground: Ground, shared: Shared) -> Ground:
    """A namespace without the shared provisioner: the test starts its own."""
    shared.stop()
    return ground


@pytest.fixture
def assigned(alone: Ground, policies: None) -> Ground:
    """A namespace whose pods get marks, without a provisioner."""
    alone.assign()
    return alone


def _logs(rehearsal: Rehearsal) -> list[Path]:
    return sorted(rehearsal.cluster.directory.glob("*-*.log"))


def _clear_up(ground: Ground, shared: Shared, settings: dict[str, Any]) -> None:
    for process in ground.provisioners:
        process.kill()
    ground.gke.clear()
    ground.gke.set(**settings)
    if ground.gke.pools:
        # A running provisioner must see the deletes of the JobSets. If many JobSets are missing at its start, the brake
        # against mass deletions delays the deletes of their pools.
        shared.running()
    _delete_all(ground.rehearsal, "jobsets", root=JOBSET.root)
    if localcluster.LWS.name in ground.rehearsal.cluster.component_names:
        _delete_all(ground.rehearsal, "leaderworkersets", root=LEADER_WORKER_SET.root)
    if localcluster.KUBERAY.name in ground.rehearsal.cluster.component_names:
        for resource in ("rayjobs", RAY_CLUSTER.resource):
            _delete_all(ground.rehearsal, resource, root=RAY_CLUSTER.root)
    _delete_all(ground.rehearsal, "jobs", root=PLAIN_JOB.root)
    _delete_all(ground.rehearsal, "pods")
    for name, body in ground.sent().items():
        if body.get("config", {}).get("labels", {}).get(constants.NODEPOOL_MANAGER) != constants.MANAGER:
            ground.drop_pool(name)
    if ground.gke.pools:
        shared.running()
        try:
            ground.wait(lambda: not ground.gke.pools, "all pools are gone after the test", PATIENCE_SECONDS)
        finally:
            # Pools that one test leaves behind must not fail the next test.
            for name in ground.sent():
                ground.drop_pool(name)


def _delete_all(rehearsal: Rehearsal, resource: str, *, root: str = "/api/v1") -> None:
    path = collection_path(resource, root=root)
    for namespace in {item["metadata"]["namespace"] for item in rehearsal.objects(path)}:
        rehearsal.api.delete(collection_path(resource, namespace=namespace, root=root), timeouts=_MANY_OBJECTS)
