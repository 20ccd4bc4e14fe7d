"""What a pod's containers get: decided from the pod, its owner and the settings, as a patch of the pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from provisioner import constants, tpu
from provisioner.admission.patch import Operation
from provisioner.environment.layout import Layout, LayoutError, layout_of
from provisioner.environment.numbering import (
    Numbering,
    NumberingError,
    UnnumberedError,
    numbering_of,
    owner_to_read,
)
from provisioner.environment.pods import Container, TpuPod, wish_of
from provisioner.environment.variables import (
    NUM_SLICES,
    TOGETHER,
    WORKER_HOSTNAMES,
    WORKER_ID,
    check_lengths,
    check_size,
    grid_of,
    is_absent,
    slice_pods,
    slices_of,
    workers_of,
)
from provisioner.kube import fields
from provisioner.workloads.owners import STATEFUL_SET


class Injection(StrEnum):
    """Which pods that request chips get the variables."""

    OFF = "off"
    #: Those that ask for it by label or annotation, or whose StatefulSet does.
    OPT_IN = "opt-in"
    #: All that do not decline.
    ALL = "all"


class Wrong(StrEnum):
    """What is done about a pod whose variables cannot be told."""

    WARN = "warn"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the administrator wants of the environment of pods."""

    injection: Injection = Injection.OPT_IN
    #: The variables of GKE's device plugin as well, for clusters without it.
    topology: bool = False
    wrong: Wrong = Wrong.WARN
    #: All pods are taken to ask, as where somebody runs a command for them.
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRef:
    """A value that Kubernetes takes from a field of the pod when it starts the container (the downward API)."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What becomes of a pod."""

    patch: tuple[Operation, ...] = ()
    #: What is wrong with its slice, or why it gets no variables; without the pod's name.
    problems: tuple[str, ...] = ()
    #: By container, in the order of the pod's; what is new.
    variables: tuple[Mapping[str, str], ...] = ()


def owner_is_asked(pod: TpuPod, settings: Settings) -> bool:
    """Whether the owner decides on the injection, or may: then it has to be read first."""
    return settings.injection is Injection.OPT_IN and not pod.wish and _stateful(pod)


def wanted(pod: TpuPod, owner: Mapping[str, Any], settings: Settings) -> bool:
    """Whether a pod gets variables; `owner` is empty where it was not read."""
    if settings.injection is Injection.OFF:
        return False
    wish = _wish(pod, owner)
    return wish == "enabled" or (settings.injection is Injection.ALL and wish != "disabled")


def needs_owner(pod: TpuPod) -> bool:
    """Whether the variables follow from the owner, too; a slice of one VM needs to know nobody else."""
    layout = _layout(pod)
    one_host = layout is not None and layout.one_host
    return owner_to_read(pod) is not None and (not one_host or _slices_together(pod))


def host_names_to_write(pod: TpuPod) -> int:
    """Return about how many host names a pod that needs no owner is told: nearly all of what it takes to do so."""
    layout = _layout(pod)
    if layout is not None:
        pods = layout.pods
    else:
        try:
            pods = numbering_of(pod, {}).pods
        except NumberingError:
            return 0
    return pods * len(pod.containers) ** 2


def is_complete(pod: TpuPod) -> bool:
    """Whether a pod has all that tells its workers who they are, so that nothing is wrong if more cannot be told."""
    layout = _layout(pod)
    local = {WORKER_HOSTNAMES: "localhost"} if layout is None or layout.one_host else {}
    for each in pod.containers:
        alone = not _slices_together(pod) or (NUM_SLICES in each.given and each.given[NUM_SLICES].value == "")
        names = (WORKER_ID, WORKER_HOSTNAMES, *(() if alone else TOGETHER[1]))
        if any(is_absent(name, each, local) for name in names):
            return False
    return True


def inject(pod: TpuPod, owner: Mapping[str, Any], settings: Settings) -> Injected:
    """Return the patch that gives a pod its variables; `owner` is the raw object that `owner_to_read` names."""
    pod = replace(pod, wish="enabled" if settings.asked else _wish(pod, owner))
    found = _injected(pod, owner, settings)
    return replace(found, problems=()) if found.problems and is_complete(pod) else found


