"""Tests of the slices of workloads: their ids, their leader pods, and whether they want a pool."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.workloads import GroupKey, Pod, PodGroup, Workload, Workloads
from provisioner.slices.demand import Slice, SliceId, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.slices import slice_id_of
from tests.support.clock import after
from tests.support.counting import counted, measured
from tests.support.models import CHIP_TOLERATION, find_slices, make_jobset, make_lws, make_pod, make_requirements
from tests.support.world import told_of


def slices_of(
    *workloads: Workload, pods: tuple[Pod, ...] = (), named_by_pools: dict[SliceId, str] | None = None
) -> list[Slice]:
    """Return the slices, sorted by group name; `named_by_pools` has the ids to which pools or the memory refer."""
    found = find_slices(
        Workloads.of({workload.uid: workload for workload in workloads}), pods, ServingPolicy(), named_by_pools
    )
    return sorted(found.values(), key=lambda slice_: slice_.group_name)


def ids_of(workload: Workload) -> list[SliceId]:
    return [
        SliceId(
            workload_uid=workload.uid, group_key=group_key(workload.namespace, f"{workload.name}-{job.name}-{index}")
        )
        for job in workload.groups
        for index in range(job.replicas)
    ]


def test_child_job_with_chips_is_a_slice_before_it_has_pods() -> None:
    """A slice without pods wants no pool yet: dependsOn or the startup order may delay its pods."""
    workload = make_jobset(replicas=3)
    found = slices_of(workload, named_by_pools=dict.fromkeys(ids_of(workload), ""))
    assert [slice_.group_name for slice_ in found] == ["train-slice-0", "train-slice-1", "train-slice-2"]
    assert not any(slice_.pending for slice_ in found)
    assert all(CHIP_TOLERATION in slice_.requirements.tolerations for slice_ in found)
    assert {(slice_.nodes, slice_.parallelism) for slice_ in found} == {(2, workload.groups[0].parallelism)}


def test_slices_without_a_known_name_do_not_hide_named_ones() -> None:
    """Pools refer to a slice by its key, and by the name of its child Job only if the name is known."""
    workload = make_jobset(replicas=4)
    first, _, third, _ = ids_of(workload)
    found = slices_of(workload, named_by_pools={first: "", third: "train-slice-2"})
    assert [slice_.group_name for slice_ in found] == ["train-slice-0", "train-slice-1", "train-slice-2"]


def test_search_for_an_unnamed_slice_keeps_no_names_of_other_slices() -> None:
    """In the past, the names of all slices of 128 workloads were kept, up to 190 MB."""

    def search(replicas: int) -> int:
        workloads = [make_jobset(f"train-{number}", replicas=replicas) for number in range(8)]
        found = slices_of(*workloads, named_by_pools={ids_of(workload)[-1]: "" for workload in workloads})
        return sum(slice_.group_name.endswith(f"-{replicas - 1}") for slice_ in found)

    # The first search fills the cache of `group_key`.
    search(4096)
    found, _, kept_bytes = measured(lambda: search(4095))
    assert found == 8
    assert kept_bytes < 100_000


def test_surplus_replicas_are_dropped_unless_they_have_pods() -> None:
    """A recreated replica of a RayCluster may get any number, also one beyond the number of replicas."""
    workload = make_jobset(replicas=3)
    workload = replace(workload, groups=(replace(workload.groups[0], any_number=True, surge=8),))
    names = [f"train-slice-{number}" for number in (0, 1, 2, 5)]
    pod = make_pod(workload, job=5)
    named_by_pools = {SliceId(workload.uid, group_key("default", name)): name for name in names}
    found = slices_of(workload, pods=(pod,), named_by_pools=named_by_pools)
    assert [slice_.group_name for slice_ in found] == ["train-slice-0", "train-slice-1", "train-slice-5"]


def test_only_one_child_job_without_references_is_listed() -> None:
    """Child Jobs without references are only counted (`siblings`), so two million of these Jobs cost little time."""
    workload = make_jobset(replicas=2_000_000)
    driver = PodGroup(name="driver", replicas=2_000_000, parallelism=1, template=make_requirements(chips=0))
    workload = replace(workload, groups=(driver, *workload.groups))
    named_by_pools = {SliceId(workload_uid=workload.uid, group_key=group_key("default", "train-slice-7")): ""}
    assert len(slices_of(workload, named_by_pools=named_by_pools)) == 2
    pod = make_pod(workload, requirements=make_requirements(labels={constants.JOB_NAME: "train-slice-0"}))
    found, calls = counted(lambda: slices_of(workload, pods=(pod,)))
    assert [(slice_.group_name, slice_.siblings) for slice_ in found] == [
        ("train-slice-0", 2_000_000),
        ("train-slice-1", 2_000_000),
    ]
    assert calls < 1000


@pytest.mark.parametrize(
    ("group_name", "want"),
    [
        pytest.param("train-slice-7", ["train-slice-0", "train-slice-7"], id="name of its child Job"),
        pytest.param("", ["train-slice-0", "train-slice-7"], id="only its key"),
        pytest.param("train-slice-8", ["train-slice-0", "train-slice-7"], id="its key with the name of another Job"),
        pytest.param("train-slice-07", ["train-slice-0", "train-slice-7"], id="its key with a malformed name"),
    ],
)
def test_slice_without_pods_is_listed_if_a_pool_or_the_memory_refers_to_it(group_name: str, want: list[str]) -> None:
    workload = make_jobset(replicas=9)
    found = slices_of(workload, named_by_pools={ids_of(workload)[7]: group_name})
    assert [slice_.group_name for slice_ in found] == want


@pytest.mark.parametrize("key", [GroupKey("0" * 40), GroupKey(""), group_key("default", "train-slice-9")])
def test_reference_to_a_missing_child_job_makes_no_slice(key: GroupKey) -> None:
    workload = make_jobset(replicas=9)
    found = slices_of(workload, named_by_pools={SliceId(workload_uid=workload.uid, group_key=key): "train-slice-9"})
    assert [slice_.group_name for slice_ in found] == ["train-slice-0"]


_JOBS = st.lists(
    st.tuples(st.sampled_from(["a", "a-0", "b", "0"]), st.integers(0, 4), st.booleans()),
    max_size=4,
    unique_by=lambda job: job[0],
)


@given(_JOBS, st.randoms(use_true_random=False))
def test_listed_slice_does_not_depend_on_the_other_listed_slices(
    jobs: list[tuple[str, int, bool]], rng: random.Random
) -> None:
    """A slice must not depend on the number of listed slices, or on whether references contain its Job's name."""
    workload = replace(
        make_jobset(),
        groups=tuple(
            PodGroup(name=name, replicas=replicas, parallelism=2, template=make_requirements(chips=4 if chips else 0))
            for name, replicas, chips in jobs
        ),
    )
    names = {
        slice_id: f"train-{job.name}-{index}"
        for slice_id, (job, index) in zip(
            ids_of(workload),
            ((job, index) for job in workload.groups for index in range(job.replicas)),
            strict=True,
        )
    }
    pods = tuple(
        make_pod(
            make_jobset(),
            name=f"{name}-0",
            group_key=slice_id.group_key,
            requirements=make_requirements(labels={constants.JOB_NAME: name} if rng.random() < 0.5 else {}),
        )
        for slice_id, name in names.items()
        if rng.random() < 0.5
    )
    some = {slice_id: name if rng.random() < 0.5 else "" for slice_id, name in names.items() if rng.random() < 0.5}
    everything = {slice_.id: slice_ for slice_ in slices_of(workload, pods=pods, named_by_pools=names)}
    with_chips = {
        f"train-{job.name}-{index}" for job in workload.groups if job.template.chips for index in range(job.replicas)
    }
    assert {slice_.group_name for slice_ in everything.values()} == with_chips | {pod.name[:-2] for pod in pods}
    assert {slice_.siblings for slice_ in everything.values()} <= {len(everything)}
    listed = {slice_.id: slice_ for slice_ in slices_of(workload, pods=pods, named_by_pools=some)}
    assert listed.items() <= everything.items()
    assert listed.keys() >= {slice_.id for slice_ in everything.values() if slice_.pods or slice_.id in some}


