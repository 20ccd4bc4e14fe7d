"""Tests of the keys of groups, of the marks of pods, and of requirements without marks."""

from __future__ import annotations

import pytest

from provisioner import constants
from provisioner.model.placement import (
    RAY_NAME_TOO_LONG,
    SHARED,
    UNKNOWN_GROUP,
    labels_of,
    mark_of,
    selects_job_nodes,
    slice_key,
    without_marks,
)
from provisioner.model.workloads import Expression, Requirements

_KEEP_OFF = Expression(key=constants.SLICE, operator="DoesNotExist")
_ZONE = Expression(key=constants.ZONE, operator="In", values=("us-east5-a",))
_RAY = {constants.RAY_CLUSTER_NAME: "llm", constants.RAY_GROUP: "tpus"}


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        ({}, SHARED),
        ({constants.JOB_KEY: "abc", constants.CONTROLLER_UID: "u1"}, "j-abc"),
        ({constants.LWS_GROUP_KEY: "abc", constants.LWS_NAME: "serve"}, "l-abc"),
        ({constants.LWS_GROUP_KEY: "abc", constants.LWS_SUBGROUP_KEY: "def", constants.LWS_NAME: "serve"}, "l-def"),
        ({constants.LWS_NAME: "serve"}, UNKNOWN_GROUP),
        (_RAY, "r-llm.tpus"),
        ({**_RAY, constants.RAY_REPLICA_INDEX: "3", constants.RAY_REPLICA_NAME: "tpus-xyz"}, "r-llm.tpus.3"),
        ({**_RAY, constants.RAY_GROUP: "t" * 57}, "r-llm." + "t" * 57),
        ({**_RAY, constants.RAY_GROUP: "t" * 58}, RAY_NAME_TOO_LONG),
        ({constants.RAY_CLUSTER_NAME: "llm"}, SHARED),
        ({constants.CONTROLLER_UID: "u1", constants.COMPLETION_INDEX: "3"}, "b-u1"),
        ({constants.CONTROLLER_UID: "u1"}, SHARED),
    ],
    ids=str,
)
def test_key_of_a_group_follows_from_labels_that_survive_a_restart(labels: dict[str, str], key: str) -> None:
    assert slice_key(labels) == key


@pytest.mark.parametrize(
    ("selector", "mark"),
    [
        (labels_of("j-abc", "research"), "j-abc"),
        (labels_of("j-abc", "vision"), ""),
        ({constants.SLICE: "j-abc"}, ""),
        (labels_of(constants.SLICE_FREE, "research"), ""),
        (labels_of(UNKNOWN_GROUP, "research"), ""),
        ({}, ""),
    ],
    ids=["own namespace", "another namespace", "no namespace", "free pools", "unknown group", "none"],
)
def test_mark_of_a_pod_counts_only_for_its_own_namespace(selector: dict[str, str], mark: str) -> None:
    assert mark_of(Requirements(node_selector=selector), "research") == mark


def test_requirements_without_marks_keep_all_other_selectors() -> None:
    marked = Requirements(node_selector={**labels_of("j-abc", "research"), constants.TPU_TOPOLOGY: "2x2x2"})
    assert without_marks(marked, "research")[0].node_selector == {constants.TPU_TOPOLOGY: "2x2x2"}
    # A forged mark is kept, so that no pool fits the pod.
    assert without_marks(marked, "vision") == (marked, "")


def test_node_that_a_marked_pod_selects_is_returned_separately() -> None:
    """Kueue's topology-aware scheduling selects a separate node for each pod of a slice."""
    selector = {**labels_of("j-abc", "research"), constants.HOSTNAME: "gke-a-0"}
    assert without_marks(Requirements(node_selector=selector), "research") == (Requirements(), "gke-a-0")
    pinned = Requirements(node_selector={constants.HOSTNAME: "gke-a-0"})
    assert without_marks(pinned, "research") == (pinned, "")


@pytest.mark.parametrize(
    ("terms", "left"),
    [
        (((_KEEP_OFF,),), ()),
        (((_ZONE, _KEEP_OFF),), ((_ZONE,),)),
        (((_ZONE, _KEEP_OFF), (_KEEP_OFF,)), ()),
        (((), (_ZONE, _KEEP_OFF)), ((), (_ZONE,))),
    ],
    ids=["only the affinity of admission", "with a term of the author", "a term that asks nothing", "an empty term"],
)
def test_affinity_that_keeps_pods_off_slices_is_removed(terms: tuple[object, ...], left: tuple[object, ...]) -> None:
    asked = Requirements(affinity_terms=terms)  # type: ignore[arg-type]
    assert without_marks(asked, "research")[0].affinity_terms == left


_BOTH = (constants.EXCLUSIVE_TOPOLOGY, constants.NODE_SELECTOR_STRATEGY)


@pytest.mark.parametrize(
    ("of_jobset", "of_job", "selects"),
    [
        (_BOTH, (), True),
        ((), _BOTH, True),
        # The Job has the exclusive placement of its JobSet, and the strategy of its own template.
        (_BOTH[:1], _BOTH[1:], True),
        # The strategy of a JobSet without exclusive placement is not inherited.
        (_BOTH[1:], _BOTH[:1], False),
        (_BOTH[:1], (), False),
        (_BOTH[1:], (), False),
        ((), (), False),
    ],
    ids=["JobSet", "Job", "exclusive JobSet", "exclusive Job", "only exclusive", "only the strategy", "none"],
)
def test_jobset_selects_nodes_of_a_job_if_the_job_has_both_annotations(
    of_jobset: tuple[str, ...], of_job: tuple[str, ...], *, selects: bool
) -> None:
    """The rules are those of JobSet 0.11 (`constructJob` and `labelAndAnnotateObject`)."""
    assert selects_job_nodes(of_jobset, of_job) is selects
