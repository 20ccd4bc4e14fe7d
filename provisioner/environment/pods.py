"""Read what the environment of a pod depends on, from its raw JSON: total, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.admission.review import pointer
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.podspec import node_selector_of, requested_chips
from provisioner.model import bounds
from provisioner.workloads.kind import Owner, controller_of, marks

#: As label or annotation, "enabled" or "disabled": the key of gke-tpu-env-injector, and ours.
INJECT_KEYS = (constants.INJECT, "gke-tpu-env-injector.aaronbatilo.dev/inject")


class Given(NamedTuple):
    """A variable that a container has already."""

    #: In the list of variables.
    place: int
    #: None: it comes from somewhere else, such as a field of the pod.
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that requests chips."""

    #: JSON pointer from the pod.
    pointer: str
    chips: int
    #: An init container that ends before the others start.
    alone: bool
    #: It has a list of variables, empty or not.
    has_list: bool
    #: By name; of several of one name the last, which counts.
    given: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuPod:
    """A pod that requests chips."""

    namespace: str
    #: Empty where the API server has not made it up yet.
    name: str
    #: "enabled", "disabled", or empty: the pod does not say.
    wish: str
    owner: Owner | None
    #: Its labels, and annotations without such a label.
    marks: Mapping[str, str]
    hostname: str
    subdomain: str
    #: Whether it has the node's network.
    host_network: bool
    #: The parts of its affinity that are there.
    affinity: tuple[str, ...] | None
    #: As `node_selector_of` reads them; empty if the pod selects none.
    accelerator: str
    topology: str
    machine_type: str
    #: False where the pod selects nodes whose links are not resilient.
    resilient: bool
    #: It selects the nodes of one TPUNodeGroup, which have no label of a node pool unless the provisioner made it.
    in_node_group: bool
    containers: tuple[Container, ...]

    @property
    def workers(self) -> tuple[Container, ...]:
        """Those that run at the same time, in order."""
        return tuple(each for each in self.containers if not each.alone)

    @property
    def chips(self) -> int:
        """What the pod has: of the containers that run at the same time, or of the largest that runs alone."""
        alone = (each.chips for each in self.containers if each.alone)
        return max((sum(each.chips for each in self.workers), *alone))

    @property
    def title(self) -> str:
        """Kind, namespace and name, for people."""
        name = self.name or (f"of {self.owner.kind} {self.owner.name}" if self.owner is not None else "?")
        return f"Pod {self.namespace}/{name}"


def read_pod(raw: Mapping[str, Any], namespace: str = "") -> TpuPod | None:
    """Read a pod; None where it requests no chips, MalformedObject where it does not say how many."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    containers = tuple(islice(_containers(spec), bounds.TPU_CONTAINERS + 1))
    if not containers:
        return None
    if len(containers) > bounds.TPU_CONTAINERS:
        raise MalformedObject(
            f"more than {bounds.TPU_CONTAINERS} of its containers request {constants.TPU_RESOURCE}; use fewer"
        )
    selector = node_selector_of(spec)
    return TpuPod(
        namespace=namespace or fields.name(metadata.get("namespace")),
        name=fields.name(metadata.get("name")),
        wish=wish_of(metadata),
        owner=controller_of(metadata),
        marks=marks(metadata),
        hostname=fields.name(spec.get("hostname")),
        subdomain=fields.name(spec.get("subdomain")),
        host_network=spec.get("hostNetwork") is True,
        affinity=tuple(spec["affinity"]) if isinstance(spec.get("affinity"), dict) else None,
        accelerator=_label(selector.get(constants.TPU_ACCELERATOR)),
        topology=_label(selector.get(constants.TPU_TOPOLOGY)),
        machine_type=_label(selector.get(constants.INSTANCE_TYPE)),
        resilient=fields.text(selector.get(constants.ICI_RESILIENCY)).lower() != "false",
        in_node_group=constants.NODE_GROUP_NAME in selector,
        containers=containers,
    )


def wish_of(metadata: Mapping[str, Any]) -> str:
    """Return what an object says of the injection: "enabled", "disabled", or nothing."""
    labels, annotations = (fields.mapping(metadata.get(each)) for each in ("labels", "annotations"))
    said = [where.get(key) for key in INJECT_KEYS for where in (labels, annotations)]
    return next((wish for wish in ("disabled", "enabled") if wish in said), "")


def requests_chips(template: object) -> bool:
    """Whether the pods of a template request chips; one that does not say how many is somebody else's to judge."""
    try:
        return bool(requested_chips("pod template", fields.mapping(template).get("spec")))
    except MalformedObject:
        return False


def _containers(spec: Mapping[str, Any]) -> Iterator[Container]:
    for part in ("initContainers", "containers"):
        for place, raw in enumerate(fields.sequence(spec.get(part))):
            container = fields.mapping(raw)
            chips = _chips(container)
            if chips:
                env = container.get("env")
                yield Container(
                    pointer=pointer("spec", part, place),
                    chips=chips,
                    alone=part == "initContainers" and container.get("restartPolicy") != "Always",
                    has_list=isinstance(env, list),
                    given=_given(env),
                )


def _chips(container: Mapping[str, Any]) -> int:
    name = bounds.quoted(fields.text(container.get("name")))
    return requested_chips(f"container {name}", {"containers": [container]})


def _given(env: object) -> dict[str, Given]:
    found = {}
    for place, raw in enumerate(fields.sequence(env)):
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str):
            # Kubernetes leaves out an empty value.
            elsewhere = raw.get("valueFrom") is not None
            found[name] = Given(place, None if elsewhere else fields.text(raw.get("value")))
    return found


def _label(raw: object) -> str:
    """Read a value of a label; what is much too long for one names nothing, and is not kept in the caches of `tpu`."""
    return bounds.cut(fields.text(raw))
