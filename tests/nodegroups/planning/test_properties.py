"""Whatever is seen and answered, `decide` decides: always the same, each thing once, nothing about others' things."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.model.capacity import Failure, FailureKind, OperationName, Taint
from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import (
    BootstrapConfig,
    InstanceConfig,
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    ProvisioningModel,
    SizePolicyMode,
    TpuNodeGroupSpec,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    Machine,
    OperationType,
    Reason,
    ResourceStatus,
    TpuNodeGroupStatus,
)
from provisioner.nodegroups.api.types import (
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    TpuNodeGroup,
    WorkloadPolicy,
)
from provisioner.nodegroups.bootstrap.tokens import Token
from provisioner.nodegroups.compute.records import (
    BulkOperation,
    Instance,
    ManagedInstance,
    Manager,
    Operation,
    ResourcePolicy,
    Scope,
    Template,
)
from provisioner.nodegroups.planning.actions import (
    Call,
    CallAnswer,
    Delete,
    Insert,
    ListMachines,
    Poll,
    ReadMachines,
    SetMetadata,
    WriteAnswer,
)
from provisioner.nodegroups.planning.decide import decide
from provisioner.nodegroups.planning.memory import Memory, fold
from provisioner.nodegroups.planning.round import Cluster, DevicePlugin, Node, PlanningSettings, Pod, Snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_CLUSTER = "cluster-uid"
_ODD = ("", "a", "g1", "-", "x" * 300, "a/b", "é", "\ud800", "\x00", "1" * 50, "projects/p/global/instanceTemplates/t")
_TIMES = (
    NOW,
    NOW - timedelta(minutes=7),
    NOW - timedelta(days=2),
    NOW + timedelta(days=2),
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
)


class Oddities:
    """Records of all sorts, many of which no API server would give."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def text(self, *likely: str) -> str:
        """Return a text."""
        return self.rng.choice(likely) if likely and self.rng.random() < 0.85 else self.rng.choice(_ODD)

    def time(self) -> datetime:
        """Return a moment."""
        return self.rng.choice(_TIMES)

    def maybe(self, value: Any) -> Any:
        """Return a value or nothing."""
        return value if self.rng.random() < 0.6 else None

    def some(self, *values: Any) -> tuple[Any, ...]:
        """Return some of the values."""
        return tuple(value for value in values if self.rng.random() < 0.7)

    def meta(self, kind: Kind, name: str, owner: ObjectMeta | None = None) -> ObjectMeta:
        """Return metadata."""
        rng = self.rng
        own = names.GROUP_FINALIZERS if kind is Kind.TPU_NODE_GROUP else (names.CHILD_FINALIZERS[kind],)
        return ObjectMeta(
            namespace=self.text("default", "team-a"),
            name=name,
            # No two objects have one.
            uid=f"{kind}-{self.text('1', '2', '3', '4')}",
            generation=rng.randrange(3),
            resource_version=str(rng.randrange(1000)),
            created_at=self.maybe(self.time()),
            deleted_at=self.time() if rng.random() < 0.3 else None,
            finalizers=own if rng.random() < 0.7 else self.some(*own, "other"),
            annotations={key: self.text("true", "2026-01-01T00:00:00Z") for key in self.some(*names.READ_ANNOTATIONS)}
            if rng.random() < 0.3
            else {},
            owner=owner,
        )

    def config(self) -> InstanceConfig:
        """Return the configuration of a machine."""
        return InstanceConfig(
            machine_type=self.text("ct6e-standard-4t", "tpu7x-standard-4t"),
            provisioning_model=self.maybe(self.rng.choice(list(ProvisioningModel))),
            reservation=self.text("", "r1"),
            metadata={self.text("key"): self.text("value")},
        )

    def conditions(self) -> tuple[Condition, ...]:
        """Return conditions."""
        return self.some(
            Condition(
                type="Ready",
                status=self.rng.choice(list(ConditionStatus)),
                reason=self.rng.choice([*Reason, "Odd"]),
                message=self.text("words"),
                last_transition_time=self.maybe(self.time()),
            )
        )

    def group(self, name: str) -> TpuNodeGroup:
        """Return a group."""
        rng = self.rng
        config = self.config() if rng.random() < 0.7 else None
        spec = TpuNodeGroupSpec(
            project=self.text("project-1", "project-1", "project-2"),
            node_location=self.text("us-central1-b"),
            instance_template_uri="" if config is not None else self.text(_ODD[-1].replace("/p/", "/project-1/")),
            instance_config=config,
            node_count=self.maybe(rng.choice((0, -1, 1, 4, 2**31))),
            topology=self.text("4x4", "2x2", "2x2x2"),
            bootstrap_kubernetes=self.maybe(BootstrapConfig(control_plane_ip=self.text("", "10.0.0.1", "::1"))),
            target_size_policy_mode=self.maybe(rng.choice(list(SizePolicyMode))) if rng.random() < 0.3 else None,
        )
        status = TpuNodeGroupStatus(
            conditions=self.conditions(),
            machines=self.some(
                Machine(name="m1", node="m1", ready=rng.random() < 0.5, since=self.maybe(self.time())),
                Machine(name=self.text("m2"), since=self.time()),
            ),
            recreated_at=self.some(self.time(), self.time(), self.time()),
        )
        return TpuNodeGroup(meta=self.meta(Kind.TPU_NODE_GROUP, name), spec=spec, status=status)

    def status(self) -> ResourceStatus:
        """Return the status of a child."""
        return ResourceStatus(
            conditions=self.conditions(),
            url=self.text("", "https://c/compute/v1/projects/project-1/global/instanceTemplates/t"),
            operation_name=self.text("operation-1") if self.rng.random() < 0.3 else "",
            operation_type=self.rng.choice(list(OperationType)),
            attempts=self.rng.randrange(3),
        )

    def child(self, kind: Kind, groups: list[TpuNodeGroup]) -> Child:
        """Return a child, of a group or of nobody."""
        rng = self.rng
        group = rng.choice(groups)
        owner = ObjectMeta(namespace="default", name=group.meta.name, uid=group.meta.uid)
        name = names.child_name(group.meta, kind) if rng.random() < 0.8 else self.text("own")
        meta = replace(self.meta(kind, name, self.maybe(owner)), namespace=group.meta.namespace)
        status, project = self.status(), self.text("project-1")
        if kind is Kind.WORKLOAD_POLICY:
            policy = WorkloadPolicySpec(project=project, region=self.text("us-central1"), accelerator_topology="4x4")
            return WorkloadPolicy(meta=meta, spec=policy, status=status)
        if kind is Kind.INSTANCE_TEMPLATE:
            template = InstanceTemplateSpec(project=project, config=self.config())
            return InstanceTemplate(meta=meta, spec=template, status=status)
        manager = ManagedInstanceGroupSpec(
            project=project,
            location=self.text("us-central1-b"),
            instance_template=self.text("https://c/compute/v1/projects/project-1/global/instanceTemplates/t"),
            target_size=rng.choice((0, 1, 4, -3)),
            workload_policy=self.text(""),
        )
        return ManagedInstanceGroup(meta=meta, spec=manager, status=status)

    def snapshot(self) -> Snapshot:
        """Return all that is seen."""
        rng = self.rng
        groups = [self.group(self.text("g1", "g2")) for _ in range(rng.randrange(1, 4))]
        children = [self.child(rng.choice(list(Kind)[1:]), groups) for _ in range(rng.randrange(6))]
        nodes = [
            Node(
                name=self.text("m1", "m2"),
                uid=self.text("n1", "n2"),
                provider_id=self.text("gce://project-1/us-central1-b/m1", "gce://project-1/us-central1-b/m2"),
                labels={
                    names.GROUP_NAMESPACE: self.text("default"),
                    names.GROUP_NAME: self.text("g1"),
                    names.WORKER_INDEX: self.text("0", "1", "01", "99"),
                }
                if rng.random() < 0.5
                else {},
                taints=self.some(Taint(key="google.com/tpu", value="present")),
                unschedulable=rng.random() < 0.5,
                ready=rng.random() < 0.6,
                capacity_chips=rng.choice((0, 4, -1)),
                allocatable_chips=rng.choice((0, 4, 3)),
            )
            for _ in range(rng.randrange(4))
        ]
        return Snapshot(
            cluster=Cluster(
                uid=_CLUSTER,
                project=self.text("project-1"),
                ca_hash=self.text("sha256:00"),
                api_server=self.text("10.0.0.1:6443"),
                kubernetes_version=self.text("1.34"),
            ),
            groups=tuple(groups),
            policies=tuple(each for each in children if isinstance(each, WorkloadPolicy)),
            templates=tuple(each for each in children if isinstance(each, InstanceTemplate)),
            managers=tuple(each for each in children if isinstance(each, ManagedInstanceGroup)),
            nodes=tuple(nodes),
            pods=tuple(
                Pod(
                    namespace="default",
                    name=self.text("p1"),
                    uid=self.text("p1"),
                    node=self.text("m1"),
                    chips=rng.choice((0, 4)),
                    finished=rng.random() < 0.2,
                    deletion_deadline=self.maybe(self.time()),
                    bound_to_node=rng.random() < 0.2,
                )
                for _ in range(rng.randrange(3))
            ),
            tokens=tuple(
                Token(
                    name=self.text("t1", "t2"),
                    uid=self.text("t1"),
                    group_namespace=self.text("default"),
                    group_name=self.text("g1"),
                    machine=self.text("m1"),
                    machine_id=self.text("1"),
                    value=self.text("abcdef.0123456789abcdef", ""),
                    expires_at=self.maybe(self.time()),
                )
                for _ in range(rng.randrange(3))
            ),
            device_plugin=self.maybe(DevicePlugin(uid="d", version=self.text("", "v1"))),
        )

    def answer(self, call: Call, now: datetime) -> CallAnswer:
        """Return an answer to a call, good or bad."""
        rng = self.rng
        answer = CallAnswer(call=call, asked_at=now, at=now)
        if rng.random() < 0.25:
            failure = Failure(kind=rng.choice(list(FailureKind)), message=self.text("words"))
            return replace(answer, failure=failure, retry_after_seconds=self.maybe(rng.choice((0.0, -1.0, 5.0, 1e9))))
        if isinstance(call, Delete) and rng.random() < 0.3:
            return replace(answer, kept="in use")
        return replace(answer, result=self.result(call) if rng.random() < 0.85 else None)

    def result(self, call: Call) -> Any:
        """Return what a call may give."""
        rng, target = self.rng, call.target
        if isinstance(call, Insert | Delete | Poll | SetMetadata):
            failure = Failure(kind=rng.choice(list(FailureKind)), message="words")
            done = rng.random() < 0.7
            name = OperationName(self.text("operation-1"))
            return Operation(name=name, scope=target.scope, done=done, failure=self.maybe(failure) if done else None)
        machine_scope = Scope(project="project-1", zone="us-central1-b")
        if isinstance(call, ListMachines):
            return tuple(
                ManagedInstance(
                    name=name,
                    scope=machine_scope,
                    status=self.text("RUNNING", "RUNNING", "TERMINATED", "PROVISIONING", ""),
                    action=self.text("NONE", "CREATING"),
                    failures=self.some(Failure(kind=FailureKind.STOCKOUT, message="none left")),
                    id=self.text("1", "2"),
                )
                for name in self.some("m1", "m2", "m3", "m4", "m1")
            )
        if isinstance(call, ReadMachines):
            items = {self.text("kubeadm-join-token", "key"): self.text("value")}
            return tuple(
                Instance(name=name, items=items, fingerprint="f", id=self.text("1"))
                for name in self.some("m1", "m2", "m5")
            )
        mark = f"tpu-provisioner: TPUNodeGroup default/g1 uid {target.uid} cluster {_CLUSTER}"
        described = self.text(mark, "somebody's", mark.replace(_CLUSTER, "another"))
        if target.kind is Kind.WORKLOAD_POLICY:
            return ResourcePolicy(name=target.name, description=described, status=self.text("READY"), url="u")
        if target.kind is Kind.INSTANCE_TEMPLATE:
            return Template(
                name=target.name,
                description=described,
                machine_type=self.text("ct6e-standard-4t"),
                on_host_maintenance=self.text("TERMINATE"),
                provisioning_model=self.text("SPOT"),
                url=self.text("https://c/compute/v1/projects/project-1/global/instanceTemplates/t"),
            )
        return Manager(
            name=target.name,
            description=described,
            template="t",
            target_size=rng.choice((0, 4)),
            mode=self.text("BULK"),
            is_stable=rng.random() < 0.5,
            created_at=self.maybe(self.time()),
            bulk=self.maybe(BulkOperation(in_progress=rng.random() < 0.5)),
            url="u",
        )


