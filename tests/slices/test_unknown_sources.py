"""Tests of decisions and metrics of the loop while an optional API cannot be read or a status cannot be written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants, tpu
from provisioner.kube import errors
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.volumes import Claim
from provisioner.model.workloads import WorkloadKind
from provisioner.workloads import PROVISIONING_REQUEST
from provisioner.workloads.capacity_requests import parse_pod_template, parse_provisioning_request
from tests.support.controller import NAMESPACE, FakeWatch, World, jobset_path
from tests.support.machineconfigs import machine_config_path, raw_machine_config
from tests.support.objects import pod_spec, raw_request

REQUEST = object_path("provisioningrequests", "req", namespace="default", root=PROVISIONING_REQUEST.root)
pytestmark = pytest.mark.usefixtures("catalogue")


def unknown(world: World, source: str) -> float | None:
    return world.metrics.registry.get_sample_value("tpu_provisioner_source_unknown", {"source": source})


def requesting(*, accelerator: str = "tpu-v4-podslice", topology: str = "2x2x2", count: int = 2) -> World:
    world = World()
    requests = collection_path("provisioningrequests", root=PROVISIONING_REQUEST.root)
    served = FakeWatch(lambda: world._read(requests, parse_provisioning_request))
    templates = FakeWatch(lambda: world._read(collection_path("podtemplates"), parse_pod_template))
    workloads = {**world.watches.workloads, WorkloadKind.PROVISIONING_REQUEST: served}
    world.watches = replace(world.watches, workloads=workloads, templates=templates)  # type: ignore[arg-type]
    world.start()
    template = {"spec": pod_spec(accelerator=accelerator, topology=topology)}
    metadata = {"name": "template", "namespace": "default", "uid": "t"}
    world.kube.put_object(
        object_path("podtemplates", "template", namespace="default"),
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template},
    )
    world.kube.put_object(REQUEST, raw_request("req", count))
    return world


def conditions(world: World) -> dict[str, tuple[str, str]]:
    raw = world.kube.object(REQUEST)
    assert raw is not None
    found: list[dict[str, Any]] = raw.get("status", {}).get("conditions", [])
    return {condition["type"]: (condition["status"], condition["message"]) for condition in found}


def test_request_whose_status_cannot_be_written_keeps_no_pool() -> None:
    """If the status cannot be written, Kueue never learns of the pool. In the past, the pool cost money for 24 h."""
    world = requesting()
    forbidden = errors.Forbidden("cannot patch provisioningrequests/status", status=403)
    world.kube.fail("PATCH", "/status", forbidden, times=10**6)
    created = deleted = 0
    for _ in range(360):
        world.round(after_seconds=10)
        world.finish_creates()
        world.finish_deletes()
    created, deleted = (len(world.gke.names_of(f"{verb}_node_pool")) for verb in ("create", "delete"))
    assert (created, deleted, world.gke.pools) == (1, 1, {})
    assert any("provisioningrequests/status" in alert.message for alert in world.actor.alerts())
    world.kube.clear_faults()
    for _ in range(30):
        world.round(after_seconds=10)
        world.finish_creates()
    assert conditions(world)[constants.PROVISIONED][0] == "True"
    assert len(world.gke.pools) == 1


@pytest.mark.parametrize("source", ["provisioningrequests", "podtemplates"])
def test_pods_of_a_request_get_no_second_pool_while_requests_are_unknown(source: str) -> None:
    world = requesting(topology="2x2x1", count=1)
    for _ in range(3):
        world.round(after_seconds=10)
        world.finish_creates()
    assert conditions(world)[constants.PROVISIONED][0] == "True"
    known = world.watches
    forbidden: FakeWatch[Any] = FakeWatch(dict)
    forbidden.synced, forbidden.problem = False, f"RBAC does not allow the provisioner to list {source}"
    if source == "podtemplates":
        world.watches = replace(known, templates=forbidden)
    else:
        workloads = {**known.workloads, WorkloadKind.PROVISIONING_REQUEST: forbidden}
        world.watches = replace(known, workloads=workloads)
    world.start()
    world.put_jobset()
    (raw,) = world.kube.objects(collection_path("pods"))
    raw["metadata"].setdefault("annotations", {})[constants.CONSUMES_REQUEST] = "req"
    for path in (jobset_path("train"), object_path("pods", raw["metadata"]["name"], namespace=NAMESPACE)):
        moved = raw if "/pods/" in path else world.kube.object(path)
        assert moved is not None
        moved["metadata"]["namespace"] = "default"
        world.kube.remove_object(path)
        world.kube.put_object(path.replace(f"/{NAMESPACE}/", "/default/"), moved)
    world.rounds(4, every_seconds=5)
    assert unknown(world, source) == 1
    assert len(world.gke.pools) == 1
    assert "cannot read ProvisioningRequests or PodTemplates" in _reason(world)
    world.watches = known
    world.start()
    world.rounds(4, every_seconds=5)
    assert len(world.gke.pools) == 1
    assert "cannot read" not in _reason(world)


def _reason(world: World) -> str:
    view = world.board.document().view
    assert view is not None
    return next(slice_.reason for slice_ in view.slices if slice_.workload.endswith("/train"))


def test_request_waits_while_the_machine_types_of_the_cluster_are_unknown() -> None:
    """The condition Failed is final: Kueue would give up on a request that can be served when the right is granted."""
    world = requesting(accelerator="tpu9x", topology="4x4", count=4)
    listed = world.watches.machine_configs
    forbidden: FakeWatch[Any] = FakeWatch(dict)
    forbidden.synced, forbidden.problem = False, "RBAC does not allow the provisioner to list machineconfigs"
    world.kube.put_object(machine_config_path(), raw_machine_config())
    world.watches = replace(world.watches, machine_configs=forbidden)
    world.start()
    world.rounds(3, every_seconds=5)
    assert unknown(world, "machineconfigs") == 1
    assert conditions(world).keys() == {constants.PROVISIONED}
    assert "machine types that the provisioner has not read" in conditions(world)[constants.PROVISIONED][1]
    world.watches = replace(world.watches, machine_configs=listed)
    world.start()
    world.rounds(3, every_seconds=5)
    (pool,) = world.gke.pools
    assert unknown(world, "machineconfigs") == 0
    # The process loses the right to MachineConfigs and restarts while GKE creates the pool.
    tpu.extend(())
    world.watches = replace(world.watches, machine_configs=forbidden)
    world.start()
    world.rounds(50, every_seconds=5)
    assert world.gke.names_of("delete_node_pool") == []
    assert constants.FAILED not in conditions(world)
    assert [*world.gke.pools] == [pool]


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("persistentvolumeclaims", "claims"),
        ("persistentvolumes", "volumes"),
        ("storageclasses", "storage_classes"),
    ],
)
def test_pods_with_volumes_are_served_while_a_source_about_volumes_is_unknown(source: str, field: str) -> None:
    """The ClusterRole lacks the rights to read volumes if only the image was upgraded."""
    world = World()
    forbidden: FakeWatch[Any] = FakeWatch(dict)
    forbidden.synced, forbidden.problem = False, f"RBAC does not allow the provisioner to list {source}"
    claims = FakeWatch(lambda: {("research", "data"): Claim(volume="disk", storage_class="fast")})
    fields: dict[str, Any] = {"claims": claims, "volumes": FakeWatch(dict), "storage_classes": FakeWatch(dict)}
    world.watches = replace(world.watches, **{**fields, field: forbidden})
    world.start()
    world.put_jobset()
    (raw,) = world.kube.objects(collection_path("pods"))
    raw["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    world.kube.put_object(object_path("pods", raw["metadata"]["name"], namespace=raw["metadata"]["namespace"]), raw)
    world.rounds(2, every_seconds=5)
    assert unknown(world, source) == 1
    assert len(world.gke.pools) == 1


def test_api_that_the_cluster_lacks_does_not_count_as_unknown() -> None:
    world = World()
    absent: FakeWatch[Any] = FakeWatch(dict)
    absent.synced, absent.missing, absent.problem = False, True, "there are no MachineConfigs (404)"
    world.watches = replace(world.watches, machine_configs=absent)
    world.start()
    world.put_jobset()
    world.rounds(2, every_seconds=5)
    assert not unknown(world, "machineconfigs")
    assert len(world.gke.pools) == 1