def test_jobset_beyond_a_bound_wants_no_pool_and_is_reported_once() -> None:
    workload = make_jobset(replicas=3, problem=("it is too large",))
    ended = make_jobset("ended", problem=("it is too large",), terminal_state="Completed")
    driver = make_jobset("driver", problem=("it is too large",), template=make_requirements(chips=0))
    found = slices_of(workload, pods=(make_pod(workload),))
    assert [(slice_.group_name, slice_.pending) for slice_ in found] == [("train-slice-0", False)]
    assert told_of(workload, ended, driver) == [workload.name]
    assert told_of(workload, namespaces=("other",)) == []


def test_pod_beyond_a_bound_wants_a_pool_but_has_no_shape() -> None:
    """The requirements of a pod that exceeds a bound, for example on labels, contain only the problem."""
    workload = make_jobset()
    (found,) = slices_of(workload, pods=(make_pod(workload, requirements=make_requirements(problem=("too much",))),))
    assert (found.pending, found.shape, found.shape_problem) == (True, None, ("too much",))


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        pytest.param({}, True, id="living"),
        pytest.param({"suspended": True}, False, id="suspended"),
        pytest.param({"terminal_state": "Completed"}, False, id="completed"),
        pytest.param({"terminal_state": "Failed"}, False, id="failed"),
        pytest.param({"deleting": True}, False, id="being deleted"),
        pytest.param({"managed_by": "kueue.x-k8s.io/multikueue"}, False, id="run by another cluster"),
    ],
)
def test_jobset_that_is_not_living_has_no_slices_by_default(*, changes: dict[str, Any], alive: bool) -> None:
    workload = make_jobset(**changes)
    assert bool(slices_of(workload, pods=(make_pod(workload),))) is alive


