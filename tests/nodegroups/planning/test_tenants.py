"""Tenants who can create objects in their namespace, or control a node, cannot harm other tenants' machines."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.writes import Proposed
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import ManagedInstanceGroupSpec, ServiceAccount, WorkloadPolicySpec
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    Reason,
    ResourceStatus,
    UriStatus,
    condition_of,
)
from provisioner.nodegroups.api.types import Child, Kind, ManagedInstanceGroup, ObjectMeta, TpuNodeGroup, WorkloadPolicy
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.metadata import TOKEN
from provisioner.nodegroups.bootstrap.tokens import Request, Token
from provisioner.nodegroups.compute.records import Scope
from provisioner.nodegroups.planning.actions import CreateToken, Target
from provisioner.nodegroups.planning.decide import _with_few_tokens
from provisioner.nodegroups.planning.joining import approvals
from provisioner.nodegroups.planning.manager import machines_before
from provisioner.nodegroups.planning.memory import LONG_AGO, Memory, ResourceMemory
from provisioner.nodegroups.planning.round import Node, Pod, Snapshot, begin_round, place_of
from rehearsal.simulators.compute.records import Loss
from tests.nodegroups.simulation.cloud import ZONE
from tests.nodegroups.simulation.cluster import FACTS, Kube
from tests.nodegroups.simulation.world import SETTINGS, World, make_group, ready_world
from tests.support.clock import NOW

pytestmark = pytest.mark.timeout(40)

_MIG = Kind.MANAGED_INSTANCE_GROUP
_JOBSET, _WORKLOAD = constants.POOL_JOBSET_NAMESPACE, constants.POOL_WORKLOAD_NAMESPACE
_POLICY = WorkloadPolicySpec(project="project-1", region="us-central1", accelerator_topology="4x4")


def _put(world: World, kind: Kind, child: Child) -> tuple[str, str, str]:
    key = (kind, child.meta.namespace, child.meta.name)
    world.kube._put(key, child)
    return key


def _put_manager(
    world: World, name: str, namespace: str = "evil", *, url: str = "", created_at: datetime | None = None, **spec: Any
) -> tuple[str, str, str]:
    """Create a managed instance group of a tenant. `spec` replaces fields of its spec; `url` is a forged status."""
    values = {"project": "project-1", "location": ZONE, "instance_template": "t", "target_size": 1, **spec}
    meta = ObjectMeta(namespace=namespace, name=name, uid=name, created_at=created_at)
    child = ManagedInstanceGroup(meta=meta, spec=ManagedInstanceGroupSpec(**values), status=ResourceStatus(url=url))
    return _put(world, _MIG, child)


def _ready(world: World, key: tuple[str, str, str]) -> Condition:
    ready = condition_of(world.kube.objects[key].status.conditions, "Ready")
    assert ready is not None
    return ready


def _owner(group: TpuNodeGroup) -> ObjectMeta:
    return ObjectMeta(namespace="", name=group.meta.name, uid=group.meta.uid)


@pytest.mark.parametrize("namespace", ["evil", "default"])
def test_child_with_a_forged_owner_does_not_affect_the_groups_nodes(namespace: str) -> None:
    """The child gets its own machines, and its deletion deletes only these: owner references are not trusted."""
    world = ready_world(topology="2x4")
    group = world.group()
    [template] = world.kube.all(Kind.INSTANCE_TEMPLATE)
    own = ObjectMeta(namespace=namespace, name="own", uid="own")
    _put(world, Kind.INSTANCE_TEMPLATE, replace(template, meta=own, status=UriStatus()))
    address = "projects/project-1/global/instanceTemplates/own"
    spec = ManagedInstanceGroupSpec(project="project-1", location=ZONE, instance_template=address, target_size=1)
    meta = ObjectMeta(namespace=namespace, name="forged", uid="forged", owner=_owner(group))
    key = _put(world, _MIG, ManagedInstanceGroup(meta=meta, spec=spec))
    world.wait_until(lambda: bool(world.kube.objects[key].status.url))
    pods = world.run_pods("train", chips=0)
    world.kube.delete(key)
    world.wait_until(lambda: key not in world.kube.objects, within_seconds=600.0)
    assert [node.unschedulable for node in world.kube.all("Node")] == [False] * 2
    assert [pod.name for pod in world.kube.all("Pod")] == sorted(pods)
    assert world.process.writes["EvictPod"] == 0
    assert world.is_ready("train")


def test_child_without_a_group_takes_over_no_resource() -> None:
    """Otherwise a child with the name of any resource in the project could delete that resource."""
    world = World()
    scope = Scope(project="project-1", region="us-central1")
    world.cloud.hold(Target(uid="", namespace="", kind=Kind.WORKLOAD_POLICY, scope=scope, name="production"))
    meta = ObjectMeta(namespace="evil", name="production", uid="evil", annotations={names.ADOPT: "true"})
    key = _put(world, Kind.WORKLOAD_POLICY, WorkloadPolicy(meta=meta, spec=_POLICY))
    world.wait(60.0)
    assert _ready(world, key).reason == Reason.REQUEST_REJECTED
    assert "with another name" in _ready(world, key).message
    world.kube.delete(key)
    world.wait_until(lambda: key not in world.kube.objects)
    assert [resource.name for resource in world.cloud.resources()] == ["production"]


def test_name_of_a_groups_child_cannot_be_used_by_another_namespace() -> None:
    """Otherwise a tenant who uses the name first would prevent the creation of the group."""
    world = World()
    world.kube.create_group(make_group("train", topology="2x4"))
    group = world.group()
    name = names.child_name(group.meta, Kind.WORKLOAD_POLICY)
    meta = ObjectMeta(namespace="evil", name=name, uid="evil", owner=_owner(group))
    key = _put(world, Kind.WORKLOAD_POLICY, WorkloadPolicy(meta=meta, spec=_POLICY))
    world.wait_until(lambda: world.is_ready("train"))
    assert _ready(world, key).reason == Reason.INVALID_SPEC
    assert "TPUNodeGroup default/train" in _ready(world, key).message


def test_managed_instance_group_of_another_namespace_does_not_hold_a_template() -> None:
    """The managed instance group names the template in its spec, but has no machine that uses the template."""
    world = ready_world(topology="2x4")
    url = world.kube.all(Kind.INSTANCE_TEMPLATE)[0].status.url
    key = _put_manager(world, "holds", project="project-9", instance_template=url)
    held = world.kube.objects[key]
    _put(world, _MIG, replace(held, meta=replace(held.meta, finalizers=(names.CHILD_FINALIZERS[_MIG],))))
    world.take_down("train", within_seconds=600.0)
    assert not world.cloud.resources()


@pytest.mark.parametrize("own", ["a managed instance group", "a group"])
def test_template_and_policy_of_another_namespaces_group_are_not_used(own: str) -> None:
    """Otherwise a tenant, who can derive both names from names of nodes, could use them and block their deletion."""
    world = ready_world(topology="2x4")
    [template], [policy] = world.kube.all(Kind.INSTANCE_TEMPLATE), world.kube.all(Kind.WORKLOAD_POLICY)
    if own == "a group":
        group = make_group("hold", topology="2x2")
        meta = ObjectMeta(namespace="evil", name="hold", uid="hold")
        spec = replace(group.spec, instance_config=None, instance_template_uri=template.status.url)
        keys = [_put(world, Kind.TPU_NODE_GROUP, replace(group, meta=meta, spec=spec))]
    else:
        mine = "projects/project-1/global/instanceTemplates/mine"
        keys = [
            _put_manager(world, "one", instance_template=template.status.url),
            _put_manager(world, "two", instance_template=mine, workload_policy=policy.status.url),
        ]
    world.cloud.limit(0)
    world.wait(60.0)
    for key in keys:
        assert _ready(world, key).reason == Reason.NOT_ALLOWED
        assert "of another namespace" in _ready(world, key).message
    world.take_down("train", within_seconds=600.0)
    assert not world.cloud.resources()


def _orphan(world: World) -> None:
    for kind in (Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE, _MIG):
        for child in world.kube.all(kind):
            _put(world, kind, replace(child, meta=replace(child.meta, owner=None)))


def test_child_without_owner_is_counted_and_deleted_with_its_group() -> None:
    """`kubectl delete --cascade=orphan` removes owners. The child's name and the resource's mark identify the group."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=2))
    world.make("train", topology="2x4")
    _orphan(world)
    world.kube.create_group(make_group("more", topology="2x4"))
    world.wait(60.0)
    assert world.reason("more") == Reason.LIMIT_REACHED
    world.take_down("train", within_seconds=600.0)
    assert not world.machines("train")
    world.wait_until(lambda: world.is_ready("more"))