def _injected(pod: TpuPod, owner: Mapping[str, Any], settings: Settings) -> Injected:
    problems: list[str] = []
    layout: Layout | None = None
    try:
        layout = layout_of(pod)
    except LayoutError as error:
        # Nothing that could be said of such a slice would be true.
        return Injected(problems=(str(error),))
    numbering: Numbering | None = None
    if layout is None or not layout.one_host or (_slices_together(pod) and owner):
        try:
            numbering = numbering_of(pod, owner)
            check_size(pod, layout, numbering)
        except NumberingError as error:
            # Of a pod that has not asked, somebody else may know more: its own controller, or GKE where it is one VM.
            others = isinstance(error, UnnumberedError) and pod.wish != "enabled"
            return Injected(problems=() if others else (str(error),))
        problems += _misfits(pod, layout, numbering)
    workers = workers_of(pod, layout, None if layout is not None and layout.one_host else numbering)
    try:
        for own in workers:
            check_lengths(own)
    except NumberingError as error:
        return Injected(problems=(str(error),))
    beside = slices_of(pod, layout, numbering) if numbering is not None else {}
    found: list[dict[str, str]] = []
    for container, own in zip(pod.containers, workers, strict=True):
        variables = {**own, **beside}
        problems += _leave_what_is_begun(container, variables)
        if settings.topology and layout is not None:
            variables |= grid_of(pod, container, layout)
        found.append(variables)
    if settings.topology and layout is None:
        problems.append("it selects no accelerator and topology, so that the variables of the topology cannot be told")
    return Injected(patch=patch_of(pod, found), problems=tuple(dict.fromkeys(problems)), variables=tuple(found))


def patch_of(pod: TpuPod, variables: Iterable[Mapping[str, str | FieldRef]]) -> tuple[Operation, ...]:
    """Return the patch that gives the containers of a pod, or of a template, those variables that they lack."""
    each = zip(pod.containers, variables, strict=True)
    return tuple(operation for container, own in each for operation in _operations(container, own))


def _misfits(pod: TpuPod, layout: Layout | None, numbering: Numbering) -> Iterable[str]:
    """Say where the number of pods is not that of whole slices."""
    if layout is None:
        return
    pods = slice_pods(layout, numbering)
    if numbering.pods % pods or (numbering.slices and numbering.pods != pods):
        yield tpu.not_whole_slices(
            layout.accelerator,
            layout.topology,
            pods=pods,
            chips_per_pod=pod.chips,
            wanted=numbering.pods,
            several=not numbering.slices,
        )


def _leave_what_is_begun(container: Container, variables: dict[str, str]) -> Iterable[str]:
    """Take those variables out that would complete what the container has a part of, as others say it, and say so."""
    for names in TOGETHER:
        missing = [each for each in names if each in variables and is_absent(each, container, variables)]
        there = [each for each in names if not is_absent(each, container, variables)]
        given = [each for each in there if _begins(each, container, variables)]
        for each in missing if given else ():
            del variables[each]
        # An empty value is there to turn them off.
        if missing and given and all(container.given[each].value != "" for each in given):
            yield f"a container has {' and '.join(given)} and lacks {' and '.join(missing)}; set all of them or none"


def _begins(name: str, container: Container, variables: Mapping[str, str]) -> bool:
    """Whether a variable that is there is of a layout of the user's own."""
    value = container.given[name].value
    # Users list host names alone, and take the number from a label of the pod or another variable: these are completed.
    if name == WORKER_HOSTNAMES or (name == WORKER_ID and (value is None or "$(" in value)):
        return False
    return value != variables.get(name)


def _operations(container: Container, variables: Mapping[str, str | FieldRef]) -> Iterable[Operation]:
    """Put what is absent before all that is there: variables may refer to those before them."""
    new = []
    for name, value in variables.items():
        given = container.given.get(name)
        if given is None:
            new.append(_variable(name, value))
        elif is_absent(name, container, variables):
            where = f"{container.pointer}/env/{given.place}"
            yield Operation(op="replace", path=where, value=_variable(name, value))
    if new and not container.has_list:
        yield Operation(op="add", path=f"{container.pointer}/env", value=new)
    elif new:
        for variable in reversed(new):
            yield Operation(op="add", path=f"{container.pointer}/env/0", value=variable)


def _variable(name: str, value: str | FieldRef) -> dict[str, Any]:
    if isinstance(value, FieldRef):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.path}}}
    return {"name": name, "value": value}


def _layout(pod: TpuPod) -> Layout | None:
    try:
        return layout_of(pod)
    except LayoutError:
        return None


def _slices_together(pod: TpuPod) -> bool:
    """Whether slices of one VM may work together: those of a JobSet, and where the pod says so."""
    return pod.marks.get(constants.MULTISLICE) == "true" or constants.JOBSET_NAME in pod.marks


def _wish(pod: TpuPod, owner: Mapping[str, Any]) -> str:
    return pod.wish or (wish_of(fields.mapping(owner.get("metadata"))) if _stateful(pod) and owner else "")


def _stateful(pod: TpuPod) -> bool:
    return pod.owner is not None and pod.owner.type == STATEFUL_SET and owner_to_read(pod) is not None
