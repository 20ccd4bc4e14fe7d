"""What the policy on nodes lets the provisioner's ServiceAccount change, beyond what RBAC can say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants, kube
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import Rehearsal

pytestmark = pytest.mark.e2e

_NODE = "guarded-node"
_KEPT = "kept.example"
_OURS = {constants.NODEPOOL_MANAGER: constants.MANAGER}
_NODE_CASES: tuple[tuple[str, dict[str, str], dict[str, Any], bool], ...] = (
    ("cordons a node of its own", _OURS, {"spec": {"unschedulable": True}}, True),
    ("notes that it cordoned", _OURS, {"metadata": {"annotations": {constants.CORDONED: "true"}}}, True),
    ("cordons no other node", {}, {"spec": {"unschedulable": True}}, False),
    ("cannot make another node its own", {}, {"metadata": {"labels": _OURS}}, False),
    ("changes no label", _OURS, {"metadata": {"labels": {"a": "b"}}}, False),
    ("takes no label away", _OURS, {"metadata": {"labels": {constants.NODEPOOL_MANAGER: None}}}, False),
    ("writes no other annotation", _OURS, {"metadata": {"annotations": {"a": "b"}}}, False),
    ("takes no other annotation away", _OURS, {"metadata": {"annotations": {"kept": None}}}, False),
    ("sets no finalizer", _OURS, {"metadata": {"finalizers": ["a.example/b"]}}, False),
    ("sets no owner", _OURS, {"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]}}, False),
    ("sets no provider", _OURS, {"spec": {"providerID": "gce://other"}}, False),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "labels", "change", "want_allowed"), _NODE_CASES, ids=[each[0] for each in _NODE_CASES]
)
def test_the_node_guard(
    name: str,
    labels: dict[str, str],
    change: dict[str, Any],
    want_allowed: bool,
    rehearsal: Rehearsal,
    controller: Path,
    installed: list[dict[str, Any]],
) -> None:
    """Patching nodes is held to the cordon of nodes of its own pools."""
    api = kube.connect(str(controller))
    with _guarded_node(rehearsal, labels):
        # An administrator is not held to it.
        rehearsal.api.patch(object_path("nodes", _NODE), {"metadata": {"annotations": {"admin": "yes"}}})
        if want_allowed:
            before = rehearsal.api.get(object_path("nodes", _NODE))["metadata"]["resourceVersion"]
            after = api.patch(object_path("nodes", _NODE), change, strategic=True)
            assert after["metadata"]["resourceVersion"] != before
        else:
            with pytest.raises(kube.ClusterError, match="tpu-provisioner may"):
                api.patch(object_path("nodes", _NODE), change, strategic=True)
    api.close()


@contextmanager
def _guarded_node(rehearsal: Rehearsal, labels: dict[str, str]) -> Iterator[None]:
    """Make a node with an annotation and three taints, two of them the provisioner's."""
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _NODE, "labels": labels, "annotations": {"kept": "yes"}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in (_KEPT, *constants.HELD_KEYS)]},
    }
    rehearsal.api.post(collection_path("nodes"), body)
    try:
        yield
    finally:
        rehearsal.api.delete(object_path("nodes", _NODE))


def _taint_keys(rehearsal: Rehearsal) -> set[str]:
    """Return the keys of our three taints that are left; the control plane puts its own beside them."""
    taints = rehearsal.api.get(object_path("nodes", _NODE))["spec"].get("taints", ())
    return {taint["key"] for taint in taints} & {_KEPT, *constants.HELD_KEYS}


def test_its_own_taint_comes_off(rehearsal: Rehearsal, controller: Path) -> None:
    """The policy lets the provisioner take its own taint off a node of its own, and the other taints stay."""
    api = kube.connect(str(controller))
    with _guarded_node(rehearsal, _OURS):
        assert kube.release(api, _NODE)
        assert _taint_keys(rehearsal) == {_KEPT}
    api.close()


_TAINT_CASES: tuple[tuple[str, dict[str, str], Callable[[list[dict[str, Any]]], list[dict[str, Any]]]], ...] = (
    ("another node's", {}, lambda taints: [taint for taint in taints if taint["key"] not in constants.HELD_KEYS]),
    ("another taint", _OURS, lambda taints: [taint for taint in taints if taint["key"] != _KEPT]),
    ("all of them", _OURS, lambda taints: []),
    ("a further one", _OURS, lambda taints: [*taints, {"key": "a", "effect": "NoExecute"}]),
    ("another value of its own", _OURS, lambda taints: [
        {**taint, "value": "a"} if taint["key"] in constants.HELD_KEYS else taint for taint in taints]),
)  # fmt: skip


@pytest.mark.parametrize(("name", "labels", "change"), _TAINT_CASES, ids=[each[0] for each in _TAINT_CASES])
def test_taints_that_stay(
    name: str,
    labels: dict[str, str],
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    rehearsal: Rehearsal,
    controller: Path,
) -> None:
    """No other change of taints passes."""
    api = kube.connect(str(controller))
    path = object_path("nodes", _NODE)
    with _guarded_node(rehearsal, labels):
        changed = change(rehearsal.api.get(path)["spec"]["taints"])
        with pytest.raises(kube.ClusterError, match="tpu-provisioner may"):
            api.patch(path, {"spec": {"taints": changed}}, strategic=True)
        assert _taint_keys(rehearsal) == {_KEPT, *constants.HELD_KEYS}
    api.close()
