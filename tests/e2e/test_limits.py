"""Limits and allow-lists on a real control plane: what they forbid is not made, and its owner reads why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.simulators.gke.faults import FaultKind
from rehearsal.simulators.gke.records import Pool
from tests.e2e.kit import FaultWhen, Ground, told

pytestmark = pytest.mark.e2e

V4: dict[str, Any] = {"accelerator": "tpu-v4-podslice", "topology": "2x2x1"}
V5E: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2"}


def test_max_chips(alone: Ground) -> None:
    """Six JobSets of two shapes share eight chips: there are never more, those that wait read why, and all run."""
    most = 0

    def count(pools: tuple[Pool, ...]) -> bool:
        nonlocal most
        chips = (pool.plan.machine.chips * pool.plan.hosts_per_zone * len(pool.plan.zones) for pool in pools)
        most = max(most, sum(chips))
        return False

    # It never strikes, and sees what there is at each create: chips become more at no other moment.
    alone.gke.inject(FaultWhen(kind=FaultKind.STOCKOUT, holds=count, world=alone.gke.world))
    alone.provisioner(environment={"MAX_CHIPS": "8"})
    names = [f"crowd-{index}" for index in range(6)]
    for index, name in enumerate(names):
        alone.apply(name, **(V4, V5E)[index % 2], run_for="2s")
    alone.await_completed(*names, seconds=120)
    assert most == 8
    words = [each for name in names for each in told(alone, constants.LIMIT_REACHED, name)]
    assert words
    assert all("MAX_CHIPS allows all pools together 8 chips, " in each for each in words)
    alone.await_gone("crowd-")


def test_pause_creation(alone: Ground) -> None:
    """With PAUSE_CREATION nothing is made and pods read so; what is not needed any more goes all the same."""
    before = alone.provisioner()
    alone.apply("old", **V4, run_for="1h")
    alone.wait(lambda: alone.runs("old"), "it runs")
    assert before.stop() == 0
    alone.provisioner(environment={"PAUSE_CREATION": "true"})
    alone.apply("new", **V5E, run_for="1h")
    alone.wait(lambda: told(alone, constants.LIMIT_REACHED, "new"), "the new one is told")
    (words, *_) = told(alone, constants.LIMIT_REACHED, "new")
    assert "PAUSE_CREATION is set" in words
    assert alone.runs("old")
    alone.delete("old")
    alone.await_gone("old-")
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (1, 1)


def test_a_pause_of_a_running_provisioner(alone: Ground) -> None:
    """A ConfigMap pauses it without a restart, and its end resumes."""
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": constants.PAUSE_CONFIGMAP_NAME}}
    alone.api.post(collection_path("configmaps", namespace=constants.DEFAULT_NAMESPACE), made)
    alone.provisioner()
    alone.apply("new", **V5E, run_for="1s")
    alone.wait(lambda: told(alone, constants.LIMIT_REACHED, "new"), "the new one is told")
    (words, *_) = told(alone, constants.LIMIT_REACHED, "new")
    assert re.search(r"Creation is paused since 20\d\d-\d\d-\d\d \d\d:\d\d UTC, by ConfigMap", words)
    assert alone.accepted("nodePools.create") == 0
    alone.api.delete(object_path("configmaps", constants.PAUSE_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE))
    alone.await_completed("new")
    alone.await_gone("new-")


def test_allow_lists(alone: Ground) -> None:
    """What a pod may not name is refused, in words with the setting; whoever names nothing is served."""
    alone.provisioner(
        environment={
            "ALLOWED_RESERVATIONS": "none",
            "ALLOWED_SERVICE_ACCOUNTS": "none",
            "ALLOWED_NETWORKS": "vpc-1",
            "ALLOWED_LABEL_KEYS": "team-*",
        }
    )
    alone.apply("borrower", **V5E, selector={constants.RESERVATION_NAME: "of-others"})
    alone.apply("impostor", **V5E, pod_annotations={constants.NODE_SERVICE_ACCOUNT: "root@p.iam.gserviceaccount.com"})
    alone.apply("eavesdropper", **V5E, pod_annotations={constants.ADDITIONAL_NODE_NETWORKS: "vpc-2:subnet-2"})
    alone.apply("labeller", **V5E, selector={"role": "admin"})
    wanted = {
        "borrower": "reservation of-others is not among ALLOWED_RESERVATIONS",
        "impostor": "service account root@p.iam.gserviceaccount.com is not among ALLOWED_SERVICE_ACCOUNTS",
        "eavesdropper": "network vpc-2:subnet-2 is not among ALLOWED_NETWORKS",
        "labeller": "node label role is not among ALLOWED_LABEL_KEYS",
    }
    for name, words in wanted.items():
        alone.wait(lambda name=name: told(alone, constants.INVALID_REQUEST, name), f"{name} is told")
        assert any(words in message for message in told(alone, constants.INVALID_REQUEST, name))
    assert alone.gke.count("nodePools.create") == 0
    # Of another shape, or the scheduler would put the others on its pool.
    alone.apply(
        "modest",
        **V4,
        run_for="1s",
        selector={"team-name": "a"},
        pod_annotations={constants.ADDITIONAL_NODE_NETWORKS: "vpc-1:subnet-1"},
    )
    alone.await_completed("modest")
    assert alone.gke.count("nodePools.create") == 1
