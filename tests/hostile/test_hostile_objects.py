"""Objects up to etcd's limit that make parsing, demand and decision as expensive as possible.

Cost is counted in calls and bytes for each KB of JSON, so that it does not depend on the machine. A call of a C
function counts as one, regardless of its work; other tests limit the arguments of such calls. No hostile object may
change the plan for an honest JobSet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.fields import MalformedObject
from provisioner.kube.podspec import READ_ANNOTATIONS
from provisioner.model import bounds
from provisioner.model.capacity import NodePool, Taint
from provisioner.model.workloads import Pod, Workload
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.parse_pod import parse_pod
from tests.support.clock import NOW
from tests.support.counting import counted, measured
from tests.support.models import make_jobset, make_nodes, make_pod, make_pool, make_requirements
from tests.support.objects import pod_spec, raw_jobset, raw_leader, toleration
from tests.support.settings import settings

pytestmark = pytest.mark.timeout(30)

#: Limit of etcd on one object, in bytes.
LIMIT_BYTES = 1_500_000
#: Maximum number of calls for each hostile pod, plus `CALLS_PER_KB`: its slice is compared with all free pools.
CALLS = 60_000
#: Maximum number of calls for each KB of JSON. Quantities of containers need the most: fifty calls for forty bytes.
CALLS_PER_KB = 1_600
#: Maximum peak memory of parsing and deciding in bytes for each KB of JSON, in addition to 3 `KEPT_BYTES` for each pod.
PEAK_BYTES_PER_KB = 6_000
#: Maximum number of bytes that the records and slices of each hostile pod keep after a decision.
KEPT_BYTES = 600_000
#: Maximum length of a message, in characters; an Event shows the first 1,024 bytes.
MESSAGE = 2_000
FREE_POOLS = 10

Change = Callable[[dict[str, Any], dict[str, Any]], None]

HONEST = make_jobset("honest", template=make_requirements(topology="2x2x2", tolerations=()))
#: JobSet of an earlier time, whose pools are free and fit the hostile JobSet's slices.
_FORMER = make_jobset(
    "former", replicas=FREE_POOLS, parallelism=4, template=make_requirements(topology="2x2x4", tolerations=())
)
POOLS: tuple[NodePool, ...] = tuple(make_pool(_FORMER, job=job) for job in range(FREE_POOLS))
NODES = tuple(
    replace(node, taints=(*node.taints, *(Taint(key=f"t{index}", effect="PreferNoSchedule") for index in range(8))))
    for pool in POOLS
    for node in make_nodes(pool)
)


def evil_jobset() -> dict[str, Any]:
    """Return the hostile JobSet without its hostile changes; it can be served."""
    return raw_jobset(
        "evil", parallelism=4, pod=evil_spec(), pod_metadata={}, metadata={"annotations": {}, "labels": {}}
    )


def evil_spec() -> dict[str, Any]:
    containers = [{"resources": {"limits": {constants.TPU_RESOURCE: "4"}}}]
    return pod_spec(topology="2x2x4", tolerations=[toleration()], containers=containers)


def evil_pod(*, job: int = 0) -> dict[str, Any]:
    return raw_leader("evil", number=job, spec=evil_spec(), metadata={"annotations": {}})


def read(parse: Callable[[object], Any], raw: object) -> list[Any]:
    """Parse like the list-watch, which leaves out malformed objects; raise errors with long messages."""
    try:
        record = parse(raw)
    except MalformedObject as error:
        if len(str(error)) >= MESSAGE:
            raise
        return []
    return [] if record is None else [record]


def plan_for(jobsets: list[Workload], pods: list[Pod], *, free: bool) -> Plan:
    """Decide on the honest JobSet and other objects; `free` adds free pools."""
    snapshot = Snapshot(
        workloads={jobset.uid: jobset for jobset in (HONEST, *jobsets)},
        pods=(make_pod(HONEST), *pods),
        pools=POOLS if free else (),
        nodes=NODES if free else (),
        pools_listed_at=NOW,
    )
    return decide(snapshot, Memory(), settings(), GKE_RULES, NOW)


def about_honest(plan: Plan) -> tuple[Any, ...]:
    creates = tuple(create for create in plan.creates if create.workload.name == "honest")
    notices = tuple(notice for notice in plan.notices if any(ref.name.startswith("honest") for ref in notice.objects))
    states = tuple(pool for pool in plan.pools if pool.named.name == "honest")
    return creates, notices, states, plan.deletes


def check(raw_jobsets: list[dict[str, Any]], raw_pods: list[dict[str, Any]]) -> tuple[Plan, Plan]:
    """Assert that hostile objects cost little, and do not change the plan for the honest JobSet; return the plans."""
    kb = sum(len(json.dumps(raw)) for raw in (*raw_jobsets, *raw_pods)) / 1000

    def rounds() -> tuple[Plan, Plan]:
        jobsets = [record for raw in raw_jobsets for record in read(parse_jobset, raw)]
        pods = [record for raw in raw_pods for record in read(parse_pod, raw)]
        return plan_for(jobsets, pods, free=True), plan_for(jobsets, pods, free=False)

    alone, calls_alone = counted(lambda: (plan_for([], [], free=True), plan_for([], [], free=False)))
    plans, calls = counted(rounds)
    assert calls - calls_alone < CALLS * len(raw_pods) + CALLS_PER_KB * kb
    for plan, without_others in zip(plans, alone, strict=True):
        assert about_honest(plan) == about_honest(without_others)
        assert about_honest(plan)[0]
        assert all(len(notice.message) < MESSAGE for notice in plan.notices)
    del plans, plan
    plans, peak, kept = measured(rounds)
    assert kept < KEPT_BYTES * len(raw_pods)
    assert peak < KEPT_BYTES * 3 * len(raw_pods) + PEAK_BYTES_PER_KB * kb
    return plans


def told(plan: Plan) -> str:
    return "\n".join(notice.message for notice in plan.notices if any("evil" in ref.name for ref in notice.objects))


def select(**labels: str) -> Change:
    """Select nodes by labels, in the JobSet's template and on the pod."""

    def change(spec: dict[str, Any], _metadata: dict[str, Any]) -> None:
        spec["nodeSelector"] |= labels

    return change


