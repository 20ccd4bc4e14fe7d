"""Reads the requirements of a pod, or of a pod template, on its node."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import ceil
from typing import Any

from provisioner import constants, tpu
from provisioner.kube import fields
from provisioner.kube.fields import BoundedReader
from provisioner.model import bounds
from provisioner.model.placement import MARKS
from provisioner.model.workloads import Expression, Requirements, Term, Toleration, Volumes
from provisioner.settings import node_fields

#: Term that matches no node. Replaces the terms of an affinity if all are empty, or if the affinity is too large.
MATCHES_NOTHING: Term = (Expression(key="metadata.name", operator="In", values=(), on_field=True),)
#: Keys that are kept if an object's other keys are dropped at a limit, because decisions depend on these keys.
_KEPT_LABELS = (constants.DISABLE, constants.JOB_NAME)
_KEPT_SELECTORS = (constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY)
_KEPT_ANNOTATIONS = (constants.DISABLE, constants.SLICE_TOPOLOGY, constants.CONSUMES_REQUEST)
#: Annotations of pods and workloads that are kept in memory, because decisions depend on them.
READ_ANNOTATIONS = (
    *sorted(node_fields.NODE_SETTING_KEYS),
    constants.DISABLE,
    constants.COPY_LABELS,
    constants.ADDITIONAL_NODE_NETWORKS,
    constants.NODE_SERVICE_ACCOUNT,
    constants.CAPACITY,
    constants.ZONES,
    constants.SAME_ZONE,
    constants.MAX_RUN_DURATION,
    constants.ALL_OR_NOTHING,
    constants.ALLOW_UNUSED_HOSTS,
    constants.IGNORE_NODE_ESTIMATE,
    constants.POD_DELETION_COST,
    constants.SLICE_TOPOLOGY,
    constants.SLICE_AUTOPROVISIONING,
    constants.CONSUMES_REQUEST,
    constants.EXCLUSIVE_TOPOLOGY,
    constants.NODE_SELECTOR_STRATEGY,
    constants.LWS_EXCLUSIVE_TOPOLOGY,
    constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY,
)
#: Prefix of the resources with which a pod requests devices of a DeviceClass without a ResourceClaim.
_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
#: Resources that pods request in bytes, in addition to memory. Node pools have huge pages only on request.
BYTE_RESOURCES = ("ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi")
#: Values of dnsPolicy that select the cluster's DNS: the first (the default) without hostNetwork, the second always.
CLUSTER_DNS, HOST_DNS = "ClusterFirst", "ClusterFirstWithHostNet"
#: Labels of nodes that determine accelerator, topology and machine type of a slice.
OF_SLICES = (*_KEPT_SELECTORS, constants.INSTANCE_TYPE)


def pod_requests(title: str, spec: object, resource: str) -> Decimal:
    """Return the amount of a resource that a pod requests in total. Raises MalformedObject if an amount is invalid."""
    pod_spec = fields.mapping(spec)
    sidecars = Decimal(0)
    while_starting = Decimal(0)
    for container in _with_resources(pod_spec.get("initContainers")):
        amount = _container_request(title, container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            while_starting = max(while_starting, sidecars)
        else:
            while_starting = max(while_starting, sidecars + amount)
    running = sidecars
    for container in _with_resources(pod_spec.get("containers")):
        running += _container_request(title, container, resource)
    total = max(running, while_starting)
    pod_level = fields.at(pod_spec, "resources", "requests")
    if resource in pod_level:
        total = quantity_of(title, "pod-level request", resource, pod_level)
    return total + quantity_of(title, "overhead", resource, fields.mapping(pod_spec.get("overhead")))


def requested_chips(title: str, spec: object) -> int:
    """Return the chips requested as a resource or, with an accelerator selector, by claims. Raises MalformedObject."""
    return counted_chips(title, spec) or _claimed_chips(spec)


def counted_chips(title: str, spec: object) -> int:
    """Return the number of chips that a pod requests as a resource. Raises MalformedObject if the number is invalid."""
    chips = pod_requests(title, spec, constants.TPU_RESOURCE)
    if chips != chips.to_integral_value():
        raise fields.MalformedObject(f"{title}: {constants.TPU_RESOURCE} is {chips}; request a whole number of chips")
    return int(chips)


def _claimed_chips(spec: object) -> int:
    # Claims are not read, as in GKE's autoscaler, because the TPU driver gives each claim all chips of a host.
    if not has_claims(spec):
        return 0
    selector = node_selector_of(spec)
    if constants.TPU_ACCELERATOR not in selector:
        return 0
    return tpu.chips_of_host(*(fields.text(selector.get(key)) for key in OF_SLICES))


def node_selector_of(spec: object) -> dict[str, Any]:
    """Return a pod's nodeSelector, plus labels of OF_SLICES for which required node affinity allows only one value."""
    pod_spec = fields.mapping(spec)
    selector = fields.mapping(pod_spec.get("nodeSelector"))
    terms = fields.mappings(fields.mapping(_required_affinity(pod_spec)).get("nodeSelectorTerms"))
    # To the scheduler, an affinity that allows one value is equal to a selector.
    missing = (key for key in OF_SLICES if terms and key not in selector)
    fixed = {key: value for key in missing if (value := _only_value(terms, key))}
    return {**selector, **fixed} if fixed else selector


