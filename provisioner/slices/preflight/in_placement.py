"""Checks that admission marks pods for the node pool of their slice. Missing marks only cause a warning."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from provisioner import constants
from provisioner.kube import fields
from provisioner.kube.errors import ClusterError, Forbidden, NotFound
from provisioner.kube.fields import MalformedObject
from provisioner.kube.live import list_all
from provisioner.kube.protocol import Api, Request, collection_path, object_path
from provisioner.model.placement import labels_of, slice_key
from provisioner.model.wording import first_of
from provisioner.settings import Settings
from provisioner.slices.observe import DEVICES
from provisioner.slices.preflight import Finding, ok, unknown, warning
from provisioner.slices.preflight.in_kubernetes import (
    ADMISSION_GROUP,
    DEVICE_CLASSES,
    PLACEMENT_POLICY,
    PLACEMENT_WEBHOOKS,
    Right,
    is_granted,
)
from provisioner.workloads import kinds_served

_T = TypeVar("_T")

_ROOT = f"/apis/{ADMISSION_GROUP}/v1"
#: End of the policy's condition on namespaces if the component placement-all-namespaces is installed.
_ALL_NAMESPACES = '!= "off"'
_INSTALL = (
    "Enable the component placement; before Kubernetes 1.36, the components webhook and webhook-placement: "
    "docs/install-variants.md, Placement."
)
_SPREAD = "so pods of one slice may spread over the node pools of several workloads"
_MAX_NAMED_NAMESPACES = 5
_TRIAL_LABELS = {constants.JOB_KEY: "trial"}
_TRY_AS_ADMINISTRATOR = (
    "Run as an administrator: kubectl run trial --image=trial --dry-run=server --overrides="
    """'{"spec":{"containers":[{"name":"trial","image":"trial","resources":{"limits":{"google.com/tpu":"4"}}}]}}'. """
    "If this fails to call the webhook, allow TCP 8443 from the control plane to the nodes: docs/install-variants.md, "
    "Placement."
)


def check_placement(api: Api, settings: Settings) -> Finding:
    """Check that admission marks pods in all namespaces with workloads that request chips. Raises ClusterError.

    If this process may create pods, the dry run of a create shows whether pods are marked. Without this trial, a
    webhook is reported as not tried, because a firewall may block its port. Also warn about DeviceClasses that offer
    TPUs as an extended resource other than google.com/tpu: admission does not mark pods that request it.
    """
    try:
        by, everywhere = _installed(api)
    except Forbidden as error:
        return unknown(str(error), "Grant permission to get the policy: apply deploy/base.")
    if not by:
        return warning(f"no admission policy assigns node pools to slices, {_SPREAD}", _INSTALL)
    try:
        labels = dict(list_all(api, collection_path("namespaces"), {}, _label_of, metadata_only=True))
    except Forbidden as error:
        return unknown(f"{by} is installed, but {error}", "Grant permission to list namespaces: apply deploy/base.")
    assigned = {
        name
        for name, value in labels.items()
        if value == constants.PLACEMENT_ASSIGN or (everywhere and value != constants.PLACEMENT_OFF)
    }
    shown, tried = f"{by} is installed{' (not tried)' if everywhere is None else ''}", False
    for namespace in sorted(assigned & set(settings.namespaces or labels)):
        if is_granted(api, Right("", "pods", "create", namespace)):
            if problem := _trial(api, namespace):
                return warning(f"{by} is installed, but {problem}", _INSTALL)
            shown, tried = f"{by} marks pods, as a trial in namespace {namespace} shows", True
            break
    if classes := _list(api, collection_path(DEVICE_CLASSES, root=DEVICES.root), _unseen_class):
        return warning(
            f"{shown}, but DeviceClasses {first_of(classes)} offer TPUs as extended resources that admission does not "
            "know, so pods that request these resources may run on node pools that are assigned to slices",
            f"Set their extendedResourceName to {constants.TPU_RESOURCE}, or remove it: docs/security.md.",
        )
    missing = sorted((_with_workloads(api, settings) & labels.keys()) - assigned)
    if missing:
        names = ", ".join(missing[:_MAX_NAMED_NAMESPACES]) + (
            f" and {len(missing) - _MAX_NAMED_NAMESPACES} more" if missing[_MAX_NAMED_NAMESPACES:] else ""
        )
        unless = " unless PLACEMENT_NAMESPACES=all is set" if everywhere is None else ""
        return warning(
            f"{shown}, but {names} (of {len(missing)} namespaces with workloads) lack the label "
            f"{constants.PLACEMENT}={constants.PLACEMENT_ASSIGN}, {_SPREAD}{unless}",
            f"Label them before you create the next workload there: kubectl label namespace "
            f"{' '.join(missing[:_MAX_NAMED_NAMESPACES])} {constants.PLACEMENT}={constants.PLACEMENT_ASSIGN}",
        )
    if everywhere is None and not tried:
        return warning(
            f"{shown}: this identity may not create pods in a namespace with the label "
            f"{constants.PLACEMENT}={constants.PLACEMENT_ASSIGN}; pods with chips are rejected if API servers cannot "
            "reach the webhook",
            _TRY_AS_ADMINISTRATOR,
        )
    return ok(f"{shown}; the provisioner assigns node pools in {len(assigned)} of {len(labels)} namespaces")


def _installed(api: Api) -> tuple[str, bool | None]:
    """Return the policy or webhook that marks pods, if any, and whether namespaces need no label (None if unknown)."""
    policy = _read(api, "mutatingadmissionpolicies", PLACEMENT_POLICY)
    if policy is not None and _read(api, "mutatingadmissionpolicybindings", PLACEMENT_POLICY) is not None:
        variables = fields.mappings(fields.mapping(policy.get("spec")).get("variables"))
        conditions = [
            fields.text(variable.get("expression")) for variable in variables if variable.get("name") == "assigned"
        ]
        return f"the policy {PLACEMENT_POLICY}", any(condition.endswith(_ALL_NAMESPACES) for condition in conditions)
    webhooks = fields.mappings((_read(api, "mutatingwebhookconfigurations", PLACEMENT_WEBHOOKS) or {}).get("webhooks"))
    if any(fields.text(webhook.get("name")).startswith("placement.") for webhook in webhooks):
        # Whether namespaces need the label is unknown: the webhook's setting PLACEMENT_NAMESPACES cannot be read here.
        return f"the webhook of {PLACEMENT_WEBHOOKS}", None
    return "", False


def _read(api: Api, resource: str, name: str) -> Mapping[str, Any] | None:
    try:
        return api.get(object_path(resource, name, root=_ROOT))
    except NotFound:
        return None


def _label_of(raw: Any) -> tuple[str, str]:
    metadata = fields.at(raw, "metadata")
    return fields.text(metadata.get("name")), fields.text(
        fields.mapping(metadata.get("labels")).get(constants.PLACEMENT)
    )


def _unseen_class(raw: Any) -> str | None:
    """Return a DeviceClass's name if it offers TPUs as an extended resource other than google.com/tpu; None if not."""
    spec = fields.at(raw, "spec")
    selectors = [str(selector) for selector in fields.mappings(spec.get("selectors"))]
    # A DeviceClass without selectors offers the devices of all drivers.
    of_tpus = not selectors or any(constants.TPU_DRIVER_NAME in selector for selector in selectors)
    is_known = fields.text(spec.get("extendedResourceName")) in ("", constants.TPU_RESOURCE)
    return _label_of(raw)[0] if of_tpus and not is_known else None