def annotate(**texts: str) -> Change:
    def change(_spec: dict[str, Any], metadata: dict[str, Any]) -> None:
        metadata.setdefault("annotations", {}).update(
            {f"tpu-provisioner.cloud.google.com/{key.replace('_', '-')}": text for key, text in texts.items()}
        )

    return change


def put(**fields: Any) -> Change:
    def change(spec: dict[str, Any], _metadata: dict[str, Any]) -> None:
        spec.update(fields)

    return change


def label(count: int) -> Change:

    def change(_spec: dict[str, Any], metadata: dict[str, Any]) -> None:
        metadata.setdefault("labels", {}).update({f"k{index}": "v" for index in range(count)})

    return change


def required(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    wanted = [{"matchExpressions": term} for term in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}}


def not_in(*values: str) -> dict[str, Any]:
    """Return an expression that holds on every node."""
    return {"key": "k", "operator": "NotIn", "values": list(values)}


def nested(depth: int) -> Any:
    raw: Any = {}
    for _ in range(depth):
        raw = {"a": raw}
    return raw


CASES: dict[str, tuple[Change, str]] = {
    "a topology of digits": (select(**{constants.TPU_TOPOLOGY: "9" * 1_000_000}), "has 1,000,000 characters"),
    "a topology of 63 digits": (select(**{constants.TPU_TOPOLOGY: "9" * 63}), "nearest valid"),
    "a long accelerator": (select(**{constants.TPU_ACCELERATOR: "tpu-" * 300_000}), "has 1,200,000 characters"),
    "a long machine type": (select(**{constants.INSTANCE_TYPE: "ct4p-" * 200_000}), "has 1,000,000 characters"),
    "a long zone": (select(**{constants.ZONE: "é" * 200_000}), "has 200,000 characters"),
    "a long run": (annotate(max_run_duration="9" * 250_000), "has 250,000 characters"),
    "a long run within the bound": (annotate(max_run_duration="9h" * 2_000), ""),
    "capacity times zones": (
        annotate(capacity="spot," * 12_000, zones="us-central2-b," * 4_000),
        "at most 4,096 are read",
    ),
    "choices within the length": (annotate(capacity="spot," * 800), "has 801 choices, and at most 32 are read"),
    "as many pairs as are read": (
        annotate(
            capacity=",".join(f"reservation/r{index}" for index in range(16)),
            zones=",".join(f"us-central2-{zone}" for zone in "abcd"),
        ),
        "",
    ),
    "labels to copy": (annotate(copy_labels="k," * 120_000), "has 240,000 characters"),
    "labels to copy within the length": (annotate(copy_labels="k," * 2_000), "has 2,001 labels"),
    "networks": (annotate(additional_node_networks="v:s," * 60_000), "has 240,000 characters"),
    "networks within the length": (annotate(additional_node_networks="v:s," * 1_000), "has 1,001 networks"),
    "an account": (annotate(node_service_account="a@" * 2_000), "is not the e-mail address"),
    "tolerations": (put(tolerations=[{"key": "k"}] * 60_000), "tolerations has 60,000 entries"),
    "as many tolerations as are read": (
        put(tolerations=[{"key": "k" * 100, "value": str(index)} for index in range(63)] + [{"operator": "Exists"}]),
        "",
    ),
    "terms": (put(affinity=required(*[[not_in("v")]] * 15_000)), "more than 64 expressions"),
    "as many terms as are read": (put(affinity=required(*[[{**not_in("v"), "operator": "In"}]] * 64)), "node affinity"),
    "expressions of one term": (put(affinity=required([not_in("v")] * 20_000)), "more than 64 expressions"),
    "values": (put(affinity=required([not_in(*map(str, range(100_000)))])), "1,024 values"),
    "as many values as are read": (put(affinity=required([not_in(*map(str, range(1024)))])), ""),
    "selectors": (select(**{f"k{index}": "v" for index in range(80_000)}), "nodeSelector has 80,002 entries"),
    "labels": (label(80_000), "entries, and at most 128 are read"),
    "containers": (
        put(containers=[{"resources": {"limits": {constants.TPU_RESOURCE: "4"}}}] + [{"name": "x"}] * 20_000),
        "",
    ),
    "huge quantities": (
        put(containers=[{"resources": {"limits": {constants.TPU_RESOURCE: "4", "cpu": "9" * 1_000_000}}}]),
        "",
    ),
    "huge integers": (put(containers=[{"resources": {"limits": {constants.TPU_RESOURCE: 10**4000}}}]), ""),
    "huge amounts": (put(containers=[{"resources": {"limits": {constants.TPU_RESOURCE: "9E"}}}] * 2), "chips"),
    "deep nesting": (put(affinity=nested(400), tolerations=[nested(400)], nodeSelector=nested(400)), ""),
    "half characters": (select(**{"\ud800": "\udfff" * 63, constants.TPU_TOPOLOGY: "\ud800"}), "topology"),
}


