"""Tests of pools for Jobs that JobSet places by node labels (annotation alpha.jobset.sigs.k8s.io/node-selector)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model.capacity import CapacityKind, NodePool, PoolStatus, Taint
from provisioner.model.choices import CapacityChoice
from provisioner.model.fit import misfit
from provisioner.model.placement import with_job_nodes
from provisioner.model.workloads import Requirements, Toleration, Workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import Assignment
from provisioner.slices.planning.spec.capacity import choices_of
from provisioner.slices.supplier import ImpossibleError, UnmeetableError
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES
from tests.support.models import make_jobset, make_lws, make_node, make_pod, make_requirements, make_slice, pool_request
from tests.support.settings import settings
from tests.support.world import World

_TAINT = Taint(key="alpha.jobset.sigs.k8s.io/no-schedule", value="true", effect="NoSchedule")
_LABEL = "alpha.jobset.sigs.k8s.io/namespaced-job"
_EVERYTHING = Toleration(operator="Exists")


def _jobset(name: str = "train", **changes: object) -> Workload:
    workload = make_jobset(name, **changes)  # type: ignore[arg-type]
    (group,) = workload.groups
    return replace(workload, groups=(replace(group, selects_job_nodes=True),))


def _asked(workload: Workload, job: str = "") -> Requirements:
    job = job or f"{workload.name}-slice-0"
    return with_job_nodes(make_requirements(), workload.namespace, job)


def _world(*workloads: Workload) -> World:
    world = World(*workloads)
    for workload in workloads:
        world.put(make_pod(workload, requirements=_asked(workload)))
    return world


def _pool(world: World) -> NodePool:
    (name,) = world.created
    return world.pools[name]


def test_pool_gets_the_taint_and_its_nodes_get_the_label_that_jobset_documents() -> None:
    world = _world(_jobset())
    world.step()
    pool = _pool(world)
    assert pool.taints == (_TAINT,)
    # Kubelets and GKE reject labels of k8s.io, so the nodes get the label after they have registered.
    assert not any("k8s.io" in key for key in pool.labels)
    world.put(*(make_node(pool, index, labels=pool.labels) for index in range(2)))
    world.put(replace(pool, status=PoolStatus.RUNNING))
    want = {_LABEL: "default_train-slice-0"}
    nodes = sorted(world.nodes)
    assert sorted(world.look().assignments) == [Assignment(name, want) for name in nodes]
    world.put(replace(world.nodes[nodes[0]], labels={**pool.labels, **want}))
    assert world.look().assignments == (Assignment(nodes[1], want),), "a node that GKE recreated gets it again"
    world.put(replace(pool, status=PoolStatus.STOPPING))
    assert world.look().assignments == ()


def test_pods_run_on_the_pool_of_their_job() -> None:
    world = _world(_jobset("a"), _jobset("b"))
    world.live(6)
    assert len(world.created) == 2
    for workload in world.workloads.values():
        (leader,) = [pod for pod in world.pods.values() if pod.uid == make_pod(workload).uid]
        assert world.nodes[leader.node_name].labels[_LABEL] == f"default_{workload.name}-slice-0"


@pytest.mark.parametrize("rules", [GKE_RULES, NODE_GROUP_RULES], ids=lambda rules: rules.supplier_name)
def test_expected_nodes_of_a_job_fit_only_pods_that_tolerate_its_taint(rules: object) -> None:
    jobset = _jobset()
    world = _world(jobset)
    world.step()
    pool = replace(_pool(world), machine_type="ct4p-hightpu-4t")
    view = rules.expected_node(pool)  # type: ignore[attr-defined]
    assert misfit(replace(_asked(jobset), node_selector={_LABEL: "default_train-slice-0"}), view) == ()
    assert "no-schedule" in misfit(replace(make_requirements(), node_selector={}), view)[0]


@pytest.mark.parametrize(
    ("workload", "value"),
    [
        (make_jobset("thief"), "default_train-slice-0"),
        (make_jobset("thief"), "other_thief-slice-0"),
        (make_jobset("thief"), ""),
        (make_lws("thief"), "default_thief-0"),
    ],
    ids=["another Job", "another namespace", "no Job", "a LeaderWorkerSet"],
)
def test_forged_job_gets_no_pool_and_is_an_invalid_request(workload: Workload, value: str) -> None:
    """A user can write any selector into a pod, but the workload does not place its Jobs by node labels."""
    world = World(workload)
    asked = replace(_asked(workload), node_selector={**make_requirements().node_selector, _LABEL: value})
    world.put(make_pod(workload, requirements=asked))
    plan = world.step()
    assert plan.creates == ()
    (notice,) = [notice for notice in plan.notices if notice.reason == EventReason.INVALID_REQUEST]
    assert f"the pod selects {_LABEL}={value}, the node has no label" in notice.message


def test_restarting_job_keeps_its_pool() -> None:
    """Between two attempts a slice has no pods; its requirements come from the template of the JobSet."""
    jobset = _jobset()
    world = _world(jobset)
    world.live(4)
    world.end_pods(jobset)
    world.pass_time(60)
    world.live(3, seconds=20)
    assert world.deleted == []
    world.put(make_pod(jobset, requirements=_asked(jobset)))
    world.live(3)
    assert (len(world.created), world.bound(jobset)) == (1, 1)


def test_idle_pool_of_a_job_is_not_used_by_pods_that_tolerate_everything() -> None:
    jobset = _jobset()
    world = _world(jobset)
    world.live(4)
    world.finish(jobset)
    rival = make_jobset("rival")
    asked = make_requirements(tolerations=(_EVERYTHING,))
    world.add_with_pod(rival, requirements=asked)
    assert len(world.step().creates) == 1
    late = _jobset("late")
    world.add_with_pod(late, requirements=_asked(late))
    assert [create.request.taints for create in world.step().creates] == [(_TAINT,)]


def test_jobset_that_is_created_again_gets_the_idle_pool_of_its_job() -> None:
    first, second = _jobset(uid="one"), _jobset(uid="two")
    world = _world(first)
    world.live(4)
    world.remove_jobset(first)
    world.add(second)
    world.put(make_pod(second, requirements=_asked(second)))
    world.live(3)
    assert (len(world.created), world.bound(second)) == (1, 1)


def test_flex_start_of_gke_is_rejected_because_the_pool_lacks_the_label() -> None:
    jobset = _jobset()
    slice_ = make_slice(jobset, requirements=_asked(jobset))
    choice = CapacityChoice(kind=CapacityKind.FLEX_START, zone=choices_of(slice_, settings()).open[0].zone)
    with pytest.raises(UnmeetableError, match="GKE adds no flex-start nodes for pods that select alpha"):
        pool_request(slice_, settings(), 0, choice)


def test_job_name_that_is_too_long_for_a_label_is_rejected() -> None:
    jobset = _jobset("t" * 40, namespace="n" * 30)
    slice_ = make_slice(jobset, requirements=_asked(jobset))
    with pytest.raises(ImpossibleError, match="has 79 characters, a label at most 63"):
        pool_request(slice_, settings(), 0)
