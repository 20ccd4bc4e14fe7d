"""What is wrong with the slices that pods select, whoever makes their nodes: Google sells no such slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from provisioner import constants, tpu
from provisioner.kube import fields, podspec
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.offline.documents import Document, Finding, Path, Severity, value_at
from provisioner.slices.offline.expand import Template, templates_of
from provisioner.slices.offline.places import path_of
from provisioner.slices.offline.reading import title, unread_keys

STATEFUL_SET, POD = "StatefulSet", "Pod"
_KINDS = {each.value: each for each in WorkloadKind}


class _Pods(NamedTuple):
    """Pods that are alike, and how many of them there are."""

    template: Template
    #: None: nothing tells, or it is not theirs alone to fill a slice.
    number: int | None = None
    #: They may fill several slices.
    several: bool = False


class Asked(NamedTuple):
    """What pods ask for."""

    accelerator: str
    topology: str
    machine_type: str
    chips: int


def shape_problems(document: Document, kind: str, namespace: str) -> Iterator[Finding]:
    """Yield what is wrong with the shape of slices; of pods that select none by its topology nothing is known."""
    metadata = fields.mapping(document.raw.get("metadata"))
    name = fields.text(metadata.get("name")) or f"{fields.text(metadata.get('generateName'))}xxxxx"
    subject = title(kind, {"namespace": namespace, "name": name})
    for pods in _pods_of(document.raw, kind):
        if is_left_alone(metadata) or is_left_alone(
            fields.mapping(value_at(document.raw, (*pods.template.path, "metadata")))
        ):
            continue
        impossible = True
        try:
            asked = asked_at(document.raw, pods.template.path)
            if not (asked.chips and asked.accelerator and asked.topology):
                continue
            impossible = not tpu.may_be_sold(asked.accelerator, asked.topology, asked.machine_type)
            shape = tpu.resolve(asked.accelerator, asked.topology, asked.chips, asked.machine_type)
        except (fields.MalformedObject, tpu.ShapeError) as error:
            words, path = str(error), path_of(str(error), document.raw, pods.template)
        else:
            words, path = _misfit(pods, shape), pods.template.pods_path
            # Of fewer, others may have the other hosts; several slices may be filled step by step.
            impossible = not pods.several and (pods.number or 0) > shape.nodes(1)
            doubt = _doubt(document.raw, kind, pods, shape)
            if doubt and not words:
                yield Finding(document, path, doubt, Severity.WARNING, subject)
        if words:
            severity = Severity.ERROR if impossible else Severity.WARNING
            yield Finding(document, path, words, severity, subject, impossible=impossible)
    for path, words in unread_keys(document.value) if kind in (STATEFUL_SET, POD) else ():
        yield Finding(document, path, words, Severity.WARNING, subject)


def templates(raw: dict[str, Any], kind: str) -> list[Template]:
    """List the pod templates of an object of any kind that is judged."""
    return [each.template for each in _pods_of(raw, kind)]


def asked_at(raw: dict[str, Any], template: Path) -> Asked:
    """Read what the pods of a template ask for; MalformedObject where the chips are no whole number."""
    spec = fields.mapping(value_at(raw, (*template, "spec")))
    selector = fields.mapping(spec.get("nodeSelector"))
    return Asked(
        accelerator=fields.text(selector.get(constants.TPU_ACCELERATOR)),
        topology=fields.text(selector.get(constants.TPU_TOPOLOGY)),
        machine_type=fields.text(selector.get(constants.INSTANCE_TYPE)),
        chips=podspec.requested_chips("pod template", spec),
    )


def _pods_of(raw: dict[str, Any], kind: str) -> list[_Pods]:
    if kind == WorkloadKind.LEADER_WORKER_SET.value:
        # A group's leader may ask for nothing, or for something else.
        base: Path = ("spec", "leaderWorkerTemplate")
        parts = ((*base, part) for part in ("leaderTemplate", "workerTemplate"))
        return [_Pods(_template(path=each, pods_path=(*base, "size"))) for each in parts if value_at(raw, each)]
    if kind in _KINDS:
        return [_Pods(each, each.pods) for each in templates_of(_KINDS[kind], raw)]
    if kind == POD:
        return [_Pods(_template(path=(), pods_path=("spec",)))]
    replicas = fields.count(fields.mapping(raw.get("spec")).get("replicas"), default=1)
    return [_Pods(_template(path=("spec", "template"), pods_path=("spec", "replicas")), replicas, several=True)]


def _template(*, path: Path, pods_path: Path) -> Template:
    return Template(place=0, name="", replicas=1, pods=1, path=path, pods_path=pods_path, replicas_path=pods_path)


def is_left_alone(metadata: Mapping[str, Any]) -> bool:
    """Whether an object or a template opts out, or another controller makes its slices."""
    labels, annotations = (fields.mapping(metadata.get(each)) for each in ("labels", "annotations"))
    return (
        "true" in (labels.get(constants.DISABLE), annotations.get(constants.DISABLE))
        or constants.SLICE_TOPOLOGY in annotations
        or labels.get(constants.SLICE_AUTOPROVISIONING) in ("sync", "async")
        or annotations.get(constants.SLICE_AUTOPROVISIONING) == "true"
    )


def _doubt(raw: dict[str, Any], kind: str, pods: _Pods, shape: tpu.Shape) -> str:
    """Say why the pods of a Job are probably no slice, although they are as many as it has hosts."""
    if kind not in (WorkloadKind.JOB.value, WorkloadKind.JOBSET.value) or not shape.multi_host:
        return ""
    spec = fields.mapping(value_at(raw, pods.template.pods_path[:-1]))
    parallelism = fields.count(spec.get("parallelism"), default=1)
    completions = fields.count(spec.get("completions"), default=parallelism)
    if completions != parallelism:
        return (
            f"completions is {completions} and parallelism {parallelism}, but all pods of a slice run at the same "
            f"time, each once; make both {shape.nodes(1)}"
        )
    serves = fields.mapping(fields.mapping(raw.get("metadata")).get("annotations")).get(constants.SERVE) == "true"
    if kind == WorkloadKind.JOB.value and not pods.template.indexed and not serves:
        return (
            f"its completionMode is not Indexed, so that nothing tells which of the {shape.nodes(1)} workers of the "
            f"slice a pod is; set completionMode: Indexed"
        )
    return ""


def _misfit(pods: _Pods, shape: tpu.Shape) -> str:
    """Say that pods do not fill the hosts of slices, in the words of the warning that such a pod gets."""
    hosts = shape.nodes(1)
    if pods.number is None or not shape.multi_host:
        return ""
    if pods.number % hosts == 0 if pods.several else pods.number in (0, hosts):
        return ""
    return tpu.not_whole_slices(
        shape.accelerator.label,
        shape.topology,
        pods=hosts,
        chips_per_pod=shape.chips_per_pod,
        wanted=pods.number,
        several=pods.several,
    )
