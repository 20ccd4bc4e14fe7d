"""Limits and allow-lists on a real control plane: what they forbid is not made, and its owner reads why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from tests.e2e.kit import Ground, told

pytestmark = pytest.mark.e2e

V4: dict[str, Any] = {"accelerator": "tpu-v4-podslice", "topology": "2x2x1"}
V5E: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2"}


def test_max_chips(alone: Ground) -> None:
    """Six JobSets of two shapes share eight chips: there are never more, those that wait read why, and all run."""
    alone.provisioner(environment={"MAX_CHIPS": "8"})
    names = [f"crowd-{index}" for index in range(6)]
    for index, name in enumerate(names):
        alone.apply(name, **(V4, V5E)[index % 2], run_for="2s")
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, 4 * len(alone.pools()))
        return all(alone.state(name) == "Completed" for name in names)

    alone.wait(done, "all six are completed", 120)
    assert most == 8
    words = [each for name in names for each in told(alone, constants.LIMIT_REACHED, name)]
    assert words
    assert all("MAX_CHIPS allows all pools together 8 chips, " in each for each in words)
    alone.await_gone("crowd-")


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
