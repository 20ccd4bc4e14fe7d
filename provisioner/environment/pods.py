"""Reads the properties of a raw pod that determine its TPU variables. Pure. The pod may contain any JSON."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.admission.review import pointer
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.podspec import node_selector_of, other_dns, requested_chips
from provisioner.model import bounds
from provisioner.model.workloads import ObjectRef
from provisioner.workloads.kind import controller_of, marks
from provisioner.workloads.raycluster import RAY_CLUSTER_TYPE

WORKER_HOSTNAMES = "TPU_WORKER_HOSTNAMES"
PROCESS_ADDRESSES = "TPU_PROCESS_ADDRESSES"
NUM_SLICES = "MEGASCALE_NUM_SLICES"
LOCAL = "localhost"
_ADDRESS = f"{LOCAL}(?::[^,]*+)?"
#: Matches at most SLICE_WORKERS addresses of localhost. The possessive `*+` keeps the time of a match linear.
_LOCALHOSTS = re.compile(f"{_ADDRESS}(?:,{_ADDRESS}){{0,{bounds.SLICE_WORKERS - 1}}}")


class Given(NamedTuple):
    """An environment variable that a container already has."""

    #: Position in the container's list of variables.
    place: int
    #: None if the variable has `valueFrom`.
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that requests chips."""

    #: JSON pointer to the container, from the pod.
    pointer: str
    chips: int
    #: Whether this is an init container that ends before the next container starts.
    alone: bool
    #: Whether the container has the field `env`, even an empty list.
    has_list: bool
    #: Variables by name. If a name occurs several times, the last variable is kept, because Kubernetes uses it.
    given: Mapping[str, Given] = field(default_factory=dict)
    #: Values of WORKER_HOSTNAMES and PROCESS_ADDRESSES, without ports; empty unless all their hosts are localhost.
    localhosts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuPod:
    """A pod that requests chips."""

    namespace: str
    #: Empty if the API server has not generated the name yet.
    name: str
    #: Result of `wish_of`: "enabled", "disabled" or empty.
    wish: str
    owner: ObjectRef | None
    #: Labels, and annotations whose keys are no labels. Ray pods with NUM_SLICES (not empty or 1) get MULTISLICE.
    marks: Mapping[str, str]
    hostname: str
    subdomain: str
    host_network: bool
    #: Fields that prevent the use of the cluster's DNS, for messages; empty if none, or if the pod sets DNS searches.
    other_dns: str
    #: Names of the parts of spec.affinity, such as "podAffinity"; None if the pod has no affinity.
    affinity: tuple[str, ...] | None
    #: Values of node selectors; empty if the pod lacks the selector.
    accelerator: str
    topology: str
    machine_type: str
    #: False if the pod selects nodes without resilient links (ICI_RESILIENCY).
    resilient: bool
    #: Whether the pod selects a TPUNodeGroup. Its nodes may lack the node pool label, which a pod affinity needs.
    in_node_group: bool
    containers: tuple[Container, ...]

    @property
    def workers(self) -> tuple[Container, ...]:
        """Containers that run at the same time, in order."""
        return tuple(container for container in self.containers if not container.alone)

    @property
    def chips(self) -> int:
        """Chips of the pod: the sum of `workers` or, if larger, the chips of one container that is `alone`."""
        alone = (container.chips for container in self.containers if container.alone)
        return max((sum(container.chips for container in self.workers), *alone))

    @property
    def title(self) -> str:
        """Kind, namespace and name for messages; for a pod without a name, those of the owner."""
        if self.name or self.owner is None:
            return f"Pod {self.namespace}/{self.name or '?'}"
        return f"Pod of {self.owner.kind} {self.namespace}/{self.owner.name}"


