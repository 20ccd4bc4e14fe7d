"""Admission of pods that request IPUs: the injected patch, the reasons to reject a pod, and the allowed changes.

New pods with IPUs lose annotations that only the controller may set. A second review of a pod changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from provisioner.admission.review import Answer, Operation, Request, pointer
from provisioner.kube import fields
from provisioner.kube.podspec import CLUSTER_DNS, HOST_DNS, other_dns
from provisioner.model import bounds
from provisioner.partitions import names
from provisioner.partitions.demand import Wrong, read_size
from provisioner.settings.webhook import WebhookSettings

_STATUS = "status"
#: Subresources of the requests that can change a pod's annotations and labels. Empty for the pod itself.
_CHANGING = ("", _STATUS)
#: Maximum number of conflicts in one rejection: a pod may have thousands of mounts.
_MAX_CONFLICTS = 10
#: Names of the injected volumes. A volume of the pod with the same name is replaced.
CONFIG_VOLUME = "graphcore-ipuof"
TOKEN_VOLUME = "graphcore-token"  # noqa: S105 - a name
#: Annotations that only the controller may set: they name the pod's partition, or request its release.
OF_THE_CONTROLLER = (names.PARTITION_ID, names.PARTITION_HOST, names.PARTITION_PORT, names.RELEASE)

_IPC_LOCK = "IPC_LOCK"
_NETWORK_CAPABILITIES = ("NET_ADMIN", "NET_RAW", "ALL")
_MOUNT = {"name": CONFIG_VOLUME, "mountPath": names.CONFIG_DIRECTORY, "readOnly": True}
#: Folder in which the API server mounts the pod's own token in each container.
_API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
#: Requests and limits of the init container: equal, for the QoS class Guaranteed. The program uses 30 MiB.
_RESOURCES = {"cpu": "250m", "memory": "128Mi"}
#: UID of the user in the image of the init container.
_USER = 65532
_TOKEN_SECONDS = 3600
#: Values of IPU_INJECTION: no injection, and the node's network and privileged containers as with Graphcore's plugin.
_OFF, _COMPATIBLE = "off", "compatible"


def inject(raw: Mapping[str, Any], size: int, settings: WebhookSettings) -> tuple[Operation, ...]:
    """Return the patch with which a pod waits for its partition and can use it. The pod must have no `_conflicts`."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    annotations = fields.mapping(metadata.get("annotations"))
    kept = {key: value for key, value in annotations.items() if key not in OF_THE_CONTROLLER}
    changed: dict[str, Any] = {
        "schedulingGates": _with_named(spec.get("schedulingGates"), [{"name": names.SCHEDULING_GATE}]),
        "volumes": _with_named(spec.get("volumes"), _volumes(settings)),
    }
    if settings.ipu_injection == _COMPATIBLE:
        changed["hostNetwork"] = True
        if spec.get("dnsPolicy", CLUSTER_DNS) == CLUSTER_DNS:
            changed["dnsPolicy"] = HOST_DNS
    if isinstance(containers := spec.get("containers"), list):
        changed["containers"] = [_given(container, settings) for container in containers]
    init, place, others = _init_container(size, settings), 0, []
    for container in fields.sequence(spec.get("initContainers")):
        if fields.mapping(container).get("name") != names.INIT_CONTAINER:
            others.append(_given(container, settings))
            if settings.ipu_injection != _COMPATIBLE and fields.mapping(container).get("restartPolicy") == "Always":
                # The init container follows native sidecars, because its requests may need the proxy of a service mesh.
                # Sidecars can use the partition, because it is active before the gate is removed.
                place = len(others)
        elif _without_api_token(container) == init:
            init = container
    after = {
        "metadata": {
            "annotations": {**kept, names.STATUS: names.INJECTED},
            "labels": {**fields.mapping(metadata.get("labels")), names.POD_LABEL: "true"},
        },
        "spec": {**changed, "initContainers": [*others[:place], init, *others[place:]]},
    }
    return tuple(
        Operation(op="add", path=pointer(part, key), value=value)
        for part, there in (("metadata", metadata), ("spec", spec))
        for key, value in after[part].items()
        if there.get(key) != value
    )