def test_child_without_owner_can_be_deleted_after_its_group() -> None:
    world = ready_world(topology="2x4")
    _orphan(world)
    group = world.group()
    world.delete_group("train")
    _put(world, Kind.TPU_NODE_GROUP, replace(group, meta=replace(group.meta, finalizers=())))
    world.delete_group("train")
    world.wait(60.0)
    assert world.kube.group("train") is None
    assert len(world.machines("train")) == 2
    for kind in (_MIG, Kind.INSTANCE_TEMPLATE, Kind.WORKLOAD_POLICY):
        for child in world.kube.all(kind):
            world.kube.delete((kind, "default", child.meta.name))
    world.wait_until(lambda: not world.cloud.resources(), within_seconds=900.0)
    assert not world.kube.all(_MIG)


def test_resource_created_before_its_group_was_seen_belongs_to_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process sees the children before the group, so the machines get the child's mark."""
    world = World()
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: bool(world.kube.all(_MIG)), step_seconds=0.01)
    whole = Kube.snapshot
    with monkeypatch.context() as lagging:
        lagging.setattr(Kube, "snapshot", lambda kube, live: replace(whole(kube, live), groups=()))
        world.restart()
        world.wait_until(lambda: bool(world.machines("train")))
    world.wait_until(lambda: world.is_ready("train"))
    world.take_down("train")
    world.check_nothing_left()


