"""Reviews pods that request chips: adds TPU variables, warns, or rejects. Warns about workloads by their first pod."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from provisioner import constants, tpu
from provisioner.admission.review import READ_BYTES, Answer, Deferred, Notice, Operation, Request
from provisioner.environment.numbering import (
    Numbering,
    NumberingError,
    OwnerKey,
    UnnumberedError,
    numbering_of,
    owner_to_read,
    ray_host,
    slices_together,
)
from provisioner.environment.pods import (
    LOCAL,
    NUM_SLICES,
    WORKER_HOSTNAMES,
    Container,
    TpuPod,
    read_pod,
    requests_chips,
    wish_of,
)
from provisioner.environment.variables import (
    FIRST_METRICS_PORT,
    METRICS_PORTS,
    OF_SLICES,
    OF_WORKERS,
    WORKER_ID,
    Layout,
    beside_slices,
    check_lengths,
    check_size,
    is_absent,
    layout_of,
    slice_pods,
    slices_of,
    topology_variables,
    workers_of,
)
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.podspec import HOST_DNS
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads.job import JOB
from provisioner.workloads.jobset import replicated_jobs_of
from provisioner.workloads.kind import STATEFUL_SET_TYPE
from provisioner.workloads.raycluster import RAY_CLUSTER_TYPE

Json = dict[str, Any]
_INDEXED = "Indexed"
#: Maximum number of host names in a patch that is computed immediately, which takes a fraction of a millisecond.
_MANY_HOST_NAMES = 1000

#: Arguments: owner, maximum bytes. Returns None if the owner does not exist. Raises OwnerError, or kube's TooLarge.
ReadOwner = Callable[[OwnerKey, int], Mapping[str, Any] | None]


class OwnerError(Exception):
    """An owner could not be read; the message is the reason."""


def review_pod(
    request: Request, read_owner: Callable[[OwnerKey], Mapping[str, Any] | None], settings: WebhookSettings
) -> Answer:
    """Return the answer to a review. Objects of other kinds, and pods without chips, are admitted unchanged."""
    answer = judge_pod(request, lambda key, _max_bytes: read_owner(key), settings)
    return answer(READ_BYTES) if callable(answer) else answer


def judge_pod(request: Request, read_owner: ReadOwner, settings: WebhookSettings) -> Answer | Deferred:
    """Return the answer to a review or, if this reads an owner or takes long, a function that returns the answer."""
    if request.kind != "Pod" or request.operation != "CREATE" or settings.injection == "off":
        return Answer()
    try:
        pod = read_pod(request.object, request.namespace)
    except MalformedObject as error:
        if wish_of(fields.mapping(request.object.get("metadata"))) == "enabled":
            message = f"Pod {request.namespace}/{request.name}: {error}"
            return Answer(denied=message) if settings.wrong == "deny" else Answer(warnings=(message,))
        # Without a request for variables, invalid pods are left to the checks of Kubernetes.
        return Answer()
    if pod is None:
        return Answer()
    # If a pod of a StatefulSet has no label or annotation for injection, the StatefulSet may have one, so it is read.
    asked = not pod.wish and _stateful(pod)
    if not asked and not wanted(pod, {}, settings):
        return Answer()
    layout = _layout(pod)
    # A slice of one VM outside a multislice needs no host names of other pods, so its owner need not be read.
    alone = layout is not None and layout.one_host and not slices_together(pod, {})
    key = owner_to_read(pod) if asked or not alone else None
    quick = layout is not None and layout.pods * len(pod.containers) ** 2 <= _MANY_HOST_NAMES
    if key is not None:
        return partial(_judged_by_owner, pod, key, read_owner, settings)
    return _judged(pod, {}, settings) if quick else lambda _max_bytes: _judged(pod, {}, settings)


def _judged_by_owner(
    pod: TpuPod, key: OwnerKey, read_owner: ReadOwner, settings: WebhookSettings, max_bytes: int
) -> Answer:
    why = "it does not exist"
    try:
        owner = read_owner(key, max_bytes)
    except OwnerError as error:
        owner, why = None, str(error)
    if owner is not None:
        return _judged(pod, owner, settings)
    if is_complete(pod):
        return Answer()
    problem = f"{key.title} could not be read ({why}), so its TPU variables cannot be determined"
    # An unread StatefulSet may request no variables. The pod is rejected only if the pod or a setting requests them.
    return _told(pod, (problem,), settings if wanted(pod, {}, settings) else replace(settings, wrong="warn"))


def _judged(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> Answer:
    if not wanted(pod, owner, settings):
        return Answer()
    injected = inject(pod, owner, settings)
    return _told(pod, injected.problems, settings, injected.patch)


def _told(
    pod: TpuPod, problems: tuple[str, ...], settings: WebhookSettings, patch: tuple[Operation, ...] = ()
) -> Answer:
    messages = tuple(f"{pod.title}: {problem}" for problem in problems)
    if not messages:
        return Answer(patch=patch)
    denied = settings.wrong == "deny"
    became = (
        "A pod is rejected" if denied else "A pod is created" if patch else "A pod is created without TPU variables"
    )
    notice = None
    if pod.owner is not None:
        # The notice does not name the pod, so that the pods of an owner can have the same notice.
        notice = Notice(about=replace(pod.owner, namespace=pod.namespace), message=f"{became}: {' '.join(problems)}")
    if denied:
        return Answer(denied=" ".join(messages), notice=notice)
    return Answer(patch=patch, warnings=messages, notice=notice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """Patch and problems of a pod."""

    patch: tuple[Operation, ...] = ()
    #: Messages about the pod, without its name.
    problems: tuple[str, ...] = ()


def wanted(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> bool:
    """Return whether a pod gets variables; `owner` is empty if it was not read."""
    # Without accelerator and topology, the size of a slice is unknown, so variables must be requested.
    need_not_ask = settings.injection == "all" and bool(pod.accelerator and pod.topology)
    wish = _wish(pod, owner)
    return wish == "enabled" or (need_not_ask and wish != "disabled")


def is_complete(pod: TpuPod) -> bool:
    """Return whether a pod has worker index, host names and, if needed, slice variables; then problems are dropped."""
    layout = _layout(pod)
    local = {WORKER_HOSTNAMES: LOCAL} if layout is None or layout.one_host else {}
    for container in pod.containers:
        alone = not slices_together(pod, {}) or (
            NUM_SLICES in container.given and container.given[NUM_SLICES].value == ""
        )
        names = (WORKER_ID, WORKER_HOSTNAMES, *(() if alone else OF_SLICES))
        if any(is_absent(name, container, local) for name in names):
            return False
    return True


def inject(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> Injected:
    """Return the patch that adds TPU variables, and problems. `owner` is the raw owner, empty if it was not read."""
    pod = replace(pod, wish=_wish(pod, owner))
    injected = _injected(pod, owner, settings)
    return replace(injected, problems=()) if injected.problems and is_complete(pod) else injected


def _injected(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> Injected:
    problems: list[str] = []
    try:
        layout = layout_of(pod)
    except tpu.ShapeError as error:
        # If Google may sell this slice, although it is unknown here, only pods that request variables get a warning.
        others = pod.wish != "enabled" and tpu.may_be_sold(pod.accelerator, pod.topology, pod.machine_type)
        return Injected(problems=() if others else (str(error),))
    numbering: Numbering | None = None
    one_host = layout is not None and layout.one_host
    if not one_host or (owner and slices_together(pod, owner)):
        try:
            numbering = numbering_of(pod, owner)
            check_size(pod, layout, numbering)
            problems += filter(None, (numbering.problem,))
            several = not numbering.slices
            if layout is not None and (numbering.pods % layout.pods or not (several or numbering.pods == layout.pods)):
                problem = tpu.not_whole_slices(
                    layout.accelerator,
                    layout.topology,
                    pods=layout.pods,
                    chips_per_pod=pod.chips,
                    wanted=numbering.pods,
                    several=several,
                )
                problems.append("; ".join(problem))
        except NumberingError as error:
            # If another controller may number the pod, there is a warning only if the pod requests variables.
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
    if pod.other_dns and numbering is not None and (beside or slice_pods(layout, numbering) > 1):
        problems.append(
            f"with {pod.other_dns} it does not ask the cluster's DNS, which resolves the host names of the other pods; "
            f"set dnsPolicy: {HOST_DNS}"
        )
    patch: list[Operation] = [*_placement(pod)]
    for container, own in zip(pod.containers, workers, strict=True):
        variables = {**own, **beside}
        problems += _leave_what_is_begun(container, variables, asked=pod.wish == "enabled", one_host=one_host)
        variables |= beside_slices(pod, container, variables)
        if settings.topology and layout is not None:
            variables |= topology_variables(
                layout.accelerator,
                layout.topology,
                container_chips=container.chips,
                host_chips=layout.host_chips,
                resilient=pod.resilient,
            )
        patch += _operations(container, variables)
    problems += _problems_of_topology(pod, layout) if settings.topology else ()
    return Injected(patch=tuple(patch), problems=tuple(dict.fromkeys(problems)))


def _problems_of_topology(pod: TpuPod, layout: Layout | None) -> Iterator[str]:
    takes_ports = any(METRICS_PORTS not in container.given for container in pod.containers)
    if layout is None:
        yield "it selects no accelerator and topology, so the variables of the topology cannot be determined"
    elif pod.host_network and pod.chips < layout.host_chips and takes_ports:
        yield (
            f"it has the node's network (hostNetwork) and requests {pod.chips} of the {layout.host_chips} chips of its "
            f"VM, and several such pods there take the same port {FIRST_METRICS_PORT}; leave hostNetwork out, request "
            f"all chips, or set {METRICS_PORTS}"
        )


def _leave_what_is_begun(container: Container, variables: dict[str, str], *, asked: bool, one_host: bool) -> list[str]:
    """Remove missing variables of a group, such as OF_SLICES, if the container sets others itself; return problems."""
    problems = []
    for group in (OF_WORKERS, OF_SLICES):
        names = [name for name in group if name in variables]
        missing = [name for name in names if is_absent(name, container, variables)]
        given = [name for name in names if name not in missing and _begins(name, container, variables)]
        own = container.given[WORKER_HOSTNAMES].value if given == [WORKER_HOSTNAMES] else ""
        if own and own.count(",") == variables[WORKER_HOSTNAMES].count(",") and WORKER_ID in missing:
            # If users set only the host names, one for each worker, the worker index is added.
            missing.remove(WORKER_ID)
        # The container's values and computed values could contradict each other.
        for key in missing if given else ():
            del variables[key]
        # If a pod does not request variables, another webhook may add them, so missing variables are no problem. But an
        # index in the pod template is a problem, because it is wrong for all workers except one.
        reported = asked or (WORKER_ID in given and not one_host)
        # An empty value disables the group, so missing variables are no problem.
        if reported and missing and given and all(container.given[name].value != "" for name in given):
            problems.append(
                f"a container has {' and '.join(given)} and lacks {' and '.join(missing)}; set all of them or none"
            )
    return problems


def _begins(name: str, container: Container, variables: Mapping[str, str]) -> bool:
    """Return whether the container's value differs from `variables`, so that the rest of its group is not added."""
    value = container.given[name].value
    # A worker index from a label or another variable may be correct, so the other variables of the group are added.
    return value != variables[name] and not (name == WORKER_ID and (value is None or "$(" in value))


