"""Derives the JobSets of TrainJobs (Kubeflow Trainer 2.2) and PathwaysJobs (google/pathways-job). Pure."""

from collections.abc import Mapping
from typing import Any

from provisioner import constants, tpu
from provisioner.kube import fields
from provisioner.model.workloads import WorkloadKind

Json = dict[str, Any]
_TRAINER = "trainer.kubeflow.org"
TRAIN_JOB = (_TRAINER, "TrainJob")
PATHWAYS_JOB = ("pathways-job.pathways.domain", "PathwaysJob")
CLUSTER_RUNTIME = "ClusterTrainingRuntime"
RUNTIMES = frozenset({(_TRAINER, CLUSTER_RUNTIME), (_TRAINER, "TrainingRuntime")})
#: Label, and its value, of the replicated job whose number of pods and whose resources a TrainJob sets.
_STEP, _TRAINS = f"{_TRAINER}/trainjob-ancestor-step", "trainer"
#: Name of the container whose resources a TrainJob sets.
_CONTAINER = "node"


def runtime_of(raw: Json) -> tuple[str, str, str]:
    """Return the kind, namespace (empty for a ClusterTrainingRuntime) and name of a TrainJob's runtime."""
    reference = fields.at(raw, "spec", "runtimeRef")
    kind = fields.text(reference.get("kind")) or CLUSTER_RUNTIME
    return kind, "" if kind == CLUSTER_RUNTIME else raw["metadata"]["namespace"], fields.text(reference.get("name"))


def jobset_of_train_job(raw: Json, runtime: Mapping[str, Any]) -> Json:
    """Return the JobSet that Trainer creates for a TrainJob with this runtime."""
    spec, of_runtime = fields.mapping(raw.get("spec")), fields.mapping(runtime.get("spec"))
    trainer, template = fields.mapping(spec.get("trainer")), fields.mapping(of_runtime.get("template"))
    nodes = trainer.get("numNodes") or fields.mapping(of_runtime.get("mlPolicy")).get("numNodes") or 1
    jobset = fields.mapping(template.get("spec"))
    jobs = [_job_of(job, spec, nodes) for job in fields.mappings(jobset.get("replicatedJobs"))]
    marks = {
        part: {**fields.at(template, "metadata", part), **fields.mapping(spec.get(part))}
        for part in ("labels", "annotations")
    }
    return _jobset(raw, {**jobset, "replicatedJobs": jobs}, marks)


def _job_of(job: Json, spec: Json, nodes: object) -> Json:
    made, trainer = fields.mapping(job.get("template")), fields.mapping(spec.get("trainer"))
    job_spec = fields.mapping(made.get("spec"))
    template = fields.mapping(job_spec.get("template"))
    pod = fields.mapping(template.get("spec"))
    if fields.at(made, "metadata", "labels").get(_STEP) == _TRAINS:
        job_spec = {**job_spec, "parallelism": nodes, "completions": nodes}
        if resources := trainer.get("resourcesPerNode"):
            containers = [
                {**container, "resources": resources} if container.get("name") == _CONTAINER else container
                for container in fields.mappings(pod.get("containers"))
            ]
            pod = {**pod, "containers": containers}
    for change in fields.mappings(spec.get("podTemplateOverrides")):
        if job.get("name") in [target.get("name") for target in fields.mappings(change.get("targetJobs"))]:
            pod = {**pod, **{key: value for key, value in fields.mapping(change.get("spec")).items() if value}}
    return {**job, "template": {**made, "spec": {**job_spec, "template": {**template, "spec": pod}}}}


def jobset_of_pathways_job(raw: Json) -> Json:
    """Return the JobSet of a PathwaysJob, only with its workers. Raises ShapeError for an unknown machine or shape."""
    workers = fields.mappings(fields.mapping(raw.get("spec")).get("workers"))
    return _jobset(raw, {"replicatedJobs": [_workers(worker) for worker in workers]}, {})


def _workers(entry: Json) -> Json:
    found = tpu.machine_type(fields.text(entry.get("type")))
    if found is None:
        raise tpu.ShapeError(f"workers.type {fields.shown(entry.get('type'))} is no machine type with TPUs")
    (accelerator, machine), topology = found, fields.text(entry.get("topology"))
    hosts = tpu.resolve(accelerator.label, topology, machine.chips, machine.name).nodes(1)
    selector = {constants.TPU_ACCELERATOR: accelerator.label, constants.TPU_TOPOLOGY: topology}
    pod = {
        "nodeSelector": {**fields.mapping(entry.get("nodeSelector")), **selector},
        "containers": [{"resources": {"limits": {constants.TPU_RESOURCE: machine.chips}}}],
    }
    marks = {"annotations": {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}}
    spec = {"parallelism": hosts, "completions": hosts, "template": {"metadata": marks, "spec": pod}}
    return {"name": "worker", "replicas": entry.get("numSlices", 1), "template": {"spec": spec}}


def _jobset(raw: Json, spec: Json, marks: Json) -> Json:
    metadata = raw["metadata"]
    own = {part: {**fields.mapping(metadata.get(part)), **fields.mapping(marks.get(part))} for part in marks}
    made = {"apiVersion": WorkloadKind.JOBSET.api_version, "kind": WorkloadKind.JOBSET.value}
    return {**made, "metadata": {**metadata, **own}, "spec": spec}
