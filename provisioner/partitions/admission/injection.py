"""What a pod with IPUs gets: a patch that brings it into its one form, whatever of it is there already.

Nothing that the pod says of itself is taken for granted. A pod that has everything gets no patch, so reviews may be
repeated; a copy of such a pod is brought into the form of a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from provisioner.admission.review import Operation, pointer
from provisioner.kube import fields
from provisioner.partitions import names

#: Names of containers and volumes; whatever else is called so is replaced.
INIT_CONTAINER = names.INIT_CONTAINER
CONFIG_VOLUME = "graphcore-ipuof"
TOKEN_VOLUME = "graphcore-token"  # noqa: S105 - a name
#: Annotations that the controller writes when the pod has its partition, or that ask it to take the partition back.
OF_THE_CONTROLLER = (names.PARTITION_ID, names.PARTITION_HOST, names.PARTITION_PORT, names.RELEASE)

_HOST_DNS, _CLUSTER_DNS = "ClusterFirstWithHostNet", "ClusterFirst"
_IPC_LOCK = "IPC_LOCK"
#: Where the API server mounts the pod's own token in each container.
_API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
#: Requests are limits, so that a Guaranteed pod stays one. The program takes 30 MiB.
_RESOURCES = {"cpu": "250m", "memory": "128Mi"}
#: uid of the image.
_USER = 65532
_TOKEN_SECONDS = 3600


class Mode(StrEnum):
    """What containers are given to reach their IPUs."""

    OFF = "off"
    #: As Graphcore's plugin: the node's network, and all privileges.
    COMPATIBLE = "compatible"
    #: Variables alone; with RDMA also a capability and a resource.
    LEAST_PRIVILEGE = "least-privilege"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the administrator wants of pods with IPUs."""

    mode: Mode = Mode.OFF
    #: Namespaces whose pods are served; empty: all.
    namespaces: frozenset[str] = frozenset()
    #: IPUs of the largest partition that is served.
    largest_size: int = 64
    #: Of the init container: this program's.
    image: str = ""
    #: URL of the REST API.
    api_url: str = ""
    #: The ConfigMap of the pod's namespace with the authority of that URL's certificate; empty: the image knows it.
    api_ca_config_map: str = ""
    #: Of the mode `least-privilege`: the extended resource that gives containers RDMA devices; empty: they get none.
    rdma_resource: str = ""
    #: IPUOF_VIPU_API_TIMEOUT.
    vipu_timeout_seconds: int = 120
    #: The user that the controller and the REST API write as.
    controller: str = ""


def inject(raw: Mapping[str, Any], size: int, settings: Settings) -> tuple[Operation, ...]:
    """Return what makes a pod wait for its partition, and gives it the way to its IPUs.

    `raw` is a pod of which `conflicts` finds nothing wrong.
    """
    return tuple(_differences(raw, _injected(raw, size, settings), ()))


def _injected(raw: Mapping[str, Any], size: int, settings: Settings) -> dict[str, Any]:
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    annotations = fields.mapping(metadata.get("annotations"))
    kept = {key: value for key, value in annotations.items() if key not in OF_THE_CONTROLLER}
    changed: dict[str, Any] = {
        "schedulingGates": _with_named(spec.get("schedulingGates"), [{"name": names.SCHEDULING_GATE}]),
        "volumes": _with_named(spec.get("volumes"), _volumes(settings)),
    }
    if settings.mode is Mode.COMPATIBLE:
        changed["hostNetwork"] = True
        if spec.get("dnsPolicy", _CLUSTER_DNS) == _CLUSTER_DNS:
            changed["dnsPolicy"] = _HOST_DNS
    share = _Share.of(settings)
    if isinstance(containers := spec.get("containers"), list):
        changed["containers"] = [_given(each, share) for each in containers]
    init, others = _init_container(size, settings), []
    for place, each in enumerate(fields.sequence(spec.get("initContainers"))):
        if fields.mapping(each).get("name") != INIT_CONTAINER:
            others.append(_given(each, share))
        elif place == 0 and _without_api_token(each) == init:
            init = each
    return {
        **raw,
        "metadata": {
            **metadata,
            "annotations": {**kept, names.STATUS: names.INJECTED},
            "labels": {**fields.mapping(metadata.get("labels")), names.POD_LABEL: "true"},
        },
        "spec": {**spec, **changed, "initContainers": [init, *others]},
    }


