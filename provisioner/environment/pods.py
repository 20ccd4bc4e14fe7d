"""Reads the properties of a pod that its TPU variables depend on, from raw JSON with any content. Pure."""

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
#: At most SLICE_WORKERS addresses of this host. The possessive `*+` keeps the time of a match linear.
_LOCALHOSTS = re.compile(f"{_ADDRESS}(?:,{_ADDRESS}){{0,{bounds.SLICE_WORKERS - 1}}}")


class Given(NamedTuple):
    """An environment variable that a container already has."""

    #: Position in the container's list of variables.
    place: int
    #: None if the value comes from another source, such as a field of the pod.
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that requests chips."""

    #: JSON pointer to the container, from the pod.
    pointer: str
    chips: int
    #: Whether this is an init container that ends before the other containers start.
    alone: bool
    #: Whether the container has a list of variables, even an empty one.
    has_list: bool
    #: Variables by name. If several variables have the same name, the last one is kept, because Kubernetes uses it.
    given: Mapping[str, Given] = field(default_factory=dict)
    #: Values of WORKER_HOSTNAMES and PROCESS_ADDRESSES, without ports; empty unless all their hosts are localhost.
    localhosts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuPod:
    """A pod that requests chips."""

    namespace: str
    #: Empty if the API server has not generated the name yet.
    name: str
    #: "enabled" or "disabled", from a label or annotation in INJECT_KEYS; empty if the pod has neither value.
    wish: str
    owner: ObjectRef | None
    #: Labels of the pod, and its annotations whose key is not also a label. See also `_requests_multislice`.
    marks: Mapping[str, str]
    hostname: str
    subdomain: str
    #: Whether the pod uses the network of its node.
    host_network: bool
    #: Text about fields that prevent the pod from asking the cluster's DNS; empty if the pod asks this DNS.
    other_dns: str
    #: Names of the parts of spec.affinity, such as "podAffinity"; None if the pod has no affinity.
    affinity: tuple[str, ...] | None
    #: Node selectors as `node_selector_of` reads them; empty if the pod has no such selector.
    accelerator: str
    topology: str
    machine_type: str
    #: False if the pod selects nodes whose links are not resilient.
    resilient: bool
    #: Whether the pod selects a TPUNodeGroup, whose nodes may lack the node pool label that a pod affinity needs.
    in_node_group: bool
    containers: tuple[Container, ...]

    @property
    def workers(self) -> tuple[Container, ...]:
        """Containers that run at the same time, in order."""
        return tuple(container for container in self.containers if not container.alone)

    @property
    def chips(self) -> int:
        """Chips of the pod: the sum over `workers` or, if larger, the chips of an init container that ends before."""
        alone = (container.chips for container in self.containers if container.alone)
        return max((sum(container.chips for container in self.workers), *alone))

    @property
    def title(self) -> str:
        """Kind, namespace and name, or the owner of a pod without a name, for messages."""
        if self.name or self.owner is None:
            return f"Pod {self.namespace}/{self.name or '?'}"
        return f"Pod of {self.owner.kind} {self.namespace}/{self.owner.name}"


def read_pod(raw: Mapping[str, Any], namespace: str = "") -> TpuPod | None:
    """Return the pod; None without chips. Raises MalformedObject for invalid chips or too many TPU containers."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    containers = tuple(islice(_containers(spec), bounds.TPU_CONTAINERS + 1))
    if not containers:
        return None
    if len(containers) > bounds.TPU_CONTAINERS:
        raise MalformedObject(
            f"more than {bounds.TPU_CONTAINERS} of its containers request {constants.TPU_RESOURCE}; use fewer"
        )
    selector, owner, found = node_selector_of(spec), controller_of(metadata), marks(metadata)
    if owner is not None and owner.type == RAY_CLUSTER_TYPE and any(map(_requests_multislice, containers)):
        found.setdefault(constants.MULTISLICE, "true")
    return TpuPod(
        namespace=namespace or fields.name(metadata.get("namespace")),
        name=fields.name(metadata.get("name")),
        wish=wish_of(metadata),
        owner=owner,
        marks=found,
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
    """Return "disabled" if a label or annotation in INJECT_KEYS has this value, or else "enabled", or else ""."""
    labels, annotations = (fields.mapping(metadata.get(part)) for part in ("labels", "annotations"))
    said = [where.get(key) for key in constants.INJECT_KEYS for where in (labels, annotations)]
    return next((wish for wish in ("disabled", "enabled") if wish in said), "")


def requests_chips(template: object) -> bool:
    """Return whether the pods of a template request chips. False if a number is invalid, which `read_pod` reports."""
    try:
        return bool(requested_chips("pod template", fields.mapping(template).get("spec")))
    except MalformedObject:
        return False


def _requests_multislice(container: Container) -> bool:
    """Return whether a Ray container's number of slices requests the other variables, as with KubeRay's webhook."""
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
    found = {}
    for place, raw in enumerate(fields.sequence(env)):
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str):
            # A variable with neither value nor source is empty, because Kubernetes omits empty values.
            elsewhere = raw.get("valueFrom") is not None
            found[name] = Given(place, None if elsewhere else fields.text(raw.get("value")))
    return found


def _localhosts(given: Mapping[str, Given]) -> frozenset[str]:
    values = [given[name].value for name in (WORKER_HOSTNAMES, PROCESS_ADDRESSES) if name in given]
    texts = [value for value in values if value is not None]
    local = all(map(_LOCALHOSTS.fullmatch, texts))
    return frozenset(",".join([LOCAL] * (text.count(",") + 1)) for text in texts if local)


def _label(raw: object) -> str:
    """Return a label's value, cut if too long: a long value matches nothing, and must not fill the caches of `tpu`."""
    return bounds.cut(fields.text(raw))
