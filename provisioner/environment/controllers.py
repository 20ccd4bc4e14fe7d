"""The pods that controllers will make of a workload's templates, as far as their variables depend on it.

Kubernetes' own controllers, JobSet 0.11 and LeaderWorkerSet 0.9 are followed: names, labels, annotations, owner
references, host names and subdomains. UIDs are left out: nobody knows them before the objects exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.environment.pods import requests_chips
from provisioner.kube import fields
from provisioner.workloads.job import JOB
from provisioner.workloads.jobset import replicated_jobs_of
from provisioner.workloads.owners import STATEFUL_SET

Json = dict[str, Any]
Path = tuple[str | int, ...]

_INDEXED = "Indexed"
#: Kinds whose pods have no number, and what controls these.
_UNNUMBERED = {"Deployment": "ReplicaSet", "ReplicaSet": "ReplicaSet", "DaemonSet": "DaemonSet"}
#: The runs of a CronJob that stand for all.
_RUNS = 2


class MadePod(NamedTuple):
    """A pod that will be, and the object that tells its number."""

    raw: Json
    #: As `numbering.owner_to_read` names it; empty where the pod tells all.
    owner: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template of pods in a workload; its pods have a group and a number in it."""

    #: From the workload to the template.
    path: Path
    #: Child Jobs of a replicated job, or groups of a LeaderWorkerSet; else 1.
    groups: int
    #: The numbers in each group.
    numbers: range
    #: Of a group and a number, which may be beyond those that there are.
    make: Callable[[int, int], MadePod]
    #: Which of several it is, for people.
    part: str = ""
    #: The controller gives the pods the variables of workers itself.
    numbered_by_controller: bool = False

    @property
    def pods(self) -> int:
        """How many there are to be."""
        return self.groups * len(self.numbers)

    def all_pods(self) -> Iterator[MadePod]:
        """Yield all pods in their order."""
        return (self.make(group, number) for group in range(self.groups) for number in self.numbers)


def templates_of(raw: Json) -> list[Template]:
    """List the templates of a workload; none for an object of another kind."""
    kind, version = fields.text(raw.get("kind")), fields.text(raw.get("apiVersion"))
    group = version.partition("/")[0]
    if (version, kind) == STATEFUL_SET:
        return [_of_stateful_set(raw)]
    if (version, kind) == JOB:
        spec = fields.mapping(raw.get("spec"))
        return [_of_job(raw, ("spec", "template"), 1, lambda _: raw, spec)]
    if (group, kind) == ("batch", "CronJob"):
        return [_of_cron_job(raw)]
    if (group, kind) == ("jobset.x-k8s.io", "JobSet"):
        return _of_jobset(raw)
    if (group, kind) == ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"):
        return _of_leader_worker_set(raw)
    if group == "apps" and kind in _UNNUMBERED:
        return [_of_unnumbered(raw, _UNNUMBERED[kind])]
    return []


def _of_stateful_set(raw: Json) -> Template:
    metadata, spec = _parts(raw)
    name = fields.name(metadata.get("name"))
    first = fields.count(fields.mapping(spec.get("ordinals")).get("start"), default=0)

    def make(_group: int, number: int) -> MadePod:
        own = f"{name}-{first + number}"
        marks = {constants.POD_INDEX: str(first + number), constants.STATEFUL_SET_POD_NAME: own}
        host = {"hostname": own, "subdomain": spec.get("serviceName")}
        return MadePod(_pod(raw, ("spec", "template"), {"name": own}, (*STATEFUL_SET, name), marks, host=host), raw)

    replicas = fields.count(spec.get("replicas"), default=1)
    return Template(path=("spec", "template"), groups=1, numbers=range(replicas), make=make)


def _of_job(raw: Json, path: Path, groups: int, job: Callable[[int], Json], spec: Json) -> Template:
    """Return the template of Jobs of one specification; `job` makes each of them."""

    def make(group: int, number: int) -> MadePod:
        owner = job(group)
        name = fields.name(fields.mapping(owner.get("metadata")).get("name"))
        return MadePod(_pod_of_job(raw, path, name, number, indexed=spec.get("completionMode") == _INDEXED), owner)

    return Template(path=path, groups=groups, numbers=range(_indexes(spec)), make=make)


def _of_cron_job(raw: Json) -> Template:
    metadata, spec = _parts(raw)
    job_spec = fields.mapping(fields.mapping(spec.get("jobTemplate")).get("spec"))

    def job(run: int) -> Json:
        # Its controller appends the minutes since 1970.
        name = f"{fields.name(metadata.get('name'))}-{29_000_000 + run}"
        return {"metadata": {"name": name, "namespace": metadata.get("namespace")}, "spec": job_spec}

    return _of_job(raw, ("spec", "jobTemplate", "spec", "template"), _RUNS, job, job_spec)


def _of_jobset(raw: Json) -> list[Template]:
    metadata, spec = _parts(raw)
    network = fields.mapping(spec.get("network"))
    subdomain = fields.name(network.get("subdomain")) or fields.name(metadata.get("name"))
    host = {"subdomain": subdomain} if network.get("enableDNSHostnames") is not False else {}
    places = [at for at, each in enumerate(fields.sequence(spec.get("replicatedJobs"))) if isinstance(each, dict)]
    found = []
    for at, replicated in zip(places, replicated_jobs_of(raw), strict=True):
        job_spec = fields.mapping(fields.mapping(spec["replicatedJobs"][at].get("template")).get("spec"))
        path: Path = ("spec", "replicatedJobs", at, "template", "spec", "template")
        # JobSet's own default is Indexed.
        indexed = (job_spec.get("completionMode") or _INDEXED) == _INDEXED

        def make(
            group: int, number: int, *, replicated: Any = replicated, path: Path = path, indexed: bool = indexed
        ) -> MadePod:
            marks = {key: value for key, value in replicated.marks(group).items() if value}
            child = replicated.child(group)
            return MadePod(_pod_of_job(raw, path, child, number, indexed=indexed, marks=marks, host=host), raw)

        found.append(
            Template(
                path=path,
                groups=replicated.replicas,
                numbers=range(_indexes(job_spec)),
                make=make,
                part=f"replicated job {replicated.name}",
            )
        )
    return found