def _differences(before: Any, after: Any, at: tuple[str | int, ...]) -> Iterator[Operation]:
    """Yield what makes one value of another; of lists only those of equal length are gone into."""
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from (Operation(op="remove", path=pointer(*at, key)) for key in before if key not in after)
        for key, value in after.items():
            if key in before:
                yield from _differences(before[key], value, (*at, key))
            else:
                yield Operation(op="add", path=pointer(*at, key), value=value)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, (*at, place))
    elif before != after:
        yield Operation(op="replace", path=pointer(*at), value=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What each container of the user's gets."""

    privileged: bool
    variables: tuple[dict[str, Any], ...]
    mounts: tuple[dict[str, Any], ...] = ()
    #: With them goes the capability to lock memory for RDMA.
    resources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> _Share:
        """Return what the mode is about."""
        if settings.mode is Mode.COMPATIBLE:
            path = f"{names.CONFIG_DIRECTORY}/{names.CONFIG_FILE}"
            mount = {"name": CONFIG_VOLUME, "mountPath": names.CONFIG_DIRECTORY, "readOnly": True}
            return cls(privileged=True, variables=(_variable("IPUOF_CONFIG_PATH", path),), mounts=(mount,))
        variables = (
            # Written when the gate is opened, so they are there before any container is.
            _from_field("IPUOF_VIPU_API_HOST", f"metadata.annotations['{names.PARTITION_HOST}']"),
            _from_field("IPUOF_VIPU_API_PORT", f"metadata.annotations['{names.PARTITION_PORT}']"),
            _from_field("IPUOF_VIPU_API_PARTITION_ID", f"metadata.annotations['{names.PARTITION_ID}']"),
            _variable("IPUOF_VIPU_API_GCD_ID", "0"),
            _variable("IPUOF_VIPU_API_TIMEOUT", str(settings.vipu_timeout_seconds)),
        )
        resources = {settings.rdma_resource: "1"} if settings.rdma_resource else {}
        return cls(privileged=False, variables=variables, resources=resources)


def mounts_of(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return volume and path of what is mounted in each container of the user's."""
    return tuple((each["name"], each["mountPath"]) for each in _Share.of(settings).mounts)


def _given(container: Any, share: _Share) -> Any:
    """Return a container with its share; what is no container stays as it is."""
    if not isinstance(container, dict):
        return container
    found = dict(container)
    env = fields.sequence(container.get("env"))
    there = {fields.text(each.get("name")) for each in fields.mappings(env)}
    new = [each for each in share.variables if each["name"] not in there]
    if new:
        # Before the container's own, so that these may refer to them; what is there stays.
        found["env"] = [*new, *env]
    mounts, paths = fields.sequence(container.get("volumeMounts")), {each["mountPath"] for each in share.mounts}
    if [each for each in mounts if _path_of(each) in paths] != list(share.mounts):
        # In place of what is mounted at the same paths already.
        found["volumeMounts"] = [*(each for each in mounts if _path_of(each) not in paths), *share.mounts]
    security = fields.mapping(container.get("securityContext"))
    if share.resources:
        capabilities = fields.mapping(security.get("capabilities"))
        added = fields.sequence(capabilities.get("add"))
        if not {_IPC_LOCK, f"CAP_{_IPC_LOCK}", "ALL"}.intersection(each for each in added if isinstance(each, str)):
            capabilities = {**capabilities, "add": [*added, _IPC_LOCK]}
            found["securityContext"] = {**security, "capabilities": capabilities}
        resources = fields.mapping(container.get("resources"))
        limits, requests = (fields.mapping(resources.get(each)) for each in ("limits", "requests"))
        if not share.resources.keys() & limits.keys():
            both = {"limits": {**limits, **share.resources}, "requests": {**requests, **share.resources}}
            found["resources"] = {**resources, **both}
    # Whoever says that a container is to have no privileges is taken at their word: a sidecar needs none.
    refused = security.get("privileged") is not None or security.get("allowPrivilegeEscalation") is False
    if share.privileged and not refused:
        found["securityContext"] = {**security, "privileged": True}
    return found


def _path_of(mount: object) -> str:
    return fields.text(fields.mapping(mount).get("mountPath")).rstrip("/")


def _volumes(settings: Settings) -> list[dict[str, Any]]:
    token = {"audience": names.AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": names.TOKEN_FILE}
    sources: list[dict[str, Any]] = [{"serviceAccountToken": token}]
    if settings.api_ca_config_map:
        items = [{"key": names.CA_FILE, "path": names.CA_FILE}]
        sources.append({"configMap": {"name": settings.api_ca_config_map, "items": items}})
    # With the values that the API server fills in, so that a second look finds what the first one made.
    found: list[dict[str, Any]] = [{"name": TOKEN_VOLUME, "projected": {"sources": sources, "defaultMode": 0o644}}]
    if settings.mode is Mode.COMPATIBLE:
        found.append({"name": CONFIG_VOLUME, "emptyDir": {}})
    return found


def _init_container(size: int, settings: Settings) -> dict[str, Any]:
    command = ["tpu-provisioner", "partitions", "get", f"--server={settings.api_url}"]
    mounts: list[dict[str, Any]] = [{"name": TOKEN_VOLUME, "readOnly": True, "mountPath": names.TOKEN_DIRECTORY}]
    if settings.api_ca_config_map:
        command.append(f"--ca-file={names.TOKEN_DIRECTORY}/{names.CA_FILE}")
    if settings.mode is Mode.COMPATIBLE:
        command.append(f"--file={names.CONFIG_DIRECTORY}/{names.CONFIG_FILE}")
        mounts.append({"name": CONFIG_VOLUME, "mountPath": names.CONFIG_DIRECTORY})
    return {
        "name": INIT_CONTAINER,
        "image": settings.image,
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
    """Return a list in which each has its name, with others in place of those of the same name."""
    found = {each["name"]: each for each in wanted}
    kept = [
        found.pop(name, each) if (name := fields.text(fields.mapping(each).get("name"))) else each
        for each in fields.sequence(there)
    ]
    return [*kept, *found.values()]


def _without_api_token(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container as it was before the API server mounted the token for itself."""
    mounts = fields.sequence(container.get("volumeMounts"))
    kept = [each for each in mounts if fields.mapping(each).get("mountPath") != _API_TOKEN]
    return {**container, "volumeMounts": kept}
