"""What `plan` says of objects is what is decided when they are applied: node pools, and notices in the same words."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from provisioner import constants, workloads
from provisioner.model.capacity import CapacityKind, PoolStatus, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.fit import misfit, view_of_node
from provisioner.model.workloads import WorkloadKind
from provisioner.settings import Settings
from provisioner.slices.admission.validation import judge
from provisioner.slices.offline.documents import Document, Finding, Path, Severity
from provisioner.slices.offline.forecast import Forecast, forecast
from provisioner.slices.planning.plan import Create, Notice
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads import kinds_served
from provisioner.workloads.pods import parse_pod
from tests.support.clock import NOW
from tests.support.controllers import pods_of
from tests.support.objects import Json, pod_spec, raw_job, raw_jobset, raw_lws
from tests.support.settings import settings
from tests.support.world import World

#: The machine may be busy.
pytestmark = pytest.mark.timeout(120)

#: It waits for nothing then: all that is created is there, and all that is there is used.
_MOST_ROUNDS = 6
#: Reason, and the message without the name of the slice.
Told = tuple[str, str]


class AppliedWorld(World):
    """A world in which objects are applied, and controllers and scheduler do their part."""

    def __init__(self, raws: list[Json], settings_: Settings, namespace_labels: dict[str, dict[str, str]]) -> None:
        super().__init__(settings_=settings_)
        self.namespace_labels = namespace_labels
        self.creates: list[Create] = []
        for raw in raws:
            kind = WorkloadKind(raw["kind"])
            if kind not in kinds_served(settings_):
                continue
            created = {**raw["metadata"], "creationTimestamp": NOW.isoformat()}
            workload = workloads.KINDS[kind].parse({**raw, "metadata": created})
            if workload is not None:
                self.workloads[workload.uid] = workload
            # Another controller of `managedBy` makes its pods in another cluster.
            if "managedBy" not in raw["spec"]:
                self.put(*filter(None, map(parse_pod, pods_of(raw))))

    def look(self, **changes: Any) -> Any:
        """Decide, with the labels of namespaces."""
        return super().look(namespace_labels=self.namespace_labels, **changes)

    def finish_creates(self) -> None:
        """Bring up every pool with its nodes, those that come late too."""
        super().finish_creates()
        for name in self.pools:
            self.bring_nodes(name)

    def schedule(self, **_: Any) -> None:
        """Bind each leader to the pool that was made for it: nothing is free for long enough to be taken by another."""
        for create in self.creates:
            leader, node = self.pods[create.pod.uid], self.nodes.get(f"gke-{create.request.name}-0")
            if not leader.node_name and node is not None and not misfit(leader.requirements, view_of_node(node)):
                self.put(replace(leader, node_name=node.name, phase="Running", unschedulable_since=None))

    def settle(self) -> None:
        """Decide until nothing changes."""
        told: set[tuple[str, str, str]] = set()
        for _ in range(_MOST_ROUNDS):
            plan = self.step()
            assert not plan.deletes
            self.creates += plan.creates
            said = {(each.objects[0].uid, each.reason, each.message) for each in plan.notices}
            if not plan.creates and said <= told:
                break
            told |= said
            self.finish_creates()
            self.schedule()
        else:
            pytest.fail("it does not come to rest")
        assert all(pool.status is PoolStatus.RUNNING for pool in self.pools.values())

    def told_first(self) -> Counter[Told]:
        """Count what was told by the first decision."""
        return Counter((each.reason, self._words(each)) for each in self.plans[0].notices)

    def _words(self, notice: Notice) -> str:
        pod = self.pods.get(notice.objects[0].uid)
        return notice.message.replace(pod.group_name, "") if pod is not None else notice.message


def told_by(found: Forecast, settings_: Settings) -> Counter[Told]:
    """Return what the plan says that Events would say; of Jobs that the settings do not serve none would."""
    told: Counter[Told] = Counter()
    for each in found.remarks:
        if each.reason and (settings_.serve_jobs or not each.subject.startswith("Job ")):
            words = each.message.replace(each.group_name, "") if each.group_name else each.message
            told[each.reason, words] += each.slices
    return told


def check(raws: list[Json], settings_: Settings, namespace_labels: dict[str, dict[str, str]] | None = None) -> None:
    spaces = namespace_labels or {}
    given_raws = copy.deepcopy(raws)
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in spaces.items()
    ]
    found = forecast([Document(each, "f") for each in (*raws, *objects)], settings_, GKE_RULES)
    assert raws == given_raws
    assert all(each.subject for each in found.remarks)
    world = AppliedWorld(raws, settings_, spaces)
    world.settle()
    created = {each.request.name: each.request for each in world.creates}
    assert {each.request.name: each.request for each in found.pools} == created
    told, said = world.told_first(), told_by(found, settings_)
    assert not told - said, f"not said by the plan: {told - said}; said: {said - told}"
    # The plan tells all mistakes of a slice at once, the decision one after the other.
    wrong = constants.INVALID_REQUEST in {reason for reason, _ in told}
    assert all(wrong and reason == constants.INVALID_REQUEST for reason, _ in said - told), said - told
    # What is there then may change why others get none, and nothing else.
    refused = {each.subject for each in found.remarks if each.severity.refused}
    first = world.plans[0].notices
    for notice in (each for plan in world.plans[1:] for each in plan.notices if each not in first):
        workload = notice.objects[-1]
        assert f"{workload.kind} {workload.namespace}/{workload.name}" in refused, notice
    # Whoever gets no node pool and no Event is told by the plan.
    heard = {each.subject for each in found.remarks} | {each.document.raw["metadata"]["name"] for each in found.pools}
    for raw in filter(_asks, raws):
        name = raw["metadata"]["name"]
        assert name in heard or f"{raw['kind']} {raw['metadata']['namespace']}/{name}" in heard
    assert found.all_served == (not any(each.severity.refused for each in found.remarks))


def _asks(raw: Json) -> bool:
    """Whether any pods of a workload request chips."""
    return any(parse_pod(pod) is not None for pod in pods_of(raw))


TOGETHER = {"annotations": {constants.ALL_OR_NOTHING: "true"}}


def _jobs(*entries: Json, **options: Any) -> Json:
    jobs = [{**each["spec"]["replicatedJobs"][0], "name": f"j{n}"} for n, each in enumerate(entries)]
    return raw_jobset("w0", spec={"replicatedJobs": jobs}, **options)


def _without_index(raw: Json) -> Json:
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "NonIndexed"
    return raw


def _nowhere() -> Json:
    """Return the spec of pods that no node satisfies."""
    return pod_spec(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}})


@pytest.mark.parametrize(
    ("raws", "changes"),
    [
        pytest.param(
            [raw_job("w0"), raw_jobset("w1")],
            {"max_chips": 8},
            id="a Job that is not served takes nothing of a limit",
        ),
        pytest.param([raw_jobset("w0", parallelism=0)], {}, id="child Jobs without pods get no node pool"),
        pytest.param(
            [_jobs(raw_jobset(pod=_nowhere()), _without_index(raw_jobset(pod_metadata=TOGETHER)), raw_jobset())],
            {},
            id="pods without an index start together with the others",
        ),
    ],
)
def test_what_was_told_wrong_once(raws: list[Json], changes: dict[str, Any]) -> None:
    check(raws, settings(**changes))


# --- what is generated ---

_T = TypeVar("_T")


class Dice:
    """Decides by bytes that hypothesis draws, one each: cheaper than its own strategies, and it shrinks as well.

    A 0, or no byte at all, stands for what is usual.
    """

    def __init__(self, drawn: bytes) -> None:
        self._drawn = iter(drawn)

    def seldom(self, once_in: int = 10) -> bool:
        """Say yes now and then."""
        return self._byte() >= 256 - 256 // once_in

    def one(self, usual: _T, *others: _T) -> _T:
        """Choose one of several."""
        return (usual, *others)[self._byte() % (1 + len(others))]

    def usually(self, usual: _T, *others: _T) -> _T:
        """Choose the first of several, but for now and then."""
        return self.one(*others) if self.seldom() else usual

    def some(self, usual: Mapping[str, Sequence[str]], wrong: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Choose a few entries, each with one of its values; now and then a wrong one is among them."""
        found = {}
        for _ in range(self.one(0, 0, 1, 2)):
            key = self.one(*usual)
            found[key] = self.one(*usual[key])
        if self.seldom():
            key = self.one(*wrong)
            found[key] = self.one(*wrong[key])
        return found

    def _byte(self) -> int:
        return next(self._drawn, 0)