def test_node_with_another_name_does_not_replace_a_machines_node() -> None:
    """The machine's own node does not exist. The slice waits for that node, but can be deleted without it."""
    world = ready_world(topology="2x4")
    told = {machine.metadata[TOKEN] for machine in world.machines("train")}
    genuine = world.kube.all("Node")[0]
    world.kube.drop_node(genuine.name)
    forged = replace(genuine, name="zzz", uid="zzz")
    world.kube._put(("Node", "", "zzz"), forged)
    world.kube.add_pod(Pod(namespace="evil", name="zzz", uid="zzz", node="zzz", chips=4))
    world.wait_until(lambda: world.reason("train") == Reason.NODE_LOST, within_seconds=60.0)
    # A new token would be useless to the machine, but pods on it could read the token and register as its node.
    world.wait(60.0)
    assert {machine.metadata[TOKEN] for machine in world.machines("train")} == told
    world.take_down("train", within_seconds=600.0)
    assert [node.name for node in world.kube.all("Node")] == ["zzz"]
    assert not world.kube.objects["Node", "", "zzz"].unschedulable


@pytest.mark.parametrize(
    "provider_id",
    [
        "",
        "gce://project-1/us-east5-a/zzz",
        "gce://project-2/us-central1-b/zzz",
        f"gce://project-1/{ZONE}/zzz",
        f"gce://project-1/{ZONE}/MACHINE",
        # Machine of a TPUNodeGroup that is named like this group's managed instance group.
        f"gce://project-1/{ZONE}/MANAGER-mig-d6b4ebca-70md",
    ],
)
def test_node_with_forged_group_labels_does_not_keep_the_group(provider_id: str) -> None:
    """A kubelet can set these labels on its own node, and undo changes of that node."""
    world = ready_world(topology="2x4")
    labels = names.group_labels(world.group().meta)
    machine = world.machines("train")[0]
    provider_id = provider_id.replace("MACHINE", machine.name).replace("MANAGER", machine.group)
    name = "zzz" if provider_id.endswith(machine.name) else provider_id.rpartition("/")[2] or "zzz"
    key = ("Node", "", name)
    world.kube._put(key, Node(name=name, uid="zzz", provider_id=provider_id, labels=labels, ready=True))
    world.kube.add_pod(Pod(namespace="evil", name="zzz", uid="zzz", node=name, chips=4))
    world.kube.protected.add("zzz")
    world.take_down("train", within_seconds=600.0)
    assert not world.kube.objects[key].unschedulable


