"""Tests of the explanations of objects by their names, also of the place of a slice in the queue for a limit."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.model.wording import first_of
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import Entry
from provisioner.workloads.jobset import parse_jobset
from tests.support.board import view_of
from tests.support.models import make_jobset, make_pool, make_requirements
from tests.support.objects import pod_spec, raw_jobset
from tests.support.pod_world import Cluster
from tests.support.settings import settings
from tests.support.world import World, running


@pytest.mark.parametrize(("names", "words"), [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more")])
def test_at_most_three_names_are_listed(names: str, words: str) -> None:
    assert first_of(list(names)) == words


def test_the_facts_of_a_pool_do_not_repeat_its_headline() -> None:
    world = running(workload := make_jobset("train"))
    view = view_of(world)
    (pool,) = view.pools
    about = {"at": view.at, "kind": "pool", "message": "m", "warning": False, "workload": pool.workload}
    entries = [Entry(number=number, pool=name, **about) for number, name in enumerate((pool.name, "other"))]
    for name, numbers in ((pool.name, [0]), ("train", [0, 1])):
        (found,) = explain(view, view.at, (), entries, name)
        assert [entry.number for entry in found.activity] == numbers
    (found,) = explain(view, view.at, (), entries, pool.name)
    assert {"capacity", "hosts", "machines"} <= dict(found.facts).keys()
    assert "node pool" not in dict(found.facts)
    assert WorkloadKind.JOBSET.value in dict(found.facts)["workload"]
    spare = world.put_pool(make_pool(workload, attempt=1))
    world.put_pool(make_pool(make_jobset("gone")))
    (found,) = explain(view_of(world), view.at, (), (), "train")
    assert [name for name, _ in found.facts if "node pool" in name] == [f"node pool {spare.name}"]


def test_headline_of_a_workload_explains_its_first_slice_and_facts_the_other_slices() -> None:
    view = view_of(World(make_jobset("both", replicas=2)))
    (found,) = explain(view, view.at, (), (), "both")
    assert "; slice both-slice-0 waits" in found.headline
    assert [name for name, _ in found.facts if name.startswith("slice")] == ["slice both-slice-1"]


def test_workers_that_start_after_a_head_have_the_head_in_their_reason() -> None:
    """The JobSet is like the JobSet of a PathwaysJob, whose head starts before the workers."""
    template = {"spec": pod_spec(chips=0), "metadata": {}}
    raw = raw_jobset("train")
    (workers,) = raw["spec"]["replicatedJobs"]
    head = {"name": "head", "template": {"spec": {"template": template}}}
    raw["spec"] |= {"replicatedJobs": [head, workers], "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    world = World()
    workload = parse_jobset(raw)
    world.workloads[workload.uid] = workload
    (found,) = view_of(world).slices
    assert "Its pods are created once those of replicated job head are ready" in found.reason


def test_users_of_a_limit_on_node_pools_are_counted_in_node_pools() -> None:
    world = World(make_jobset("wide", replicas=3), settings_=settings(max_pools_per_jobset=2))
    world.live(3)
    queues = [slice_.queue for slice_ in view_of(world).slices if slice_.queue is not None]
    assert [queue.users for queue in queues] == [("JobSet/default/wide: 2 node pools",)]


def test_explanation_has_the_place_in_the_queue_the_next_slice_and_the_users() -> None:
    world = World(make_jobset("first"), settings_=settings(max_chips=8, deletion_delay_seconds=300.0))
    world.live(3)
    for name, namespace in (("a", "default"), ("b", "default"), ("c", "other")):
        world.add(make_jobset(name, namespace=namespace))
        world.live(5)
    view = view_of(world)
    by_place = {slice_.queue.place: slice_ for slice_ in view.slices if slice_.queue is not None}
    (found,) = explain(view, view.at, (), (), by_place[3].group)
    facts, order = dict(found.facts), "pods of higher priority come first, then namespaces take turns"
    assert facts["place in the queue"] == f"3 of 3 for the limit of all node pools; next: {by_place[1].id}; {order}"
    assert facts["used by"] == "JobSet/default/first: 8 chips"
    assert "limit of all node pools. The administrator can raise MAX_CHIPS;" in found.headline
    # The notices do not repeat the reason.
    assert "Limit of all node pools: 8 of 8 chips in use" in facts["why"]
    assert found.notices == ()


@pytest.mark.parametrize(
    ("limits", "frees"),
    [
        pytest.param({"max_chips": 8}, True, id="MAX_CHIPS"),
        pytest.param({"max_creates_per_hour": 1}, False, id="MAX_CREATES_PER_HOUR"),
    ],
)
def test_idle_chips_are_shown_as_becoming_free_only_for_limits_on_chips(limits: dict[str, Any], frees: bool) -> None:
    first = make_jobset("first")
    second = make_jobset("second", parallelism=1, template=make_requirements(topology="2x2x1", tolerations=()))
    world = World(first, settings_=settings(deletion_delay_seconds=300.0, **limits))
    world.live(3)
    world.finish(first)
    world.add(second)
    world.step()
    view = view_of(world)
    (found,) = explain(view, view.at, (), (), "second-slice-0")
    assert ("becomes free" in dict(found.facts)) is frees


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("deployment/web", "ReplicaSet default/web-5d9: slice ", id="Deployment"),
        pytest.param("Deployments.apps/web", "ReplicaSet default/web-5d9: slice ", id="plural with the API group"),
        pytest.param("replicaset/web-5d9", "ReplicaSet default/web-5d9: slice ", id="ReplicaSet"),
        pytest.param("web-5d9", "ReplicaSet default/web-5d9: slice ", id="name of the controller"),
        pytest.param("statefulset/db", "StatefulSet default/db: slice ", id="StatefulSet"),
        pytest.param("cronjob/nightly", "Job default/nightly-29: slice ", id="CronJob"),
        pytest.param("job/nightly-29", "Job default/nightly-29: slice ", id="Job"),
        pytest.param("workflow/train", "Workflow default/train: slice ", id="other controller"),
        pytest.param("pod/db-0", "Pod db-0: slice db-0 ", id="pod"),
        pytest.param("deployment/other", "", id="Deployment without pods"),
    ],
)
def test_controller_of_pods_is_found_by_its_kind_and_name(name: str, words: str) -> None:
    """The provisioner knows only the pods and their controllers, not the Deployment or the CronJob."""
    world = Cluster()
    for owner, kind in (("web-5d9", "ReplicaSet"), ("db", "StatefulSet"), ("nightly-29", "Job"), ("train", "Workflow")):
        world.scale(1, owner, kind=kind)
    view = view_of(world)
    found = explain(view, view.at, (), (), name)
    assert [explanation.headline.startswith(words) for explanation in found] == ([True] if words else []), found
