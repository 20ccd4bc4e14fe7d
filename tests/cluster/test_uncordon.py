"""Undoing a cordon: only ours, as the node is now."""

from __future__ import annotations

from typing import Any

from provisioner.cluster import workloads
from tests.cluster.builders import raw_node
from tests.cluster.fake_kube import FakeKube

NODE = "/api/v1/nodes/n1"


def test_a_cordon_that_is_not_ours_any_more_stays() -> None:
    """Ours was undone, then somebody closed the node by hand; a cache still shows ours."""
    kube = FakeKube()
    raw: dict[str, Any] = raw_node("n1")
    kube.put_object(NODE, {**raw, "spec": {**raw.get("spec", {}), "unschedulable": True}})
    assert not workloads.uncordon(kube, "n1")
    assert [call.method for call in kube.calls] == ["GET"]


def test_an_uncordon_is_written_to_the_node_as_it_was_read() -> None:
    """With the version that was read, so that the API server refuses where somebody wrote in between."""
    kube = FakeKube()
    kube.put_object(NODE, raw_node("n1"))
    workloads.cordon(kube, "n1")
    closed = kube.object(NODE)
    assert closed is not None
    assert workloads.uncordon(kube, "n1")
    body = kube.calls[-1].body
    assert body is not None
    assert body["metadata"]["resourceVersion"] == closed["metadata"]["resourceVersion"]
