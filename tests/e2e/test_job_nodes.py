"""Tests of JobSet's node selector strategy, which places Jobs by node labels, on a real control plane."""

from __future__ import annotations

import pytest

from provisioner import constants
from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground

pytestmark = pytest.mark.e2e

_LABEL = "alpha.jobset.sigs.k8s.io/namespaced-job"


def test_job_runs_on_the_pool_with_its_label_also_after_a_restart(
    ground: Ground, provisioner: ProvisionerProcess
) -> None:
    """JobSet expects a node label for each child Job, which an administrator would otherwise have to set."""
    strategy = {constants.NODE_SELECTOR_STRATEGY: "true"}
    ground.apply("placed", topology="2x2x2", replicas=2, parallelism=2, run_for="20m", annotations=strategy)
    ground.wait(lambda: ground.runs("placed", pods=4), "all pods run")
    before = _places(ground)
    assert sorted(before) == ["placed-w-0", "placed-w-1"]
    assert all(len(pools) == 1 for pools in before.values())
    labels = {node["metadata"]["labels"].get(_LABEL) for node in ground.nodes()}
    assert {f"{ground.namespace}_{job}" for job in before} <= labels
    uids = {pod["metadata"]["uid"] for pod in ground.pods_of("placed")}
    ground.rehearsal.kubectl("delete", "jobs", "--all", "-n", ground.namespace)

    def restarted() -> bool:
        now = {pod["metadata"]["uid"] for pod in ground.pods_of("placed")}
        return len(now) == 4 and uids.isdisjoint(now) and ground.runs("placed", pods=4)

    ground.wait(restarted, "the new pods run")
    assert _places(ground) == before
    assert len(ground.living("placed")) == 2


def _places(ground: Ground) -> dict[str, set[str]]:
    pools = {node["metadata"]["name"]: node["metadata"]["labels"][constants.NODE_POOL] for node in ground.nodes()}
    places: dict[str, set[str]] = {}
    for pod in ground.pods_of("placed"):
        job = pod["metadata"]["labels"][constants.JOB_NAME]
        places.setdefault(job, set()).add(pools[pod["spec"]["nodeName"]])
    return places
