"""Derives the JobSets of TrainJobs (Kubeflow Trainer 2.1 to 2.3) and PathwaysJobs (google/pathways-job). Pure."""

from collections.abc import Iterator, Mapping
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
#: Key and value of the label of the replicated job whose number of pods and resources a TrainJob sets.
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
    for patch in _patches(spec):
        template = _merged(template, patch)
    jobset = fields.mapping(template.get("spec"))
    jobs = [_job_of(job, trainer, nodes) for job in fields.mappings(jobset.get("replicatedJobs"))]
    marks = {part: fields.at(template, "metadata", part) for part in ("labels", "annotations")}
    return _jobset(raw, {**jobset, "replicatedJobs": jobs}, marks)


def _patches(spec: Json) -> Iterator[Json]:
    """Yield the changes that a TrainJob makes to the template of its runtime, in the forms of Trainer 2.1 and later."""
    yield {"metadata": {part: fields.mapping(spec.get(part)) for part in ("labels", "annotations")}}
    for change in fields.mappings(spec.get("podTemplateOverrides")):
        pods = {part: fields.mapping(change.get(part)) for part in ("metadata", "spec")}
        jobs = [
            {"name": target.get("name"), "template": {"spec": {"template": pods}}}
            for target in fields.mappings(change.get("targetJobs"))
        ]
        yield {"spec": {"replicatedJobs": jobs}}
    for change in fields.mappings(spec.get("runtimePatches")):
        yield fields.at(change, "trainingRuntimeSpec", "template")


def _merged(value: Any, patch: Any) -> Any:
    """Return `value` after a strategic merge: maps by key, lists by the name of their entries, other lists replaced."""
    if isinstance(value, dict) and isinstance(patch, dict):
        return value | {key: _merged(value.get(key), new) for key, new in patch.items() if new not in (None, [])}
    changes = {fields.text(entry.get("name")): entry for entry in fields.mappings(patch)}
    if not any(changes):
        return patch
    entries = fields.mappings(value)
    return [*(_merged(entry, changes.pop(fields.text(entry.get("name")), {})) for entry in entries), *changes.values()]


def _job_of(job: Json, trainer: Json, nodes: object) -> Json:
    if fields.at(job, "template", "metadata", "labels").get(_STEP) != _TRAINS:
        return job
    pods = fields.at(job, "template", "spec", "template", "spec")
    names = [container.get("name") for container in fields.mappings(pods.get("containers"))]
    resources = {"name": _CONTAINER, "resources": trainer.get("resourcesPerNode")}
    changed = {"containers": [resources] if _CONTAINER in names else []}
    spec = {"parallelism": nodes, "completions": nodes, "template": {"spec": changed}}
    merged: Json = _merged(job, {"template": {"spec": spec}})
    return merged


def jobset_of_pathways_job(raw: Json) -> Json:
    """Return the JobSet of a PathwaysJob, with only its workers. Raises ShapeError for an unknown type or topology."""
    workers = fields.mappings(fields.mapping(raw.get("spec")).get("workers"))
    return _jobset(raw, {"replicatedJobs": [_workers(worker) for worker in workers]}, {})


def _workers(entry: Json) -> Json:
    machine_type = tpu.machine_type(fields.text(entry.get("type")))
    if machine_type is None:
        raise tpu.ShapeError(f"workers.type {fields.shown(entry.get('type'))} is no machine type with TPUs")
    (accelerator, machine), topology = machine_type, fields.text(entry.get("topology"))
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
    made = {"apiVersion": WorkloadKind.JOBSET.api_version, "kind": WorkloadKind.JOBSET.value}
    return {**made, "metadata": {**raw["metadata"], **marks}, "spec": spec}
