"""Tests that the manifests grant exactly the rights that the provisioner uses."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.errors import NotFound
from provisioner.kube.lease import LeaseElector
from provisioner.kube.live import cordon, uncordon
from provisioner.kube.machineconfigs import MACHINE_CONFIGS
from provisioner.kube.protocol import LEASES_ROOT, collection_path, object_path
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.reading import API_ROOT
from provisioner.slices.preflight import Status
from provisioner.slices.preflight.in_kubernetes import ADMISSION_GROUP, PLACEMENT_WEBHOOKS
from provisioner.slices.preflight.in_placement import check_placement
from provisioner.workloads import KINDS
from provisioner.workloads.pods import get_workload
from rehearsal.demos import Rehearsal
from tests.deploy.kit import NAMESPACE, OPTIONAL_KINDS, Recorder, rights, try_events
from tests.deploy.mainjob import do_the_main_job, used_rights
from tests.e2e.kit import Ground
from tests.support.settings import settings

pytestmark = pytest.mark.e2e

_ORIGINAL_LEASE = object_path("leases", constants.ORIGINAL_LEASE_NAME, namespace=NAMESPACE, root=LEASES_ROOT)
_OWN_LEASE = object_path("leases", constants.LEASE_NAME, namespace=NAMESPACE, root=LEASES_ROOT)
_HINTS = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=NAMESPACE)
_NODE = "guarded-node"


def _make_original_lease(rehearsal: Rehearsal, *, holder: str = "") -> None:
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": constants.ORIGINAL_LEASE_NAME, "namespace": NAMESPACE},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body))


def _forget(rehearsal: Rehearsal, path: str) -> None:
    try:
        rehearsal.api.delete(path)
    except NotFound:
        return


def _lease_holder(rehearsal: Rehearsal, path: str) -> str:
    return str(rehearsal.api.get(path)["spec"].get("holderIdentity", ""))


def test_provisioner_needs_exactly_the_rights_of_the_manifests(
    rehearsal: Rehearsal, installed: list[dict[str, Any]], ground: Ground, tmp_path: Path
) -> None:
    _make_original_lease(rehearsal)
    with Recorder(rehearsal).recording() as recorder:
        # The provisioner cordons nodes in this run, which shows that the policy on nodes allows cordons.
        _, kubeconfig = do_the_main_job(rehearsal, ground, installed, recorder, tmp_path)
        assert rehearsal.api.get(_HINTS).get("data")
        assert not any(_lease_holder(rehearsal, path) for path in (_OWN_LEASE, _ORIGINAL_LEASE))
        # A short run does not create a Lease, repeat an Event or uncordon a node, so these calls are made here.
        _forget(rehearsal, _OWN_LEASE)
        api = connect(str(kubeconfig))
        _make_own_lease(api)
        try_events(api)
        _cordon(api, rehearsal)
        # The run had only a JobSet, so workloads of the other kinds are read here.
        for kind in OPTIONAL_KINDS:
            assert get_workload(api, kind.kind, "default", "absent") is None
        with contextlib.suppress(NotFound):
            api.patch(object_path("pods", "absent", namespace="default"), {})
        _ask(api)
        api.close()
    _forget(rehearsal, _ORIGINAL_LEASE)

    assert used_rights(recorder, installed) == rights(installed)
    assert {right.resource for right, _ in recorder.answers} == {
        "pods", "nodes", "jobsets", *(kind.resource for kind in OPTIONAL_KINDS), "events", "leases", "configmaps",
        "podtemplates",
        "provisioningrequests", "provisioningrequests/status", "capacitybuffers", "capacitybuffers/status",
        "resourceslices", "deviceclasses", "tpunodegroups", "machineconfigs", "namespaces",
        "persistentvolumeclaims", "persistentvolumes", "storageclasses",
        "mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations",
    }  # fmt: skip


def _ask(api: KubeApi) -> None:
    """Make the calls that the provisioner makes only if the cluster has certain kinds and objects."""
    # A short run may end before the provisioner makes this check, which needs separate rights.
    assert check_placement(api, settings(own_namespace=NAMESPACE)).status is Status.OK
    with pytest.raises(NotFound):
        api.get(object_path("mutatingwebhookconfigurations", PLACEMENT_WEBHOOKS, root=f"/apis/{ADMISSION_GROUP}/v1"))
    with pytest.raises(NotFound):
        api.get(collection_path(MACHINE_CONFIGS.resource, root=MACHINE_CONFIGS.root), {"watch": "true"})
    with contextlib.suppress(NotFound):
        api.get(collection_path(Kind.TPU_NODE_GROUP.plural, root=API_ROOT))
    for kind in (kind for kind in KINDS.values() if not kind.kind.has_pods):
        path = object_path(kind.resource, "absent", namespace="default", root=kind.root)
        with pytest.raises(NotFound):
            api.get(path)
        with pytest.raises(NotFound):
            api.get(collection_path(kind.resource, root=kind.root), {"watch": "true"})
        with pytest.raises(NotFound):
            api.patch(f"{path}/status", {"status": {}})


def _make_own_lease(api: KubeApi) -> None:
    elector = LeaseElector(api, namespace=NAMESPACE, identity="trial", on_started=lambda: None, on_lost=lambda: None)
    elector.step()
    assert not elector.problem
    elector.release()


def _cordon(api: KubeApi, rehearsal: Rehearsal) -> None:
    labels = {constants.NODEPOOL_MANAGER: constants.MANAGER, constants.POOL_JOBSET_NAME: "guarded"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE, "labels": labels}}
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    try:
        cordon(api, _NODE)
        uncordon(api, _NODE)
    finally:
        _forget(rehearsal, object_path("nodes", _NODE))
