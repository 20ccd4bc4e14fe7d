"""Tests of plain Jobs on a real control plane. With SERVE_JOBS, Jobs that have the annotation are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import NotFound
from provisioner.kube.protocol import collection_path, object_path
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads import PLAIN_JOB
from rehearsal.localcluster import RUN_FOR
from tests.e2e.kit import Ground, told
from tests.support.objects import pod_spec, raw_job

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "job" / "job.yaml"
SERVING = {"SERVE_JOBS": "true", "SERVE_PODS": "none"}


def job(
    name: str,
    ground: Ground,
    *,
    topology: str = "2x2x2",
    pods: int = 2,
    run_for: str = "1s",
    served: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """Return a Job of one slice, by default of two hosts; if it is not `served`, the annotation is missing."""
    selector = {**pod_spec(topology=topology)["nodeSelector"], constants.LEGACY_POOL_ID: name}
    return raw_job(
        name,
        namespace=ground.namespace,
        uid="",
        parallelism=pods,
        pod=pod_spec(nodeSelector=selector, terminationGracePeriodSeconds=1),
        pod_metadata={"annotations": {RUN_FOR: run_for}},
        metadata={} if served else {"annotations": {}},
        spec=spec,
    )


def apply(ground: Ground, name: str, **options: Any) -> None:
    path = collection_path("jobs", namespace=ground.namespace, root=PLAIN_JOB.root)
    ground.api.post(path, job(name, ground, **options))


def ended(ground: Ground, name: str) -> bool:
    try:
        status = ground.api.get(object_path("jobs", name, namespace=ground.namespace, root=PLAIN_JOB.root)).get(
            "status", {}
        )
    except NotFound:
        return True
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    assert conditions.get("Failed") != "True", status
    return conditions.get("Complete") == "True"


def test_jobs_with_the_annotation_get_a_pool_until_they_end(alone: Ground) -> None:
    """Jobs without the annotation and non-indexed Jobs get no pool, and JobSets are served as before."""
    alone.provisioner(environment=SERVING)
    alone.rehearsal.kubectl("apply", "--server-side", "--dry-run=server", f"--filename={EXAMPLE}")
    apply(alone, "plain")
    # Four completions with two pods at a time: the third and fourth pod use the hosts of the first two.
    apply(alone, "waves", completions=4)
    apply(alone, "brief", ttlSecondsAfterFinished=0)
    apply(alone, "silent", served=False)
    apply(alone, "unordered", completionMode="NonIndexed")
    alone.apply("train", run_for="1s")
    alone.await_completed("train")
    for name in ("plain", "waves", "brief"):
        alone.wait(lambda name=name: ended(alone, name), f"Job {name} has ended")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 4
    (message,) = told(alone, EventReason.INVALID_REQUEST, "unordered", kind="Job")
    assert "create it again with completionMode: Indexed" in message
    assert not alone.reasons("Job", "silent")
    assert not alone.reasons("Pod", "silent")
    assert EventReason.CREATION_STARTED in alone.reasons("Pod", "plain-0")
    assert not ended(alone, "silent")
