"""Draws JobSets, LeaderWorkerSets, Jobs and settings from random bytes, with and without mistakes.

The findings of the plan and of the webhook on the workloads and their pods are recorded as histories.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from provisioner import constants
from provisioner.admission.review import Request
from provisioner.environment.numbering import OwnerKey
from provisioner.environment.review import problems_of_first_pod, review_pod
from provisioner.model.capacity import CapacityKind, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings.webhook import WebhookSettings
from provisioner.slices.admission import judge
from provisioner.slices.offline.documents import Document, dotted, mappings_in
from provisioner.slices.offline.forecast import forecast
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.controllers import pods_of
from tests.support.objects import Json, pod_spec, raw_job, raw_jobset, raw_lws
from tests.support.settings import settings
from tests.support.simulations.runs import Outcome

_T = TypeVar("_T")


class Dice:
    """Makes choices from bytes that hypothesis draws, which is faster than its strategies and shrinks as well.

    Each choice uses one or two bytes. Bytes of 0, and missing bytes, select the usual value.
    """

    def __init__(self, drawn: bytes) -> None:
        self._drawn = iter(drawn)

    def seldom(self, once_in: int = 10) -> bool:
        return self._byte() >= 256 - 256 // once_in

    def one(self, usual: _T, *others: _T) -> _T:
        return (usual, *others)[self._byte() % (1 + len(others))]

    def usually(self, usual: _T, *others: _T) -> _T:
        """Return `usual`, or one of `others` once in 10 cases on average."""
        return self.one(*others) if self.seldom() else usual

    def some(self, usual: Mapping[str, Sequence[str]], wrong: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return up to two usual keys, and once in 10 cases a wrong key, each with one of its possible values."""
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
#: Accelerator, topology, chips per pod, and pods per slice.
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
    """Return the spec and the metadata of a pod template, and the number of pods of its slice."""
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


def object_of(dice: Dice, number: int) -> Json:
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
            policy_type = dice.one("LeaderWorker", "LeaderExcluded")
            template["subGroupPolicy"] = {"subGroupSize": dice.one(1, 2, 4), "subGroupPolicyType": policy_type}
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
SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
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


def settings_of(dice: Dice) -> dict[str, Any]:
    changes: dict[str, Any] = {"serve_jobs": dice.usually(True, False)}
    for _ in range(dice.one(0, 0, 1, 2, 3)):
        field, values = dice.one(*SETTINGS)
        changes[field] = dice.one(*values)
    return changes


# --- Recorded histories ---

_DRAWS_OF_A_SEED = 8
#: Values of wrong types or formats, as users and templates write them.
_JUNK = (None, 0, 1, -1, 3, 4.5, 10**20, True, "", "4", "x", "2x4", "true", "us-central2-b", [], ["x"], {}, {"x": "y"})
_INJECT_ALL = WebhookSettings(injection="all", topology=True)


def run_seed(seed: int, *, recording: bool = False) -> Outcome:
    """Return the findings on some drawn objects as a history, which is empty unless `recording`."""
    rng = random.Random(seed)
    history = tuple(line for _ in range(_DRAWS_OF_A_SEED) for line in _told(rng) if recording)
    return Outcome(seed=seed, faults=Counter(), history=history)


def _told(rng: random.Random) -> Iterator[str]:
    dice = Dice(rng.randbytes(300))
    own = settings(**settings_of(dice))
    # Objects are copied before they are damaged, because they may share parts.
    raws = copy.deepcopy([object_of(dice, number) for number in range(dice.one(1, 2, 3))])
    pods = copy.deepcopy([list(islice(pods_of(raw), 3)) for raw in raws])
    for raw in (*raws, *chain(*pods)):
        for _ in range(rng.choice((0, 0, 1, 2))):
            _damage(rng, raw)
    found = forecast([Document(raw, "file") for raw in raws], own, GKE_RULES)
    # `pool.document` is left out, because its text contains a memory address.
    yield from (f"{pool.request} {pool.slice_} {pool.options} {pool.shown_name}" for pool in found.pools)
    for remark in found.remarks:
        yield f"{remark.severity.name} {dotted(remark.path)} {remark} {remark.impossible}"
    yield from (f"{kind} {number}" for kind, number, _ in found.ignored)
    for raw, own_pods in zip(raws, pods, strict=True):
        yield from (f"{finding.severity.name} {finding}" for finding in judge(raw, own, GKE_RULES))
        yield from problems_of_first_pod(raw, _INJECT_ALL, "team-a")
        for pod in own_pods:
            request = Request(operation="CREATE", kind="Pod", namespace="team-a", object=pod)
            yield repr(review_pod(request, partial(_owner, raw), _INJECT_ALL))


def _owner(raw: Json, _key: OwnerKey) -> Json:
    return raw


def _damage(rng: random.Random, raw: Json) -> None:
    _, found = rng.choice([(path, mapping) for path, mapping in mappings_in(raw) if mapping and path])
    key = rng.choice(list(found))
    value = found.pop(key)
    match rng.randrange(4):
        case 0:
            found[f"{key[:-2]}{key[-1]}"] = value
        case 1 | 2:
            found[key] = copy.copy(rng.choice(_JUNK))
