"""Objects as large as a user can make them: one in the cluster, and lists of many."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from provisioner import constants
from provisioner.kube.paging import Pager
from provisioner.kube.protocol import Page, collection_path, object_path
from tests.e2e.kit import Ground, jobset, told

pytestmark = pytest.mark.e2e

#: How much later a create may be sent because somebody else's object is large.
LATER = timedelta(seconds=2)


def test_a_topology_selector_of_a_hundred_kilobytes(alone: Ground) -> None:
    """An honest JobSet's create is sent as soon as without it: from the scheduler's notice on its leader pod.

    That moment is the scheduler's Event, which has microseconds; the pod's condition has whole seconds. What a loaded
    machine adds is in the same figure without the large object.
    """
    alone.provisioner()
    without = [_seconds_to_create(alone, f"before-{index}") for index in range(3)]
    # JobSet takes it; the Job that is made of it is rejected, so that there is never a pod of it.
    alone.post(jobset("hostile", alone.namespace, topology="9" * 100_000))
    alone.wait(lambda: told(alone, constants.INVALID_REQUEST, "hostile", kind="JobSet"), "its owner is told")
    beside = [_seconds_to_create(alone, f"beside-{index}") for index in range(3)]
    assert min(beside) <= max(without) + LATER
    (job,) = alone.jobset("hostile")["spec"]["replicatedJobs"]
    assert len(job["template"]["spec"]["template"]["spec"]["nodeSelector"][constants.TPU_TOPOLOGY]) == 100_000


def _seconds_to_create(ground: Ground, name: str) -> timedelta:
    """Apply a JobSet; return how long after its leader was found unschedulable GKE got the create."""
    before = len(ground.calls("nodePools.create"))
    ground.apply(name, run_for="1h")
    ground.wait(lambda: len(ground.calls("nodePools.create")) > before, "a create arrives at GKE")
    sent = ground.calls("nodePools.create")[before].when
    # On its pool, or the next one would take that.
    ground.wait(lambda: ground.runs(name), "it runs")
    return sent - min(_found_unschedulable(ground, name))


def _found_unschedulable(ground: Ground, name: str) -> list[datetime]:
    leader = ground.leader(name)
    assert leader is not None
    return [
        datetime.fromisoformat(event["eventTime"])
        for event in ground.rehearsal.objects(collection_path("events", namespace=ground.namespace))
        if event["reason"] == "FailedScheduling" and event["involvedObject"]["name"] == leader["metadata"]["name"]
    ]


def test_pages_change_their_size_within_one_list(ground: Ground) -> None:
    """A list of small, then large, then small objects comes whole, in pages of few bytes, as it was at its beginning.

    The API server takes another limit with the same continue token.
    """
    path, ours = collection_path("configmaps", namespace=ground.namespace), {"paged": "true"}

    def make(name: str, size: int) -> None:
        ground.api.post(path, {"metadata": {"name": name, "labels": ours}, "data": {"text": "x" * size}})

    sizes = [10] * 8 + [900_000] * 8 + [10] * 16
    names = [f"object-{index:02}" for index in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        make(name, size)
    pager = Pager(ground.api, path, {"labelSelector": "paged=true"}, most=8)
    pages: list[Page] = [pager.fetch()]
    # Of what happens meanwhile a watch tells, from this list's version on.
    ground.api.delete(object_path("configmaps", names[-1], namespace=ground.namespace))
    make("object-99", 10)
    while pages[-1].continue_token:
        pages.append(pager.fetch(pages[-1].continue_token))
    assert [item["metadata"]["name"] for page in pages for item in page.items] == names
    assert [len(page.items) for page in pages] == [8, 4, 4, 4, 8, 4]
    assert len({page.resource_version for page in pages}) == 1
    ground.api.delete(path)
