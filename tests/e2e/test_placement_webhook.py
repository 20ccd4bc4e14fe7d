"""Tests on a real API server of the webhook server that marks pods, without the placement policy or with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path
from provisioner.model.placement import UNKNOWN_GROUP, labels_of, slice_key
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads import LEADER_WORKER_SET
from rehearsal.demos import Rehearsal
from tests.e2e.kit import (
    ASSIGNED,
    PLACEMENT_MANIFESTS,
    Ground,
    has_mutating_policies,
    registered_webhook,
    serving_webhook,
)
from tests.e2e.test_placement_policy import ADMIN, CLAIMS, Admission, await_marks, marks, terms
from tests.support.objects import pod_spec, raw_lws

pytestmark = pytest.mark.e2e

_ASSIGNED, _OPEN, _OFF = "webhook-assigned", "webhook-open", "webhook-off"
_ADMIN, _ADMIN_ASSIGNED = "webhook-admin", "webhook-admin-assigned"
_GROUP = {constants.JOB_KEY: "a" * 40}


@pytest.fixture(scope="module")
def server(rehearsal: Rehearsal) -> Iterator[Admission]:
    rehearsal.create_namespace(_ASSIGNED, labels=ASSIGNED)
    rehearsal.create_namespace(_OPEN)
    rehearsal.create_namespace(_OFF, labels={constants.PLACEMENT: constants.PLACEMENT_OFF})
    rehearsal.create_namespace(_ADMIN, labels=ADMIN)
    rehearsal.create_namespace(_ADMIN_ASSIGNED, labels={**ADMIN, **ASSIGNED})
    trial = Admission(rehearsal, compared=False)

    def admits() -> bool:
        return bool(marks(trial.admit(_ASSIGNED, pod_spec(), labels=_GROUP)))

    settings = WebhookSettings()
    with registered_webhook(rehearsal, "webhook-placement") as port, serving_webhook(rehearsal, port, settings, admits):
        yield trial


@pytest.fixture
def assigned(alone: Ground, server: Admission) -> Ground:
    alone.assign()
    return alone


def test_pods_are_marked_only_in_namespaces_with_the_label(server: Admission) -> None:
    marked = server.admit(_ASSIGNED, pod_spec(), labels=_GROUP)
    assert (marks(marked), terms(marked)) == (labels_of(slice_key(_GROUP), _ASSIGNED), [])
    for namespace in (_OPEN, _OFF, "kube-system"):
        spec = server.admit(namespace, pod_spec(), labels=_GROUP)
        assert marks(spec) == {}
        assert [entry["key"] for term in terms(spec) for entry in term["matchExpressions"]] == [constants.SLICE]


def test_only_pods_with_chips_are_changed_in_namespaces_for_administrators(server: Admission) -> None:
    kept_off = server.admit(_ADMIN, pod_spec(), labels=_GROUP)
    assert (marks(kept_off), len(terms(kept_off))) == ({}, 1)
    assert marks(server.admit(_ADMIN_ASSIGNED, pod_spec(), labels=_GROUP)) == labels_of(
        slice_key(_GROUP), _ADMIN_ASSIGNED
    )
    for namespace in (_ADMIN, _ADMIN_ASSIGNED):
        for spec in (pod_spec(chips=0, **CLAIMS), pod_spec(chips=0)):
            unchanged = server.admit(namespace, spec, labels=_GROUP)
            assert (marks(unchanged), terms(unchanged)) == ({}, [])


def test_pod_with_more_values_than_are_read_is_rejected(server: Admission) -> None:
    """An unreviewed pod could run on the node pool of a slice of another namespace."""
    spec = pod_spec()
    spec["containers"][0]["env"] = [{"name": f"E{number}", "value": "," * 100_000} for number in range(6)]
    assert "placement.tpu-provisioner.cloud.google.com" in server.refusal(_OPEN, spec)
    assert "values, and at most 500,000 are read" in server.refusal(_OPEN, spec)


@pytest.mark.usefixtures("leaderworkersets")
def test_leaders_of_a_leaderworkerset_are_marked_after_its_webhook(assigned: Ground) -> None:
    path = collection_path("leaderworkersets", namespace=assigned.namespace, root=LEADER_WORKER_SET.root)
    lws = raw_lws("serve", namespace=assigned.namespace, uid="", pod=pod_spec(), metadata={"annotations": {}})
    assigned.api.post(path, lws)
    keys = await_marks(assigned, 4)
    assert len(keys) == 2
    assert UNKNOWN_GROUP not in keys


@pytest.mark.skipif(not has_mutating_policies(), reason="MutatingAdmissionPolicy needs Kubernetes 1.36")
@pytest.mark.usefixtures("leaderworkersets")
def test_policy_and_webhook_together_change_a_pod_once(assigned: Ground, server: Admission) -> None:
    """On clusters that were upgraded to a version with the policy, the webhook may still be registered."""
    for manifest in PLACEMENT_MANIFESTS:
        assigned.rehearsal.kubectl("apply", "--server-side", *manifest)
    try:
        forged = pod_spec(nodeSelector=labels_of("j-a", _OPEN), chips=0)
        assigned.wait(lambda: server.refusal(_OPEN, forged), "the policies are in force")
        assert server.admit(_ASSIGNED, pod_spec(), labels=_GROUP)["nodeSelector"] == {
            **pod_spec()["nodeSelector"],
            **labels_of(slice_key(_GROUP), _ASSIGNED),
        }
        assert len(terms(server.admit(_OPEN, pod_spec(), labels=_GROUP))[0]["matchExpressions"]) == 1
        path = collection_path("leaderworkersets", namespace=assigned.namespace, root=LEADER_WORKER_SET.root)
        lws = raw_lws("serve", namespace=assigned.namespace, uid="", pod=pod_spec(), metadata={"annotations": {}})
        assigned.api.post(path, lws)
        assert UNKNOWN_GROUP not in await_marks(assigned, 4)
    finally:
        for manifest in PLACEMENT_MANIFESTS:
            assigned.rehearsal.kubectl("delete", *manifest)