def test_nodes_with_forged_group_labels_do_not_prevent_the_repair_of_their_zone() -> None:
    """A tenant's kubelets can register with another group's labels and with provider IDs in the zone of that group."""
    world = ready_world(topology="4x4")
    labels, zone = names.group_labels(world.group().meta), f"gce://project-1/{ZONE}"
    for number in range(6):
        name = f"evil-mig-0badcafe-{number:04d}"
        node = Node(name=name, uid=name, provider_id=f"{zone}/{name}", labels=labels)
        world.kube._put(("Node", "", name), node)
    world.kube.change_node(world.machines("train")[0].name, ready=False)
    world.wait_until(lambda: len(world.group().status.recreated_at) == 1, within_seconds=600.0)


def _approved(world: World, own: Token, **changes: Any) -> int:
    request = Request(**{"name": "csr-1", "uid": "u", "token": own.name, "node": own.machine, **changes})
    snapshot = replace(world.kube.snapshot(frozenset()), requests=(request,))
    return len(approvals(begin_round(snapshot, world.process.memory, SETTINGS, world.stage.wall())).writes)


def test_token_of_a_machine_is_valid_only_for_its_own_nodes_certificate() -> None:
    """Approval ends when the node exists, because pods on the node may read the token then."""
    world = World()
    world.kube.create_group(make_group("train", topology="2x4"))
    world.wait_until(lambda: len(world.kube.all("Secret")) == 2, step_seconds=0.1)
    own, other = world.kube.all("Secret")
    assert _approved(world, own) == 1
    assert _approved(world, own, node=other.machine) == 0
    assert _approved(world, own, node="control-plane-1") == 0
    assert _approved(world, own, token="bootstrap-token-of-others") == 0
    # A user with rights in the project may have created a machine of this name in the managed instance group.
    named = replace(own, machine="control-plane-1")
    world.kube._put(("Secret", "kube-system", own.name), named)
    world.kube.recache()
    assert _approved(world, named) == 0
    world.kube._put(("Secret", "kube-system", own.name), own)
    node = Node(name=own.machine, uid="u", provider_id=f"gce://project-1/{ZONE}/{own.machine}")
    world.kube._put(("Node", "", own.machine), node)
    world.kube.recache()
    assert _approved(world, own) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": "projects/ubuntu-os-accelerator-images/global/images/x"}, ""),
        ({"image": "global/images/x"}, ""),
        ({"service_accounts": (ServiceAccount(email="default", scopes=()),)}, ""),
        ({"service_accounts": (ServiceAccount(email="nodes@project-1.iam.gserviceaccount.com", scopes=()),)}, ""),
        ({"image": "projects/secret/global/images/x"}, "image"),
        ({"image": "https://www.googleapis.com/compute/v1/projects/secret/global/images/x"}, "image"),
        ({"image": "projects/project-1/../../projects/secret/global/images/x"}, "image"),
        ({"subnetwork": "projects/ubuntu-os-cloud/regions/us-central1/subnetworks/x"}, "subnetwork"),
        ({"reservation": "projects/secret/reservations/x"}, "reservation"),
        ({"disk_type": "projects/secret/zones/us-central1-b/diskTypes/x"}, "diskType"),
        (
            {"service_accounts": (ServiceAccount(email="root@secret.iam.gserviceaccount.com", scopes=()),)},
            "serviceAccounts",
        ),
        (
            {"service_accounts": (ServiceAccount(email="12-compute@developer.gserviceaccount.com", scopes=()),)},
            'use "default"',
        ),
    ],
)
def test_resources_are_used_only_if_google_or_an_allowed_project_has_them(changes: dict[str, Any], words: str) -> None:
    """The controller has access to more projects than the user who writes the object. `words` name a refused field."""
    world = World()
    group = make_group("train")
    assert group.spec.instance_config is not None
    config = replace(group.spec.instance_config, **changes)
    world.kube.create_group(replace(group, spec=replace(group.spec, instance_config=config)))
    if not words:
        world.wait_until(lambda: world.is_ready("train"))
        return
    world.wait(60.0)
    assert world.reason("train") == Reason.NOT_ALLOWED
    assert f"{words} " in world.message("train")
    assert not [resource for resource in world.cloud.resources() if "template" in resource.name]
    world.take_down("train")