def _with_workloads(api: Api, settings: Settings) -> set[str]:
    return {
        workload.namespace
        for kind in kinds_served(settings).values()
        if kind.kind.has_pods
        for within in sorted(settings.namespaces) or [""]
        for workload in _list(api, collection_path(kind.resource, namespace=within, root=kind.root), kind.parse)
        if not workload.finished and any(group.template.chips for group in workload.groups)
    }


def _list(api: Api, path: str, parse: Callable[[Any], _T | None]) -> list[_T]:
    """Return the objects that `parse` can read; empty if the kind is not served or not permitted."""

    def read(raw: Any) -> _T | None:
        with contextlib.suppress(MalformedObject):
            return parse(raw)
        return None

    try:
        return [record for record in list_all(api, path, {}, read) if record is not None]
    except (NotFound, Forbidden):
        # `check_kind` reports a kind of workloads that is not served, and `check_rights` a missing right.
        return []


def _trial(api: Api, namespace: str) -> str:
    """Create a pod of a child Job as a dry run; return the problem, empty if admission marked the pod."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tpu-provisioner-trial-", "labels": _TRIAL_LABELS},
        "spec": {
            "nodeSelector": {constants.TPU_ACCELERATOR: "tpu-v6e-slice", constants.TPU_TOPOLOGY: "2x2"},
            "containers": [
                {
                    "name": "trial",
                    "image": "trial",
                    "resources": {"limits": {constants.TPU_RESOURCE: "4"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
            # Required by the Pod Security Standard "restricted".
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }
    path = collection_path("pods", namespace=namespace)
    try:
        created = api.exchange(Request("POST", path, query={"dryRun": "All"}, body=body))
    except ClusterError as error:
        return f"a trial in namespace {namespace} failed: {error}"
    selector = fields.at(created, "spec", "nodeSelector")
    if labels_of(slice_key(_TRIAL_LABELS), namespace).items() <= selector.items():
        return ""
    return f"a trial pod of a group in namespace {namespace} is not marked with the nodeSelector {constants.SLICE}"