def _operations(container: Container, variables: Mapping[str, str]) -> Iterable[Operation]:
    """Yield operations that set absent variables. New ones come first, because existing ones may refer to them."""
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
    except tpu.ShapeError:
        return None


def _wish(pod: TpuPod, owner: Mapping[str, Any]) -> str:
    return pod.wish or (wish_of(fields.mapping(owner.get("metadata"))) if _stateful(pod) else "")


def _stateful(pod: TpuPod) -> bool:
    return pod.owner is not None and pod.owner.type == STATEFUL_SET_TYPE and owner_to_read(pod) is not None


def _placement(pod: TpuPod) -> Iterator[Operation]:
    """Yield operations that set host name, subdomain and affinity of a multi-host Ray pod, like GKE's Ray add-on."""
    replica, host = pod.marks.get(constants.RAY_REPLICA_INDEX, ""), pod.marks.get(constants.RAY_HOST_INDEX, "")
    name = pod.marks.get(constants.RAY_REPLICA_NAME, "")
    if pod.owner is None or pod.owner.type != RAY_CLUSTER_TYPE or not all((replica, host, name)):
        return
    hostname, service = ray_host(pod, pod.owner.name, replica, host)
    if not pod.hostname:
        yield Operation(op="add", path="/spec/hostname", value=hostname)
    if not pod.subdomain:
        yield Operation(op="add", path="/spec/subdomain", value=service)
    # The affinity needs a node pool per slice: TPUNodeGroups may lack the pool label, and dynamic slices share pools.
    if pod.in_node_group or constants.SLICE_TOPOLOGY in pod.marks:
        return
    wanted = {
        "podAffinity": _required({"key": constants.RAY_REPLICA_NAME, "operator": "In", "values": [name]}),
        "podAntiAffinity": _required(
            {"key": constants.RAY_REPLICA_NAME, "operator": "Exists"},
            {"key": constants.RAY_REPLICA_NAME, "operator": "NotIn", "values": [name]},
        ),
    }
    if pod.affinity is None:
        yield Operation(op="add", path="/spec/affinity", value=wanted)
    elif not wanted.keys() & pod.affinity:
        for part, value in wanted.items():
            yield Operation(op="add", path=f"/spec/affinity/{part}", value=value)