def test_slice_above_a_lowered_limit_keeps_its_machines_after_a_loss() -> None:
    """The recreation would delete machines that the limit does not allow to create again."""
    world = ready_world(topology="4x4")
    world.restart(machines_per_namespace=2)
    world.cloud.lose(world.machines("train")[0], Loss.PREEMPTED)
    world.wait(4 * SETTINGS.repair_after_seconds)
    assert len(world.machines("train")) == 4
    assert world.reason("train") == Reason.NODE_LOST
    assert "MAX_MACHINES_PER_NAMESPACE (2)" in world.message("train")


def test_waiting_groups_are_not_written_when_another_group_is_deleted() -> None:
    """If one delete changed the message of each waiting group, N deletes of N groups would cause N * N writes."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=4))
    world.make("first", topology="4x4")
    for name in ("second", "third", "fourth"):
        world.kube.create_group(make_group(name, topology="2x2"))
    world.wait(60.0)
    assert [world.reason(name) for name in ("third", "fourth")] == [Reason.LIMIT_REACHED] * 2
    written = world.process.writes["PatchStatus"]
    world.take_down("second")
    assert world.process.writes["PatchStatus"] == written


def test_forged_status_does_not_circumvent_the_limit() -> None:
    """A user may have permission for the subresource `status`, and can then write any address into it."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=5))
    foreign = "projects/secret/global/instanceTemplates/t"
    for changes in ({"name": "large", "target_size": 6}, {"name": "foreign", "instance_template": foreign}):
        key = _put_manager(world, url="https://here", **changes)
        world.wait(60.0)
        assert _ready(world, key).reason == Reason.NOT_ALLOWED
    assert not world.cloud.resources()


def test_slice_that_is_recreated_keeps_its_share_of_the_limit() -> None:
    """During the recreation, the slice has no managed instance group, and later a younger one than other slices."""
    world = ready_world("running", settings=replace(SETTINGS, machines_per_namespace=5))
    world.kube.create_group(make_group("waiting"))
    world.wait(60.0)
    world.cloud.lose(world.machines("running")[0], Loss.DELETED)
    world.wait_until(lambda: world.reason("running") == Reason.RECREATING, within_seconds=3600.0)
    world.wait_until(lambda: world.is_ready("running"), within_seconds=3600.0)
    assert world.reason("waiting") == Reason.LIMIT_REACHED


@pytest.mark.parametrize("refused", ["its template", "itself"])
def test_slice_that_cannot_be_recreated_loses_its_share_of_the_limit(refused: str) -> None:
    """The rejection may be permanent, so other groups must not wait for the slice."""
    world = ready_world("running", settings=replace(SETTINGS, machines_per_namespace=5))
    world.kube.create_group(make_group("waiting"))
    # The new script makes the template outdated, so that it is recreated together with the slice.
    world.restart(startup_script=f"{world.settings.startup_script}\n# new")
    world.wait(60.0)
    world.cloud.fail(Kind.INSTANCE_TEMPLATE, "INVALID_USAGE", "The image was deleted.", name="running-.*")
    world.cloud.lose(world.machines("running")[0], Loss.DELETED)
    if refused == "itself":
        world.wait_until(lambda: not world.machines("running"), within_seconds=3600.0)
        world.cloud.mend(Kind.INSTANCE_TEMPLATE)
        running = world.group("running")
        spec = replace(running.spec, project="secret")
        world.kube._put((Kind.TPU_NODE_GROUP, "default", "running"), replace(running, spec=spec))
    world.wait_until(lambda: world.is_ready("waiting"), within_seconds=3600.0)
    assert not world.machines("running")