def _indexes(job_spec: Json) -> int:
    parallelism = fields.count(job_spec.get("parallelism"), default=1)
    return fields.count(job_spec.get("completions"), default=parallelism)


def _pod_of_job(
    raw: Json,
    path: Path,
    job: str,
    index: int,
    *,
    indexed: bool,
    marks: Mapping[str, str] | None = None,
    host: Mapping[str, Any] | None = None,
) -> Json:
    marks, host = dict(marks or {}), dict(host or {})
    labels = {constants.JOB_NAME: job, "job-name": job}
    generated = f"{job}-"
    if indexed:
        marks[constants.COMPLETION_INDEX] = str(index)
        host["hostname"] = f"{job}-{index}"
        generated = f"{job}-{index}-"
    name = {"generateName": generated}
    return _pod(raw, path, name, (*JOB, job), {**marks, **labels}, notes=marks, host=host)


def _of_leader_worker_set(raw: Json) -> list[Template]:
    metadata, spec = _parts(raw)
    pods = fields.mapping(spec.get("leaderWorkerTemplate"))
    name = fields.name(metadata.get("name"))
    size = fields.count(pods.get("size"), default=1)
    leader = "leaderTemplate" if isinstance(pods.get("leaderTemplate"), dict) else "workerTemplate"
    by_group = fields.mapping(spec.get("networkConfig")).get("subdomainPolicy") == "UniquePerReplica"
    notes = {constants.LWS_SIZE: str(size)}
    subgroup = fields.mapping(pods.get("subGroupPolicy")).get("subGroupSize")
    if fields.count(subgroup, default=0):
        notes[constants.LWS_SUBGROUP_SIZE] = str(subgroup)

    def make(group: int, worker: int) -> MadePod:
        own = f"{name}-{group}" if worker == 0 else f"{name}-{group}-{worker}"
        labels = {
            constants.LWS_NAME: name,
            constants.LWS_GROUP_INDEX: str(group),
            constants.LWS_WORKER_INDEX: str(worker),
            constants.POD_INDEX: str(worker or group),
        }
        owner = name if worker == 0 else f"{name}-{group}"
        asks = {constants.LWS_LEADER_REQUESTS_TPUS: "true"} if worker and requests_chips(pods.get(leader)) else {}
        host = {"hostname": own, "subdomain": f"{name}-{group}" if by_group else name}
        path: Path = ("spec", "leaderWorkerTemplate", "workerTemplate" if worker else leader)
        reference = (*STATEFUL_SET, owner)
        return MadePod(_pod(raw, path, {"name": own}, reference, labels, notes={**notes, **asks}, host=host), {})

    replicas = fields.count(spec.get("replicas"), default=1)
    base: Path = ("spec", "leaderWorkerTemplate")
    parts = {leader: range(min(1, size))}
    # With one template the leader is made of it, too.
    parts["workerTemplate"] = range(0 if leader == "workerTemplate" else 1, size)
    return [
        Template(path=(*base, part), groups=replicas, numbers=numbers, make=make, numbered_by_controller=True)
        for part, numbers in parts.items()
    ]


def _of_unnumbered(raw: Json, controller: str) -> Template:
    metadata, spec = _parts(raw)
    name = fields.name(metadata.get("name"))

    def make(_group: int, _number: int) -> MadePod:
        return MadePod(_pod(raw, ("spec", "template"), {"generateName": f"{name}-"}, ("apps/v1", controller, name)), {})

    # How many a DaemonSet has depends on the nodes.
    replicas = 1 if controller == "DaemonSet" else fields.count(spec.get("replicas"), default=1)
    return Template(path=("spec", "template"), groups=1, numbers=range(replicas), make=make)


def _at(raw: Json, path: Path) -> Json:
    """Return the object at a path; empty where there is none."""
    found: Any = raw
    for step in path:
        found = fields.sequence(found)[step] if isinstance(step, int) else fields.mapping(found).get(step)
    return fields.mapping(found)


def _parts(raw: Json) -> tuple[Json, Json]:
    return fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))


def _pod(
    raw: Json,
    path: Path,
    name: Mapping[str, str],
    owner: tuple[str, str, str],
    labels: Mapping[str, str] | None = None,
    *,
    notes: Mapping[str, str] | None = None,
    host: Mapping[str, Any] | None = None,
) -> Json:
    """Return a pod of the template at `path`; `host` has its host name and subdomain."""
    metadata, spec = _parts(_at(raw, path))
    of_owner = fields.mapping(raw.get("metadata"))
    api_version, kind, owner_name = owner
    found = {
        **{key: value for key, value in metadata.items() if key not in ("name", "generateName", "ownerReferences")},
        **name,
        "labels": {**fields.mapping(metadata.get("labels")), **(labels or {})},
        "annotations": {**fields.mapping(metadata.get("annotations")), **(notes or {})},
        "ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": owner_name, "controller": True}],
    }
    namespace = fields.name(of_owner.get("namespace"))
    if namespace:
        found["namespace"] = namespace
    for key in ("labels", "annotations"):
        if not found[key]:
            del found[key]
    placed = {key: value for key, value in (host or {}).items() if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found, "spec": {**spec, **placed}}