_ZONES = ("us-central2-a", "us-central2-b", "us-central2-c")
#: Accelerator, topology, chips a pod, pods of a slice.
_SHAPES = (
    ("tpu-v4-podslice", "2x2x2", 4, 2),
    ("tpu-v4-podslice", "2x2x1", 4, 1),
    ("tpu-v4-podslice", "2x2x4", 4, 4),
    ("tpu-v5-lite-podslice", "4x4", 4, 4),
    ("tpu-v5-lite-podslice", "2x2", 1, 4),
    ("tpu-v5p-slice", "2x2x2", 4, 2),
    ("tpu-v6e-slice", "2x4", 8, 1),
    ("tpu-v6e-slice", "4x4", 4, 4),
    ("tpu7x", "2x2x2", 4, 2),
)
_SPOT = {"key": constants.SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
_SELECTORS = {
    constants.ZONE: _ZONES,
    constants.GKE_ZONE: _ZONES,
    constants.SPOT: ("true",),
    constants.PROVISIONING: ("spot", "standard"),
    constants.RESERVATION_NAME: ("r1", "r2"),
    constants.LEGACY_POOL_ID: ("w0", "w1"),
    constants.LOCATION_HINT: ("here",),
    "team": ("a",),
    "kubernetes.io/arch": ("amd64",),
    "cloud.google.com/gke-unknown": ("x",),
}
_WRONG_SELECTORS = {
    constants.ZONE: ("us-east1-b", "x"),
    constants.SPOT: ("false",),
    constants.FLEX_START: ("true",),
    constants.PROVISIONING: ("flex-start", "x"),
    constants.QUEUED: ("true",),
    constants.MAX_RUN_SECONDS: ("3600", "5", "x"),
    constants.RESERVATION_PROJECT: ("other-project",),
    constants.RESERVATION_BLOCK: ("b1",),
    constants.INSTANCE_TYPE: ("ct4p-hightpu-4t", "ct5lp-hightpu-8t", "n1"),
    constants.NODE_POOL: ("mine",),
    constants.PLACEMENT_POLICY: ("mine",),
    constants.NODEPOOL_MANAGER: (constants.MANAGER,),
    "kubernetes.io/arch": ("arm64",),
    "example.google.com/unknown": ("x",),
}
_ANNOTATIONS = {
    constants.CAPACITY: (
        "spot, on-demand",
        "on-demand, spot@us-central2-c",
        "reservation/r1, spot",
        "flex-start, spot",
    ),
    constants.ZONES: ("us-central2-c, us-central2-a",),
    constants.SAME_ZONE: ("true", "false"),
    constants.ALL_OR_NOTHING: ("true", "false"),
    constants.MAX_RUN_DURATION: ("24h",),
    constants.COPY_LABELS: ("team", "team, kubernetes.io/x", "long"),
    constants.DISABLE: ("false",),
    constants.NODE_SERVICE_ACCOUNT: ("n@p.iam.gserviceaccount.com",),
    constants.ADDITIONAL_NODE_NETWORKS: ("vpc:subnet",),
}
_WRONG_ANNOTATIONS = {
    constants.CAPACITY: (
        "flex-start",
        "sopt",
        "reservation/other-project/r2/b1",
        "on-demand@us-east1-b",
        "on-demand@us-east1-b, spot",
    ),
    constants.ZONES: ("us-east1-b", "nowhere"),
    constants.SAME_ZONE: ("maybe",),
    constants.ALL_OR_NOTHING: ("maybe",),
    constants.MAX_RUN_DURATION: ("1m", "7"),
    constants.COPY_LABELS: (constants.NODEPOOL_MANAGER,),
    constants.DISABLE: ("true",),
    constants.NODE_SERVICE_ACCOUNT: ("me",),
    constants.ADDITIONAL_NODE_NETWORKS: ("vpc",),
    constants.SLICE_TOPOLOGY: ("4x4",),
    constants.SLICE_AUTOPROVISIONING: ("true",),
}
_LABELS = {"team": ("a", "b"), "tpu": ("yes",), "kubernetes.io/x": ("1",), "long": ("v" * 63,)}
_WRONG_LABELS = {
    constants.DISABLE: ("true",),
    constants.NODEPOOL_MANAGER: ("me",),
    constants.SLICE_AUTOPROVISIONING: ("sync", "off"),
}
_EXPRESSIONS = (
    {"key": constants.ZONE, "operator": "In", "values": ["us-central2-b", "us-central2-c"]},
    {"key": constants.SPOT, "operator": "DoesNotExist"},
    {"key": constants.TPU_TOPOLOGY, "operator": "Exists"},
    {"key": constants.ZONE, "operator": "NotIn", "values": ["us-central2-b"]},
    {"key": "no-node-has-it", "operator": "Exists"},
    {"key": "cloud.google.com/gke-unknown", "operator": "Exists"},
    {"key": constants.POOL_JOBSET_NAME, "operator": "In", "values": ["w0"]},
)


def _metadata(dice: Dice) -> Json:
    return {"annotations": dice.some(_ANNOTATIONS, _WRONG_ANNOTATIONS), "labels": dice.some(_LABELS, _WRONG_LABELS)}


def _pods(dice: Dice) -> tuple[Json, Json, int]:
    """Return the spec and the metadata of a pod template, and how many pods its slice has."""
    accelerator, topology, chips, pods = dice.one(*_SHAPES)
    accelerator = dice.usually(accelerator, "tpu-v9", "tpu-v5p-slice")
    topology = dice.usually(topology, "2x2x3", "16x16", "12x12x12", "x", "8x8", "4x4x12")
    spec = pod_spec(accelerator=accelerator, topology=topology, chips=dice.usually(chips, 0, 1, 3, 8))
    spec["tolerations"] = [dict(_SPOT)] if dice.one(True, True, False) else []
    if dice.seldom():
        spec["tolerations"] = [dice.one({"operator": "Exists"}, {"key": constants.FLEX_START, "operator": "Exists"})]
    spec["nodeSelector"] |= dice.some(_SELECTORS, _WRONG_SELECTORS)
    if dice.seldom():
        del spec["nodeSelector"][dice.one(constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY)]
    if dice.seldom(5):
        terms = [
            {"matchExpressions": [dice.one(*_EXPRESSIONS) for _ in range(dice.one(1, 2, 0))]}
            for _ in range(dice.one(1, 2, 0))
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    spec["containers"][0]["resources"]["requests"] |= dice.usually(
        {}, {"cpu": "100"}, {"cpu": "500"}, {"memory": "9Ti"}
    )
    if dice.seldom():
        spec["initContainers"] = [{"name": "init", "resources": {"limits": {constants.TPU_RESOURCE: "4"}}}]
    return spec, _metadata(dice), dice.usually(pods, 0, 1, 2, 3, 5)


def _object(dice: Dice, number: int) -> Json:
    """Return a workload of any kind."""
    name, metadata = f"w{number}", _metadata(dice)
    namespace, uid = dice.one("default", "team-a"), f"0b1e7f8a-6f3c-4f0e-9a52-0c8f6a7e1d{number:02d}"
    kind = dice.one("JobSet", "JobSet", "LeaderWorkerSet", "Job")
    if kind == "LeaderWorkerSet":
        spec, of_pods, pods = _pods(dice)
        metadata["annotations"] |= dice.one({constants.LWS_EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}, {})
        replicas = dice.one(2, 1, 3, 0)
        raw = raw_lws(name, namespace=namespace, uid=uid, replicas=replicas, pod=spec, metadata=metadata)
        template = raw["spec"]["leaderWorkerTemplate"]
        template["size"] = max(1, pods)
        template["workerTemplate"]["metadata"] = of_pods
        if dice.seldom():
            leader, of_leader, _ = _pods(dice)
            template["leaderTemplate"] = {"metadata": of_leader, "spec": leader}
        if dice.seldom():
            template["subGroupPolicy"] = {"subGroupSize": dice.one(1, 2, 4)}
        return raw
    if kind == "Job":
        spec, of_pods, pods = _pods(dice)
        raw = raw_job(name, namespace=namespace, uid=uid, parallelism=pods, pod=spec, pod_metadata=of_pods)
        metadata["annotations"] |= dice.usually({constants.SERVE: "true"}, {})
        raw["metadata"] |= metadata
        raw["spec"]["completionMode"] = dice.usually("Indexed", "NonIndexed")
        return raw
    jobs = []
    for job in dice.one(("a",), ("a", "b"), ("a-0", "a", "b"), ("b", "a-0")):
        spec, of_pods, pods = _pods(dice)
        (entry,) = raw_jobset(job=job, replicas=dice.one(1, 2, 3, 0), parallelism=pods, pod=spec, pod_metadata=of_pods)[
            "spec"
        ]["replicatedJobs"]
        if dice.seldom():
            entry["template"]["spec"]["completionMode"] = dice.one("Indexed", "NonIndexed")
        jobs.append(entry)
    own = {"replicatedJobs": jobs} | dice.usually({}, {"managedBy": "kueue.x-k8s.io/multikueue"})
    return raw_jobset(name, namespace=namespace, uid=uid, metadata=metadata, spec=own)


_CHOICES = (
    CapacityChoice(kind=CapacityKind.ON_DEMAND),
    CapacityChoice(kind=CapacityKind.SPOT),
    CapacityChoice(kind=CapacityKind.FLEX_START),
    CapacityChoice(kind=CapacityKind.RESERVATION, reservation="r1"),
    CapacityChoice(kind=CapacityKind.SPOT, zone=Zone("us-central2-c")),
)
_SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("zones", ((Zone("us-central2-a"), Zone("us-central2-b")), (Zone("us-central2-c"),))),
    ("capacity", ((_CHOICES[1], _CHOICES[0]), (_CHOICES[3], _CHOICES[4]), _CHOICES, (_CHOICES[2],))),
    ("same_zone", (True,)),
    ("all_or_nothing", (True,)),
    ("force_on_demand", (True,)),
    ("max_chips", (0, 8, 16, 40)),
    ("max_chips_per_namespace", ((("default", 8),), (("team-a", 16), ("*", 4)))),
    ("max_chips_per_accelerator", ((("tpu-v4-podslice", 8),), (("*", 16),))),
    ("max_pools_per_jobset", (0, 1, 2)),
    ("max_creates_per_hour", (0, 1, 3)),
    ("pause_creation", (True,)),
    ("allowed_namespaces", (("team-*",), ("default",))),
    ("allowed_reservations", ((), ("r1",), ("other-project/*",))),
    ("allowed_service_accounts", ((),)),
    ("allowed_networks", ((),)),
    ("allowed_label_keys", ((), ("team",))),
    ("pod_to_node_labels", (("team",), ("long", "tpu"))),
    ("namespaces", (("team-a",),)),
    ("opt_in_label", (("tpu", "yes"),)),
    ("max_run_seconds", (3600.0,)),
    ("single_host_placement", (True,)),
    ("auto_upgrade", (True, False)),
)


@hypothesis_settings(max_examples=400)
@given(st.binary(max_size=300))
def test_the_plan_is_what_happens(drawn: bytes) -> None:
    """Of all kinds, right and wrong, alone and together, under any settings."""
    dice = Dice(drawn)
    changes: dict[str, Any] = {"serve_jobs": dice.usually(True, False)}
    for _ in range(dice.one(0, 0, 1, 2, 3)):
        field, values = dice.one(*_SETTINGS)
        changes[field] = dice.one(*values)
    spaces = dice.one({}, {"team-a": {"tpu": "yes"}})
    raws = [_object(dice, number) for number in range(dice.one(1, 2, 3))]
    check(raws, settings(**changes), spaces)


def _without_names(findings: Iterable[Finding]) -> set[tuple[Severity, str, Path, str]]:
    """Return what is said, apart from the names of slices and node pools."""
    found = set()
    for each in findings:
        words = each.message.replace(each.group_name, "") if each.group_name else each.message
        words = re.sub(r"slice w0-[-a-z0-9]+", "slice", re.sub(r"\bw0-[0-9a-f]{10}\b", "pool", words))
        found.add((each.severity, each.reason, each.path, words))
    return found


@hypothesis_settings(max_examples=100)
@given(st.binary(max_size=150), st.sampled_from([1, 4, 15]))
def test_one_object_is_judged_as_it_is_planned(drawn: bytes, times: int) -> None:
    """Although only a few of its slices are looked at, where limits allow them all."""
    dice = Dice(drawn)
    field, values = dice.one(*_SETTINGS)
    serving = settings(serve_jobs=dice.usually(True, False), **{field: dice.one(*values)})
    raw = _object(dice, 0)
    for each in raw["spec"].get("replicatedJobs", [raw["spec"]]):
        each["replicas"] = times * each.get("replicas", 1)
    found = forecast([Document(raw)], replace(serving, opt_in_label=None), GKE_RULES)
    judged = judge(raw, serving, GKE_RULES)
    assert _without_names(judged) == _without_names(found.remarks)
