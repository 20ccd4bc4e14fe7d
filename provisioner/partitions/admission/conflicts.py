"""What in a pod is against giving it IPUs, as sentences for whoever wrote it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.partitions.admission.injection import INIT_CONTAINER, Mode, Settings, mounts_of

_DAEMON_SET = "DaemonSet"
#: With these the cluster's DNS is not asked, unless dnsConfig names it.
_OTHER_DNS = ("Default", "None")


def conflicts(raw: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield why a pod cannot get its partition as it is."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    containers = sum(len(fields.sequence(spec.get(part))) for part in ("initContainers", "containers"))
    if containers > bounds.IPU_CONTAINERS:
        yield f"it {bounds.too_many('containers', containers, bounds.IPU_CONTAINERS)}."
    if node := fields.text(spec.get("nodeName")):
        yield (
            f"spec.nodeName is {bounds.quoted(node)}, so nothing can hold the pod back until its partition is there; "
            "select the node by nodeSelector or node affinity instead."
        )
    if any(each.get("kind") == _DAEMON_SET for each in fields.mappings(metadata.get("ownerReferences"))):
        yield (
            "it is of a DaemonSet, and the nodes of its pods are chosen before their partitions are; use a Job, a "
            "StatefulSet or a Deployment."
        )
    if fields.mapping(spec.get("os")).get("name") == "windows":
        yield "spec.os.name is windows; IPUs are used on Linux."
    for place, container in enumerate(fields.mappings(spec.get("containers"))):
        if container.get("name") == INIT_CONTAINER:
            yield f"spec.containers[{place}] has the name of the init container, {INIT_CONTAINER}; call it otherwise."
    yield from _mounts(spec, settings)
    if settings.mode is Mode.COMPATIBLE:
        yield from _of_the_nodes_network(spec)


def doubts(raw: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield what may keep a pod from its partition, and is not against giving it one."""
    policy = fields.mapping(raw.get("spec")).get("dnsPolicy")
    host = urlsplit(settings.api_url).hostname or ""
    if policy in _OTHER_DNS and host.split(".")[2:3] == ["svc"]:
        yield (
            f"with dnsPolicy {policy} the name {host}, where its init container asks for its partition, is found only "
            "where the pod's DNS servers know the cluster's Services; leave dnsPolicy out, or name them in dnsConfig."
        )


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in ("initContainers", "containers"):
        for place, container in enumerate(fields.mappings(spec.get(part))):
            if (part, container.get("name")) != ("initContainers", INIT_CONTAINER):
                yield f"spec.{part}[{place}]", container


def _mounts(spec: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    volumes = {path: name for name, path in mounts_of(settings)}
    for where, container in _containers(spec):
        for mount in fields.mappings(container.get("volumeMounts")):
            path = fields.text(mount.get("mountPath")).rstrip("/")
            if path in volumes and mount.get("name") != volumes[path]:
                yield (
                    f"{where} mounts the volume {bounds.quoted(fields.text(mount.get('name')))} at {path}, where its "
                    "way to the IPUs is mounted; mount it elsewhere."
                )


def _of_the_nodes_network(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what does not go with hostNetwork, which is set."""
    why = "pods with IPUs have the node's network (hostNetwork)"
    if spec.get("hostUsers") is False:
        yield f"spec.hostUsers is false, and {why}; leave it out."
    used: Counter[tuple[str, str, str]] = Counter()
    for where, container in _containers(spec):
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
