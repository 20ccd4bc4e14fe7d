"""Tests of the capacity choices of a slice: order, zones, terms, and the fallback when a choice is out of stock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, NodePoolRequest, PoolStatus, Taint, Zone, expected_pool
from provisioner.model.choices import choice_of, parse_choices, parse_zones
from provisioner.model.fit import misfit
from provisioner.model.placement import FREE, MARKS
from provisioner.model.workloads import Toleration, Workload
from provisioner.slices.demand import Slice
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import Create
from provisioner.slices.planning.spec.capacity import choices_of
from provisioner.slices.planning.spec.specification import HELD_LATE_TAINT
from provisioner.slices.supplier import UnmeetableError
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import (
    CHIP_TOLERATION,
    SPOT_TOLERATION,
    make_jobset,
    make_marks,
    make_pool,
    make_requirements,
    make_slice,
    pool_request,
)
from tests.support.settings import settings as base_settings
from tests.support.world import World, failure

ALL_TOLERATIONS = (CHIP_TOLERATION, SPOT_TOLERATION)
V5P = "tpu-v5p-slice"
STOCKOUT = failure(FailureKind.STOCKOUT, "The zone is out of TPUs.")
#: Parts of the message on queued capacity. The second is the provisioning class with which Kueue requests slices.
_QUEUED = (
    "queued capacity is not supported; use flex-start, or let Kueue request slices",
    constants.PROVISIONING_CLASS,
)


def settings(**changes: Any) -> Any:
    """Return settings; `capacity` and `zones` are given as text, as in environment variables."""
    changes["capacity"] = parse_choices(changes.get("capacity", ""))
    changes["zones"] = parse_zones(changes.get("zones", ""))
    return base_settings(**changes)


def jobset_of(
    name: str = "train",
    *,
    replicas: int = 1,
    annotations: dict[str, str] | None = None,
    selector: dict[str, str] | None = None,
    tolerations: tuple[Toleration, ...] = ALL_TOLERATIONS,
    accelerator: str = V5P,
    pod_annotations: dict[str, str] | None = None,
    **template: Any,
) -> Workload:
    """Return a JobSet whose pods tolerate every kind of capacity by default."""
    asked = make_requirements(
        accelerator=accelerator,
        selector=selector,
        tolerations=tolerations,
        annotations=pod_annotations or {},
        **template,
    )
    return make_jobset(name, replicas=replicas, template=asked, annotations=annotations or {})


def slice_of(**changes: Any) -> Slice:
    return make_slice(jobset_of(**changes))


def request_of(slice_: Slice, **changes: Any) -> NodePoolRequest:
    return pool_request(slice_, settings(**changes), 0)


def refuse(**by_choice: Failure) -> Callable[[Create], Failure | None]:
    """Return a `World.refuse_create` that rejects creates by kind of capacity or by zone, with `_` instead of `-`."""
    table = {key.replace("_", "-"): rejection for key, rejection in by_choice.items()}
    return lambda create: table.get(create.request.capacity.value) or table.get(create.request.zone)


def bought(world: World) -> list[str]:
    return [str(choice_of(world.pools[name])) for name in world.created if name in world.pools]


# --- Choices of capacity ---


@pytest.mark.parametrize(
    ("asked", "changes", "want"),
    [
        pytest.param({}, {}, ["on-demand in us-central2-b"], id="neither annotation nor setting"),
        pytest.param({}, {"capacity": "spot"}, ["spot in us-central2-b"], id="the setting"),
        pytest.param(
            {"annotations": {constants.CAPACITY: "flex-start"}},
            {"capacity": "spot"},
            ["flex-start in us-central2-b"],
            id="JobSet overrides setting",
        ),
        pytest.param(
            {"annotations": {constants.CAPACITY: "spot"}, "pod_annotations": {constants.CAPACITY: "on-demand"}},
            {"capacity": "flex-start"},
            ["on-demand in us-central2-b"],
            id="pod template overrides JobSet",
        ),
        pytest.param(
            {},
            {"capacity": "on-demand, spot", "zones": "us-central2-a, us-central2-b"},
            [
                "on-demand in us-central2-a",
                "on-demand in us-central2-b",
                "spot in us-central2-a",
                "spot in us-central2-b",
            ],
            id="all zones of a choice precede the next choice",
        ),
        pytest.param(
            {},
            {"capacity": "reservation/r1@us-central2-c, spot", "zones": "us-central2-a, us-central2-b"},
            ["reservation r1 in us-central2-c", "spot in us-central2-a", "spot in us-central2-b"],
            id="choice with a zone",
        ),
        pytest.param(
            {},
            {"capacity": "spot@us-central2-b, spot", "zones": "us-central2-b, us-central2-a"},
            ["spot in us-central2-b", "spot in us-central2-a"],
            id="two choices with the same result",
        ),
        pytest.param(
            {"annotations": {constants.ZONES: "us-central2-c"}},
            {"zones": "us-central2-a"},
            ["on-demand in us-central2-c"],
            id="zones of the JobSet override setting",
        ),
        pytest.param(
            {
                "selector": {constants.ZONE: "us-central2-d"},
                "annotations": {constants.ZONES: "us-central2-c", constants.CAPACITY: "spot@us-central2-c, on-demand"},
            },
            {"zones": "us-central2-a"},
            ["on-demand in us-central2-d"],
            id="zone that the pod selects",
        ),
        pytest.param(
            {"annotations": {constants.CAPACITY: "spot, reservation/r1, on-demand"}},
            {"force_on_demand": True},
            ["on-demand in us-central2-b"],
            id="GCP_FORCE_ON_DEMAND",
        ),
    ],
)
def test_choices_of_a_slice_follow_pod_then_jobset_then_settings(
    asked: dict[str, Any], changes: dict[str, Any], want: list[str]
) -> None:
    assert [str(choice) for choice in choices_of(slice_of(**asked), settings(**changes)).open] == want


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param({constants.SPOT: "true"}, "spot", id="spot"),
        pytest.param({constants.PROVISIONING: "spot"}, "spot", id="spot by gke-provisioning"),
        pytest.param({constants.SPOT: "true", constants.PROVISIONING: "spot"}, "spot", id="spot by both"),
        pytest.param({constants.FLEX_START: "true"}, "flex-start", id="flex-start"),
        pytest.param({constants.PROVISIONING: "flex-start"}, "flex-start", id="flex-start by gke-provisioning"),
        pytest.param({constants.RESERVATION_NAME: "r1"}, "reservation r1", id="a reservation"),
        pytest.param(
            {constants.RESERVATION_NAME: "r1", constants.RESERVATION_PROJECT: "other-project"},
            "reservation other-project/r1",
            id="a shared reservation",
        ),
        pytest.param(
            {constants.RESERVATION_NAME: "r1", constants.RESERVATION_BLOCK: "b1"},
            "reservation project-1/r1/b1",
            id="a block of a reservation of the cluster's own project, with the full path",
        ),
    ],
)
def test_capacity_that_the_pod_selects_overrides_annotations_and_settings(selector: dict[str, str], want: str) -> None:
    """The pod must fit the nodes of the pool that is created for the selected capacity."""
    slice_ = slice_of(selector=selector, annotations={constants.CAPACITY: "on-demand"})
    choices = choices_of(slice_, settings(capacity="spot, on-demand, reservation/r9"))
    assert [str(choice) for choice in choices.open] == [f"{want} in us-central2-b"]
    request = request_of(slice_)
    assert choice_of(request) == choice_of(expected_pool(request)) == choices.open[0]
    assert misfit(slice_.requirements, GKE_RULES.expected_node(expected_pool(request))) == ()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(
            {"selector": {constants.SPOT: "true", constants.FLEX_START: "true"}},
            [f"{constants.SPOT}=true", f"{constants.FLEX_START}=true", "remove all but one"],
            id="two pins",
        ),
        pytest.param(
            {"selector": {constants.SPOT: "true", constants.RESERVATION_NAME: "r1"}},
            [f"{constants.SPOT}=true", f"{constants.RESERVATION_NAME}=r1"],
            id="spot from a reservation",
        ),
        pytest.param(
            {"selector": {constants.RESERVATION_BLOCK: "b1"}},
            [constants.RESERVATION_BLOCK, f"without {constants.RESERVATION_NAME}"],
            id="a block without its reservation",
        ),
        pytest.param(
            {"selector": {constants.ZONE: "us-east5-a"}},
            ["zone us-east5-a is not in us-central2"],
            id="a selected zone outside the region",
        ),
        pytest.param(
            {"annotations": {constants.ZONES: "us-central2-b, us-east5-a"}},
            ["zone us-east5-a is not in us-central2"],
            id="a zone of the annotation outside the region",
        ),
        pytest.param(
            {"annotations": {constants.CAPACITY: "spot@us-central2-a"}, "selector": {constants.ZONE: "us-central2-b"}},
            [f"{constants.ZONE}=us-central2-b", "spot in us-central2-a"],
            id="a choice elsewhere than the pod selects",
        ),
        pytest.param(
            # On-demand is not used instead, because it may cost more than the first choice of the user.
            {"annotations": {constants.CAPACITY: "queued, on-demand"}},
            [f"annotation {constants.CAPACITY}='queued, on-demand' has 'queued'", *_QUEUED],
            id="queued capacity",
        ),
        pytest.param(
            {"annotations": {constants.ZONES: "here"}, "selector": {constants.ZONE: "us-central2-b"}},
            [f"annotation {constants.ZONES}='here'"],
            id="an invalid annotation that a selector overrides",
        ),
        # GCP_FORCE_ON_DEMAND is set in this case.
        pytest.param(
            {"selector": {constants.QUEUED: "true"}},
            [f"the pod selects {constants.QUEUED}=true", *_QUEUED],
            id="queued capacity with GCP_FORCE_ON_DEMAND",
        ),
        pytest.param(
            {
                "annotations": {
                    constants.CAPACITY: ",".join(f"reservation/r{index}" for index in range(16)),
                    constants.ZONES: ",".join(f"us-central2-{zone}" for zone in "abcde"),
                }
            },
            [constants.CAPACITY, constants.ZONES, "make 80 pairs of choice and zone, and at most 64 are read"],
            id="too many pairs of choice and zone",
        ),
    ],
)
def test_slice_without_a_valid_choice_raises_an_error_with_the_reason(asked: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UnmeetableError) as caught:
        choices_of(slice_of(**asked), settings(force_on_demand=constants.QUEUED in asked.get("selector", {})))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("capacity", "changes", "want", "words"),
    [
        pytest.param(
            "reservation/r1, reservation/r2, spot",
            {"allowed_reservations": ("r2",)},
            ["reservation r2", "spot"],
            "reservation r1 is not among ALLOWED_RESERVATIONS",
            id="a reservation that is not allowed",
        ),
        pytest.param(
            "flex-start, on-demand",
            {"accelerator": "tpu-v4-podslice"},
            ["on-demand"],
            "Google does not offer ct4p-hightpu-4t as flex-start capacity",
            id="terms that the machine is not sold on",
        ),
        pytest.param(
            "spot@us-east5-a, on-demand",
            {},
            ["on-demand"],
            "spot in us-east5-a is not in us-central2",
            id="a zone outside the region",
        ),
    ],
)
def test_impossible_choice_is_skipped_and_reported(
    capacity: str, changes: dict[str, Any], want: list[str], words: str
) -> None:
    accelerator = changes.pop("accelerator", V5P)
    workload = jobset_of(annotations={constants.CAPACITY: capacity}, accelerator=accelerator)
    choices = choices_of(make_slice(workload), settings(**changes))
    assert [str(choice) for choice in choices.open] == [f"{wanted} in us-central2-b" for wanted in want]
    plan = World(workload, settings_=settings(**changes)).look()
    assert str(choice_of(plan.creates[0].request)) == f"{want[0]} in us-central2-b"
    (notice,) = plan.notices
    assert notice.reason == EventReason.INVALID_REQUEST
    assert words in notice.message


def test_label_that_is_not_copied_is_reported_although_a_pool_is_created() -> None:
    key = "node-restriction.kubernetes.io/team"
    plan = World(jobset_of(labels={key: "root"}, pod_annotations={constants.COPY_LABELS: key})).look()
    assert key not in plan.creates[0].request.labels
    (told,) = [notice for notice in plan.notices if notice.reason == EventReason.INVALID_REQUEST]
    assert f"names {key}: labels of google.com, kubernetes.io" in told.message


def test_a_choice_that_the_pod_does_not_tolerate_is_skipped() -> None:
    world = World(jobset_of(tolerations=(CHIP_TOLERATION,)), settings_=settings(capacity="spot, on-demand, flex-start"))
    world.step()
    assert bought(world) == ["on-demand in us-central2-b"]


def test_notice_has_the_reasons_of_all_choices_if_none_fits() -> None:
    workload = jobset_of(tolerations=(CHIP_TOLERATION,), selector={constants.PROVISIONING: "standard"})
    (notice,) = World(workload, settings_=settings(capacity="spot, flex-start")).look().notices
    assert notice.reason == EventReason.INVALID_REQUEST
    assert f"the node has {constants.PROVISIONING}=spot" in notice.message
    assert f"the node has {constants.PROVISIONING}=flex-start" in notice.message


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (constants.CAPACITY, "cheap"),
        (constants.ZONES, "nowhere"),
        (constants.SAME_ZONE, "perhaps"),
        (constants.ALL_OR_NOTHING, "maybe"),
        (constants.MAX_RUN_DURATION, "1d"),
    ],
)
def test_invalid_annotation_is_reported_and_does_not_delay_other_jobsets(key: str, text: str) -> None:
    world = World(jobset_of("bad", annotations={key: text}, replicas=2), jobset_of("good"), settings_=settings())
    plan = world.look()
    assert [create.workload.name for create in plan.creates] == ["good"]
    assert len(plan.notices) == 2
    for notice in plan.notices:
        assert notice.reason == EventReason.INVALID_REQUEST
        assert f"annotation {key}={text!r}" in notice.message
        assert [object_.kind for object_ in notice.objects] == ["Pod", "JobSet"]


# --- Requests to GKE ---


@pytest.mark.parametrize(
    ("asked", "changes", "want"),
    [
        pytest.param({}, {}, 0, id="Google's own"),
        pytest.param({}, {"max_run_seconds": 3600.0}, 3600, id="the setting"),
        pytest.param(
            {"annotations": {constants.MAX_RUN_DURATION: "2h"}},
            {"max_run_seconds": 3600.0},
            7200,
            id="annotation overrides setting",
        ),
        pytest.param(
            {
                "selector": {constants.MAX_RUN_SECONDS: "600"},
                "annotations": {constants.MAX_RUN_DURATION: "2h"},
            },
            {},
            600,
            id="selector overrides annotation",
        ),
        pytest.param({"annotations": {constants.MAX_RUN_DURATION: "168h"}}, {}, 604800, id="the longest"),
    ],
)
def test_max_run_duration_follows_selector_then_annotation_then_setting(
    asked: dict[str, Any], changes: dict[str, Any], want: int
) -> None:
    slice_ = slice_of(**asked)
    assert request_of(slice_, capacity="flex-start", **changes).max_run_seconds == want
    if "selector" not in asked:
        assert request_of(slice_, capacity="on-demand", **changes).max_run_seconds == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"annotations": {constants.MAX_RUN_DURATION: "9m"}}, "540 s is not from 10 minutes to 7 days"),
        ({"annotations": {constants.MAX_RUN_DURATION: "169h"}}, "608400 s is not from 10 minutes to 7 days"),
        ({"selector": {constants.MAX_RUN_SECONDS: "599"}}, "599 s is not from 10 minutes to 7 days"),
        (
            {"selector": {constants.MAX_RUN_SECONDS: "1h"}},
            f"{constants.MAX_RUN_SECONDS}='1h' is not a number of seconds",
        ),
        ({"selector": {constants.MAX_RUN_SECONDS: "\u0663"}}, "is not a number of seconds"),
    ],
    ids=["too short", "too long", "a selector too short", "a selector with a unit", "digits of another script"],
)
def test_invalid_max_run_duration_is_reported(asked: dict[str, Any], words: str) -> None:
    (notice,) = World(jobset_of(**asked), settings_=settings(capacity="flex-start")).look().notices
    assert words in notice.message


@pytest.mark.parametrize(("text", "taints"), [("on-demand", ()), ("flex-start", (HELD_LATE_TAINT,))])
def test_pool_of_a_marked_all_or_nothing_slice_is_free_or_for_flex_start_tainted(
    text: str, taints: tuple[Taint, ...]
) -> None:
    """The autoscaler adds no nodes to a free pool for a marked pod, so a flex-start pool gets the marks and a taint."""
    template = make_requirements(accelerator="tpu-v6e-slice", topology="2x4", tolerations=())
    workload = make_jobset(replicas=2, template=template, annotations={constants.ALL_OR_NOTHING: "true"})
    request = request_of(make_slice(workload, marked=True), capacity=text)
    assert request.taints == taints
    assert {key: request.labels[key] for key in MARKS} == (make_marks(workload) if taints else FREE)
    assert constants.HELD_LATE not in {taint.key for taint in GKE_RULES.expected_node(expected_pool(request)).taints}


# --- Fallback to the next choice ---


def test_one_event_names_all_choices_if_all_wait_after_failures() -> None:
    world = World(jobset_of(), settings_=settings(capacity="on-demand, spot"))
    world.refuse_create = refuse(
        on_demand=failure(FailureKind.QUOTA, f"Quota TPU_V5P{'x' * 200}."),
        spot=failure(FailureKind.STOCKOUT, "No v5p left."),
    )
    world.run(2)
    plan = world.look()
    (notice,) = plan.notices
    assert notice.reason == EventReason.CREATION_WAITING
    assert plan.creates == ()
    for backoff in world.memory.backoffs.values():
        assert f"next try {backoff.until:%H:%M:%S} UTC" in notice.message
    for word in ("on-demand in us-central2-b", "spot in us-central2-b", "No v5p left", "Quota TPU_V5Px", "x…"):
        assert word in notice.message
    assert plan.wake_at == min(backoff.until for backoff in world.memory.backoffs.values())


def test_next_choice_is_used_after_the_first_was_rejected() -> None:
    """A rejection concerns only one choice: the second choice is tried again after its stockout."""
    world = World(jobset_of("one"), settings_=settings(capacity="on-demand, spot"))
    world.refuse_create = refuse(on_demand=failure(FailureKind.INVALID, "No such disk."), spot=STOCKOUT)
    world.run(3)
    (notice,) = world.look().notices
    assert notice.reason == EventReason.CREATION_WAITING
    assert "No such disk" in notice.message
    assert "(rejected, next try " in notice.message
    world.refuse_create = refuse(on_demand=failure(FailureKind.INVALID, "No such disk."))
    world.run(40)
    assert bought(world) == ["spot in us-central2-b"]


def test_slice_is_reported_as_failed_if_all_choices_are_rejected() -> None:
    world = World(jobset_of(), settings_=settings(capacity="on-demand, spot"))
    world.refuse_create = lambda create: failure(FailureKind.INVALID, f"Not {create.request.capacity.value}.")
    world.run(3)
    (notice,) = world.look().notices
    assert notice.reason == EventReason.CREATION_FAILED
    assert "Not on-demand" in notice.message
    assert "Not spot" in notice.message


def test_missing_permission_blocks_all_choices_with_one_message() -> None:
    """The permission to create pools does not depend on these kinds of capacity."""
    world = World(jobset_of(), settings_=settings(capacity="on-demand, spot, flex-start"))
    world.refuse_create = lambda _: failure(FailureKind.PERMISSION, "Permission container.clusters.update is missing.")
    world.run(30)
    assert len(world.sent()) == 1
    (notice,) = world.plans[-1].notices
    assert notice.message.count("Permission container.clusters.update is missing.") == 1


# --- One zone for all slices ---


def one_in_each_zone(workload: Workload, **changes: Any) -> World:
    """Return a world of two zones with capacity for one pool each."""
    world = World(workload, settings_=settings(zones="us-central2-a, us-central2-b", **changes))
    world.refuse_create = lambda create: (
        STOCKOUT if create.request.zone in {pool.zones[0] for pool in world.pools.values()} else None
    )
    return world


def zones_bought(world: World) -> list[str]:
    return [world.pools[name].zones[0] for name in world.created]


@pytest.mark.parametrize("by_annotation", [True, False])
def test_all_pools_of_a_jobset_with_same_zone_are_in_the_zone_of_the_first(*, by_annotation: bool) -> None:
    workload = jobset_of(replicas=3, annotations={constants.SAME_ZONE: "true"} if by_annotation else {})
    world = one_in_each_zone(workload, same_zone=not by_annotation)
    world.run(20)
    assert zones_bought(world) == ["us-central2-a"]
    waiting = world.plans[-1].notices
    assert len(waiting) == 2
    assert all(notice.reason == EventReason.CREATION_WAITING for notice in waiting)
    world.refuse_create = lambda _: None
    world.live(100)
    assert zones_bought(world) == ["us-central2-a"] * 3
    assert world.bound(workload) == 3


def test_pools_are_created_in_several_zones_without_same_zone() -> None:
    world = one_in_each_zone(jobset_of(replicas=2))
    world.run(3)
    assert zones_bought(world) == ["us-central2-a", "us-central2-b"]


def test_free_pool_of_another_zone_is_not_used_with_same_zone() -> None:
    workload, gone = jobset_of(replicas=2), jobset_of("gone", replicas=2)
    world = World(workload, settings_=settings(zones="us-central2-a, us-central2-b", same_zone=True))
    slow = {"deletion_delay_seconds": 3600.0}
    world.settings = replace(world.settings, **slow)
    near = world.put_pool(replace(make_pool(gone), zones=(Zone("us-central2-a"),)))
    far = world.put_pool(replace(make_pool(gone, job=1), zones=(Zone("us-central2-b"),)))
    plan = world.step()
    claimed = [state.name for state in plan.pools if state.phase.value == "ready"]
    assert claimed == [near.name]
    assert zones_bought(world) == ["us-central2-a"]
    assert far.name in world.pools


def test_pod_that_selects_another_zone_than_its_jobset_is_reported() -> None:
    workload = jobset_of(replicas=2)
    world = World(settings_=settings(zones="us-central2-a, us-central2-b", same_zone=True))
    world.add(workload)
    pinned = next(pod for pod in world.pods.values() if "slice-1" in pod.name)
    selector = {**pinned.requirements.node_selector, constants.ZONE: "us-central2-b"}
    world.put(replace(pinned, requirements=replace(pinned.requirements, node_selector=selector)))
    (notice,) = world.look().notices
    assert notice.reason == EventReason.INVALID_REQUEST
    assert "must be in one zone, us-central2-a, but this slice may only be in us-central2-b" in notice.message


# --- Flex-start pools without nodes ---


def flex_world(**changes: Any) -> tuple[World, Workload, Any]:
    """Return a world with one flex-start pool that is RUNNING and has no nodes."""
    workload = jobset_of()
    world = World(workload, settings_=settings(capacity="flex-start", **changes))
    world.run(2)
    world.finish_creates()
    world.run(2)
    (name,) = world.created
    assert world.pools[name].status is PoolStatus.RUNNING
    return world, workload, name


def test_flex_start_pool_without_nodes_is_kept_for_hours_and_does_not_fail() -> None:
    world, workload, name = flex_world()
    world.run(12 * 60, seconds=60)
    assert (world.created, world.deleted) == ([name], [])
    assert world.told() == []
    assert not any(plan.alerts for plan in world.plans)
    assert (world.memory.backoffs, world.memory.given_up) == ({}, frozenset())
    assert world.states()[name] == "provisioning"
    world.bring_nodes(name)
    world.live(2)
    assert world.bound(workload) == 1
    assert world.states()[name] == "in_use"


def test_a_flex_start_pool_without_nodes_serves_the_next_slice_of_its_shape() -> None:
    world, workload, name = flex_world()
    world.finish(workload)
    world.add(jobset_of("next"))
    world.run(60)
    assert (world.created, world.deleted) == ([name], [])


@pytest.mark.parametrize("made", [False, True], ids=["one node came", "the machines came, and no node is left"])
def test_flex_start_pool_that_lost_its_machines_is_replaced_like_other_pools(*, made: bool) -> None:
    """A pool that has had machines does not count as queued."""
    world, _, name = flex_world(ready_timeout_seconds=600.0)
    world.put(replace(world.pools[name], made=made))
    if not made:
        world.bring_nodes(name, 0)
    world.run(9, seconds=60)
    assert world.deleted == []
    world.run(4, seconds=60)
    assert world.deleted == [name]
    assert len(world.created) == 2


def tried_reservations(choices: str, *, seconds: float) -> list[str]:
    """Return the reservations of the creates within 60 rounds, empty for on-demand; GKE forbids all reservations."""
    world = World(make_jobset(annotations={constants.CAPACITY: choices}))
    world.refuse_create = lambda create: failure(FailureKind.PERMISSION) if create.request.reservation else None
    world.run(60, seconds=seconds)
    return [create.request.reservation for create in world.sent()]


def test_next_choice_is_tried_before_forbidden_reservations_are_retried() -> None:
    assert tried_reservations("reservation/r1, reservation/r2, on-demand", seconds=1) == ["r1", "r2", ""]


def test_forbidden_choices_are_each_tried_once_per_wait() -> None:
    tried = tried_reservations("reservation/r1, reservation/r2", seconds=60)
    assert 4 <= tried.count("r1") <= 10
    assert abs(tried.count("r1") - tried.count("r2")) <= 1
