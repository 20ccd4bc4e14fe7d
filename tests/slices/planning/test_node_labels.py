"""Tests of selectors on labels that GKE sets: labels that are predicted, certainly missing, or unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import Node
from provisioner.model.fit import NodeView, misfit, trusted
from provisioner.model.workloads import Expression, Workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import Plan
from tests.support.models import make_jobset, make_requirements
from tests.support.settings import settings
from tests.support.world import World

_STRANGE = "cloud.google.com/gke-of-tomorrow"


def _jobset(name: str = "train", **selector: str) -> Workload:
    return make_jobset(name, template=make_requirements(selector=selector, tolerations=()))


def _told(plan: Plan, reason: str) -> list[str]:
    return [notice.message for notice in plan.notices if notice.reason == reason]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("iam.gke.io/gke-metadata-server-enabled", "true"),
        ("cloud.google.com/machine-family", "ct4p"),
        ("cloud.google.com/gke-os-distribution", "cos"),
        ("cloud.google.com/gke-container-runtime", "containerd"),
        ("topology.gke.io/zone", "us-central2-b"),
        ("failure-domain.beta.kubernetes.io/zone", "us-central2-b"),
        ("failure-domain.beta.kubernetes.io/region", "us-central2"),
        ("beta.kubernetes.io/instance-type", "ct4p-hightpu-4t"),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", "amd64"),
    ],
)
def test_labels_that_gke_is_known_to_set_are_predicted(key: str, value: str) -> None:
    plan = World(_jobset(**{key: value})).step()
    assert (len(plan.creates), _told(plan, EventReason.UNKNOWN_SELECTOR)) == (1, [])
    plan = World(_jobset(**{key: "other"})).step()
    assert (len(plan.creates), len(_told(plan, EventReason.INVALID_REQUEST))) == (0, 1)


def test_boot_disk_label_is_predicted_only_if_the_setting_is_set() -> None:
    """If GKE chooses the disk type, the value of the label is unknown until the pool is listed."""
    workload = _jobset(**{constants.BOOT_DISK: "pd-ssd"})
    for setting, creates, warnings in (("pd-ssd", 1, 0), ("pd-balanced", 0, 0), ("", 1, 1)):
        plan = World(workload, settings_=settings(node_disk_type=setting)).step()
        assert (len(plan.creates), len(_told(plan, EventReason.UNKNOWN_SELECTOR))) == (creates, warnings)


@pytest.mark.parametrize("key", ["topology.gke.io/zone", "failure-domain.beta.kubernetes.io/zone"])
def test_older_zone_label_selects_the_zone(key: str) -> None:
    (create,) = World(_jobset(**{key: "us-central2-c"})).step().creates
    assert create.request.zone == "us-central2-c"


@pytest.mark.parametrize(
    "key",
    [
        constants.COMPUTE_CLASS,
        constants.PRIVATE_NODE,
        constants.LOCAL_SSD,
        constants.GPU_ACCELERATOR,
        constants.HOSTNAME,
        constants.RESERVATION_AFFINITY,
        constants.POOL_TOPOLOGY,
    ],
)
def test_selector_on_a_label_that_is_certainly_missing_is_rejected(key: str) -> None:
    plan = World(_jobset(**{key: "x"})).step()
    assert not plan.creates
    (message,) = _told(plan, EventReason.INVALID_REQUEST)
    assert f"the pod selects {key}=x, the node has no label {key}" in message


@pytest.mark.parametrize("key", [_STRANGE, "node.kubernetes.io/exotic", "x.gke.io/y", "scheduling.k8s.io/z"])
def test_selector_on_an_unknown_google_label_gets_a_pool_with_a_warning(key: str) -> None:
    """The provisioner cannot set Google's labels on a pool, but GKE may set the label on the nodes."""
    plan = World(_jobset(**{key: "x"})).step()
    (create,) = plan.creates
    assert key not in create.request.labels
    (message,) = _told(plan, EventReason.UNKNOWN_SELECTOR)
    assert f"{key}=x" in message
    assert create.request.name in message


def _expression(operator: str, *values: str) -> Expression:
    return Expression(key=_STRANGE, operator=operator, values=values)


_SURE = Expression(key=constants.OS, operator="In", values=("linux",))


@pytest.mark.parametrize(
    ("terms", "predicted", "fits", "relies_on"),
    [
        pytest.param(((_expression("In", "a"),),), True, True, (_STRANGE,), id="In may hold"),
        pytest.param(((_expression("Exists"),),), True, True, (_STRANGE,), id="Exists may hold"),
        pytest.param(((_expression("Gt", "1"),),), True, True, (_STRANGE,), id="Gt may hold"),
        pytest.param(((_expression("NotIn", "a"),),), True, True, (), id="NotIn holds without it"),
        pytest.param(((_expression("DoesNotExist"),),), True, True, (), id="DoesNotExist holds without it"),
        pytest.param(((_expression("In", "a"),), (_SURE,)), True, True, (), id="another term certainly holds"),
        pytest.param(((_expression("In", "a"),),), False, False, (), id="existing node without the label"),
    ],
)
def test_affinity_on_an_unknown_label_fits_only_a_predicted_node(
    *, terms: Any, predicted: bool, fits: bool, relies_on: tuple[str, ...]
) -> None:
    view = NodeView(
        labels={constants.OS: "linux"}, taints=(), chips=4, cpu_millicores=2000, memory_bytes=2**31, predicted=predicted
    )
    requirements = make_requirements(node_selector={}, affinity_terms=terms)
    assert (misfit(requirements, view) == ()) is fits
    assert trusted(requirements, view) == relies_on


def _bare(world: World) -> None:
    """Create all pools, with nodes that lack the label _STRANGE."""
    world.step()
    world.finish_creates()
    world.step()
    assert not any(_STRANGE in node.labels for node in world.nodes.values())


@pytest.mark.parametrize("replace_stuck", [False, True])
def test_pool_whose_nodes_lack_a_selected_label_is_deleted_after_10_minutes(*, replace_stuck: bool) -> None:
    world = World(_jobset(**{_STRANGE: "x"}), settings_=settings(replace_stuck_slices=replace_stuck))
    _bare(world)
    for _ in range(30):
        world.step(seconds=60)
    assert len(world.created) == 1
    assert world.deleted == world.created
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert f"its nodes do not have {_STRANGE}=x: remove that selector" in message


def test_existing_nodes_are_matched_by_their_real_labels() -> None:
    for labelled in (True, False):
        first, second = _jobset("first"), _jobset("second", **{_STRANGE: "x"})
        world = World(first, settings_=settings(deletion_delay_seconds=3600.0))
        _bare(world)
        if labelled:
            world.nodes = {name: _labelled(node) for name, node in world.nodes.items()}
        world.finish(first)
        world.step()
        world.add(second)
        world.step()
        assert len(world.created) == (1 if labelled else 2)


def _labelled(node: Node) -> Node:
    return replace(node, labels={**node.labels, _STRANGE: "x"})
