"""The environment of pods in manifests: what the webhook does to the pods, said in the templates they are made of.

A template says a variable as a value where all its pods have the same, and by the downward API where a label or
annotation of the pods is the value. What differs otherwise only the webhook can set, pod by pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.admission.patch import Operation, apply_patch
from provisioner.admission.review import Request
from provisioner.environment.controllers import MadePod, Template, templates_of
from provisioner.environment.inject import (
    FieldRef,
    Injected,
    Settings,
    Wrong,
    inject,
    needs_owner,
    patch_of,
    wanted,
)
from provisioner.environment.layout import LayoutError, layout_of
from provisioner.environment.numbering import OwnerKey
from provisioner.environment.pods import Container, TpuPod, read_pod
from provisioner.environment.review import OwnerError, review_pod
from provisioner.environment.variables import OF_WORKERS, WORKER_HOSTNAMES, WORKER_ID, is_absent
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject

#: Has the name of a pod's Job, for variables that contain it: Kubernetes replaces $(NAME) by a variable before it.
JOB_NAME_VARIABLE = "TPU_PROVISIONER_JOB_NAME"
#: Labels and annotations by which pods tell numbers. Kubernetes has the index of a Job's pod as an annotation always,
#: and the index of a StatefulSet's pod as a label since 1.28.
_NUMBERS = (
    ("annotations", constants.COMPLETION_INDEX),
    ("labels", constants.POD_INDEX),
    ("labels", constants.JOB_GLOBAL_INDEX),
    ("labels", constants.JOB_INDEX),
)
_JOB_NAME = ("labels", constants.JOB_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What becomes of an object of a manifest."""

    #: The object with the variables of its pods, or the pods that it will have.
    objects: tuple[Any, ...] = ()
    #: What cannot be told, or not be said in a template.
    problems: tuple[str, ...] = ()
    #: What else to know.
    notes: tuple[str, ...] = ()


def inject_manifests(objects: Sequence[Any], settings: Settings, namespace: str) -> list[Printed]:
    """Return each object with the variables of its pods; owners of pods are looked for among the objects.

    `namespace` is that of objects that name none. Objects without pods that request chips stay as they are.
    """
    known = _Known(objects, namespace)
    return [_printed(raw, known, settings) for raw in objects]


def pods_of_manifests(objects: Sequence[Any], settings: Settings, namespace: str, most: int) -> list[Printed]:
    """Return for each object the first `most` pods that it will have, as the webhook would change them."""
    known = _Known(objects, namespace)
    return [_pods(raw, known, settings, most) for raw in objects]


class _Known:
    """The objects among which owners are."""

    def __init__(self, objects: Iterable[Any], namespace: str) -> None:
        self.namespace = namespace
        self._by_key: dict[tuple[str, str, str], dict[str, Any]] = {}
        for raw in map(fields.mapping, objects):
            metadata = fields.mapping(raw.get("metadata"))
            key = (fields.text(raw.get("kind")), self.namespace_of(raw), fields.name(metadata.get("name")))
            self._by_key.setdefault(key, raw)

    def namespace_of(self, raw: Mapping[str, Any]) -> str:
        return fields.name(fields.mapping(raw.get("metadata")).get("namespace")) or self.namespace

    def title(self, raw: Mapping[str, Any]) -> str:
        name = fields.name(fields.mapping(raw.get("metadata")).get("name"))
        return f"{fields.text(raw.get('kind'))} {self.namespace_of(raw)}/{name or '?'}"

    def owner(self, key: OwnerKey) -> Mapping[str, Any]:
        """Read an owner as the webhook does; one that has no UID yet is the one that is meant."""
        found = self._by_key.get((key.kind, key.namespace, key.name))
        if found is None:
            raise OwnerError("it is not among the files")
        metadata = fields.mapping(found.get("metadata"))
        return found if metadata.get("uid") else {**found, "metadata": {**metadata, "uid": key.uid}}