def read_pod(raw: Mapping[str, Any], namespace: str = "") -> TpuPod | None:
    """Return a pod; None without chips. Raises MalformedObject for invalid chips or too many containers with chips."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    containers = tuple(islice(_containers(spec), bounds.TPU_CONTAINERS + 1))
    if not containers:
        return None
    if len(containers) > bounds.TPU_CONTAINERS:
        raise MalformedObject(
            f"more than {bounds.TPU_CONTAINERS} of its containers request {constants.TPU_RESOURCE}; use fewer"
        )
    selector, owner, pod_marks = node_selector_of(spec), controller_of(metadata), marks(metadata)
    if owner is not None and owner.type == RAY_CLUSTER_TYPE and any(map(_requests_multislice, containers)):
        pod_marks.setdefault(constants.MULTISLICE, "true")
    return TpuPod(
        namespace=namespace or fields.name(metadata.get("namespace")),
        name=fields.name(metadata.get("name")),
        wish=wish_of(metadata),
        owner=owner,
        marks=pod_marks,
        hostname=fields.name(spec.get("hostname")),
        subdomain=fields.name(spec.get("subdomain")),
        host_network=spec.get("hostNetwork") is True,
        other_dns="" if fields.at(spec, "dnsConfig").get("searches") else other_dns(spec),
        affinity=tuple(spec["affinity"]) if isinstance(spec.get("affinity"), dict) else None,
        accelerator=_label(selector.get(constants.TPU_ACCELERATOR)),
        topology=_label(selector.get(constants.TPU_TOPOLOGY)),
        machine_type=_label(selector.get(constants.INSTANCE_TYPE)),
        resilient=fields.text(selector.get(constants.ICI_RESILIENCY)).lower() != "false",
        in_node_group=constants.NODE_GROUP_NAME in selector,
        containers=containers,
    )


def wish_of(metadata: Mapping[str, Any]) -> str:
    """Return "disabled" if a label or annotation in INJECT_KEYS has this value, otherwise "enabled" or empty."""
    labels, annotations = (fields.mapping(metadata.get(part)) for part in ("labels", "annotations"))
    wishes = [where.get(key) for key in constants.INJECT_KEYS for where in (labels, annotations)]
    return next((wish for wish in ("disabled", "enabled") if wish in wishes), "")


def requests_chips(template: object) -> bool:
    """Return whether the pods of a template request chips. False if a number is invalid, which `read_pod` reports."""
    try:
        return bool(requested_chips("pod template", fields.mapping(template).get("spec")))
    except MalformedObject:
        return False


def _requests_multislice(container: Container) -> bool:
    return NUM_SLICES in container.given and container.given[NUM_SLICES].value not in ("", "1")


def _containers(spec: Mapping[str, Any]) -> Iterator[Container]:
    for part in ("initContainers", "containers"):
        for place, raw in enumerate(fields.sequence(spec.get(part))):
            container = fields.mapping(raw)
            name = bounds.quoted(fields.text(container.get("name")))
            if chips := requested_chips(f"container {name}", {"containers": [container]}):
                env = container.get("env")
                yield Container(
                    pointer=pointer("spec", part, place),
                    chips=chips,
                    alone=part == "initContainers" and container.get("restartPolicy") != "Always",
                    has_list=isinstance(env, list),
                    given=(given := _given(env)),
                    localhosts=_localhosts(given),
                )


def _given(env: object) -> dict[str, Given]:
    given = {}
    for place, raw in enumerate(fields.sequence(env)):
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str):
            # A variable without `value` and `valueFrom` is empty, because Kubernetes omits empty values.
            elsewhere = raw.get("valueFrom") is not None
            given[name] = Given(place, None if elsewhere else fields.text(raw.get("value")))
    return given


def _localhosts(given: Mapping[str, Given]) -> frozenset[str]:
    values = [given[name].value for name in (WORKER_HOSTNAMES, PROCESS_ADDRESSES) if name in given]
    texts = [value for value in values if value is not None]
    local = all(map(_LOCALHOSTS.fullmatch, texts))
    return frozenset(",".join([LOCAL] * (text.count(",") + 1)) for text in texts if local)


def _label(raw: object) -> str:
    """Return a label's value, cut if too long: a long value matches nothing, and must not fill the caches of `tpu`."""
    return bounds.cut(fields.text(raw))
