"""Reads JobSets and their pods. A group is one child Job, or several child Jobs whose pods together fill a slice.

With exclusive placement, the leader is the pod with completion index 0, because JobSet creates the other pods only when
this pod is scheduled. Otherwise, and on single hosts, the unfinished pod with the lowest index is the leader.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.placement import selects_job_nodes
from provisioner.model.workloads import PodGroup, Workload, WorkloadKind, group_key
from provisioner.workloads.job import JOB, pods_of_job
from provisioner.workloads.kind import Claim, Kind, begin, controller_of, entries_of, marked, template_of, too_much
from provisioner.workloads.plain import hosts_of

JOBSET_TYPE = (WorkloadKind.JOBSET.api_version, WorkloadKind.JOBSET.value)
_LABELS = "jobset.sigs.k8s.io/"
DEFAULT_GROUP = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob:
    """Replicated job of a JobSet, with the numbers from which JobSet's controller computes labels."""

    name: str
    replicas: int
    namespace: str
    jobset: str
    jobset_uid: str
    #: Number of child Jobs of the preceding replicated jobs, and of all replicated jobs.
    before: int
    all_replicas: int
    #: groupName; number of child Jobs with this groupName in preceding replicated jobs, and in all replicated jobs.
    group: str
    before_in_group: int
    group_replicas: int

    def child(self, number: int) -> str:
        """Return the name of the child Job with a number."""
        return f"{self.jobset}-{self.name}-{number}"

    def marks(self, number: int) -> dict[str, str]:
        """Return the labels that JobSet 0.11 sets on a child Job and its pods; equal annotations are also set."""
        return {
            constants.JOBSET_NAME: self.jobset,
            constants.JOBSET_UID: self.jobset_uid,
            constants.REPLICATED_JOB_NAME: self.name,
            constants.RESTART_ATTEMPT: "0",
            f"{_LABELS}replicatedjob-replicas": str(self.replicas),
            f"{_LABELS}global-replicas": str(self.all_replicas),
            constants.JOB_INDEX: str(number),
            constants.JOB_KEY: group_key(self.namespace, self.child(number)),
            constants.JOB_GLOBAL_INDEX: str(self.before + number),
            f"{_LABELS}group-name": self.group,
            f"{_LABELS}group-replicas": str(self.group_replicas),
            f"{_LABELS}job-group-index": str(self.before_in_group + number),
        }


def replicated_jobs_of(raw: dict[str, Any]) -> list[ReplicatedJob]:
    """Return the replicated jobs of a raw JobSet, in the order of the spec."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    entries = fields.mappings(spec.get("replicatedJobs"))
    groups = [fields.name(job.get("groupName")) or DEFAULT_GROUP for job in entries]
    counts = [fields.count(job.get("replicas")) for job in entries]
    jobs = []
    before: Counter[str] = Counter()
    in_all: Counter[str] = Counter()
    for group, count in zip(groups, counts, strict=True):
        in_all[group] += count
    for entry, group, count in zip(entries, groups, counts, strict=True):
        jobs.append(
            ReplicatedJob(
                name=fields.name(entry.get("name")),
                replicas=count,
                namespace=fields.name(metadata.get("namespace")),
                jobset=fields.name(metadata.get("name")),
                jobset_uid=fields.name(metadata.get("uid")),
                before=before.total(),
                all_replicas=sum(counts),
                group=group,
                before_in_group=before[group],
                group_replicas=in_all[group],
            )
        )
        before[group] += count
    return jobs


def ended_before(spec: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return, by name of a replicated job, the names of the replicated jobs that end before this job starts."""
    # One pass is enough, because JobSet requires that a job is listed after all jobs in its dependsOn.
    ended: dict[str, frozenset[str]] = {}
    for job in fields.mappings(spec.get("replicatedJobs"))[: bounds.REPLICATED_JOBS]:
        needs = {fields.name(need.get("name")): need.get("status") for need in fields.mappings(job.get("dependsOn"))}
        complete = {name for name, status in needs.items() if status == "Complete"}
        ended[fields.name(job.get("name"))] = frozenset(complete).union(*(ended.get(name, ()) for name in needs))
    return ended


