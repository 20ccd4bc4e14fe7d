"""Reads ProvisioningRequests and CapacityBuffers (API autoscaling.x-k8s.io), which request slices and have no pods."""

from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.kept import NamespaceBound
from provisioner.model import bounds
from provisioner.model.workloads import CapacityRequest, Condition, Requirements, Workload, WorkloadKind
from provisioner.workloads.kind import Kind, begin, template_of

#: Terminal states by condition; the first true condition counts.
_ENDS = {constants.FAILED: "Failed", constants.CAPACITY_REVOKED: "Failed", constants.BOOKING_EXPIRED: "Completed"}
#: Types of the conditions that the provisioner writes. All are read: an unread one would be written in each decision.
_OWN_CONDITIONS = frozenset((constants.ACCEPTED, constants.PROVISIONED, *_ENDS)) | {
    constants.READY_FOR_PROVISIONING,
    constants.PROVISIONING_BUFFER,
}
#: The API's maximum number of podSets.
_POD_SETS = 32
#: Key in status.provisioningClassDetails of a ProvisioningRequest: comma-separated names of node pools.
NODE_POOLS = "node-pools"


def parse_provisioning_request(raw: object) -> Workload | None:
    """Read a ProvisioningRequest; None if its class is not the provisioner's. Raises MalformedObject."""
    spec, status = (fields.at(raw, part) for part in ("spec", "status"))
    if spec.get("provisioningClassName") != constants.PROVISIONING_CLASS:
        return None
    workload, reader = begin(WorkloadKind.PROVISIONING_REQUEST, raw)
    conditions = _conditions(status)
    sets = reader.entries("spec.podSets", spec.get("podSets"), _POD_SETS)
    pools = fields.text(fields.mapping(status.get("provisioningClassDetails")).get(NODE_POOLS))
    request = CapacityRequest(
        resource_version=_version(raw),
        pod_sets=tuple((_referent(pod_set), fields.count(pod_set.get("count"), default=0)) for pod_set in sets),
        conditions=conditions,
        named=tuple(filter(None, pools.split(","))),
    )
    ended = next((state for condition, state in _ENDS.items() if request.is_true(condition)), "")
    return replace(workload, terminal_state=ended, problem=reader.problem, capacity_request=request)


def parse_capacity_buffer(raw: object) -> Workload | None:
    """Read a CapacityBuffer; None if its strategy is not the provisioner's. Raises MalformedObject."""
    spec, status = (fields.at(raw, part) for part in ("spec", "status"))
    if spec.get("provisioningStrategy") != constants.BUFFER_STRATEGY:
        return None
    workload, reader = begin(WorkloadKind.CAPACITY_BUFFER, raw)
    scalable, limits = fields.mapping(spec.get("scalableRef")), fields.mapping(spec.get("limits"))
    replicas = fields.count(spec["replicas"], default=0) if spec.get("replicas") is not None else None
    percentage = fields.count(spec["percentage"], default=0) if spec.get("percentage") is not None else None
    chips = fields.parse_quantity(limits.get(constants.TPU_RESOURCE))
    others = sorted(map(str, limits.keys() - {constants.TPU_RESOURCE}))
    problem = tuple(f"spec.limits names {bounds.cut(key)}, and only {constants.TPU_RESOURCE} is read" for key in others)
    request = CapacityRequest(
        resource_version=_version(raw),
        pod_sets=((_referent(spec), replicas),),
        scalable=tuple(fields.name(scalable.get(key)) for key in ("apiGroup", "kind", "name")),  # type: ignore[arg-type]
        percentage=percentage,
        max_chips=int(chips) if chips is not None else None,
        conditions=_conditions(status),
    )
    return replace(workload, terminal_state="", problem=reader.problem or problem[:1], capacity_request=request)


def parse_pod_template(raw: object) -> Requirements:
    """Read the requirements in a PodTemplate. Raises MalformedObject."""
    namespace, name, _ = fields.identity("PodTemplate", fields.at(raw, "metadata"))
    title = f"PodTemplate {namespace}/{name}"
    return template_of(title, fields.mapping(raw).get("template"), podspec.reader_of_pod())


BOUND_OF_TEMPLATES: NamespaceBound[Requirements] = NamespaceBound(
    plural="PodTemplates", max_bytes=bounds.NAMESPACE_WORKLOADS, reduce=podspec.reduced
)


def _referent(raw: dict[str, Any]) -> str:
    return fields.name(fields.mapping(raw.get("podTemplateRef")).get("name"))


def _version(raw: object) -> str:
    return fields.name(fields.at(raw, "metadata").get("resourceVersion"))


def _conditions(status: dict[str, Any]) -> dict[str, Condition]:
    conditions = sorted(
        fields.mappings(status.get("conditions")),
        key=lambda condition: fields.name(condition.get("type")) not in _OWN_CONDITIONS,
    )
    return {
        fields.name(condition.get("type")): Condition(
            true=condition.get("status") == "True",
            reason=fields.name(condition.get("reason")),
            message=bounds.cut(fields.text(condition.get("message")), bounds.SCHEDULER_MESSAGE),
            since=fields.parse_timestamp(condition.get("lastTransitionTime")),
        )
        for condition in conditions[: len(_OWN_CONDITIONS) + bounds.CONDITIONS]
    }


PROVISIONING_REQUEST = Kind(
    kind=WorkloadKind.PROVISIONING_REQUEST,
    installation="https://kueue.sigs.k8s.io/docs/concepts/admission_check/provisioning_request/",
    parse=parse_provisioning_request,
    optional=True,
)
CAPACITY_BUFFER = Kind(
    kind=WorkloadKind.CAPACITY_BUFFER,
    installation="https://cloud.google.com/kubernetes-engine/docs/how-to/configure-capacity-buffer",
    parse=parse_capacity_buffer,
    optional=True,
)
