"""Tests that `plan` predicts the node pools and the messages that decisions lead to after the objects are applied."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants, workloads
from provisioner.model.capacity import PoolStatus
from provisioner.model.fit import misfit, view_of_node
from provisioner.model.placement import labels_of, slice_key
from provisioner.model.workloads import Pod, Workload, WorkloadKind
from provisioner.settings import Settings
from provisioner.slices.admission import judge
from provisioner.slices.demand.owners import with_owners
from provisioner.slices.demand.slices import read_preferences
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.offline.documents import Document, Finding, Path, Severity
from provisioner.slices.offline.forecast import Forecast, forecast
from provisioner.slices.planning.plan import Create, Notice
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads import kinds_served
from provisioner.workloads.parse_pod import parse_pod
from tests.slices.offline.drawn import SETTINGS, Dice, object_of, settings_of
from tests.support.clock import NOW
from tests.support.controllers import pods_of
from tests.support.objects import Json, pod_spec, raw_job, raw_jobset
from tests.support.settings import settings
from tests.support.simulations.contract import HistoriesContract
from tests.support.world import World

pytestmark = pytest.mark.timeout(120)

#: Maximum number of rounds until nothing changes: after each round, new pools are ready and leaders are bound.
_MAX_ROUNDS = 6
#: Reason and message of a notice, without the name of the slice.
Told = tuple[str, str]


class AppliedWorld(World):
    """A world to which objects are applied, and which creates their pods and binds the leaders."""

    def __init__(self, raws: list[Json], settings_: Settings, namespace_labels: dict[str, dict[str, str]]) -> None:
        super().__init__(settings_=settings_)
        self.namespace_labels = namespace_labels
        self.creates: list[Create] = []
        for raw in raws:
            kind = WorkloadKind(raw["kind"])
            created = {**raw["metadata"], "creationTimestamp": NOW.isoformat()}
            is_served = kind in kinds_served(settings_)
            workload = workloads.KINDS[kind].parse({**raw, "metadata": created}) if is_served else None
            if workload is not None:
                self.workloads[workload.uid] = workload
            # With `managedBy`, another controller creates the pods in another cluster, so none are added here.
            if "managedBy" not in raw["spec"]:
                pods = filter(None, map(parse_pod, pods_of(raw)))
                self.put(*(self._admitted(pod, workload) for pod in pods))

    def _admitted(self, pod: Pod, workload: Workload | None) -> Pod:
        """Return the pod, with marks if its slice is all-or-nothing: `plan` assumes that admission adds the marks."""
        asked, key = pod.requirements, slice_key(pod.requirements.labels)
        wish = read_preferences(asked.annotations, workload.annotations if workload is not None else {}).all_or_nothing
        if not key or not (self.settings.all_or_nothing if wish is None else wish):
            return pod
        selector = {**asked.node_selector, **labels_of(key, pod.namespace)}
        return replace(pod, requirements=replace(asked, node_selector=selector))

    def look(self, **changes: Any) -> Any:
        return super().look(namespace_labels=self.namespace_labels, **changes)

    def snapshot(self, **changes: Any) -> Snapshot:
        """Return the snapshot, in which pods of unserved kinds have workloads of their own."""
        serve_pods = self.settings.serve_pods
        pods = [pod for pod in self.pods.values() if serve_pods != "none" or pod.kind is not WorkloadKind.POD]
        owned, pods_of_them = with_owners(self.workloads, pods, serve_pods=serve_pods)
        return super().snapshot(**{"workloads": owned, "pods": pods_of_them, **changes})

    def finish_creates(self) -> None:
        super().finish_creates()
        for name in self.pools:
            self.bring_nodes(name)

    def schedule(self, **_: Any) -> None:
        """Bind each leader to the pool that was created for it, so that no pool is free to serve another slice."""
        for create in self.creates:
            leader, node = self.pods[create.pod.uid], self.nodes.get(f"gke-{create.request.name}-0")
            if not leader.node_name and node is not None and not misfit(leader.requirements, view_of_node(node)):
                self.put(replace(leader, node_name=node.name, phase="Running", unschedulable_since=None))

    def settle(self) -> None:
        told: set[tuple[str, str, str]] = set()
        for _ in range(_MAX_ROUNDS):
            plan = self.step()
            assert not plan.deletes
            self.creates += plan.creates
            said = {(notice.objects[0].uid, notice.reason, notice.message) for notice in plan.notices}
            if not plan.creates and said <= told:
                break
            told |= said
            self.finish_creates()
            self.schedule()
        else:
            pytest.fail("it does not come to rest")
        assert all(pool.status is PoolStatus.RUNNING for pool in self.pools.values())

    def told_first(self) -> Counter[Told]:
        return Counter((notice.reason, self._words(notice)) for notice in self.plans[0].notices)

    def _words(self, notice: Notice) -> str:
        pod = self.pods.get(notice.objects[0].uid)
        return notice.message.replace(pod.group_name, "") if pod is not None else notice.message


def told_by(found: Forecast, settings_: Settings) -> Counter[Told]:
    """Return the remarks of the plan that would be Events. Jobs that the settings do not serve get no Events."""
    told: Counter[Told] = Counter()
    for remark in found.remarks:
        if remark.reason and (settings_.serve_jobs or not remark.subject.startswith("Job ")):
            words = remark.message.replace(remark.group_name, "") if remark.group_name else remark.message
            told[remark.reason, words] += remark.slices
    return told


def check(raws: list[Json], settings_: Settings, namespace_labels: dict[str, dict[str, str]] | None = None) -> None:
    spaces = namespace_labels or {}
    given_raws = copy.deepcopy(raws)
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in spaces.items()
    ]
    found = forecast([Document(object_, "f") for object_ in (*raws, *objects)], settings_, GKE_RULES)
    assert raws == given_raws
    assert all(remark.subject for remark in found.remarks)
    world = AppliedWorld(raws, settings_, spaces)
    world.settle()
    created = {create.request.name: create.request for create in world.creates}
    assert {pool.request.name: pool.request for pool in found.pools} == created
    told, said = world.told_first(), told_by(found, settings_)
    assert not told - said, f"not said by the plan: {told - said}; said: {said - told}"
    # The plan may report several mistakes of a slice, the decision reports the first.
    wrong = EventReason.INVALID_REQUEST in {reason for reason, _ in told}
    assert all(wrong and reason == EventReason.INVALID_REQUEST for reason, _ in said - told), said - told
    # After pools were created, only notices of workloads that get no pool may change.
    refused = {remark.subject for remark in found.remarks if remark.severity.refused}
    first = world.plans[0].notices
    for notice in (candidate for plan in world.plans[1:] for candidate in plan.notices if candidate not in first):
        workload = notice.objects[-1]
        assert f"{workload.kind} {workload.namespace}/{workload.name}" in refused, notice
    heard = {remark.subject for remark in found.remarks} | {
        pool.document.raw["metadata"]["name"] for pool in found.pools
    }
    for raw in filter(_asks, raws):
        name = raw["metadata"]["name"]
        assert name in heard or f"{raw['kind']} {raw['metadata']['namespace']}/{name}" in heard
    assert found.all_served == (not any(remark.severity.refused for remark in found.remarks))


def _asks(raw: Json) -> bool:
    return any(parse_pod(pod) is not None for pod in pods_of(raw))


TOGETHER = {"annotations": {constants.ALL_OR_NOTHING: "true"}}


def _jobs(*entries: Json, **options: Any) -> Json:
    jobs = [{**entry["spec"]["replicatedJobs"][0], "name": f"j{n}"} for n, entry in enumerate(entries)]
    return raw_jobset("w0", spec={"replicatedJobs": jobs}, **options)


def _without_index(raw: Json) -> Json:
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "NonIndexed"
    return raw


def _nowhere() -> Json:
    return pod_spec(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}})


@pytest.mark.parametrize(
    ("raws", "changes"),
    [
        pytest.param(
            [raw_job("w0"), raw_jobset("w1")],
            {"max_chips": 8},
            id="an unserved Job and a limit",
        ),
        pytest.param([raw_jobset("w0", parallelism=0)], {}, id="child Jobs without pods"),
        pytest.param(
            [_jobs(raw_jobset(pod=_nowhere()), _without_index(raw_jobset(pod_metadata=TOGETHER)), raw_jobset())],
            {},
            id="pods without an index in a JobSet that starts together",
        ),
    ],
)
def test_plan_agrees_with_the_decision_in_past_cases(raws: list[Json], changes: dict[str, Any]) -> None:
    check(raws, settings(**changes))


@given(st.binary(max_size=300))
def test_plan_agrees_with_the_decision_on_drawn_workloads(drawn: bytes) -> None:
    dice = Dice(drawn)
    changes = settings_of(dice)
    spaces = dice.one({}, {"team-a": {"tpu": "yes"}})
    raws = [object_of(dice, number) for number in range(dice.one(1, 2, 3))]
    check(raws, settings(**changes), spaces)


def _without_names(findings: Iterable[Finding]) -> set[tuple[Severity, str, Path, str]]:
    found = set()
    for finding in findings:
        words = finding.message.replace(finding.group_name, "") if finding.group_name else finding.message
        words = re.sub(r"slice w0-[-a-z0-9]+", "slice", re.sub(r"\bw0-[0-9a-f]{10}\b", "pool", words))
        found.add((finding.severity, finding.reason, finding.path, words))
    return found


@given(st.binary(max_size=150), st.sampled_from([1, 4, 15]))
def test_findings_of_the_webhook_on_one_object_are_those_of_the_plan(drawn: bytes, times: int) -> None:
    """The webhook checks a bounded number of slices of an object, and must have the same findings as the plan."""
    dice = Dice(drawn)
    field, values = dice.one(*SETTINGS)
    serving = settings(serve_jobs=dice.usually(True, False), **{field: dice.one(*values)})
    raw = object_of(dice, 0)
    for job in raw["spec"].get("replicatedJobs", [raw["spec"]]):
        job["replicas"] = times * job.get("replicas", 1)
    found = forecast([Document(raw)], replace(serving, opt_in_label=None), GKE_RULES)
    judged = judge(raw, serving, GKE_RULES)
    assert _without_names(judged) == _without_names(found.remarks)


class TestHistories(HistoriesContract):
    """Compares the findings on drawn workloads and pods with recorded findings."""

    name = "manifests"