def _required(*expressions: dict[str, Any]) -> dict[str, Any]:
    term = {
        "labelSelector": {"matchExpressions": list(expressions)},
        "namespaceSelector": {},
        "topologyKey": constants.NODE_POOL,
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


# --- warnings before the pods exist, for a first pod as Kubernetes, JobSet 0.11 or LeaderWorkerSet 0.9 creates it ---


def problems_of_first_pod(raw: Mapping[str, Any], settings: WebhookSettings, namespace: str) -> tuple[str, ...]:
    """Return the webhook's warnings for a StatefulSet, Job, JobSet or LeaderWorkerSet, by its first pod with chips."""
    made = next((pod for pod in _first_pods(dict(raw)) if requests_chips(pod)), None)
    if made is None:
        return ()
    request = Request(operation="CREATE", kind="Pod", namespace=namespace, object=made)
    return review_pod(request, lambda _: raw, replace(settings, wrong="warn")).warnings


def _first_pods(raw: Json) -> Iterator[Json]:
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    name, kind = fields.name(metadata.get("name")), (raw.get("apiVersion"), raw.get("kind"))
    group = fields.text(raw.get("apiVersion")).partition("/")[0]
    if kind == STATEFUL_SET_TYPE and fields.count(spec.get("replicas")):
        own = f"{name}-{fields.count(fields.mapping(spec.get('ordinals')).get('start'), default=0)}"
        subdomain = fields.name(spec.get("serviceName"))
        yield _pod(spec.get("template"), {"name": own}, (*STATEFUL_SET_TYPE, name), subdomain=subdomain)
    elif kind == JOB:
        yield _pod_of_job(spec, name, indexed=spec.get("completionMode") == _INDEXED)
    elif (group, raw.get("kind")) == ("jobset.x-k8s.io", "JobSet"):
        network = fields.mapping(spec.get("network"))
        subdomain = "" if network.get("enableDNSHostnames") is False else fields.name(network.get("subdomain")) or name
        for entry, replicated in zip(fields.mappings(spec.get("replicatedJobs")), replicated_jobs_of(raw), strict=True):
            job_spec = fields.at(entry, "template", "spec")
            marks = {key: value for key, value in replicated.marks(0).items() if value}
            indexed = (job_spec.get("completionMode") or _INDEXED) == _INDEXED
            if replicated.replicas:
                yield _pod_of_job(job_spec, replicated.child(0), indexed=indexed, marks=marks, subdomain=subdomain)
    elif (group, raw.get("kind")) == ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"):
        yield from _pods_of_group(spec, name)


def _pod_of_job(
    spec: Json, job: str, *, indexed: bool, marks: Mapping[str, str] | None = None, subdomain: str = ""
) -> Json:
    marks = {**(marks or {}), constants.JOB_NAME: job}
    if indexed:
        marks[constants.COMPLETION_INDEX] = "0"
    pods = fields.count(spec.get("completions"), default=fields.count(spec.get("parallelism")))
    return _pod(spec.get("template") if pods else None, {"generateName": f"{job}-"}, (*JOB, job), marks, subdomain)


def _pods_of_group(spec: Json, name: str) -> Iterator[Json]:
    """Yield the leader and the first worker of the first group of a LeaderWorkerSet: either may request the chips."""
    pods = fields.mapping(spec.get("leaderWorkerTemplate"))
    size = fields.count(pods.get("size"))
    leader = pods.get("leaderTemplate") if isinstance(pods.get("leaderTemplate"), dict) else pods.get("workerTemplate")
    subgroup = fields.mapping(pods.get("subGroupPolicy")).get("subGroupSize")
    if not fields.count(spec.get("replicas")):
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
        # With subdomainPolicy UniquePerReplica, the subdomain is another one, but the warnings are the same.
        yield _pod(template, {"name": own}, (*STATEFUL_SET_TYPE, f"{name}-0" if worker else name), marks, name)


def _pod(
    template: object,
    name: Mapping[str, str],
    owner: tuple[str, str, str],
    marks: Mapping[str, str] | None = None,
    subdomain: str = "",
) -> Json:
    api_version, kind, owner_name = owner
    reference = {"apiVersion": api_version, "kind": kind, "name": owner_name, "controller": True}
    metadata = fields.at(template, "metadata")
    labels: dict[str, Any] = {**fields.mapping(metadata.get("labels")), **(marks or {})}
    own = {"annotations": metadata.get("annotations"), "labels": labels, **name, "ownerReferences": [reference]}
    place = {"subdomain": subdomain} if subdomain else {}
    return {"metadata": own, "spec": {**fields.at(template, "spec"), **place}}
