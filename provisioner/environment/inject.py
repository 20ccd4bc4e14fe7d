"""What a pod's containers get: decided from the pod, its owner and the settings, as a patch of the pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provisioner import tpu
from provisioner.admission.review import Operation
from provisioner.environment.numbering import (
    Numbering,
    NumberingError,
    UnnumberedError,
    numbering_of,
    owner_to_read,
    slices_together,
)
from provisioner.environment.pods import Container, TpuPod, wish_of
from provisioner.environment.variables import (
    NUM_SLICES,
    OF_SLICES,
    OF_WORKERS,
    WORKER_HOSTNAMES,
    WORKER_ID,
    Layout,
    LayoutError,
    check_lengths,
    check_size,
    grid_of,
    is_absent,
    layout_of,
    slice_pods,
    slices_of,
    workers_of,
)
from provisioner.kube import fields
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads.owners import STATEFUL_SET


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What becomes of a pod."""

    patch: tuple[Operation, ...] = ()
    #: What is wrong with its slice, or why it gets no variables; without the pod's name.
    problems: tuple[str, ...] = ()


def owner_is_asked(pod: TpuPod, settings: WebhookSettings) -> bool:
    """Whether the owner decides on the injection, or may: then it has to be read first."""
    return settings.injection != "off" and not pod.wish and _stateful(pod)


def wanted(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> bool:
    """Whether a pod gets variables; `owner` is empty where it was not read."""
    if settings.injection == "off":
        return False
    wish = _wish(pod, owner)
    return wish == "enabled" or (_need_not_ask(pod, settings) and wish != "disabled")


def _need_not_ask(pod: TpuPod, settings: WebhookSettings) -> bool:
    # Of a pod that selects no slice nobody knows how many make one.
    selects = bool(pod.accelerator and pod.topology)
    return settings.injection == "all" and selects


def needs_owner(pod: TpuPod) -> bool:
    """Whether the variables follow from the owner, too; a slice of one VM needs to know nobody else."""
    layout = _layout(pod)
    one_host = layout is not None and layout.one_host
    return owner_to_read(pod) is not None and (not one_host or slices_together(pod, {}))


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
        alone = not slices_together(pod, {}) or (NUM_SLICES in each.given and each.given[NUM_SLICES].value == "")
        names = (WORKER_ID, WORKER_HOSTNAMES, *(() if alone else OF_SLICES))
        if any(is_absent(name, each, local) for name in names):
            return False
    return True


def inject(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> Injected:
    """Return the patch that gives a pod its variables; `owner` is the raw object that `owner_to_read` names."""
    pod = replace(pod, wish=_wish(pod, owner))
    found = _injected(pod, owner, settings)
    return replace(found, problems=()) if found.problems and is_complete(pod) else found


def _injected(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> Injected:
    problems: list[str] = []
    layout: Layout | None = None
    try:
        layout = layout_of(pod)
    except LayoutError as error:
        # Nothing that could be said of such a slice would be true.
        others = pod.wish != "enabled" and tpu.may_be_sold(pod.accelerator, pod.topology, pod.machine_type)
        return Injected(problems=() if others else (str(error),))
    numbering: Numbering | None = None
    one_host = layout is not None and layout.one_host
    if not one_host or (owner and slices_together(pod, owner)):
        try:
            numbering = numbering_of(pod, owner)
            check_size(pod, layout, numbering)
            problems += _misfits(pod, layout, numbering)
        except NumberingError as error:
            # Of a pod that has not asked, its own controller may know more.
            others = isinstance(error, UnnumberedError) and pod.wish != "enabled"
            problems += () if others else (str(error),)
            if not one_host:
                return Injected(problems=tuple(problems))
    workers = workers_of(pod, layout, None if one_host else numbering)
    try:
        check_lengths(workers)
    except NumberingError as error:
        return Injected(problems=(str(error),))
    beside = slices_of(pod, layout, numbering) if numbering is not None else {}
    patch: list[Operation] = []
    for container, own in zip(pod.containers, workers, strict=True):
        variables = {**own, **beside}
        begun = _leave_what_is_begun(container, variables)
        # Who has not asked may have the rest from elsewhere.
        problems += begun if pod.wish == "enabled" else ()
        if settings.topology and layout is not None:
            variables |= grid_of(pod, container, layout)
        patch += _operations(container, variables)
    if settings.topology and layout is None:
        problems.append("it selects no accelerator and topology, so that the variables of the topology cannot be told")
    return Injected(patch=tuple(patch), problems=tuple(dict.fromkeys(problems)))


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


def _leave_what_is_begun(container: Container, variables: dict[str, str]) -> list[str]:
    """Take those variables out that would complete what the container has a part of, as others say it, and say so."""
    problems = []
    # Those of a group make sense together alone.
    for group in (OF_WORKERS, OF_SLICES):
        names = [each for each in group if each in variables]
        missing = [each for each in names if is_absent(each, container, variables)]
        given = [each for each in names if each not in missing and _begins(each, container, variables)]
        if given == [WORKER_HOSTNAMES] and container.given[WORKER_HOSTNAMES].value and WORKER_ID in missing:
            # Users list host names alone.
            missing.remove(WORKER_ID)
        for each in missing if given else ():
            del variables[each]
        # An empty value is there to turn them off.
        if missing and given and all(container.given[each].value != "" for each in given):
            problems.append(
                f"a container has {' and '.join(given)} and lacks {' and '.join(missing)}; set all of them or none"
            )
    return problems


def _begins(name: str, container: Container, variables: Mapping[str, str]) -> bool:
    """Whether a variable that is there is of a layout of the user's own."""
    value = container.given[name].value
    # Users take the number from a label of the pod or another variable: it is completed.
    return value != variables[name] and not (name == WORKER_ID and (value is None or "$(" in value))


def _operations(container: Container, variables: Mapping[str, str]) -> Iterable[Operation]:
    """Put what is absent before all that is there: variables may refer to those before them."""
    new = []
    for name, value in variables.items():
        given = container.given.get(name)
        if given is None:
            new.append({"name": name, "value": value})
        elif is_absent(name, container, variables):
            where = f"{container.pointer}/env/{given.place}"
            yield Operation(op="replace", path=where, value={"name": name, "value": value})
    if new and not container.has_list:
        yield Operation(op="add", path=f"{container.pointer}/env", value=new)
    elif new:
        for variable in reversed(new):
            yield Operation(op="add", path=f"{container.pointer}/env/0", value=variable)


def _layout(pod: TpuPod) -> Layout | None:
    try:
        return layout_of(pod)
    except LayoutError:
        return None


def _wish(pod: TpuPod, owner: Mapping[str, Any]) -> str:
    return pod.wish or (wish_of(fields.mapping(owner.get("metadata"))) if _stateful(pod) and owner else "")


def _stateful(pod: TpuPod) -> bool:
    return pod.owner is not None and pod.owner.type == STATEFUL_SET and owner_to_read(pod) is not None
