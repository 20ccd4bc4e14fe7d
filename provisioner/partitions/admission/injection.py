"""What a pod with IPUs gets: a patch that brings it into its one form, whatever of it is there already.

Nothing that the pod says of itself is taken for granted. A pod that has everything gets no patch, so reviews may be
repeated; a copy of such a pod is brought into the form of a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from provisioner.admission.review import Operation, pointer
from provisioner.kube import fields
from provisioner.partitions import handover, names

#: Names of containers and volumes; whatever else is called so is replaced.
INIT_CONTAINER = handover.INIT_CONTAINER
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
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    compatible = settings.mode is Mode.COMPATIBLE
    steps = [
        *_entries(metadata, ("metadata",), "annotations", {names.STATUS: names.INJECTED}, without=OF_THE_CONTROLLER),
        *_entries(metadata, ("metadata",), "labels", {names.POD_LABEL: "true"}),
        *_named(spec, "schedulingGates", [{"name": names.SCHEDULING_GATE}]),
        *_named(spec, "volumes", _volumes(settings)),
    ]
    if compatible:
        steps += _field(spec, ("spec",), "hostNetwork", True)
        if spec.get("dnsPolicy", _CLUSTER_DNS) == _CLUSTER_DNS:
            steps += _field(spec, ("spec",), "dnsPolicy", _HOST_DNS)
    share = _Share.of(settings)
    for part in ("initContainers", "containers"):
        for place, container in enumerate(fields.sequence(spec.get(part))):
            if isinstance(container, dict) and (part, container.get("name")) != ("initContainers", INIT_CONTAINER):
                steps += _given(container, ("spec", part, place), share)
    steps += _first(spec, _init_container(size, settings))
    return tuple(steps)


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
            path = f"{handover.CONFIG_DIRECTORY}/{handover.CONFIG_FILE}"
            mount = {"name": CONFIG_VOLUME, "mountPath": handover.CONFIG_DIRECTORY, "readOnly": True}
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


def _given(container: dict[str, Any], at: tuple[str | int, ...], share: _Share) -> Iterator[Operation]:
    env = fields.sequence(container.get("env"))
    there = {fields.text(each.get("name")) for each in fields.mappings(env)}
    new = [each for each in share.variables if each["name"] not in there]
    # Before the container's own, so that these may refer to them; what is there stays.
    yield from _field(container, at, "env", [*new, *env]) if new else ()
    yield from _at_paths(container, at, share.mounts)
    security = fields.mapping(container.get("securityContext"))
    if share.resources:
        capabilities = fields.mapping(security.get("capabilities"))
        added = fields.sequence(capabilities.get("add"))
        if not {_IPC_LOCK, f"CAP_{_IPC_LOCK}", "ALL"}.intersection(each for each in added if isinstance(each, str)):
            capabilities = {**capabilities, "add": [*added, _IPC_LOCK]}
            yield from _field(container, at, "securityContext", {**security, "capabilities": capabilities})
    # Whoever says that a container is to have no privileges is taken at their word: a sidecar needs none.
    refused = security.get("privileged") is not None or security.get("allowPrivilegeEscalation") is False
    if share.privileged and not refused:
        yield from _field(container, at, "securityContext", {**security, "privileged": True})
    if share.resources:
        resources = fields.mapping(container.get("resources"))
        limits, requests = (fields.mapping(resources.get(each)) for each in ("limits", "requests"))
        if not share.resources.keys() & limits.keys():
            both = {"limits": {**limits, **share.resources}, "requests": {**requests, **share.resources}}
            yield from _field(container, at, "resources", {**resources, **both})


def _at_paths(
    container: dict[str, Any], at: tuple[str | int, ...], wanted: Iterable[dict[str, Any]]
) -> Iterator[Operation]:
    """Mount volumes, in place of what is mounted at the same paths already."""
    mounts = fields.sequence(container.get("volumeMounts"))
    by_path = {each["mountPath"]: each for each in wanted}
    others = [each for each in mounts if _path_of(each) not in by_path]
    if [each for each in mounts if each not in others] != list(by_path.values()):
        yield from _field(container, at, "volumeMounts", [*others, *by_path.values()])


def _path_of(mount: object) -> str:
    return fields.text(fields.mapping(mount).get("mountPath")).rstrip("/")


def _volumes(settings: Settings) -> list[dict[str, Any]]:
    token = {"audience": handover.AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": handover.TOKEN_FILE}
    sources: list[dict[str, Any]] = [{"serviceAccountToken": token}]
    if settings.api_ca_config_map:
        items = [{"key": handover.CA_FILE, "path": handover.CA_FILE}]
        sources.append({"configMap": {"name": settings.api_ca_config_map, "items": items}})
    # With the values that the API server fills in, so that a second look finds what the first one made.
    found: list[dict[str, Any]] = [{"name": TOKEN_VOLUME, "projected": {"sources": sources, "defaultMode": 0o644}}]
    if settings.mode is Mode.COMPATIBLE:
        found.append({"name": CONFIG_VOLUME, "emptyDir": {}})
    return found


def _init_container(size: int, settings: Settings) -> dict[str, Any]:
    command = ["tpu-provisioner", "partitions", "get", f"--server={settings.api_url}"]
    mounts: list[dict[str, Any]] = [{"name": TOKEN_VOLUME, "readOnly": True, "mountPath": handover.TOKEN_DIRECTORY}]
    if settings.api_ca_config_map:
        command.append(f"--ca-file={handover.TOKEN_DIRECTORY}/{handover.CA_FILE}")
    if settings.mode is Mode.COMPATIBLE:
        command.append(f"--file={handover.CONFIG_DIRECTORY}/{handover.CONFIG_FILE}")
        mounts.append({"name": CONFIG_VOLUME, "mountPath": handover.CONFIG_DIRECTORY})
    return {
        "name": INIT_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": [
            _from_field(handover.NAMESPACE_VARIABLE, "metadata.namespace"),
            _from_field(handover.POD_VARIABLE, "metadata.name"),
            _from_field(handover.UID_VARIABLE, "metadata.uid"),
            _variable(handover.SIZE_VARIABLE, str(size)),
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


def _field(parent: Mapping[str, Any], at: tuple[str | int, ...], key: str, value: Any) -> Iterator[Operation]:
    if key not in parent or parent[key] != value:
        yield Operation(op="add", path=pointer(*at, key), value=value)


def _entries(
    parent: Mapping[str, Any],
    at: tuple[str | int, ...],
    key: str,
    wanted: Mapping[str, str],
    *,
    without: Iterable[str] = (),
) -> Iterator[Operation]:
    """Set entries of a map, and take others away."""
    there = parent.get(key)
    if not isinstance(there, dict):
        yield Operation(op="add", path=pointer(*at, key), value=dict(wanted))
        return
    for each in without:
        if each in there:
            yield Operation(op="remove", path=pointer(*at, key, each))
    for name, value in wanted.items():
        yield from _field(there, (*at, key), name, value)


def _named(spec: Mapping[str, Any], key: str, wanted: list[dict[str, Any]]) -> Iterator[Operation]:
    """Put things into a list in which each has its name, in place of those of the same name."""
    there = spec.get(key)
    if not isinstance(there, list) or not there:
        yield Operation(op="add", path=pointer("spec", key), value=wanted)
        return
    places = {fields.text(each.get("name")): place for place, each in enumerate(there) if isinstance(each, dict)}
    for each in wanted:
        place = places.get(each["name"])
        if place is None:
            yield Operation(op="add", path=pointer("spec", key, "-"), value=each)
        elif there[place] != each:
            yield Operation(op="replace", path=pointer("spec", key, place), value=each)


def _first(spec: Mapping[str, Any], container: dict[str, Any]) -> Iterator[Operation]:
    """Put the init container before all others, once."""
    there = spec.get("initContainers")
    if not isinstance(there, list) or not there:
        yield Operation(op="add", path="/spec/initContainers", value=[container])
        return
    places = [place for place, each in enumerate(there) if fields.mapping(each).get("name") == INIT_CONTAINER]
    if places == [0] and _without_api_token(there[0]) == container:
        return
    for place in reversed(places):
        yield Operation(op="remove", path=pointer("spec", "initContainers", place))
    yield Operation(op="add", path="/spec/initContainers/0", value=container)


def _without_api_token(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container as it was before the API server mounted the token for itself."""
    mounts = fields.sequence(container.get("volumeMounts"))
    kept = [each for each in mounts if fields.mapping(each).get("mountPath") != _API_TOKEN]
    return {**container, "volumeMounts": kept}
