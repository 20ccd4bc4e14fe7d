"""Tests that no pool is doubled, lost or leaked if the provisioner crashes in any phase, or the API server restarts."""

from __future__ import annotations

import pytest

from provisioner.kube.errors import ClusterError
from rehearsal.demos import ProvisionerProcess
from rehearsal.localcluster import recipes
from rehearsal.simulators.gke.records import PoolStatus
from tests.e2e.kit import Ground, ready

pytestmark = pytest.mark.e2e


@pytest.mark.nightly
def test_provisioner_killed_in_any_phase_continues_after_its_restart(alone: Ground) -> None:
    """The process is killed while a pool is provisioning, in use, idle and deleting. Simulations kill processes too."""
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "5s"})

    def again() -> ProvisionerProcess:
        process.kill()
        return alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "5s"})

    alone.gke.set(create_seconds=4.0, delete_seconds=4.0)
    alone.apply("survivor", run_for="6s")
    alone.wait(lambda: alone.pools("survivor-"), "its pool is in the making")
    process = again()
    alone.wait(lambda: alone.runs("survivor"), "it runs")
    process = again()
    alone.await_completed("survivor")
    alone.wait(lambda: "node_pool.phase_changed idle" in _phases(process), "its pool is idle")
    process = again()
    alone.wait(lambda: alone.pools("survivor-")[0].status is PoolStatus.STOPPING, "its pool is deleted")
    process = again()
    alone.await_gone("survivor-")
    assert alone.restarts("survivor") == 0
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (1, 1)


def test_no_pool_is_deleted_while_the_api_server_restarts(alone: Ground) -> None:
    process = alone.provisioner()
    alone.apply("steady", run_for="10s")
    alone.wait(lambda: alone.runs("steady"), "it runs")
    alone.rehearsal.cluster.restart(recipes.KUBE_APISERVER, down_seconds=3)
    process.check()
    assert len(alone.living("steady-")) == 1
    alone.wait(lambda: _answers(alone), "the API server answers")
    alone.apply("after", run_for="1s", topology="2x2x2", parallelism=2)
    alone.await_completed("after", "steady")
    alone.wait(lambda: ready(process)[0] == 200, "it is ready again")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 2


def _phases(process: ProvisionerProcess) -> set[str]:
    return {f"{record.get('event')} {record.get('new')}" for record in process.records()}


def _answers(ground: Ground) -> bool:
    try:
        ground.pods()
    except ClusterError:
        return False
    return True