def _printed(raw: Any, known: _Known, settings: Settings) -> Printed:
    whole = fields.mapping(raw)
    if _is_pod(whole):
        return _reviewed(whole, known, settings)
    patch: list[Operation] = []
    problems: list[str] = []
    notes: list[str] = []
    for template in templates_of(whole):
        part = f"{known.title(whole)}{f': {template.part}' if template.part else ''}"
        try:
            looked = _look(template, known.namespace_of(whole), settings)
        except MalformedObject as error:
            problems.append(f"{part}: {error}")
            continue
        if looked is None:
            continue
        said = looked.said()
        patch += patch_of(looked.pod, said.variables)
        problems += (f"{part}: {each}" for each in looked.problems(said))
        if template.numbered_by_controller:
            notes.append(f"{part}: its controller sets {WORKER_ID} and {WORKER_HOSTNAMES} when it creates the pods")
    return Printed(
        objects=(apply_patch(raw, patch) if patch else raw,),
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _pods(raw: Any, known: _Known, settings: Settings, most: int) -> Printed:
    whole = fields.mapping(raw)
    if _is_pod(whole):
        return _reviewed(whole, known, settings)
    templates = [each for each in templates_of(whole) if _reads_chips(each)]
    found = [
        _reviewed(made.raw, known, settings, made)
        for made in islice((made for each in templates for made in each.all_pods()), most)
    ]
    there_are = sum(each.pods for each in templates)
    cut = f"{known.title(whole)}: the first {most:,} of its {there_are:,} pods are printed"
    return Printed(
        objects=tuple(pod for each in found for pod in each.objects),
        problems=tuple(dict.fromkeys(problem for each in found for problem in each.problems)),
        notes=(cut,) if there_are > most else (),
    )


def _is_pod(raw: Mapping[str, Any]) -> bool:
    return (raw.get("apiVersion"), raw.get("kind")) == ("v1", "Pod")


def _reads_chips(template: Template) -> bool:
    try:
        return read_pod(template.make(0, template.numbers.start).raw) is not None
    except MalformedObject:
        # Each pod says what is wrong with it.
        return True


def _reviewed(raw: dict[str, Any], known: _Known, settings: Settings, made: MadePod | None = None) -> Printed:
    """Do to a pod what the webhook does."""
    metadata = fields.mapping(raw.get("metadata"))
    request = Request(
        operation="CREATE",
        kind="Pod",
        namespace=known.namespace_of(raw),
        name=fields.name(metadata.get("name")),
        object=raw,
    )
    answer = review_pod(
        request,
        known.owner if made is None else lambda _: made.owner,
        replace(settings, wrong=Wrong.WARN),
    )
    return Printed(objects=(apply_patch(raw, answer.patch) if answer.patch else raw,), problems=answer.warnings)


class _Said(NamedTuple):
    """What a template can say."""

    #: By container; empty where nothing can be told of the pods.
    variables: Sequence[Mapping[str, str | FieldRef]]
    #: The names of those that it cannot.
    untold: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """Some pods of a template, and what the webhook would give them.

    They stand for all: within a slice only the number changes from pod to pod, and from one slice to the next the
    hosts. So what is the same in the first two pods and the last, of the first two groups and the last, or follows a
    label there, does so in all pods.
    """

    template: Template
    pod: TpuPod
    made: tuple[MadePod, ...]
    injected: tuple[Injected, ...]

    def said(self) -> _Said:
        """Say the variables of all pods in the template."""
        untold: list[str] = []
        if not self.injected or not all(each.variables for each in self.injected):
            return _Said([{} for _ in self.pod.containers], untold)
        return _Said([self._of_container(at, each, untold) for at, each in enumerate(self.pod.containers)], untold)

    def problems(self, said: _Said) -> Iterator[str]:
        """Say what is wrong with the slices, and what cannot be said in the template."""
        yield from dict.fromkeys(problem for each in self.injected for problem in each.problems)
        if not self.made:
            yield "there are to be no pods, so that nothing tells how many make a slice; set how many there are to be"
        names = list(dict.fromkeys(said.untold))
        if names:
            last = f" and {names.pop()}" if len(names) > 1 else ""
            differ, them = ("differ", "them") if last else ("differs", "it")
            yield (
                f"{', '.join(names)}{last} {differ} from pod to pod, and no label of the pods tells the value; let the "
                f"webhook set {them} when the pods are created (tpu-provisioner webhook)"
            )

    def _of_container(self, at: int, container: Container, untold: list[str]) -> dict[str, str | FieldRef]:
        found: dict[str, str | FieldRef] = {}
        by_pod = [each.variables[at] for each in self.injected]
        for name in dict.fromkeys(name for each in by_pod for name in each):
            values = [each.get(name) for each in by_pod]
            told = [each for each in values if each is not None]
            if not any(name in each and is_absent(name, container, each) for each in by_pod):
                continue
            if self.template.numbered_by_controller and name in OF_WORKERS:
                continue
            said = self._in_template(name, told) if len(told) == len(values) else None
            if said is None:
                untold.append(name)
            else:
                found |= said
        return found

    def _in_template(self, name: str, values: Sequence[str]) -> Mapping[str, str | FieldRef] | None:
        """Say in the template what a variable is in each pod; None where there is no way to."""
        if len(set(values)) == 1:
            return {name: values[0]}
        for source in _NUMBERS:
            if self._marks(source) == values:
                return {name: _field(source)}
        jobs = self._marks(_JOB_NAME)
        if not all(jobs):
            return None
        name_of_job = f"$({JOB_NAME_VARIABLE})"
        texts = {value.replace(job, name_of_job) for value, job in zip(values, jobs, strict=True)}
        return {JOB_NAME_VARIABLE: _field(_JOB_NAME), name: texts.pop()} if len(texts) == 1 else None

    def _marks(self, source: tuple[str, str]) -> list[str]:
        where, key = source
        return [fields.text(fields.mapping(made.raw["metadata"].get(where)).get(key)) for made in self.made]


def _look(template: Template, namespace: str, settings: Settings) -> _Looked | None:
    """Look at some pods of a template; None where they get no variables.

    MalformedObject where the template does not say how many chips it requests.
    """
    first = template.make(0, template.numbers.start)
    pod = read_pod(first.raw, namespace, at=template.path)
    if template.groups == 0 or pod is None or not wanted(pod, first.owner, settings):
        return None
    groups = _ends(range(template.groups))
    numbers = _ends(_numbers(template, pod))
    made = tuple(template.make(group, number) for group in groups for number in numbers)
    pods = [(each, read_pod(each.raw, namespace, at=template.path)) for each in made]
    return _Looked(
        template=template,
        pod=pod,
        made=made,
        injected=tuple(
            inject(each, one.owner if needs_owner(each) else {}, settings) for one, each in pods if each is not None
        ),
    )


def _numbers(template: Template, pod: TpuPod) -> range:
    """Return the numbers of the pods of a group: those of a whole slice, even if there are to be fewer yet."""
    try:
        layout = layout_of(pod)
    except LayoutError:
        layout = None
    in_slice = layout.pods if layout is not None and not layout.one_host else 0
    start = template.numbers.start
    return range(start, max(template.numbers.stop, start + in_slice))


def _ends(numbers: range) -> list[int]:
    """Return the first two numbers and the last."""
    return [numbers[at] for at in sorted({0, 1, len(numbers) - 1}) if 0 <= at < len(numbers)]


def _field(source: tuple[str, str]) -> FieldRef:
    where, key = source
    return FieldRef(path=f"metadata.{where}['{key}']")
