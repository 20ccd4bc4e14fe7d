"""Slices that need a workload policy, on a real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from rehearsal.simulators.gke import Fault, FaultKind
from tests.e2e.kit import Ground

pytestmark = pytest.mark.e2e

POLICY = "tpu-provisioner-2x2x2"
IRONWOOD: dict[str, Any] = {"accelerator": "tpu7x", "topology": "2x2x2", "parallelism": 2}


@pytest.fixture
def bare(alone: Ground) -> Ground:
    """Give a GKE without workload policies; the test starts its own provisioner, which remembers none."""
    alone.gke.remove_policy(POLICY)
    return alone


def told(ground: Ground, reason: str) -> str:
    """Return the words of the newest Event of a reason on a pod of the JobSet."""
    messages = [event["message"] for event in ground.events("Pod", "train") if event["reason"] == reason]
    return str(messages[-1])


def test_from_nothing_to_running(bare: Ground) -> None:
    """The policy is made once, the slice runs, and the next one finds the policy there."""
    bare.provisioner()
    bare.apply("first", **IRONWOOD, run_for="600s")
    bare.wait(lambda: bare.runs("first", pods=2), "both pods of the slice run")
    (body,) = bare.sent().values()
    assert body["placementPolicy"] == {"policyName": POLICY}
    assert body["initialNodeCount"] == 2
    assert {node["metadata"]["labels"][constants.TPU_TOPOLOGY] for node in bare.nodes()} == {"2x2x2"}
    looks = bare.gke.count("resourcePolicies.get")
    bare.apply("second", **IRONWOOD)
    bare.await_completed("second")
    assert bare.gke.count("resourcePolicies.get") == looks
    assert bare.accepted("resourcePolicies.insert") == bare.gke.count("resourcePolicies.insert") == 1


def test_a_policy_of_another_topology(bare: Ground) -> None:
    """Nothing is asked of GKE, and the pod is told what the policy has, what is needed and what to do."""
    bare.gke.set(workload_policies={POLICY: "4x4x4"})
    bare.provisioner()
    bare.apply("train", **IRONWOOD)
    bare.wait(lambda: constants.CREATION_FAILED in bare.reasons("Pod", "train"), "the owner is told")
    message = told(bare, constants.CREATION_FAILED)
    for words in (POLICY, "has type HIGH_THROUGHPUT and topology 4x4x4", "needs", "topology 2x2x2", "delete this one"):
        assert words in message
    assert bare.gke.count("nodePools.create") == 0


def test_without_the_optional_role(bare: Ground) -> None:
    """The slice waits and says for which permission; JobSets on other machines are served meanwhile."""
    bare.gke.inject(Fault(kind=FaultKind.HTTP_ERROR, method="resourcePolicies.insert", code=403, message="Forbidden."))
    bare.provisioner()
    bare.apply("train", **IRONWOOD)
    bare.wait(lambda: constants.CREATION_WAITING in bare.reasons("Pod", "train"), "the owner is told")
    message = told(bare, constants.CREATION_WAITING)
    assert "compute.resourcePolicies.create" in message
    assert "gcloud compute resource-policies create workload-policy" in message
    bare.apply("other")
    bare.await_completed("other")
    assert bare.accepted("resourcePolicies.insert") == 0
    assert not bare.pools("train-")