def test_suspended_jobset_that_keeps_its_pools_has_only_referenced_slices() -> None:
    """Slices without a pool or pod are left out, because thousands of suspended JobSets may be queued."""
    workload = make_jobset(suspended=True, replicas=1000)
    workloads, leader = Workloads.of({workload.uid: workload}), make_pod(workload, job=3)
    pool_of, *_ = ids_of(workload)
    assert find_slices(workloads, (), ServingPolicy(), keep_suspended=True) == {}
    found = find_slices(workloads, (leader,), ServingPolicy(), {pool_of: ""}, keep_suspended=True)
    assert [(slice_.group_name, slice_.pending) for slice_ in found.values()] == [
        ("train-slice-0", False),
        ("train-slice-3", False),
    ]


@pytest.mark.parametrize(
    ("changes", "pending"),
    [
        pytest.param({}, True, id="unschedulable leader"),
        pytest.param({"unschedulable": False}, False, id="leader that the scheduler has not tried"),
        pytest.param({"node": "n"}, False, id="bound leader"),
        pytest.param({"index": 1}, False, id="follower"),
        pytest.param({"completion_index": None}, False, id="pod without index"),
        pytest.param({"phase": "Failed"}, False, id="finished leader"),
        pytest.param({"deletion_deadline": after(30)}, False, id="leader being deleted"),
        pytest.param(
            {"requirements": make_requirements(labels={constants.DISABLE: "true"})},
            False,
            id="leader that is not served",
        ),
    ],
)
def test_slice_wants_a_pool_only_if_its_leader_is_unschedulable(*, changes: dict[str, Any], pending: bool) -> None:
    workload = make_jobset()
    (found,) = slices_of(workload, pods=(make_pod(workload, **changes),))
    assert found.pending is pending


def test_waiting_leader_is_preferred_to_a_bound_leader() -> None:
    """During a restart, the cache may contain the old leader and the new leader."""
    workload = make_jobset()
    old = make_pod(workload, node="n", name="a", uid="old")
    new = make_pod(workload, name="b", uid="new")
    (found,) = slices_of(workload, pods=(old, new))
    assert found.leader == new
    assert found.pods == (old, new)


@pytest.mark.parametrize(
    ("suspended_after", "topology", "leads"),
    [
        pytest.param(None, "4x4", True, id="never suspended, request changed by a webhook"),
        pytest.param(60.0, "2x2x2", True, id="suspended since, same request"),
        pytest.param(60.0, "4x4", False, id="suspended since, other request"),
        pytest.param(3.0, "4x4", True, id="suspended 3 s later: clocks may differ"),
        pytest.param(-60.0, "4x4", True, id="suspended before the pod was created"),
    ],
)
def test_pod_with_other_requests_from_before_a_suspension_is_not_the_leader(
    *, suspended_after: float | None, topology: str, leads: bool
) -> None:
    """A pool is created from the pod and the JobSet: a pool for an old pod and a changed JobSet would fit neither."""
    before = make_jobset(parallelism=2)
    pod = make_pod(before, created_at=after(0))
    selector = {**pod.requirements.node_selector, constants.TPU_TOPOLOGY: topology}
    changed_at = after(suspended_after) if suspended_after is not None else None
    workload = make_jobset(
        parallelism=4, template=make_requirements(node_selector=selector), suspension_changed_at=changed_at
    )
    (found,) = slices_of(workload, pods=(pod,))
    assert (found.pending, found.leader is not None) == (leads, leads)
    assert found.pods == (pod,)


def test_recreated_jobset_has_other_slices() -> None:
    first, second = make_jobset(uid="one"), make_jobset(uid="two")
    (old,), (new,) = slices_of(first), slices_of(second)
    assert old.id.group_key == new.id.group_key
    assert old.id != new.id