def _only_value(terms: Iterable[dict[str, Any]], key: str) -> str:
    """Return the value of a label if all terms together allow exactly one value; empty otherwise."""
    values: set[str] = set()
    for term in terms:
        expressions = fields.mappings(term.get("matchExpressions"))
        allowed = [
            {value for value in fields.sequence(expression.get("values")) if isinstance(value, str)}
            for expression in expressions
            if expression.get("key") == key and expression.get("operator") == "In"
        ]
        if allowed:
            values |= set.intersection(*allowed)
        elif expressions or term.get("matchFields"):
            # The term does not list the allowed values. Terms without requirements match no node, so they are skipped.
            return ""
    return values.pop() if len(values) == 1 else ""


def _required_affinity(spec: dict[str, Any]) -> object:
    return fields.at(spec, "affinity", "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")


def other_dns(spec: object) -> str:
    """Return, as text, the fields because of which a pod does not use the cluster's DNS; empty if the pod uses it."""
    pod_spec = fields.mapping(spec)
    policy = fields.text(pod_spec.get("dnsPolicy")) or CLUSTER_DNS
    # With hostNetwork, Kubernetes treats this policy like "Default", which is the DNS of the node.
    if policy == CLUSTER_DNS and pod_spec.get("hostNetwork") is True:
        return f"dnsPolicy {policy} and hostNetwork"
    return f"dnsPolicy {policy}" if policy in ("Default", "None") else ""


def has_claims(spec: object) -> bool:
    """Whether a pod has ResourceClaims, for TPUs or other devices."""
    return bool(fields.sequence(fields.mapping(spec).get("resourceClaims")))


def uses_claims(spec: object, status: object = None) -> bool:
    """Whether a pod has ResourceClaims, or requests an extended resource for which the scheduler creates a claim."""
    pod_spec = fields.mapping(spec)
    containers = (*_with_resources(pod_spec.get("containers")), *_with_resources(pod_spec.get("initContainers")))
    resources = (fields.mapping(container["resources"]) for container in containers)
    names = (
        name for amounts in resources for part in ("requests", "limits") for name in fields.mapping(amounts.get(part))
    )
    return (
        has_claims(spec)
        # A DeviceClass with extendedResourceName serves a resource of any name; only the status of pods shows this.
        or "extendedResourceClaimStatus" in fields.mapping(status)
        or any(name.startswith(_DEVICE_CLASS) for name in names)
    )


def _with_resources(containers: object) -> Iterable[dict[str, Any]]:
    """Return only containers with resources: reading thousands of containers without resources would take long."""
    return [container for container in fields.mappings(containers) if container.get("resources")]


def _container_request(title: str, container: dict[str, Any], resource: str) -> Decimal:
    resources = fields.mapping(container.get("resources"))
    requests = fields.mapping(resources.get("requests"))
    if requests.get(resource) is not None:
        return quantity_of(title, "request", resource, requests)
    return quantity_of(title, "limit", resource, fields.mapping(resources.get("limits")))


def quantity_of(title: str, role: str, resource: str, amounts: dict[str, Any]) -> Decimal:
    """Return the amount of a resource, 0 if absent. Raises MalformedObject if it is negative or not a quantity."""
    raw = amounts.get(resource)
    if raw is None:
        return Decimal(0)
    value = fields.parse_quantity(raw)
    if value is None:
        raise fields.MalformedObject(
            f"{title}: {role} {resource} is {fields.shown(raw)}, which is not a quantity; use a form such as 4, 1500m "
            f"or 2Gi"
        )
    return value


