"""Tests of the view of a decision: reasons, limits, costs and states of slices and pools."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind
from provisioner.settings import Settings
from provisioner.settings.forms import parse_prices
from provisioner.slices.messages import states, waits
from provisioner.slices.planning.contention.waits import WaitKind, WaitsFor
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import DeleteReason, DeleteWait
from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import STATES, SliceView, State, View
from tests.support.board import view_of
from tests.support.models import make_jobset, make_requirements
from tests.support.pod_world import Cluster, pod_of
from tests.support.settings import settings
from tests.support.world import World, failure, running

STOCKOUT = failure(FailureKind.STOCKOUT, "The zone 'us-central2-b' does not have enough resources.")


def only_slice(view: View) -> SliceView:
    (found,) = view.slices
    return found


def waiting(settings_: Settings | None = None) -> World:
    return World(make_jobset("train", replicas=1), settings_=settings_)


def refused(kind: FailureKind, message: str) -> World:
    world = waiting()
    world.refuse_create = lambda _: failure(kind, message)
    world.run(2)
    return world


def test_long_messages_of_gke_are_cut() -> None:
    """The message is repeated in each affected slice, notice and back-off."""
    view = view_of(refused(FailureKind.STOCKOUT, 100_000 * "x"))
    texts = [only_slice(view).reason, view.capacity.backoffs[0].message]
    texts += [notice.message for notice in only_slice(view).notices]
    assert len(texts) >= 3
    assert {len(text) for text in texts} == {2048}


def test_slice_with_invalid_topology_shows_the_selectors_of_its_pods() -> None:
    slice_ = only_slice(view_of(World(make_jobset(template=make_requirements(topology="3x3")))))
    assert (slice_.state, slice_.topology, slice_.machine_type) == (State.REJECTED, "3x3", "")
    assert slice_.accelerator == make_requirements().node_selector[constants.TPU_ACCELERATOR]
    other = only_slice(view_of(World(make_jobset(template=make_requirements(accelerator="tpu-v99", topology="3x3")))))
    assert (other.accelerator, other.topology) == ("", "3x3")


def test_rejected_create_is_shown_as_reason_and_as_back_off() -> None:
    view = view_of(refused(FailureKind.INVALID, "Bad disk."))
    assert "GKE rejects node pool" in only_slice(view).reason
    (wait,) = view.capacity.backoffs
    assert (wait.message, wait.shape) == ("Bad disk.", "all slices that ask for the same")
    (found,) = explain(view, view.at, (), (), only_slice(view).id)
    assert found.headline.count("Bad disk.") == 1
    assert dict(found.facts)["paused: this request"].startswith("rejected request since"), found.facts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"suspended": True}, "is suspended", id="suspended"),
        pytest.param({"annotations": {constants.DISABLE: "true"}}, f"{constants.DISABLE} is set", id="opted out"),
        pytest.param(
            {"problem": ("it has too many", "use fewer")}, "created: it has too many; use fewer.", id="too large"
        ),
        pytest.param({"groups": make_jobset(replicas=0).groups}, "It has no pods that request TPUs.", id="no groups"),
        pytest.param({"managed_by": "example.com/a"}, "spec.managedBy is example.com/a: another", id="another's"),
        pytest.param({"deleting": True}, "", id="deleting"),
    ],
)
def test_slice_that_gets_no_pool_has_a_reason(change: dict[str, object], words: str) -> None:
    world = waiting(settings(keep_suspended=True))
    (uid,) = world.workloads
    world.workloads[uid] = replace(world.workloads[uid], **change)  # type: ignore[arg-type]
    view = view_of(world)
    assert {slice_.state for slice_ in view.slices} <= {State.NONE}
    assert words in (view.slices or view.workloads)[0].reason
    assert view.workloads[0].state == next((word for word in ("suspended", "deleting") if word in change), "lives")


def test_limits_are_shown_with_their_use() -> None:
    world = World(
        make_jobset("train", replicas=1),
        settings_=settings(
            max_chips=64,
            max_chips_per_namespace=(("default", 16), ("other", 4)),
            max_chips_per_accelerator=(("*", 32),),
            max_creates_per_hour=10,
        ),
    )
    world.live(3)
    limits = {(limit.name, limit.scope): (limit.used, limit.most) for limit in view_of(world).capacity.limits}
    assert limits == {
        ("MAX_CHIPS", "all"): (8, 64),
        ("MAX_CHIPS_PER_NAMESPACE", "default"): (8, 16),
        ("MAX_CHIPS_PER_NAMESPACE", "other"): (0, 4),
        ("MAX_CHIPS_PER_ACCELERATOR", "*"): (8, 32),
        ("MAX_CREATES_PER_HOUR", "all"): (1, 10),
    }


def test_pool_has_a_cost_only_with_prices() -> None:
    """The cost counts only hosts whose nodes exist."""
    world = World(make_jobset("train", replicas=1), settings_=settings(prices=parse_prices("tpu-v4-podslice=1.5")))
    world.step()
    assert view_of(world).pools[0].cost_per_hour == 0
    world.finish_creates()
    assert view_of(world).pools[0].cost_per_hour == pytest.approx(8 * 1.5)
    assert view_of(running(make_jobset("train"))).pools[0].cost_per_hour is None


def test_phases_have_states_and_delete_reasons_and_waits_have_texts() -> None:
    assert set(STATES) == set(Phase) - {Phase.GONE}
    assert all(states.WHY_DELETED[reason] for reason in DeleteReason)
    assert all(states.WHY_LATE[wait] for wait in DeleteWait)
    assert all(waits.cause(WaitsFor(kind=kind)) for kind in WaitKind)


@pytest.mark.parametrize(
    ("capacity", "brief"),
    [
        ("spot, on-demand, spot", "{} has 'spot' twice. Name each choice once, best first."),
        ("reservation/a; b", "{} has 'reservation/a; b', where 'a; b' is not the name of a reservation or block."),
    ],
    ids=["next step is known", "semicolon in the annotation"],
)
def test_brief_of_an_invalid_annotation_ends_with_the_next_step_only(capacity: str, brief: str) -> None:
    """In the past, the part of a value after a semicolon was shown as the next step."""
    template = make_requirements(annotations={constants.CAPACITY: capacity})
    slice_ = only_slice(view_of(World(make_jobset(replicas=1, template=template))))
    assert slice_.brief == brief.format(f"annotation {constants.CAPACITY}='{capacity}'")


@pytest.mark.parametrize(("message", "cause"), [("Limit (TPUS): 0.", "quota: Limit (TPUS): 0"), ("x" * 99, "quota")])
def test_brief_of_slices_that_start_together_has_the_message_if_it_fits(message: str, cause: str) -> None:
    last = failure(FailureKind.QUOTA, message)
    wait = WaitsFor(kind=WaitKind.FAILURES, failure=last, together=make_jobset("train"))
    assert waits.brief(wait) == f"{cause}. {waits.next_step(wait)}"


def test_pod_that_waits_for_a_node_of_a_used_pool_is_not_shown_as_running() -> None:
    """A pod of a rolling update waits for the node of a pod that terminates; other pods run on the pool."""
    world = Cluster()
    world.scale(2)
    world.settle()
    uid, old = next(iter(world.pods.items()))
    world.pods[uid] = replace(old, deletion_deadline=world.now + timedelta(seconds=30))
    world.scale(1, owner="next")
    world.run(3)
    found = {slice_.group: slice_.state for slice_ in view_of(world).slices}
    assert found == {"web-0": State.RUNNING, "web-1": State.RUNNING, "next-0": State.READY}


def test_controller_that_is_recreated_under_its_name_is_shown_once() -> None:
    """Pods of the deleted Job terminate while pods of the new Job wait."""
    world = Cluster()
    pods = [pod_of("train-x", "train", kind="Job"), pod_of("train-y", "train", kind="Job")]
    old = replace(pods[0], group_name="train", deletion_deadline=world.now + timedelta(seconds=30))
    for pod in (old, replace(pods[1], group_name="train", workload_uid="new", unschedulable_since=world.now)):
        world.put(pod)
    assert [slice_.leader for slice_ in view_of(world).slices] == ["train-y"]


def test_chips_of_a_controller_that_is_recreated_are_counted_once() -> None:
    """The pods of a deleted Job are unschedulable until the garbage collector deletes them."""
    world = Cluster()
    for name, uid in (("train-x", "old"), ("train-y", "new")):
        pod = pod_of(name, "train", kind="Job")
        world.put(replace(pod, group_name="train", workload_uid=uid, unschedulable_since=world.now))
    view = view_of(world)
    assert view.capacity.chips[State.WAITING] == only_slice(view).chips
