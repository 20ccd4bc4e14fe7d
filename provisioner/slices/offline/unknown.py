"""Finds pods in objects of kinds that `plan` does not know, such as those of KServe, Argo and runner sets. Pure.

Not handled: slices of several hosts, because only the controller of the kind determines which pods are one slice.
"""

from collections.abc import Iterator
from typing import Any

from provisioner import constants
from provisioner.kube import fields
from provisioner.slices.offline import controllers
from provisioner.slices.offline.documents import Document, Path, mappings_in, value_at
from provisioner.slices.offline.expand import Template
from provisioner.workloads.plain import hosts_of

#: Fields of a pod's spec that some kinds have outside the pod template.
_INHERITED = ("affinity", "nodeSelector", "tolerations")
_TEMPLATE = Template(path=("spec", "template"), pods_path=("spec",), replicas_path=("spec",), indexed=False)


def chips_in(document: Document) -> Iterator[Path]:
    """Yield the paths of the fields with which an object of any kind requests chips."""
    for path, mapping in mappings_in(document.value):
        if mapping.get(constants.TPU_RESOURCE) not in (None, 0, "0") and path[-1:] in (("requests",), ("limits",)):
            yield (*path, constants.TPU_RESOURCE)
        # This field of a KubeAI Model names an entry of KubeAI's configuration, which requests the chips.
        if "tpu" in fields.text(mapping.get("resourceProfile")):
            yield (*path, "resourceProfile")


def parts_of(document: Document, created: dict[str, Any]) -> list[tuple[Document, Template]]:
    """Return a document for each pod template with chips. Each has its template at spec.template, like a Deployment.

    Return an empty list if any of these pods is invalid, has no chips, selects no accelerator, or needs several hosts.
    """
    parts: dict[Path, tuple[Document, Template]] = {}
    for path in chips_in(document):
        container = path[:-3]
        # Most kinds have a list of containers; KServe (`model`) and Argo (`container`) have a single object.
        listed = container[-2:-1] in (("containers",), ("initContainers",))
        holder = container[: -2 if listed else -1]
        if holder in parts:
            continue
        part, template = parts[holder] = _part(document, created, holder, len(parts))
        if not listed:
            part.raw["spec"]["template"]["spec"]["containers"] = [value_at(document.value, container)]
        try:
            pods = list(controllers.pods_of(part.raw, template, limit=1, serve_pods="all"))
        except fields.MalformedObject:
            return []
        demand = next((pod.requirements for pod in pods), None)
        if demand is None or constants.TPU_ACCELERATOR not in demand.node_selector or hosts_of(demand) > 1:
            return []
    return list(parts.values())


def _part(document: Document, created: dict[str, Any], holder: Path, place: int) -> tuple[Document, Template]:
    around = [fields.mapping(value_at(document.value, holder[:end])) for end in range(len(holder) + 1)]
    spec = {key: level[key] for level in around for key in _INHERITED if key in level} | around[-1]
    pods = next((level[key] for level in reversed(around) for key in ("replicas", "minReplicas") if level.get(key)), 1)
    marks = around[-2 if holder[-1:] == ("spec",) else -1].get("metadata")
    metadata = {**created["metadata"], "uid": f"{created['metadata']['uid']}-{place}"}
    raw = {**created, "metadata": metadata, "spec": {"template": {"metadata": marks, "spec": spec}}}
    part = Document(raw, document.source, lambda path: document.line_of((*holder, *path[3:])))
    return part, _TEMPLATE._replace(replicas=fields.count(pods) or 1)