@pytest.mark.parametrize("seed", range(4))
def test_waiting_groups_keep_their_order_over_restarts(seed: int) -> None:
    """A new process reads the groups one after the other, which must not change their order."""
    world = World(seed, settings=replace(SETTINGS, machines_per_namespace=5))
    for name, topology in (("first", "4x4"), ("second", "4x4"), ("small", "2x2")):
        world.kube.create_group(make_group(name, topology=topology))
        world.wait(120.0)
    for _ in range(3):
        world.restart()
        world.wait(60.0)
    assert [world.reason(name) for name in ("second", "small")] == [Reason.LIMIT_REACHED] * 2


def test_group_that_can_never_be_created_does_not_delay_others() -> None:
    """Groups that are larger than the limit, or refer to another project's template, are not counted."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=5))
    world.kube.create_group(make_group("huge", topology="8x8"))
    template = "projects/secret/global/instanceTemplates/t"
    _put_manager(world, "foreign", "default", instance_template=template, target_size=5)
    world.wait(60.0)
    assert "16 machines are more than namespace default may have" in world.message("huge")
    world.make("small", topology="2x4")


def test_group_that_compute_engine_rejects_comes_after_other_groups() -> None:
    """The rejection may be permanent, so the other groups of the namespace get their machines first."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=4))
    world.cloud.fail(_MIG, "INVALID_USAGE", "The topology is not offered in this zone.")
    world.kube.create_group(make_group("bad", topology="4x4"))
    world.wait_until(lambda: world.reason("bad") == Reason.OPERATION_FAILED)
    world.kube.create_group(make_group("good", topology="2x4"))
    world.cloud.mend(_MIG)
    world.wait_until(lambda: world.is_ready("good"), within_seconds=600.0)
    assert not world.machines("bad")


def test_groups_that_compute_engine_rejects_take_turns() -> None:
    """A group that will be accepted later must not wait for a group that is never accepted."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=4))
    world.cloud.fail(_MIG, "INVALID_USAGE", "The topology is not offered in this zone.")
    names_ = ("one", "other")
    for name in names_:
        world.kube.create_group(make_group(name))
        world.wait(600.0)
    failed = set()
    for _ in range(3600):
        world.wait(1.0)
        failed.update(name for name in names_ if world.reason(name) == Reason.OPERATION_FAILED)
    assert failed == set(names_)


def test_group_that_may_have_been_created_is_counted_until_it_is_read() -> None:
    """The answer to the create of "young" was lost, so "old" must wait until "young" has been read."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=4))
    for name in ("old", "young"):
        _put_manager(world, name, "default", created_at=LONG_AGO, target_size=3)
    world.kube.recache()
    now = world.stage.wall()
    known = ResourceMemory(unsure_at=now, changed_at=now)
    memory = replace(world.process.memory, resources={"young": known})
    ctx = begin_round(world.kube.snapshot(frozenset()), memory, world.settings, now)
    assert machines_before(ctx) == {"young": 0, "old": 3}


