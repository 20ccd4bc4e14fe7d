"""What the policies of node groups let their controller change, beyond what RBAC can say.

That its rights suffice, and that it uses each of them: tests/e2e/test_node_groups.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner import kube
from provisioner.kube.protocol import collection_path, object_path
from provisioner.nodegroups import app
from provisioner.nodegroups.api import names
from provisioner.nodegroups.planning.nodes import TPU_TAINT
from rehearsal.demos import Rehearsal
from rehearsal.demos.world import wait_for
from tests.deploy.kit import DEPLOY, kubeconfig_of_service_account
from tests.e2e.kit import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

_RIGHTS = str(DEPLOY / "nodegroups" / "rbac")
_NODE = "machine-of-rights"


@pytest.fixture(scope="module")
def controller(rehearsal: Rehearsal, installed: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a kubeconfig with nothing but a token of the controller's ServiceAccount."""
    rehearsal.kubectl("apply", "--server-side", "-k", _RIGHTS)
    _make_node(rehearsal)
    kubeconfig = kubeconfig_of_service_account(
        rehearsal, tmp_path_factory.mktemp("nodegroups") / "kubeconfig", name=app.LEASE_NAME
    )
    api = kube.connect(str(kubeconfig))
    wait_for(lambda: _is_guarded(api), "the policy on nodes is in force", PATIENCE_SECONDS)
    api.close()
    yield kubeconfig
    _forget(rehearsal, object_path("nodes", _NODE))
    rehearsal.kubectl("delete", "-k", _RIGHTS)


def _is_guarded(api: kube.KubeApi) -> bool:
    """Whether the API server goes by the roles and the policy, of which it learns some time after they are there."""
    try:
        # Another value each time: the policy has nothing against a patch that changes nothing.
        api.patch(object_path("nodes", _NODE), {"metadata": {"labels": {"tried": uuid.uuid4().hex}}})
    except kube.ClusterError as error:
        return "tpu-provisioner may" in str(error)
    return False


def _forget(rehearsal: Rehearsal, path: str) -> None:
    try:
        rehearsal.api.delete(path)
    except kube.NotFound:
        return


def _make_node(rehearsal: Rehearsal, **labels: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _NODE, "labels": labels, "annotations": {"kept": "yes"}},
        "spec": {
            "providerID": f"gce://project-1/us-east5-b/{_NODE}",
            "unschedulable": True,
            "taints": [{"key": "kept.example", "effect": "NoSchedule"}],
        },
    }
    _forget(rehearsal, object_path("nodes", _NODE))
    rehearsal.api.post(collection_path("nodes"), body)


_TPU_TAINT = {"key": TPU_TAINT.key, "value": TPU_TAINT.value, "effect": TPU_TAINT.effect}
_CHANGES: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("labels of groups", {"metadata": {"labels": {names.GROUP_NAME: "a", names.TRUSTED_NAMESPACE: "b"}}}, True),
    ("another label", {"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}, False),
    ("a label taken away", {"metadata": {"labels": {"kept": None}}}, False),
    ("an annotation", {"metadata": {"annotations": {"kept": "no"}}}, False),
    ("a finalizer", {"metadata": {"finalizers": ["a.example/b"]}}, False),
    ("a cordon undone", {"spec": {"unschedulable": False}}, False),
)


@pytest.mark.parametrize(("name", "change", "want_allowed"), _CHANGES, ids=[each[0] for each in _CHANGES])
def test_changes_of_nodes(
    name: str, change: dict[str, Any], want_allowed: bool, rehearsal: Rehearsal, controller: Path
) -> None:
    """Labels of groups, their taint and the cordon, and nothing else."""
    _make_node(rehearsal, kept="yes")
    api = kube.connect(str(controller))
    if want_allowed:
        api.patch(object_path("nodes", _NODE), change, strategic=True)
    else:
        with pytest.raises(kube.ClusterError, match="tpu-provisioner may"):
            api.patch(object_path("nodes", _NODE), change, strategic=True)
    api.close()


_TAINTS: tuple[tuple[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]], bool], ...] = (
    ("the taint of TPUs is added", lambda there: [*there, _TPU_TAINT], True),
    ("another one is", lambda there: [*there, {"key": "a", "effect": "NoExecute"}], False),
    ("the same with another effect is", lambda there: [*there, {**_TPU_TAINT, "effect": "NoExecute"}], False),
    ("it takes the place of others", lambda there: [_TPU_TAINT], False),
)


@pytest.mark.parametrize(("name", "change", "want_allowed"), _TAINTS, ids=[each[0] for each in _TAINTS])
def test_changes_of_taints(
    name: str,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    want_allowed: bool,
    rehearsal: Rehearsal,
    controller: Path,
) -> None:
    """One taint comes, and those of others stay."""
    _make_node(rehearsal)
    api = kube.connect(str(controller))

    def is_allowed() -> bool:
        raw = rehearsal.api.get(object_path("nodes", _NODE))
        # Kubernetes' own controllers add theirs meanwhile.
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "spec": {"taints": change(raw["spec"]["taints"])}}
        try:
            api.patch(object_path("nodes", _NODE), patch)
        except kube.Conflict:
            return is_allowed()
        except kube.Invalid as error:
            assert "tpu-provisioner may only add the taint" in str(error)  # noqa: PT017 - the other side
            return False
        return True

    assert is_allowed() == want_allowed
    api.close()


def test_deletes_of_nodes(rehearsal: Rehearsal, controller: Path) -> None:
    """A machine's node can be deleted, one of the control plane cannot."""
    api = kube.connect(str(controller))
    _make_node(rehearsal, **{"node-role.kubernetes.io/control-plane": ""})
    with pytest.raises(kube.ClusterError, match="not of the control plane"):
        api.delete(object_path("nodes", _NODE))
    _make_node(rehearsal)
    api.delete(object_path("nodes", _NODE))
    _make_node(rehearsal)
    api.close()


@pytest.mark.parametrize("change", [{"type": "Opaque"}, {"metadata": {"name": "trial"}}], ids=["type", "label"])
def test_secrets_that_are_no_tokens_of_groups(change: dict[str, Any], rehearsal: Rehearsal, controller: Path) -> None:
    """None is created in kube-system, where it could become the token of any ServiceAccount, and none deleted."""
    labels = {names.GROUP_NAMESPACE: "default", names.GROUP_NAME: "rights"}
    token = {"metadata": {"name": "trial", "labels": labels}, "type": "bootstrap.kubernetes.io/token"}
    secret = {"apiVersion": "v1", "kind": "Secret", **token, **change}
    path = collection_path("secrets", namespace="kube-system")
    api = kube.connect(str(controller))
    with pytest.raises(kube.ClusterError, match="only bootstrap tokens of groups"):
        api.post(path, secret)
    rehearsal.api.post(path, secret)
    try:
        with pytest.raises(kube.ClusterError, match="only bootstrap tokens of groups"):
            api.delete(f"{path}/trial")
    finally:
        rehearsal.api.delete(f"{path}/trial")
    api.close()
