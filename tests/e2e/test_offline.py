"""Tests that `plan` predicts the pods that the JobSet and Job controllers create."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.kube.protocol import collection_path
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.offline.expand import leaders_of, templates_of
from provisioner.workloads import JOBSET
from provisioner.workloads.parse_pod import parse_pod
from tests.e2e.kit import Ground

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "all-or-nothing" / "jobset.yaml"
#: Labels whose values are unknown before the pods exist: UIDs of Jobs, and a label that admission adds.
_UNKNOWN = {"controller-uid", "batch.kubernetes.io/controller-uid", "jobset.sigs.k8s.io/priority"}


def _known(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key not in _UNKNOWN}


def test_leader_pods_of_plan_equal_those_of_the_controllers(alone: Ground) -> None:
    raw = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    raw["metadata"]["namespace"] = alone.namespace
    first = raw["spec"]["replicatedJobs"][0]
    raw["spec"]["replicatedJobs"] = [first, {**first, "name": "more", "replicas": 1}]
    alone.post(raw)

    def leaders() -> dict[str, dict[str, Any]]:
        pods = alone.rehearsal.objects(collection_path("pods", namespace=alone.namespace))
        index = constants.COMPLETION_INDEX
        return {
            pod["metadata"]["labels"][constants.JOB_NAME]: pod
            for pod in pods
            if pod["metadata"]["labels"].get(index) == "0"
        }

    alone.wait(lambda: len(leaders()) == 3, "all leader pods exist")
    real = leaders()
    uid = next(iter(real.values()))["metadata"]["labels"][constants.JOBSET_UID]
    raw["metadata"]["uid"] = uid
    templates = templates_of(WorkloadKind.JOBSET, raw)
    workload = JOBSET.parse(raw)
    assert workload is not None
    made = [pod for template in templates for pod in leaders_of(workload, raw, template, datetime.now(UTC))]
    assert {pod.group_name for pod in made} == set(real)
    for ours in made:
        theirs = parse_pod(real[ours.group_name])
        assert theirs is not None
        asked, given = ours.requirements, theirs.requirements
        assert _known(asked.labels) == _known(given.labels)
        assert (ours.workload_uid, ours.group_key, ours.completion_index) == (uid, theirs.group_key, 0)
        assert (asked.chips, asked.node_selector, asked.affinity_terms, asked.annotations) == (
            given.chips,
            given.node_selector,
            given.affinity_terms,
            given.annotations,
        )
        # The real pods have more tolerations, because Kubernetes adds tolerations for nodes that are not ready.
        assert set(asked.tolerations) <= set(given.tolerations)