def requirements(
    title: str, spec: dict[str, Any], metadata: dict[str, Any], *, reader: BoundedReader | None = None
) -> Requirements:
    """Return a pod's requirements on its node. Raises MalformedObject if a requested amount is invalid."""
    reader = reader or reader_of_pod()
    counted = counted_chips(title, spec)
    claimed = 0 if counted else _claimed_chips(spec)
    # Only nodes with this label offer their chips to ResourceClaims.
    implied = {constants.TPU_DRA_DRIVER: "true"} if claimed else {}
    tolerations = reader.entries("tolerations", spec.get("tolerations"), bounds.TOLERATIONS)
    if spec.get("runtimeClassName") == constants.GVISOR:
        # The API server adds selector and toleration of the RuntimeClass to pods, but not to templates, so add both.
        implied[constants.SANDBOX_RUNTIME] = constants.GVISOR
        tolerations = [*tolerations, {"key": constants.SANDBOX_RUNTIME, "value": constants.GVISOR}]
    return Requirements(
        chips=counted or claimed,
        claims=claimed > 0,
        cpu_millicores=ceil(pod_requests(title, spec, "cpu") * 1000),
        memory_bytes=ceil(pod_requests(title, spec, "memory")),
        other_bytes=_other_bytes(title, spec),
        volumes=_volumes(reader, spec),
        node_selector=reader.labels("nodeSelector", node_selector_of(spec), keep=_KEPT_SELECTORS) | implied,
        labels=reader.labels("labels", metadata.get("labels"), keep=_KEPT_LABELS),
        annotations=reader.annotations(metadata.get("annotations"), keep=READ_ANNOTATIONS),
        tolerations=tuple(
            Toleration(
                key=reader.text("a toleration's key", entry.get("key")),
                operator=reader.text("a toleration's operator", entry.get("operator")) or "Equal",
                value=reader.text("a toleration's value", entry.get("value")),
                effect=reader.text("a toleration's effect", entry.get("effect")),
            )
            for entry in tolerations
        ),
        affinity_terms=required_terms(reader, spec),
        # This must be the last argument, because the reader sets its problem while it reads the other arguments.
        problem=reader.problem,
    )


def _other_bytes(title: str, spec: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    parts = [spec, *_with_resources(spec.get("containers")), *_with_resources(spec.get("initContainers"))]
    resources = [fields.mapping(part.get("resources")) for part in parts] + [{"requests": spec.get("overhead")}]
    named = {key for entry in resources for role in ("requests", "limits") for key in fields.mapping(entry.get(role))}
    amounts = ((key, ceil(pod_requests(title, spec, key))) for key in BYTE_RESOURCES if key in named)
    return tuple((key, amount) for key, amount in amounts if amount > 0)


def _volumes(reader: BoundedReader, spec: dict[str, Any]) -> Volumes | None:
    volumes = reader.entries("volumes", spec.get("volumes"), bounds.VOLUMES)
    names = (fields.name(fields.mapping(volume.get("persistentVolumeClaim")).get("claimName")) for volume in volumes)
    claims = tuple(filter(None, names))
    return Volumes(claims=claims) if claims else None


def reduced(full: Requirements, problem: tuple[str, ...], labels: Iterable[str] = ()) -> Requirements:
    """Return requirements with only `labels`, a problem, and fields that identify a slice or decide if it is served."""
    return Requirements(
        chips=full.chips,
        node_selector=only(full.node_selector, (*_KEPT_SELECTORS, *MARKS)),
        labels=only(full.labels, (*_KEPT_LABELS, *labels)),
        annotations=only(full.annotations, _KEPT_ANNOTATIONS),
        problem=full.problem or problem,
    )


def only(texts: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Return the entries of `texts` whose key is in `keys`, and whose value has at most OBJECT_NAME characters."""
    return {key: texts[key] for key in keys if key in texts and len(texts[key]) <= bounds.OBJECT_NAME}


def reader_of_pod(*, within: BoundedReader | None = None) -> BoundedReader:
    """Return a reader with the limits of one pod."""
    return BoundedReader("a pod", max_characters=bounds.REQUIREMENTS, within=within)


def required_terms(reader: BoundedReader, spec: dict[str, Any]) -> tuple[Term, ...]:
    """Return the terms of required node affinity; only MATCHES_NOTHING if all are empty, or if they exceed a limit."""
    required = _required_affinity(spec)
    if not isinstance(required, dict):
        return ()
    terms = []
    expressions = values = 0
    for entry in fields.mappings(required.get("nodeSelectorTerms")):
        parts = [(expression, False) for expression in fields.mappings(entry.get("matchExpressions"))]
        parts += [(field_, True) for field_ in fields.mappings(entry.get("matchFields"))]
        expressions += len(parts)
        values += sum(len(fields.sequence(expression.get("values"))) for expression, _ in parts)
        if expressions > bounds.EXPRESSIONS or values > bounds.EXPRESSION_VALUES:
            reader.refuse(
                f"required node affinity has more than {bounds.EXPRESSIONS} expressions or "
                f"{bounds.EXPRESSION_VALUES:,} values, and no more are read",
                "use fewer",
            )
            return (MATCHES_NOTHING,)
        if parts:
            terms.append(tuple(_expression(reader, expression, on_field=on_field) for expression, on_field in parts))
    return tuple(terms) or (MATCHES_NOTHING,)


def _expression(reader: BoundedReader, raw: dict[str, Any], *, on_field: bool) -> Expression:
    return Expression(
        key=reader.text("an affinity expression's key", raw.get("key")),
        operator=reader.text("an affinity expression's operator", raw.get("operator")),
        values=tuple(
            reader.text("an affinity expression's value", value)
            for value in fields.sequence(raw.get("values"))
            if isinstance(value, str)
        ),
        on_field=on_field,
    )