def _variables(settings: WebhookSettings) -> tuple[dict[str, Any], ...]:
    if settings.ipu_injection == _COMPATIBLE:
        return (_variable("IPUOF_CONFIG_PATH", f"{names.CONFIG_DIRECTORY}/{names.CONFIG_FILE}"),)
    return (
        # The controller sets these annotations when it removes the gate, so before any container starts.
        _from_field("IPUOF_VIPU_API_HOST", f"metadata.annotations['{names.PARTITION_HOST}']"),
        _from_field("IPUOF_VIPU_API_PORT", f"metadata.annotations['{names.PARTITION_PORT}']"),
        _from_field("IPUOF_VIPU_API_PARTITION_ID", f"metadata.annotations['{names.PARTITION_ID}']"),
        _variable("IPUOF_VIPU_API_GCD_ID", "0"),
        _variable("IPUOF_VIPU_API_TIMEOUT", str(settings.ipu_vipu_timeout_seconds)),
    )


def _given(container: Any, settings: WebhookSettings) -> Any:
    """Return a user's container with the additions of IPU_INJECTION. A value that is not an object is kept."""
    if not isinstance(container, dict):
        return container
    result = dict(container)
    env = fields.sequence(container.get("env"))
    there = {fields.text(variable.get("name")) for variable in fields.mappings(env)}
    new = [variable for variable in _variables(settings) if variable["name"] not in there]
    if new:
        # New variables come first, because the user's variables may refer to them. Existing names are not replaced.
        result["env"] = [*new, *env]
    security = fields.mapping(container.get("securityContext"))
    if settings.ipu_injection == _COMPATIBLE:
        mounts = fields.sequence(container.get("volumeMounts"))
        if [mount for mount in mounts if _path_of(mount) == names.CONFIG_DIRECTORY] != [_MOUNT]:
            result["volumeMounts"] = [*(mount for mount in mounts if _path_of(mount) != names.CONFIG_DIRECTORY), _MOUNT]
        # A container that gives up privileges, such as a sidecar, is not made privileged.
        gives_up = security.get("allowPrivilegeEscalation") is False or "ALL" in _capabilities(security, "drop")
        if security.get("privileged") is None and not gives_up:
            result["securityContext"] = {**security, "privileged": True}
    elif settings.ipu_rdma_resource:
        # RDMA needs the devices and the capability to lock memory.
        if not {_IPC_LOCK, "ALL"} & _capabilities(security, "add"):
            capabilities = fields.mapping(security.get("capabilities"))
            added = [*fields.sequence(capabilities.get("add")), _IPC_LOCK]
            result["securityContext"] = {**security, "capabilities": {**capabilities, "add": added}}
        resources = fields.mapping(container.get("resources"))
        limits, requests = (fields.mapping(resources.get(part)) for part in ("limits", "requests"))
        if settings.ipu_rdma_resource not in limits:
            rdma = {settings.ipu_rdma_resource: "1"}
            result["resources"] = {**resources, "limits": {**limits, **rdma}, "requests": {**requests, **rdma}}
    return result


def _capabilities(security: Mapping[str, Any], part: str) -> set[str]:
    listed = fields.sequence(fields.mapping(security.get("capabilities")).get(part))
    return {fields.text(capability).upper().removeprefix("CAP_") for capability in listed}


def _path_of(mount: object) -> str:
    return fields.text(fields.mapping(mount).get("mountPath")).rstrip("/")


def _api_url(settings: WebhookSettings) -> str:
    return settings.ipu_api_url or f"http://{names.SERVICE}.{settings.own_namespace}.svc"


