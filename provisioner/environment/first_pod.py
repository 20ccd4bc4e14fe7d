"""The first pod with chips that a workload will have, reviewed before it is there: its owner hears of mistakes earlier.

It stands for all. Kubernetes, JobSet 0.11 and LeaderWorkerSet 0.9 are followed in what the variables depend on; other
kinds have no first pod here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.admission.review import Request
from provisioner.environment.pods import requests_chips
from provisioner.environment.review import review_pod
from provisioner.kube import fields
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads.job import JOB
from provisioner.workloads.jobset import replicated_jobs_of
from provisioner.workloads.kind import STATEFUL_SET

Json = dict[str, Any]
_INDEXED = "Indexed"


def problems_of_first_pod(raw: Mapping[str, Any], settings: WebhookSettings, namespace: str) -> tuple[str, ...]:
    """Return what the webhook would say of the first pod with chips of an object that may not exist yet."""
    made = next((each for each in _first_pods(dict(raw)) if requests_chips(each)), None)
    if made is None:
        return ()
    request = Request(operation="CREATE", kind="Pod", namespace=namespace, object=made)
    return review_pod(request, lambda _: raw, replace(settings, wrong="warn")).warnings


def _first_pods(raw: Json) -> Iterator[Json]:
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    name, kind = fields.name(metadata.get("name")), (raw.get("apiVersion"), raw.get("kind"))
    group = fields.text(raw.get("apiVersion")).partition("/")[0]
    if kind == STATEFUL_SET and fields.count(spec.get("replicas"), default=1):
        own = f"{name}-{fields.count(fields.mapping(spec.get('ordinals')).get('start'), default=0)}"
        host = {"hostname": own, "subdomain": spec.get("serviceName")}
        yield _pod(spec.get("template"), {"name": own}, (*STATEFUL_SET, name), host=host)
    elif kind == JOB:
        yield _pod_of_job(spec, name, indexed=spec.get("completionMode") == _INDEXED)
    elif (group, raw.get("kind")) == ("jobset.x-k8s.io", "JobSet"):
        network = fields.mapping(spec.get("network"))
        subdomain = fields.name(network.get("subdomain")) or name
        host = {"subdomain": subdomain} if network.get("enableDNSHostnames") is not False else {}
        for entry, replicated in zip(fields.mappings(spec.get("replicatedJobs")), replicated_jobs_of(raw), strict=True):
            job_spec = fields.mapping(fields.mapping(entry.get("template")).get("spec"))
            marks = {key: value for key, value in replicated.marks(0).items() if value}
            # JobSet's own default is Indexed.
            indexed = (job_spec.get("completionMode") or _INDEXED) == _INDEXED
            if replicated.replicas:
                yield _pod_of_job(job_spec, replicated.child(0), indexed=indexed, marks=marks, host=host)
    elif (group, raw.get("kind")) == ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"):
        yield from _pods_of_group(spec, name)


def _pod_of_job(
    spec: Json, job: str, *, indexed: bool, marks: Mapping[str, str] | None = None, host: Json | None = None
) -> Json:
    marks, host = {**(marks or {}), constants.JOB_NAME: job}, dict(host or {})
    if indexed:
        marks[constants.COMPLETION_INDEX] = "0"
        host["hostname"] = f"{job}-0"
    pods = fields.count(spec.get("completions"), default=fields.count(spec.get("parallelism"), default=1))
    return _pod(spec.get("template") if pods else None, {"generateName": f"{job}-"}, (*JOB, job), marks, host)


def _pods_of_group(spec: Json, name: str) -> Iterator[Json]:
    """Yield the leader of the first group of a LeaderWorkerSet, and its first worker: either may have the chips."""
    pods = fields.mapping(spec.get("leaderWorkerTemplate"))
    size = fields.count(pods.get("size"), default=1)
    leader = pods.get("leaderTemplate") if isinstance(pods.get("leaderTemplate"), dict) else pods.get("workerTemplate")
    subgroup = fields.mapping(pods.get("subGroupPolicy")).get("subGroupSize")
    if not fields.count(spec.get("replicas"), default=1):
        return
    for worker, template in enumerate([leader, pods.get("workerTemplate")][:size]):
        own = f"{name}-0-{worker}" if worker else f"{name}-0"
        marks = {
            constants.LWS_NAME: name,
            constants.LWS_GROUP_INDEX: "0",
            constants.LWS_WORKER_INDEX: str(worker),
            constants.LWS_SIZE: str(size),
        }
        if fields.count(subgroup, default=0):
            marks[constants.LWS_SUBGROUP_SIZE] = str(subgroup)
        # Of another one where subdomainPolicy is UniquePerReplica, which is no mistake either.
        host = {"hostname": own, "subdomain": name}
        yield _pod(template, {"name": own}, (*STATEFUL_SET, f"{name}-0" if worker else name), marks, host)


def _pod(
    template: object,
    name: Mapping[str, str],
    owner: tuple[str, str, str],
    marks: Mapping[str, str] | None = None,
    host: Json | None = None,
) -> Json:
    """Return a pod of a template and its owner (API version, kind, name); `marks` are read as labels or annotations."""
    api_version, kind, owner_name = owner
    reference = {"apiVersion": api_version, "kind": kind, "name": owner_name, "controller": True}
    metadata = fields.mapping(fields.mapping(template).get("metadata"))
    labels: dict[str, Any] = {**fields.mapping(metadata.get("labels")), **(marks or {})}
    found = {"annotations": metadata.get("annotations"), "labels": labels, **name, "ownerReferences": [reference]}
    placed = {key: value for key, value in (host or {}).items() if value}
    return {"metadata": found, "spec": {**fields.mapping(fields.mapping(template).get("spec")), **placed}}
