"""Checks that call Kubernetes, and the list of the RBAC rights that the manifests in deploy/ must grant."""

import re
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from provisioner import constants
from provisioner.kube import fields
from provisioner.kube.errors import Forbidden, Malformed, NotFound, Unauthorized
from provisioner.kube.lease import holder_of
from provisioner.kube.live import list_all
from provisioner.kube.protocol import Api, Request, collection_path
from provisioner.kube.watches import PAUSE_QUERY
from provisioner.model import sources
from provisioner.settings import Settings
from provisioner.slices.preflight import Finding, failed, ok, unknown, warning
from provisioner.slices.suppliers.nodegroup.supplier import groups_path
from provisioner.workloads import Kind, kinds_served

_OLDEST = (1, 30)
#: Seconds since the last renewal after which a Lease counts as not held. The Go provisioner renews its Lease every 2 s.
_LEASE_SECONDS = 60.0
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ADMISSION_GROUP = "admissionregistration.k8s.io"
#: Names of the admission policy (and its binding) that marks pods, and of the webhook configuration that replaces it.
PLACEMENT_POLICY, PLACEMENT_WEBHOOKS = "tpu-provisioner-placement", "tpu-provisioner-webhook"
DEVICE_CLASSES = "deviceclasses"
_COORDINATION = "coordination.k8s.io"
_NODE_GROUPS, _PLURAL = "tpu.google.com", "tpunodegroups"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """Permission for a verb on a resource or, with `name`, on one object. An empty namespace means all namespaces."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""
    #: Whether only checks, the command `drain` or deletion costs of pods need the right.
    optional: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


def rights_used(settings: Settings) -> tuple[Right, ...]:
    """Return the rights that are used. SERVED_NAMESPACES does not limit the rights to list pods and write Events."""
    kinds = kinds_served(settings).values()
    watched = [
        *(Right(kind.api_group, kind.resource, verb) for kind in kinds for verb in ("get", "list", "watch")),
        *(Right(kind.api_group, f"{kind.resource}/status", "patch") for kind in kinds if not kind.kind.has_pods),
        *(Right("", name, verb) for name in (sources.POD_TEMPLATES, sources.CLAIMS) for verb in ("list", "watch")),
        Right("", "pods", "watch"),
    ]
    if settings.pod_deletion_cost and settings.serve_pods != "none":
        watched.append(Right("", "pods", "patch", optional=True))
    if settings.namespaces:
        watched = [replace(right, namespace=namespace) for right in watched for namespace in settings.namespaces]
    own_namespace = settings.own_namespace
    used = [
        *watched,
        Right("", "pods", "list"),
        *(Right("resource.k8s.io", sources.RESOURCE_SLICES, verb) for verb in ("list", "watch")),
        *(Right("", sources.VOLUMES, verb) for verb in ("list", "watch")),
        *(Right("storage.k8s.io", sources.STORAGE_CLASSES, verb) for verb in ("list", "watch")),
        Right("resource.k8s.io", DEVICE_CLASSES, "list", optional=True),
        # Only `drain` needs this right, if the kind exists.
        Right(_NODE_GROUPS, _PLURAL, "list", optional=True),
        *(Right("", "nodes", verb) for verb in ("get", "list", "watch", "patch")),
        *(Right("cloud.google.com", sources.MACHINE_CONFIGS, verb) for verb in ("list", "watch")),
        *(Right("", "events", verb) for verb in ("create", "patch")),
        *(
            Right(ADMISSION_GROUP, resource, "get", name=name, optional=True)
            for resource, name in (
                ("mutatingadmissionpolicies", PLACEMENT_POLICY),
                ("mutatingadmissionpolicybindings", PLACEMENT_POLICY),
                ("mutatingwebhookconfigurations", PLACEMENT_WEBHOOKS),
            )
        ),
        # Only `check_placement` lists namespaces if OPT_IN_LABEL is not set.
        Right("", "namespaces", "list", optional=settings.opt_in_label is None),
        Right(_COORDINATION, "leases", "create", own_namespace),
        *(
            Right(_COORDINATION, "leases", verb, own_namespace, name)
            for name in (constants.LEASE_NAME, constants.ORIGINAL_LEASE_NAME)
            for verb in ("get", "update")
        ),
        *(Right("", "configmaps", verb, own_namespace, constants.PAUSE_CONFIGMAP_NAME) for verb in ("list", "watch")),
        *(Right("", "configmaps", verb, own_namespace, constants.HINTS_CONFIGMAP_NAME) for verb in ("get", "patch")),
    ]
    if settings.on_gce:
        used += [
            Right(_NODE_GROUPS, _PLURAL, verb, settings.node_groups_in) for verb in ("get", "list", "create", "delete")
        ]
    if settings.opt_in_label is not None:
        used += [Right("", "namespaces", "watch")]
    return tuple(used)


def check_api_server(api: Api, server: str) -> Finding:
    """Check the version of the API server; warn if the identity may not read it. Raises ClusterError."""
    try:
        answer = api.get("/version")
    except Unauthorized as error:
        return failed(
            f"{server} does not accept the credentials: {error}",
            "Get a new kubeconfig; on GKE: gcloud container clusters get-credentials CLUSTER --location LOCATION",
        )
    except Forbidden as error:
        return unknown(f"{server} answers, but does not report its version: {error}")
    version = str(answer.get("gitVersion", ""))
    numbers = re.match(r"v(\d+)\.(\d+)", version)
    if numbers is None:
        return failed(
            f"{server} answers, but not as a Kubernetes API server",
            "Check the server's address in the kubeconfig.",
        )
    if (int(numbers[1]), int(numbers[2])) < _OLDEST:
        oldest = ".".join(str(number) for number in _OLDEST)
        return warning(
            f"{server} runs Kubernetes {version}",
            f"Upgrade it: versions before {oldest} were never tested.",
        )
    return ok(f"{server} runs Kubernetes {version}")


def check_kind(api: Api, kind: Kind) -> Finding:
    """Check that the API server serves a kind of workloads in the version that the provisioner reads."""
    served = kind.root.removeprefix("/apis/")
    try:
        resources = fields.mappings(api.get(kind.root).get("resources"))
    except NotFound:
        resources = []
    if any(resource.get("name") == kind.resource for resource in resources):
        return ok(f"{served} is served")
    if kind.optional:
        return ok(f"{served} is not served by the API server; {kind.plural} get node pools once it is")
    return failed(f"{served} is not served by the API server", f"Install {kind.kind}: {kind.installation}")


def is_granted(api: Api, right: Right) -> bool:
    """Return whether a SelfSubjectAccessReview grants a right to this identity. Raises ClusterError."""
    resource, _, subresource = right.resource.partition("/")
    named = {**asdict(right), "resource": resource, "subresource": subresource}
    spec = {"resourceAttributes": {key: value for key, value in named.items() if value and key != "optional"}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    status = api.post(ACCESS_REVIEWS, review).get("status")
    if not isinstance(status, dict):
        raise Malformed("the API server's answer to a SelfSubjectAccessReview has no status")
    return status.get("allowed") is True


def check_rights(api: Api, settings: Settings) -> Finding:
    """Check that all `rights_used` are granted; warn if only optional rights are missing. Raises ClusterError."""
    used = rights_used(settings)
    missing = [right for right in used if not is_granted(api, right)]
    if missing:
        message = f"{len(missing)} of {len(used)} permissions are missing: {', '.join(str(right) for right in missing)}"
        grant = "Grant them to the kubeconfig's identity, as the manifests in deploy/base and deploy/components do."
        if all(right.optional for right in missing):
            return warning(f"{message}. Only the features that need them do not work", grant)
        return failed(message, grant)
    return ok(f"all {len(used)} required permissions are granted")


def check_pause(api: Api, namespace: str) -> Finding:
    """Check that no ConfigMap pauses the creation of node pools. Raises ClusterError."""
    path = collection_path("configmaps", namespace=namespace)
    for configmap in api.list_page(Request("GET", path, query=PAUSE_QUERY)).items:
        return warning(
            f"no node pools are created since {fields.created_at(configmap):%Y-%m-%d %H:%M} UTC: ConfigMap "
            f"{namespace}/{constants.PAUSE_CONFIGMAP_NAME} exists.",
            f"To resume: kubectl --namespace={namespace} delete configmap {constants.PAUSE_CONFIGMAP_NAME}",
        )
    return ok("the creation of node pools is not paused")


def check_go_provisioner(api: Api, namespace: str, now: datetime) -> Finding:
    """Check that the Go provisioner does not run: no process has renewed its Lease in the last minute."""
    name = f"{namespace}/{constants.ORIGINAL_LEASE_NAME}"
    try:
        holder, renewed = holder_of(api, constants.ORIGINAL_LEASE_NAME, namespace=namespace)
    except Forbidden as error:
        return unknown(str(error), f"Grant permission to get Lease {name}.")
    if not holder:
        return ok(f"no process holds Lease {name}")
    if renewed is None or (now - renewed).total_seconds() > _LEASE_SECONDS:
        return ok(f"Lease {name} was held by {holder[:100]}, which does not renew it any more")
    return warning(
        f"it still runs: {holder[:100]} holds Lease {name}. With --leader-elect the provisioner waits until it "
        "ends; without --leader-elect both would act.",
        f"Scale it down first: kubectl --namespace={namespace} scale deployment "
        "tpu-provisioner-controller-manager --replicas=0",
    )


def check_node_groups(api: Api, namespace: str) -> Finding:
    """Check that the kind TPUNodeGroup is installed, by listing its objects in `namespace`. Raises ClusterError."""
    try:
        groups = list_all(api, groups_path(namespace), {}, lambda raw: raw, metadata_only=True)
    except NotFound:
        return failed(
            "their CRD is not installed",
            "Install the controller of node groups, first: kubectl apply --server-side -k deploy/nodegroups/crds",
        )
    return ok(f"{len(groups)} in namespace {namespace}, where the provisioner makes its own")