def test_pods_without_jobset_uid_belong_to_the_jobset_of_their_name() -> None:
    """JobSet releases before 0.8 do not label pods with the UID."""
    workload = make_jobset()
    (found,) = slices_of(
        workload, make_jobset(namespace="other", suspended=True), pods=(make_pod(workload, workload_uid=""),)
    )
    assert found.pending


def test_pods_without_uid_that_are_older_than_the_jobset_are_ignored() -> None:
    """Older pods remain from an earlier JobSet of the same name, whose requests may differ."""
    made_at = datetime(2026, 1, 1, tzinfo=UTC)
    workload = make_jobset(created_at=made_at)
    (old,) = slices_of(workload, pods=(make_pod(workload, workload_uid="", created_at=made_at - timedelta(seconds=1)),))
    (new,) = slices_of(workload, pods=(make_pod(workload, workload_uid="", created_at=made_at),))
    assert (old.pending, new.pending) == (False, True)


def test_pods_of_unknown_jobsets_make_no_slice() -> None:
    known, unknown = make_jobset(), make_jobset("unknown")
    nameless = make_pod(unknown, workload_uid="")
    assert len(slices_of(known, pods=(make_pod(unknown), nameless, make_pod(known, group_key=GroupKey(""))))) == 1


def test_group_key_is_the_sha1_of_namespace_and_job_name() -> None:
    assert group_key("ns", "train-slice-0") == hashlib.sha1(b"ns/train-slice-0").hexdigest()


def test_chips_added_by_a_webhook_make_a_slice_with_the_jobs_parallelism() -> None:
    workload = make_jobset(parallelism=2, template=make_requirements(chips=0))
    (found,) = slices_of(workload, pods=(make_pod(workload, requirements=make_requirements()),))
    assert (found.group_name, found.parallelism, found.pending) == ("train-slice-0", 2, True)


def test_job_that_the_jobset_does_not_list_is_no_slice() -> None:
    """The JobSet was scaled down, or a user labelled pods of another Job; neither must lead to a pool."""
    workload = make_jobset()
    assert [slice_.group_name for slice_ in slices_of(workload, pods=(make_pod(workload, job=7),))] == ["train-slice-0"]


@pytest.mark.parametrize("make", [make_jobset, make_lws])
def test_pod_of_an_unlisted_group_takes_time_independent_of_the_spec(make: Callable[..., Workload]) -> None:
    """A user who may create pods can give each pod the labels of any group of any large workload."""
    workloads = [make(f"claimed-{number}", replicas=4096) for number in range(150)]
    pods = [make_pod(workload, job=5000) for workload in workloads]
    known = Workloads.of({workload.uid: workload for workload in workloads})
    found, calls = counted(lambda: find_slices(known, pods, ServingPolicy()))
    assert {slice_.pods for slice_ in found.values()} == {()}
    assert calls < 110 * len(workloads)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"namespace": "elsewhere"}, id="another namespace"),
        pytest.param({"workload_name": "other"}, id="another name"),
        pytest.param({"workload_uid": "other"}, id="another UID"),
        pytest.param({"group_key": GroupKey("")}, id="no controlling Job"),
    ],
)
def test_pod_whose_labels_do_not_match_its_jobset_is_ignored(changes: dict[str, str]) -> None:
    """Any user can copy labels, so a pod with another name, UID or namespace, or without a Job, is ignored."""
    workload = make_jobset()
    claim = replace(make_pod(workload), **changes)  # type: ignore[arg-type]
    assert slice_id_of(claim, Workloads.of({workload.uid: workload})) is None
    (found,) = slices_of(workload, pods=(claim,))
    assert found.pods == ()


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ({constants.TPU_TOPOLOGY: "2x2x2"}, [constants.TPU_ACCELERATOR, "tpu-v4-podslice"]),
        ({constants.TPU_TOPOLOGY: "2x2x3", constants.TPU_ACCELERATOR: "tpu-v4-podslice"}, ["2x2x3", "2x2x2"]),
    ],
    ids=["no accelerator", "no such topology"],
)
def test_slice_of_an_invalid_request_has_a_reason_and_no_shape(selector: dict[str, str], words: list[str]) -> None:
    workload = make_jobset()
    (found,) = slices_of(workload, pods=(make_pod(workload, requirements=make_requirements(node_selector=selector)),))
    assert found.pending
    assert found.shape is None
    assert found.nodes == 0
    assert all(word in "; ".join(found.shape_problem) for word in words)
