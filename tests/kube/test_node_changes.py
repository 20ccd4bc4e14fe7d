"""What we write to nodes: undoing a cordon, taking our taint off; only ours, as the node is now."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube import errors, live
from tests.support.kube import FakeKube
from tests.support.objects import raw_node

NODE = "/api/v1/nodes/n1"


def test_a_cordon_that_is_not_ours_any_more_stays() -> None:
    """Ours was undone, then somebody closed the node by hand; a cache still shows ours."""
    kube = FakeKube()
    raw: dict[str, Any] = raw_node("n1")
    kube.put_object(NODE, {**raw, "spec": {**raw.get("spec", {}), "unschedulable": True}})
    assert not live.uncordon(kube, "n1")
    assert [call.method for call in kube.calls] == ["GET"]


def test_a_node_that_others_write_to_meanwhile_is_uncordoned_all_the_same() -> None:
    """A kubelet reports its status at any moment; that is no reason to leave a node closed."""
    kube = FakeKube()
    kube.put_object(NODE, raw_node("n1"))
    live.cordon(kube, "n1")
    kube.fail("PATCH", "nodes", errors.Conflict("the object has been modified", status=409), times=4)
    assert live.uncordon(kube, "n1")
    assert [call.method for call in kube.calls[1:]] == ["GET", "PATCH"] * 5


def test_a_node_that_is_never_at_rest_is_left_for_the_next_round() -> None:
    """Five times are enough."""
    kube = FakeKube()
    kube.put_object(NODE, raw_node("n1"))
    live.cordon(kube, "n1")
    kube.fail("PATCH", "nodes", errors.Conflict("the object has been modified", status=409), times=5)
    with pytest.raises(errors.Conflict):
        live.uncordon(kube, "n1")


def test_an_uncordon_is_written_to_the_node_as_it_was_read() -> None:
    """With the version that was read, so that the API server refuses where somebody wrote in between."""
    kube = FakeKube()
    kube.put_object(NODE, raw_node("n1"))
    live.cordon(kube, "n1")
    closed = kube.object(NODE)
    assert closed is not None
    assert live.uncordon(kube, "n1")
    body = kube.calls[-1].body
    assert body is not None
    assert body["metadata"]["resourceVersion"] == closed["metadata"]["resourceVersion"]


HELD = {"key": constants.HELD, "value": "true", "effect": "NoSchedule"}
LATE = {**HELD, "key": constants.HELD_LATE}
CHIPS = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "want", "changed"),
    [
        pytest.param([CHIPS, HELD], [CHIPS], True, id="ours goes and others stay"),
        pytest.param([LATE, CHIPS], [CHIPS], True, id="ours on late capacity goes too"),
        pytest.param([HELD], None, True, id="ours was the only one"),
        pytest.param([CHIPS], [CHIPS], False, id="ours is not there"),
        pytest.param(None, None, False, id="no taint at all"),
    ],
)
def test_our_taint_is_taken_off_and_no_other(
    *, taints: list[dict[str, str]] | None, want: list[dict[str, str]] | None, changed: bool
) -> None:
    """What it is not there for is not written at all."""
    kube = FakeKube()
    kube.put_object(NODE, {**raw_node("n1"), "spec": {"taints": taints} if taints else {}})
    assert live.release(kube, "n1") is changed
    node = kube.object(NODE)
    assert node is not None
    assert node["spec"].get("taints") == want
    assert [call.method for call in kube.calls] == (["GET", "PATCH"] if changed else ["GET"])


def test_a_node_that_is_gone_needs_no_release() -> None:
    """It went between the decision and the call."""
    assert not live.release(FakeKube(), "n1")