def _is_marked(call: Delete, memory: Memory) -> bool:
    reading = memory.resources[call.target.uid].reading
    return reading is not None and reading.resource is not None and _CLUSTER in reading.resource.description


@pytest.mark.parametrize("seed", range(150))
def test_whatever_is_seen_and_answered_is_decided_on(seed: int) -> None:
    """Nothing raises, the same is decided twice, nothing is asked for twice at once, nothing foreign is deleted."""
    odd = Oddities(seed)
    settings = PlanningSettings(
        startup_script="#!", device_plugin_version=odd.text("v1", ""), repairs_per_day=odd.rng.choice((0, 1, 3))
    )
    memory, now = Memory(), NOW
    for _ in range(6):
        snapshot = odd.snapshot()
        plan = decide(snapshot, memory, settings, now)
        assert decide(snapshot, memory, settings, now) == plan
        assert not plan.crashed
        for asked in (plan.calls, plan.writes):
            keys = [each.key for each in asked]
            assert len(keys) == len(set(keys))
        adopting = any(
            each.meta.annotations.get(names.ADOPT)
            for each in (*snapshot.groups, *snapshot.policies, *snapshot.templates, *snapshot.managers)
        )
        for call in plan.calls:
            if isinstance(call, Delete) and not adopting:
                assert _is_marked(call, plan.memory)
        assert plan.wake_at is None or plan.wake_at > now
        memory, now = plan.memory, now + timedelta(seconds=odd.rng.choice((0.1, 5.0, 70.0, 4000.0)))
        for call in plan.calls:
            if odd.rng.random() < 0.9:
                memory = fold(memory, odd.answer(call, now))
        for write in plan.writes:
            if odd.rng.random() < 0.9:
                failure = odd.maybe(odd.rng.choice(list(WriteFailure)))
                memory = fold(memory, WriteAnswer(write=write, at=now, failure=failure, message="words"))