def test_forged_status_does_not_displace_existing_machines() -> None:
    """Machines that the controller has read count as existing, regardless of the status."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=5))
    world.make("train")
    url = world.kube.all(Kind.INSTANCE_TEMPLATE)[0].status.url
    key = _put_manager(world, "forged", "default", created_at=LONG_AGO, instance_template=url, target_size=5)
    for _ in range(150):
        forged = world.kube.objects[key]
        if not forged.status.url:
            world.kube._put(key, replace(forged, status=replace(forged.status, url="https://here")))
        world.wait(1.0)
    assert len(world.cloud.machines()) == 4


def test_node_of_a_deleted_machine_is_deleted_if_all_machines_are_listed() -> None:
    world = ready_world(topology="2x4")
    node = world.kube.all("Node")[0]
    name = f"{node.name[:-4]}0000"
    old = replace(node, name=name, uid="old", provider_id=node.provider_id.replace(node.name, name), ready=False)
    world.kube._put(("Node", "", name), old)
    world.wait(300.0)
    assert name not in {other.name for other in world.kube.all("Node")}


def test_machines_listed_for_a_resource_of_another_owner_are_ignored() -> None:
    world = ready_world(topology="2x4")
    [manager] = world.kube.all(_MIG)
    memory = world.process.memory
    known = memory.resources[manager.meta.uid]
    reading: Any = known.reading
    foreign = replace(reading, resource=replace(reading.resource, description="of another team"))
    resources = {**memory.resources, manager.meta.uid: replace(known, reading=foreign)}
    world.process.memory = replace(memory, resources=resources)
    world.kube.change_node(world.kube.all("Node")[0].name, labels={})
    world.wait(10.0)
    assert not world.kube.all("Node")[0].labels
    assert world.reason("train") == Reason.REQUEST_REJECTED


def test_number_of_tokens_is_limited_and_every_machine_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are given to groups alternately, so a large group leaves tokens for other groups."""
    monkeypatch.setattr(tokens, "MOST", 2)
    world = World()
    write = world.process._write
    # Each write takes 2 s, so other groups are decided on before the token exists.
    world.process._write = lambda what: world.stage.after(2.0, lambda: write(what))  # type: ignore[method-assign]
    for name, topology in (("large", "4x4"), ("small", "2x2")):
        world.kube.create_group(make_group(name, topology=topology))
    most, first = 0, set()

    def ready() -> bool:
        nonlocal most
        secrets = world.kube.all("Secret")
        most = max(most, len(secrets))
        if len(first) < 2:
            first.update(token.group_name for token in secrets)
        return world.is_ready("large") and world.is_ready("small")

    world.wait_until(ready, step_seconds=0.2)
    assert (most, first) == (2, {"large", "small"})


def test_namespaces_and_their_groups_take_turns_for_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a namespace with many groups would take all tokens before namespaces later in the alphabet."""
    monkeypatch.setattr(tokens, "MOST", 3)
    machines = [("a", "many", "m-0"), ("a", "many", "m-1"), ("a", "n", "n-0"), ("a", "o", "o-0"), ("z", "one", "z-0")]
    proposed = [
        Proposed(
            write=CreateToken(namespace=namespace, name=group, machine=machine, machine_id="1", expires_at=NOW), seen=""
        )
        for namespace, group, machine in machines
    ]
    chosen = _with_few_tokens(proposed, Snapshot(cluster=FACTS), Memory())
    assert [proposal.write.machine for proposal in chosen] == ["m-0", "n-0", "z-0"]


def test_maximum_number_of_tokens_uses_less_than_half_of_cluster_info() -> None:
    """For each token, Kubernetes writes the key jws-kubeconfig-ID and a JWS without payload into cluster-info."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"abcdef"}')
    signature = base64.urlsafe_b64encode(hashlib.sha256(b"").digest()).rstrip(b"=")
    size = len("jws-kubeconfig-abcdef") + len(header) + len("..") + len(signature)
    assert size == 106
    assert tokens.MOST * size < 2**20 / 2


def test_ready_node_without_a_machine_is_deleted_by_force() -> None:
    """With a copy of the kubelet's certificate, any client could report the node as ready, and so keep the group."""
    world = ready_world(topology="2x4")
    name = min(machine.name for machine in world.machines("train"))
    world.cloud.on_stopped = lambda _machine: None
    world.delete_group("train")
    world.wait(600.0)
    assert world.reason("train") == Reason.DELETING_NODES
    assert f"node {name} still reports" in world.message("train")
    world.kube.annotate("train", names.FORCE, "true")
    world.wait_until(lambda: world.kube.group("train") is None, within_seconds=60.0)
    world.check_nothing_left()


