"""Why an object is not served at all: nothing is asked of Compute Engine for it then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.model import bounds
from provisioner.model.choices import PROJECT
from provisioner.nodegroups.api.conditions import Reason
from provisioner.nodegroups.api.types import Kind, ObjectMeta
from provisioner.nodegroups.planning.round import Round

#: Google's images for everybody.
_PUBLIC_IMAGES = frozenset(
    {"cos-cloud", "debian-cloud", "deeplearning-platform-release", "ubuntu-os-accelerator-images", "ubuntu-os-cloud"}
)
#: Fields whose addresses may be of resources that groups have.
_KINDS = {
    "instanceTemplate": Kind.INSTANCE_TEMPLATE,
    "instanceTemplateURI": Kind.INSTANCE_TEMPLATE,
    "workloadPolicy": Kind.WORKLOAD_POLICY,
}
_NAMED_PROJECT = re.compile(r"projects/([^/]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason and words."""

    reason: Reason
    message: str


def not_allowed(meta: ObjectMeta, project: str, round_: Round) -> Refusal | None:
    """Say why nothing may be made in a project for an object of this namespace; None where it may."""
    namespaces, projects = round_.settings.namespaces, round_.projects
    if namespaces and meta.namespace not in namespaces:
        message = f"namespace {meta.namespace} is not among those that are served; see the setting SERVED_NAMESPACES"
        return Refusal(reason=Reason.NOT_ALLOWED, message=message)
    if not PROJECT.fullmatch(project):
        return invalid(f"project {bounds.quoted(project)} is not a project id")
    if project not in projects:
        message = (
            f"project {bounds.quoted(project)} is not among those in which resources may be made; "
            "see the setting ALLOWED_PROJECTS"
        )
        return Refusal(reason=Reason.NOT_ALLOWED, message=message)
    return None


def names_others(namespace: str, addresses: Mapping[str, str], round_: Round) -> Refusal | None:
    """Say which address, by its field, is of a project that may not be used, or of a group of another namespace.

    Compute Engine does not delete what something uses: whoever uses a group's template keeps the group.
    """
    for field, address in addresses.items():
        group = round_.parents.get((_KINDS.get(field, Kind.TPU_NODE_GROUP), address.rpartition("/")[2]))
        if group is not None and group.meta.namespace != namespace:
            message = f"{field} {bounds.quoted(address)} is of TPUNodeGroup {group.meta}, which is of another namespace"
            return Refusal(reason=Reason.NOT_ALLOWED, message=message)
        for project in _NAMED_PROJECT.findall(address):
            if project not in round_.projects and not (field == "image" and project in _PUBLIC_IMAGES):
                message = (
                    f"{field} {bounds.quoted(address)} is of project {bounds.quoted(project)}, which is not among "
                    "those that may be used; see the setting ALLOWED_PROJECTS"
                )
                return Refusal(reason=Reason.NOT_ALLOWED, message=message)
    return None


def invalid(problem: str) -> Refusal:
    """Return the refusal of an object that cannot be served as it is written."""
    return Refusal(reason=Reason.INVALID_SPEC, message=problem)