def _volumes(settings: WebhookSettings) -> list[dict[str, Any]]:
    token = {"audience": names.AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": names.TOKEN_FILE}
    sources: list[dict[str, Any]] = [{"serviceAccountToken": token}]
    if settings.ipu_api_ca_config_map:
        items = [{"key": names.CA_FILE, "path": names.CA_FILE}]
        sources.append({"configMap": {"name": settings.ipu_api_ca_config_map, "items": items}})
    # defaultMode has the API server's default, so that a second review finds no difference.
    volumes: list[dict[str, Any]] = [{"name": TOKEN_VOLUME, "projected": {"sources": sources, "defaultMode": 0o644}}]
    if settings.ipu_injection == _COMPATIBLE:
        volumes.append({"name": CONFIG_VOLUME, "emptyDir": {}})
    return volumes


def _init_container(size: int, settings: WebhookSettings) -> dict[str, Any]:
    command = ["tpu-provisioner", "partitions", "get", f"--server={_api_url(settings)}"]
    mounts: list[dict[str, Any]] = [{"name": TOKEN_VOLUME, "readOnly": True, "mountPath": names.TOKEN_DIRECTORY}]
    if settings.ipu_api_ca_config_map:
        command.append(f"--ca-file={names.TOKEN_DIRECTORY}/{names.CA_FILE}")
    if settings.ipu_injection == _COMPATIBLE:
        command.append(f"--file={names.CONFIG_DIRECTORY}/{names.CONFIG_FILE}")
        mounts.append({"name": CONFIG_VOLUME, "mountPath": names.CONFIG_DIRECTORY})
    return {
        "name": names.INIT_CONTAINER,
        "image": settings.ipu_init_image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": [
            _from_field(names.NAMESPACE_VARIABLE, "metadata.namespace"),
            _from_field(names.POD_VARIABLE, "metadata.name"),
            _from_field(names.UID_VARIABLE, "metadata.uid"),
            _variable(names.SIZE_VARIABLE, str(size)),
        ],
        "resources": {"limits": _RESOURCES, "requests": _RESOURCES},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _variable(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _with_named(there: object, wanted: list[dict[str, Any]]) -> list[Any]:
    """Return the list with the `wanted` items: each replaces the item of the same name, or is appended."""
    missing = {item["name"]: item for item in wanted}
    kept = [
        missing.pop(name, item) if (name := fields.text(fields.mapping(item).get("name"))) else item
        for item in fields.sequence(there)
    ]
    return [*kept, *missing.values()]


def _without_api_token(container: dict[str, Any]) -> dict[str, Any]:
    mounts = fields.sequence(container.get("volumeMounts"))
    kept = [mount for mount in mounts if fields.mapping(mount).get("mountPath") != _API_TOKEN]
    return {**container, "volumeMounts": kept}


def _conflicts(raw: Mapping[str, Any], settings: WebhookSettings) -> Iterator[str]:
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    containers = sum(len(fields.sequence(spec.get(part))) for part in ("initContainers", "containers"))
    if containers > bounds.IPU_CONTAINERS:
        yield f"it {'; '.join(bounds.too_many('containers', containers, bounds.IPU_CONTAINERS))}."
    if node := fields.text(spec.get("nodeName")):
        yield (
            f"spec.nodeName is {bounds.quoted(node)}, so the pod cannot wait for its partition; "
            "select the node by nodeSelector or node affinity instead."
        )
    if any(reference.get("kind") == "DaemonSet" for reference in fields.mappings(metadata.get("ownerReferences"))):
        yield (
            "it belongs to a DaemonSet, whose pods have nodes before they have partitions; use a Job, a "
            "StatefulSet or a Deployment."
        )
    if fields.mapping(spec.get("os")).get("name") == "windows":
        yield "spec.os.name is windows; IPUs are used on Linux."
    for place, container in enumerate(fields.mappings(spec.get("containers"))):
        if container.get("name") == names.INIT_CONTAINER:
            where = f"spec.containers[{place}]"
            yield f"{where} has the name of the init container, {names.INIT_CONTAINER}; rename it."
    if settings.ipu_injection == _COMPATIBLE:
        yield from _mounts(spec)
        repeated = fields.mapping(metadata.get("annotations")).get(names.STATUS) == names.INJECTED
        yield from _of_the_nodes_network(spec, repeated=repeated)


def _doubts(raw: Mapping[str, Any], settings: WebhookSettings) -> Iterator[str]:
    """Yield warnings about a pod that may not reach the REST API or its IPUs, but that may also work."""
    spec, host = fields.mapping(raw.get("spec")), urlsplit(_api_url(settings)).hostname or ""
    # In the compatible mode, the patch replaces CLUSTER_DNS, so this policy causes no warning.
    replaced = settings.ipu_injection == _COMPATIBLE and spec.get("dnsPolicy", CLUSTER_DNS) == CLUSTER_DNS
    if (dns := other_dns(spec)) and not replaced and host.split(".")[2:3] == ["svc"]:
        yield (
            f"with {dns} the name {host}, where its init container asks for its partition, is found only "
            f"where the pod's DNS servers know the cluster's Services; set dnsPolicy: {HOST_DNS}, or name them in "
            "dnsConfig."
        )
    if settings.ipu_injection != _COMPATIBLE and not settings.ipu_rdma_resource and not _may_use_rdma(spec):
        yield (
            "its containers get no RDMA devices, by which IPUs are reached; the administrator can set "
            "IPU_RDMA_RESOURCE, or IPU_INJECTION=compatible."
        )


def _may_use_rdma(spec: Mapping[str, Any]) -> bool:
    contexts = [fields.mapping(container.get("securityContext")) for _, container in _containers(spec)]
    return any(
        context.get("privileged") is True or {_IPC_LOCK, "ALL"} & _capabilities(context, "add") for context in contexts
    )


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in ("initContainers", "containers"):
        for place, container in enumerate(fields.mappings(spec.get(part))):
            if (part, container.get("name")) != ("initContainers", names.INIT_CONTAINER):
                yield f"spec.{part}[{place}]", container


def _mounts(spec: Mapping[str, Any]) -> Iterator[str]:
    for where, container in _containers(spec):
        for mount in fields.mappings(container.get("volumeMounts")):
            if _path_of(mount) == names.CONFIG_DIRECTORY and mount.get("name") != CONFIG_VOLUME:
                yield (
                    f"{where} mounts the volume {bounds.quoted(fields.text(mount.get('name')))} at "
                    f"{names.CONFIG_DIRECTORY}, where its IPUoF configuration is mounted; mount it elsewhere."
                )


def _of_the_nodes_network(spec: Mapping[str, Any], *, repeated: bool) -> Iterator[str]:
    """Yield conflicts with hostNetwork, which the patch sets. `repeated`: whether an earlier review patched the pod."""
    why = "pods with IPUs have the node's network (hostNetwork)"
    if spec.get("hostUsers") is False:
        yield f"spec.hostUsers is false, and {why}; leave it out."
    used: Counter[tuple[str, str, str]] = Counter()
    for where, container in _containers(spec):
        # In a second review, hostNetwork may come from the first patch. Containers with _MOUNT were checked then.
        of_author = spec.get("hostNetwork") is True and (
            not repeated or _MOUNT in fields.sequence(container.get("volumeMounts"))
        )
        added = _capabilities(fields.mapping(container.get("securityContext")), "add")
        if not of_author and (forbidden := [capability for capability in _NETWORK_CAPABILITIES if capability in added]):
            yield (
                f"{where}, {bounds.quoted(fields.text(container.get('name')))}, has the capability {forbidden[0]}, and "
                f"{why}, which it could change; keep service meshes out of the pod (Istio: label "
                'sidecar.istio.io/inject: "false", Linkerd: annotation linkerd.io/inject: disabled), or set '
                "hostNetwork: true in its template if this container is meant to change the network of the node."
            )
        alone = where.startswith("spec.init") and container.get("restartPolicy") != "Always"
        for port in fields.mappings(container.get("ports")):
            inside, outside = port.get("containerPort"), port.get("hostPort")
            if outside and outside != inside:
                yield (
                    f"{where} has containerPort {fields.shown(inside)} with hostPort {fields.shown(outside)}, and "
                    f"{why}; let the container listen on the hostPort, or leave the hostPort out."
                )
            protocol, address = (fields.text(port.get(key)) for key in ("protocol", "hostIP"))
            used[protocol or "TCP", address, fields.shown(inside)] += not alone
    for (protocol, _, number), count in used.items():
        if count > 1:
            yield f"{count} of its containers have the port {number} ({protocol}), and {why}; use one port for each."


def review_pod(request: Request, settings: WebhookSettings) -> Answer:
    """Review a pod. A request that does not concern IPUs is admitted unchanged."""
    if settings.ipu_injection == _OFF or (settings.ipu_namespaces and request.namespace not in settings.ipu_namespaces):
        return Answer()
    if request.kind == "Binding":
        return _bound(request)
    if request.kind != "Pod" or request.subresource not in _CHANGING:
        return Answer()
    if request.operation == "CREATE":
        return _created(request, settings)
    if request.operation == "UPDATE":
        return _changed(request, settings)
    return Answer()


def _created(request: Request, settings: WebhookSettings) -> Answer:
    pod = request.object
    metadata = fields.mapping(pod.get("metadata"))
    annotations = fields.mapping(metadata.get("annotations"))
    title = _title(request, metadata)
    try:
        size = read_size(annotations, largest=settings.ipu_largest_partition)
    except Wrong as error:
        return _static(title) if names.MIRROR in annotations else Answer(denied=f"{title}: {error}")
    if size is None:
        if names.STATUS in annotations:
            reason = f"{names.STATUS} is written by the webhook, and the pod asks for no IPUs"
            return Answer(denied=f'{title}: {reason}; leave it out, or add {names.IPUS}: "4" for four IPUs.')
        return Answer()
    if names.MIRROR in annotations:
        return _static(title)
    wrong = list(islice(_conflicts(pod, settings), _MAX_CONFLICTS))
    if wrong:
        return Answer(denied=" ".join((f"{title} asks for IPUs:", *wrong)))
    warnings = [
        f"{title}: the annotation {key} is written by the controller, and was removed."
        for key in OF_THE_CONTROLLER
        if key in annotations
    ]
    warnings += [f"{title}: {doubt}" for doubt in _doubts(pod, settings)]
    return Answer(patch=inject(pod, size, settings), warnings=tuple(warnings))


def _bound(request: Request) -> Answer:
    """Review a Binding of a pod to a node. The API server copies the Binding's annotations and labels to the pod."""
    metadata = fields.mapping(request.object.get("metadata"))
    added = [*_differing({}, metadata, OF_THE_CONTROLLER), *_fixed({}, metadata)]
    if not added:
        return Answer()
    return Answer(
        denied=f"{_title(request, metadata)}: {' and '.join(added)} cannot be set by a Binding; leave it out of its "
        "metadata."
    )


def _static(title: str) -> Answer:
    """Admit a static pod with a warning. The pod runs already, and a rejection would only hide its mirror pod."""
    return Answer(warnings=(f"{title} is a static pod, and gets no IPUs; create it through the API server.",))


def _changed(request: Request, settings: WebhookSettings) -> Answer:
    before, after = (fields.mapping(pod.get("metadata")) for pod in (request.old_object, request.object))
    title = _title(request, after)
    controller = f"system:serviceaccount:{settings.own_namespace}:{settings.ipu_controller_account}"
    others = request.user != controller
    of_controller = _differing(before, after, OF_THE_CONTROLLER)
    if others and of_controller:
        return Answer(
            denied=f"{title}: {' and '.join(of_controller)} can be changed only by the controller; to give the "
            "partition back early, send DELETE to the REST API, or delete the pod."
        )
    # A write of the status cannot change the spec, because the API server ignores the spec in it.
    with_spec = request.subresource != _STATUS
    if others and with_spec and _gated(request.old_object) and not _gated(request.object):
        return Answer(
            denied=f"{title}: the scheduling gate {names.SCHEDULING_GATE} is removed by the controller when the "
            "pod's partition is active; without the gate the pod would run without IPUs."
        )
    if not (differing := _fixed(before, after)):
        return Answer()
    named = " and ".join(differing)
    if fields.mapping(before.get("annotations")).get(names.STATUS) == names.INJECTED:
        return Answer(
            denied=f"{title}: {named} cannot be changed: the pod's partition was created for what it requested "
            "at first; delete the pod, and create it with the annotation that you want."
        )
    present = fields.mapping(after.get("annotations")).keys() | fields.mapping(after.get("labels")).keys()
    if present.isdisjoint(differing):
        # The pod was created without the webhook, so it has no IPUs, and may lose the annotation or label.
        return Answer()
    return Answer(
        denied=f"{title}: {named} is read only when a pod is created; delete the pod, and create it with the "
        "annotation."
    )


def _gated(pod: Mapping[str, Any]) -> bool:
    gates = fields.mappings(fields.mapping(pod.get("spec")).get("schedulingGates"))
    return any(gate.get("name") == names.SCHEDULING_GATE for gate in gates)


def _fixed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the changed annotations and labels that determine a pod's partition when the pod is created."""
    annotations = _differing(before, after, (*names.SIZE_ANNOTATIONS, names.STATUS))
    return [*annotations, *_differing(before, after, (names.POD_LABEL,), part="labels")]


def _differing(
    before: Mapping[str, Any], after: Mapping[str, Any], keys: Iterable[str], *, part: str = "annotations"
) -> list[str]:
    old, new = (fields.mapping(metadata.get(part)) for metadata in (before, after))
    return [key for key in keys if old.get(key) != new.get(key)]


def _title(request: Request, metadata: Mapping[str, Any]) -> str:
    name = request.name or fields.name(metadata.get("name")) or f"{fields.name(metadata.get('generateName'))}*"
    return f"Pod {request.namespace}/{name}"
