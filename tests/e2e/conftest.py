"""One local control plane and one simulated GKE for all end-to-end tests; each test gets a namespace of its own."""

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

#: A loaded API server deletes a hundred objects a second.
_MANY_OBJECTS = Timeouts(connect_seconds=5.0, read_seconds=PATIENCE_SECONDS)


class Shared:
    """The provisioner of all tests that need none of their own; only one may run at a time."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._process: ProvisionerProcess | None = None

    def running(self) -> ProvisionerProcess:
        """Return it; start it where it does not run."""
        if self._process is None:
            self._process = self._rehearsal.provisioner(environment=EAGER, name="shared")
            self._process.start()
        return self._process

    def stop(self) -> None:
        """Make room for another."""
        if self._process is not None:
            assert self._process.stop() == 0
            self._process = None


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """Give the world."""
    with Rehearsal(directory=tmp_path_factory.mktemp("e2e") / "cluster", settings=simulator_settings()) as rehearsal:
        yield rehearsal


@pytest.fixture(scope="session")
def shared(rehearsal: Rehearsal) -> Iterator[Shared]:
    """Give the keeper of the shared provisioner."""
    shared = Shared(rehearsal)
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def leaderworkersets(rehearsal: Rehearsal) -> None:
    """Have the LeaderWorkerSet controller in the world; tests that do not ask for it do not wait for it."""
    if localcluster.LWS.name not in rehearsal.cluster.component_names:
        rehearsal.cluster.add(localcluster.LWS)


@pytest.fixture(scope="module")
def kueue(rehearsal: Rehearsal) -> None:
    """Have Kueue in the world; its build takes ten minutes."""
    _add(rehearsal, localcluster.KUEUE)


@pytest.fixture(scope="module")
def kuberay(rehearsal: Rehearsal) -> None:
    """Have KubeRay in the world; its build takes minutes."""
    _add(rehearsal, localcluster.KUBERAY)


@pytest.fixture(scope="module")
def policies(rehearsal: Rehearsal) -> Iterator[None]:
    """Have the policies of placement in force."""
    with placement_policies(rehearsal):
        yield


def _add(rehearsal: Rehearsal, operator: localcluster.Operator) -> None:
    """Add an operator where a variable asks for it: its schemas and its build are not for every run of all tests."""
    if os.environ.get("TPU_PROVISIONER_OPERATORS") != "1":
        pytest.skip(f"{operator.title} takes long to build and to start: run make test-operators")
    rehearsal.cluster.add(operator)


@contextmanager
def own_ground(rehearsal: Rehearsal, shared: Shared) -> Iterator[Ground]:
    """Give a namespace, and leave nothing behind: no pool, no fault, no changed setting."""
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
    """Give each test a ground of its own."""
    with own_ground(rehearsal, shared) as ground:
        yield ground


@pytest.fixture
def provisioner(shared: Shared) -> ProvisionerProcess:
    """Give the shared provisioner."""
    return shared.running()


@pytest.fixture
def alone(ground: Ground, shared: Shared) -> Ground:
    """Give the ground without the shared provisioner: the test starts its own."""
    shared.stop()
    return ground


@pytest.fixture
def assigned(alone: Ground, policies: None) -> Ground:
    """Give a namespace whose pods are marked, without a provisioner."""
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
        # It has to see the JobSets being deleted, or many at once are braked.
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
            # What one test leaves behind must not fail the next.
            for name in ground.sent():
                ground.drop_pool(name)


def _delete_all(rehearsal: Rehearsal, resource: str, *, root: str = "/api/v1") -> None:
    path = collection_path(resource, root=root)
    for namespace in {item["metadata"]["namespace"] for item in rehearsal.objects(path)}:
        rehearsal.api.delete(collection_path(resource, namespace=namespace, root=root), timeouts=_MANY_OBJECTS)
