"""Tests that Kueue's requests for examples/kueue get the pools, conditions and details in docs/kueue.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.model.capacity import CapacityKind
from provisioner.settings import OPTIONS
from provisioner.workloads.capacity_requests import parse_pod_template
from tests.docs import shell
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.objects import raw_request

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "kueue.md").read_text("utf-8")
_BLOCKS = [list(yaml.safe_load_all(text)) for text in re.findall(r"(?s)```yaml\n(.*?)```", _PAGE)]
_QUEUE = list(yaml.safe_load_all((_ROOT / "examples" / "kueue" / "queue.yaml").read_text("utf-8")))
_FLAVORS: dict[str, Any] = {
    document["metadata"]["name"]: document["spec"] for document in _QUEUE if document["kind"] == "ResourceFlavor"
}


def _only(kind: str) -> dict[str, Any]:
    (found,) = (document for document in _QUEUE if document["kind"] == kind)
    return found


def _asked(name: str, flavor: str = "v6e", **annotations: str) -> tuple[Asking, int]:
    """Return a world with Kueue's request for a JobSet, and the number of pods in the request."""
    jobset: dict[str, Any] = yaml.safe_load((_ROOT / "examples" / "kueue" / f"{name}.yaml").read_text("utf-8"))
    (job,) = jobset["spec"]["replicatedJobs"]
    template, spec = job["template"]["spec"]["template"], _FLAVORS[flavor]
    template["metadata"] = {"annotations": annotations}
    template["spec"]["nodeSelector"] |= spec["nodeLabels"]
    template["spec"]["tolerations"] = spec.get("tolerations", [])
    raw = {"metadata": {"namespace": "default", "name": "template", "uid": "t"}, "template": template}
    pods = job["replicas"] * job["template"]["spec"]["parallelism"]
    world = Asking(raw_request("req", pods))
    world.templates = {("default", "template"): parse_pod_template(raw)}
    world.run(2)
    return world, pods


def test_page_contains_the_example() -> None:
    config = _only("ProvisioningRequestConfig")
    assert _BLOCKS[0] == [_only("AdmissionCheck"), config]
    assert config["spec"]["provisioningClassName"] == constants.PROVISIONING_CLASS
    assert config["spec"]["managedResources"] == [constants.TPU_RESOURCE]
    files = [
        file for block in shell.shown() if block.page == "docs/kueue.md" for file in re.findall(r"-f (\S+)", block.text)
    ]
    assert files
    assert [file for file in files if not (_ROOT / file).is_file()] == []


def test_choices_of_the_page_are_those_of_a_request() -> None:
    (annotations,) = (
        document["metadata"]["annotations"]
        for block in _BLOCKS
        for document in block
        if constants.CAPACITY in document.get("metadata", {}).get("annotations", {})
    )
    world, _ = _asked("one-slice", "v6e-spot", **annotations)
    assert [pool.capacity for pool in world.pools.values()] == [CapacityKind.SPOT]
    world, _ = _asked("one-slice", **annotations)
    assert [pool.capacity for pool in world.pools.values()] == [CapacityKind.RESERVATION]


@pytest.mark.parametrize(("name", "pods", "slices"), [("two-slices", 8, 2), ("one-slice", 2, 1)])
def test_details_of_the_page_are_those_of_a_request(name: str, pods: int, slices: int) -> None:
    world, asked = _asked(name)
    assert (asked, len(world.created)) == (pods, slices)
    world.finish_creates()
    world.run(3)
    assert "Provisioned" in world.conditions()
    details = world.raw["req"]["status"]["provisioningClassDetails"]
    rows = re.findall(r"(?m)^\| `([a-z-]+)` \| (.*?) \|", _PAGE.partition("## Pin pods")[2].partition("\n## ")[0])
    assert {detail for detail, _ in rows} == {*details, "node-pool"}
    (update,) = next(block[0] for block in _BLOCKS if "podSetUpdates" in block[0].get("spec", {}))["spec"][
        "podSetUpdates"
    ]["nodeSelector"]
    uid = details[update["valueFromProvisioningClassDetail"]]
    assert {node.labels[update["key"]] for node in world.nodes.values()} == {uid}


def test_conditions_and_booking_of_the_page_are_those_of_the_code() -> None:
    named = re.findall(r"(?m)^\| `([A-Z]\w+)`", _PAGE)
    ours = (constants.ACCEPTED, constants.PROVISIONED, constants.FAILED, constants.BOOKING_EXPIRED)
    assert {*named} == {*ours, constants.CAPACITY_REVOKED}
    booking = next(option for option in OPTIONS if option.variable == "PROVISIONING_REQUEST_BOOKING").default
    assert f"within `PROVISIONING_REQUEST_BOOKING` ({str(booking).removesuffix('m')} minutes)" in _PAGE
