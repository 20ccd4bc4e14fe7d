"""Decides which resources an object owns, and which it may use. A refusal becomes the condition Ready. Pure.

The ownership mark decides, so that users cannot claim resources of other namespaces by their names. With the annotation
`adopt`, an object takes over the resource of a deleted object of its name. The child of a group then also takes over a
resource without a mark.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from provisioner.model import bounds
from provisioner.model.choices import PROJECT, ZONE
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.statuses import Condition, Reason, not_ready
from provisioner.nodegroups.api.types import Child, Kind, ManagedInstanceGroup, ObjectMeta, WorkloadPolicy
from provisioner.nodegroups.compute.records import REGION, Resource
from provisioner.nodegroups.planning.round import Round

_PUBLIC_IMAGES = frozenset(
    {"cos-cloud", "debian-cloud", "deeplearning-platform-release", "ubuntu-os-accelerator-images", "ubuntu-os-cloud"}
)
#: Kind of the resource whose address a field contains, by field.
_KIND_OF_FIELD = {
    "instanceTemplate": Kind.INSTANCE_TEMPLATE,
    "instanceTemplateURI": Kind.INSTANCE_TEMPLATE,
    "workloadPolicy": Kind.WORKLOAD_POLICY,
}
_NAMED_PROJECT = re.compile(r"projects/([^/]*)", re.IGNORECASE)


def is_ours(child: Child, resource: Resource, ctx: Round) -> bool:
    """Return whether a resource was created for this object, or is taken over because of the annotation `adopt`."""
    own, mark = mark_for(child, ctx), names.parse_mark(resource.description)
    # If the caches did not show the group when the resource was created, the mark names the child instead.
    marks = (own, names.mark_of(child.meta, child.kind, own.cluster_uid))
    if mark is not None and (mark in marks or _has_name_of(child, mark, own.cluster_uid)):
        return True
    group = ctx.parent_of(child)
    metas = (child.meta,) if group is None else (child.meta, group.meta)
    if all(meta.annotations.get(names.ADOPT) != "true" for meta in metas):
        return False
    if mark is None:
        # Without a group, users choose the child's name, and could so take over and delete any unmarked resource.
        return group is not None
    # A mark that differs only in the UID also counts: it names a deleted object of this cluster with the same name.
    return replace(mark, uid=own.uid) == own


def mark_for(child: Child, ctx: Round) -> names.Mark:
    """Return the ownership mark for a child's resource. The mark names the group or, without a group, the child."""
    group = ctx.parent_of(child)
    cluster = ctx.snapshot.cluster.uid
    if group is None:
        return names.mark_of(child.meta, child.kind, cluster)
    return names.mark_of(group.meta, Kind.TPU_NODE_GROUP, cluster)


def _has_name_of(child: Child, mark: names.Mark, cluster_uid: str) -> bool:
    """Return whether a mark is that of a group (existing or deleted) whose child has the kind and name of `child`."""
    of_group = (mark.kind, mark.namespace, mark.cluster_uid) == (Kind.TPU_NODE_GROUP, child.meta.namespace, cluster_uid)
    return of_group and child.meta.name == names.child_name(mark, child.kind)


def squats(child: Child, ctx: Round) -> Condition | None:
    """Return a refusal if the child of a group in another namespace needs the name of this child."""
    group = ctx.parents.get((child.kind, child.meta.name))
    if group is None or group.meta.namespace == child.meta.namespace:
        return None
    return invalid(f"the name {child.meta.name} belongs to the {child.kind} of TPUNodeGroup {group.meta}")


def not_served(child: Child, ctx: Round) -> Condition | None:
    """Return a refusal if the name, location, project or namespace of a child is invalid or not allowed."""
    problem = names.resource_name_problem(child.meta.name)
    if not problem and isinstance(child, WorkloadPolicy) and not REGION.fullmatch(child.spec.region):
        problem = f"region {bounds.quoted(child.spec.region)} is not a region such as us-east5"
    if not problem and isinstance(child, ManagedInstanceGroup) and not ZONE.fullmatch(child.spec.location):
        problem = f"location {bounds.quoted(child.spec.location)} is not a zone such as us-east5-b"
    return invalid(problem) if problem else not_allowed(child.meta, child.spec.project, ctx)


def not_allowed(meta: ObjectMeta, project: str, ctx: Round) -> Condition | None:
    """Return a refusal if the settings do not allow the namespace or the project, or the project id is invalid."""
    namespaces, projects = ctx.settings.served_namespaces, ctx.projects
    if namespaces and meta.namespace not in namespaces:
        message = f"namespace {meta.namespace} is not among those that are served; see the setting SERVED_NAMESPACES"
        return not_ready(Reason.NOT_ALLOWED, message)
    if not PROJECT.fullmatch(project):
        return invalid(f"project {bounds.quoted(project)} is not a project id")
    if project not in projects:
        message = (
            f"project {bounds.quoted(project)} is not among those in which resources may be created; "
            "see the setting ALLOWED_PROJECTS"
        )
        return not_ready(Reason.NOT_ALLOWED, message)
    return None


def names_others(namespace: str, addresses: Mapping[str, str], ctx: Round) -> Condition | None:
    """Return a refusal if an address names a forbidden project, or a resource of a group in another namespace."""
    for field, address in addresses.items():
        group = ctx.parents.get((_KIND_OF_FIELD.get(field, Kind.TPU_NODE_GROUP), address.rpartition("/")[2]))
        if group is not None and group.meta.namespace != namespace:
            # Compute Engine does not delete a resource in use, so the other group could not be deleted.
            message = f"{field} {bounds.quoted(address)} belongs to TPUNodeGroup {group.meta} of another namespace"
            return not_ready(Reason.NOT_ALLOWED, message)
        for project in _NAMED_PROJECT.findall(address):
            if project not in ctx.projects and not (field == "image" and project in _PUBLIC_IMAGES):
                message = (
                    f"{field} {bounds.quoted(address)} is of project {bounds.quoted(project)}, which is not among "
                    "those that may be used; see the setting ALLOWED_PROJECTS"
                )
                return not_ready(Reason.NOT_ALLOWED, message)
    return None


def invalid(problem: str) -> Condition:
    """Return the condition of an object whose spec is invalid."""
    return not_ready(Reason.INVALID_SPEC, problem)