def jobs_of_slice(replicas: int, parallelism: int, hosts: int, *, exclusive: bool) -> int:
    """Return the number of child Jobs that fill one slice of `hosts` hosts; 1 if `exclusive`, or if no number fits."""
    if exclusive or not 0 < parallelism < hosts or hosts % parallelism:
        return 1
    jobs = hosts // parallelism
    return jobs if replicas and replicas % jobs == 0 else 1


def parse_jobset(raw: object) -> Workload:
    """Read a JobSet of API version v1alpha2. Raises MalformedObject."""
    spec, status = (fields.at(raw, part) for part in ("spec", "status"))
    workload, reader = begin(WorkloadKind.JOBSET, raw, controller=constants.JOBSET_CONTROLLER)
    title = f"JobSet {workload.namespace}/{workload.name}"
    statuses = fields.mappings(status.get("replicatedJobsStatus"))
    succeeded = {fields.name(job.get("name")): fields.count(job.get("succeeded"), default=0) for job in statuses}
    groups: list[PodGroup] = []
    annotations = fields.at(raw, "metadata", "annotations")
    in_order = fields.mapping(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    for entry in entries_of("spec.replicatedJobs", spec.get("replicatedJobs"), reader):
        job_template = fields.mapping(entry.get("template"))
        job_spec = fields.mapping(job_template.get("spec"))
        of_job = fields.at(job_template, "metadata", "annotations")
        of_pod = podspec.reader_of_pod(within=reader)
        group_name = of_pod.text("the name of a replicated job", entry.get("name"), limit=bounds.OBJECT_NAME)
        replicas = fields.count(entry.get("replicas"))
        needs = {fields.name(need.get("name")) for need in fields.mappings(entry.get("dependsOn"))}
        first = (group.name for group in groups if (in_order or group.name in needs) and not group.template.chips)
        template = template_of(title, job_spec.get("template"), of_pod)
        exclusive = constants.EXCLUSIVE_TOPOLOGY in {*annotations, *of_job}
        hosts, pods = hosts_of(template), pods_of_job(job_spec)
        jobs = jobs_of_slice(replicas, pods, hosts, exclusive=exclusive)
        groups.append(
            PodGroup(
                name=group_name,
                replicas=replicas // jobs,
                jobs=jobs,
                after=next(first, ""),
                deadline_seconds=fields.count(job_spec.get("activeDeadlineSeconds"), default=0),
                succeeded=succeeded.get(group_name, 0),
                selects_job_nodes=selects_job_nodes(annotations, of_job),
                lowest_leads=not exclusive or hosts == 1,
                parallelism=pods * jobs,
                template=template,
            )
        )
    problem = reader.problem or too_much(workload.kind, groups, part="replicated job")
    return replace(workload, groups=tuple(groups), problem=problem)


def jobs_in_slice(jobset: object, name: str) -> int:
    """Return the number of child Jobs of replicated job `name` that form one slice; 1 if the JobSet is malformed."""
    try:
        groups = parse_jobset(jobset).groups
    except fields.MalformedObject:
        return 1
    return next((group.jobs for group in groups if group.name == name), 1)


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Read a pod's JobSet from labels or annotations (None if absent), and the child Job from the controller."""
    name = marked(metadata, constants.JOBSET_NAME)
    if not name:
        return None
    # The child Job is not read from labels, because a pod template can set any labels.
    job = controller_of(metadata, JOB)
    return Claim(
        kind=WorkloadKind.JOBSET,
        name=name,
        uid=marked(metadata, constants.JOBSET_UID),
        group_name=job.name if job is not None else "",
        index=fields.index(marked(metadata, constants.COMPLETION_INDEX)),
    )


JOBSET = Kind(
    kind=WorkloadKind.JOBSET,
    pod_label=constants.JOBSET_NAME,
    installation="https://jobset.sigs.k8s.io/docs/installation/",
    parse=parse_jobset,
    templates="replicatedJobs",
    claim_of=claim_of,
)