@pytest.mark.parametrize(
    ("failing", "want"),
    [
        pytest.param({"big": (64, 64), "small": (1, 4)}, False, id="most nodes of one of two namespaces"),
        pytest.param({"big": (33, 64), "small": (3, 4)}, True, id="most nodes of both namespaces"),
        pytest.param({"a": (3, 4), "b": (3, 4), "c": (0, 4)}, True, id="most nodes of two of three namespaces"),
        pytest.param({"a": (1, 1), "b": (1, 1), "c": (1, 4)}, False, id="few nodes"),
        pytest.param({"only": (5, 8)}, True, id="most nodes of the only namespace"),
        pytest.param({"only": (4, 8)}, False, id="half of the nodes of the only namespace"),
        pytest.param({"a": (8, 8), "b": (0, 0)}, True, id="a namespace without nodes"),
        pytest.param(
            {f"pools/{_JOBSET}=a": (7, 8), f"pools/{_WORKLOAD}=b": (1, 2)}, False, id="one tenant of PROVIDER=gce"
        ),
        pytest.param(
            {f"pools/{_JOBSET}=a": (7, 8), f"pools/{_WORKLOAD}=b": (2, 2)}, True, id="both tenants of PROVIDER=gce"
        ),
        pytest.param(
            {f"a/{_JOBSET}=x": (4, 4), f"a/{_JOBSET}=y": (4, 4), "b": (1, 4)}, False, id="labels of one tenant"
        ),
    ],
)
def test_zone_is_doubtful_only_if_most_nodes_of_most_namespaces_fail(
    failing: dict[str, tuple[int, int]], *, want: bool
) -> None:
    """One tenant's failing nodes must not prevent the repairs of other tenants' slices."""
    ready = Condition(type="Ready", status=ConditionStatus.TRUE, reason=Reason.READY, message="")
    groups, nodes = [], []
    for place, (bad, count) in failing.items():
        namespace, _, kube_labels = place.partition("/")
        group = make_group("train", metadata={names.KUBE_LABELS: kube_labels})
        status = replace(group.status, conditions=(ready,))
        group = replace(group, meta=replace(group.meta, namespace=namespace, uid=place), status=status)
        groups.append(group)
        for index in range(count):
            machine = f"{place_of(group)}-{index}"
            name, labels = machine.rpartition("/")[2], names.group_labels(group.meta)
            nodes.append(Node(name=name, uid=name, provider_id=machine, labels=labels, ready=index >= bad))
    snapshot = Snapshot(cluster=FACTS, groups=tuple(groups), nodes=tuple(nodes))
    ctx = begin_round(snapshot, Memory(), SETTINGS, NOW)
    assert bool(ctx.doubtful_zones) is want


def test_group_beyond_the_limit_creates_no_resource_until_there_is_room() -> None:
    """Templates of waiting groups would count against the project's quota. A lowered limit deletes no machines."""
    world = World(settings=replace(SETTINGS, machines_per_namespace=4))
    for name in ("first", "second", "third"):
        world.kube.create_group(make_group(name))
    world.kube.create_group(make_group("huge", topology="8x8"))
    world.wait(900.0)
    assert world.is_ready("first")
    reasons = [world.reason(name) for name in ("second", "third", "huge")]
    assert reasons == [Reason.LIMIT_REACHED, Reason.LIMIT_REACHED, Reason.NOT_ALLOWED]
    assert "namespace default may have 4, and others are in use" in world.message("second")
    assert {resource.name.partition("-")[0] for resource in world.cloud.resources()} == {"first"}
    assert len(world.kube.all(Kind.INSTANCE_TEMPLATE)) == 1
    world.delete_group("first")
    world.wait_until(lambda: world.is_ready("second"), within_seconds=900.0)
    assert world.reason("third") == Reason.LIMIT_REACHED
    world.restart(machines_per_namespace=1)
    world.wait(300.0)
    assert world.is_ready("second")