@pytest.mark.parametrize("name", CASES)
def test_cost_of_a_hostile_pod_is_bounded_and_others_are_unaffected(name: str) -> None:
    change, words = CASES[name]
    workload, pod = evil_jobset(), evil_pod()
    template = workload["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    change(template["spec"], template["metadata"])
    change(pod["spec"], pod["metadata"])
    assert all(len(json.dumps(raw, ensure_ascii=False)) < LIMIT_BYTES for raw in (workload, pod))
    _, plan = check([workload], [pod])
    assert words in told(plan)


@pytest.mark.parametrize(
    ("job", "count", "words"),
    [
        pytest.param({"replicas": 500_000}, 1, "it has 500,000 jobs that request chips", id="half a million"),
        pytest.param({"replicas": 4_096}, 1, "", id="as many child Jobs as are served"),
        pytest.param({"replicas": 10**4000}, 1, "it has 2,147,483,647 jobs", id="more than can be counted"),
        pytest.param({"replicas": 10**6, "chips": "0"}, 1, "", id="a million without chips"),
        pytest.param({"parallelism": 10**9}, 1, "parallelism is 1,000,000,000", id="a billion pods"),
        pytest.param({}, 3_000, "has 3,000 entries, and at most 256 are read", id="thousands of replicated jobs"),
        pytest.param({"replicas": 16}, 256, "", id="as many replicated jobs as are read"),
        pytest.param({"name": "n" * 1_000_000}, 1, "the name of a replicated job", id="a long name"),
    ],
)
def test_cost_of_a_hostile_jobset_is_bounded_and_others_are_unaffected(
    job: dict[str, Any], count: int, words: str
) -> None:
    workload = evil_jobset()
    (only,) = workload["spec"]["replicatedJobs"]
    only["name"], only["replicas"] = job.get("name", "slice"), job.get("replicas", 1)
    spec = only["template"]["spec"]
    spec["parallelism"] = spec["completions"] = job.get("parallelism", 4)
    spec["template"]["spec"]["containers"][0]["resources"]["limits"][constants.TPU_RESOURCE] = job.get("chips", "4")
    workload["spec"]["replicatedJobs"] = [
        {**only, "name": only["name"] + ("" if not n else str(n))} for n in range(count)
    ]
    _, plan = check([workload], [evil_pod()])
    assert words in told(plan)


def test_different_pods_are_compared_with_free_pools_within_the_budget() -> None:
    """The pods have as many tolerations and expressions as are read, and no two pods are equal."""
    pods = []
    for job in range(8):
        pod = evil_pod(job=job)
        put(affinity=required(*[[not_in(str(job))]] * 63, [not_in(*map(str, range(900)))]))(pod["spec"], {})
        put(tolerations=[{"key": f"k{index}"} for index in range(63)] + [{"operator": "Exists"}])(pod["spec"], {})
        pods.append(pod)
    workload = evil_jobset()
    workload["spec"]["replicatedJobs"][0]["replicas"] = len(pods)
    plan, _ = check([workload], pods)
    assert sum(pool.named.name == "evil" and pool.phase.value == "ready" for pool in plan.pools) == len(pods)


def test_many_slices_without_a_possible_choice_take_little_memory() -> None:
    """In the past, 1,700 slices exceeded the memory limit: a decision keeps the problem of each choice of a slice."""
    workload, jobs = evil_jobset(), range(30)
    zones = ",".join(f"us-central2-{letter}" for letter in "abcdefghijklmnop")
    capacity = "on-demand, spot, reservation/a, reservation/b"
    workload["metadata"]["annotations"] = {constants.CAPACITY: capacity, constants.ZONES: zones}
    workload["spec"]["replicatedJobs"][0]["replicas"] = len(jobs)
    raw_pods = [evil_pod(job=job) for job in jobs]
    for raw in raw_pods:
        raw["spec"]["containers"][0]["resources"]["requests"] = {"memory": "9000Gi"}
    jobsets, pods = [parse_jobset(workload)], [pod for raw in raw_pods for pod in read(parse_pod, raw)]
    plan, peak, _ = measured(lambda: plan_for(jobsets, pods, free=False))
    assert "9000Gi" in told(plan)
    assert peak < 1_000 * 64 * len(jobs)


@pytest.mark.parametrize(("selected", "own"), [(constants.POOL_JOB_KEY, True), ("kubernetes.io/arch", False)])
def test_bound_on_pairs_applies_only_to_pods_that_select_their_own_pool(
    selected: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices with one affinity are checked once, unless the affinity uses a label whose value differs by slice."""
    monkeypatch.setattr(bounds, "NAMESPACE_OWN_POOLS", 3)
    workload, pods = evil_jobset(), [evil_pod(job=job) for job in range(5)]
    workload["spec"]["replicatedJobs"][0]["replicas"] = len(pods)
    terms = [{"matchExpressions": [{"key": selected, "operator": "Exists"}]}]
    for pod in pods:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["spec"]["affinity"] = {"nodeAffinity": required}
    jobsets, read_pods = [parse_jobset(workload)], [pod for raw in pods for pod in read(parse_pod, raw)]
    plan = plan_for(jobsets, read_pods, free=False)
    assert sum(create.workload.name == "evil" for create in plan.creates) == (3 if own else 5)
    assert ("more than 3 pairs of a slice and a choice of capacity" in told(plan)) is own


def test_waiting_slices_of_a_namespace_have_a_bound_on_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the past, 4,096 slices with 64 choices that were out of stock took 6 s and 370 MB in each decision."""
    monkeypatch.setattr(bounds, "NAMESPACE_CHOICES", 8)
    workload, pods = evil_jobset(), [evil_pod(job=job) for job in range(6)]
    workload["metadata"]["annotations"] = {constants.CAPACITY: "on-demand, spot"}
    workload["spec"]["replicatedJobs"][0]["replicas"] = len(pods)
    jobsets, read_pods = [parse_jobset(workload)], [pod for raw in pods for pod in read(parse_pod, raw)]
    plan = plan_for(jobsets, read_pods, free=False)
    assert sum(create.workload.name == "evil" for create in plan.creates) == 4
    assert "more than 8 pairs of a waiting slice and a choice of capacity" in told(plan)


def bomb(rng: random.Random, size: int) -> Any:
    """Return a value that may be expensive to process, often of about `size` bytes."""
    return rng.choice(
        (
            lambda: rng.choice("9x,/@é\u0664\ud800 -") * size,
            lambda: [rng.choice(("v", 9, None, {}, {"key": "k"}, {"values": ["v"]}))] * (size // 10),
            lambda: {f"k{index}": rng.choice(("v", {}, 9)) for index in range(size // 12)},
            lambda: nested(min(size // 6, 300)),
            lambda: 10 ** rng.choice((3, 9, 18, 4000)),
            lambda: {"nodeAffinity": required([not_in("v")] * (size // 50))["nodeAffinity"]},
            lambda: [{"resources": {"limits": {constants.TPU_RESOURCE: "1", "cpu": "1e999"}}}] * (size // 70),
            lambda: -1,
        )
    )()


def plant(rng: random.Random, holder: Any, size: int) -> None:
    """Put an expensive value (`bomb`) at a random place of an object, or into a map of the object under a new key."""
    while True:
        places = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if isinstance(holder, dict) and rng.random() < 0.2:
            places = [*READ_ANNOTATIONS, constants.TPU_TOPOLOGY, "affinity", "tolerations", "initContainers"]
        if not places:
            return
        place = rng.choice(places)
        inner = holder.get(place) if isinstance(holder, dict) else holder[place]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.2:
            holder[place] = bomb(rng, size)
            return
        holder = inner


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(8, 48))])
def test_cost_of_random_objects_is_bounded_and_others_are_unaffected(seed: int) -> None:
    rng = random.Random(seed)
    workload, pod = evil_jobset(), evil_pod()
    for raw in (workload, pod):
        for _ in range(rng.randint(0, 3)):
            plant(rng, raw, int(10 ** rng.uniform(1, 5)))
    check([workload], [pod])
