"""Whose a resource is, and which names are whose: what people may write into their objects decides neither."""

from __future__ import annotations

from dataclasses import replace

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Child, Kind
from provisioner.nodegroups.planning.calls import Resource
from provisioner.nodegroups.planning.refusal import Refusal, invalid
from provisioner.nodegroups.planning.round import Round


def is_ours(child: Child, kind: Kind, resource: Resource, round_: Round) -> bool:
    """Whether a resource was made for this object, or may be taken for it because its user says so."""
    own, mark = mark_for(child, kind, round_), names.parse_mark(resource.description)
    if mark is not None and (mark == own or _has_name_of(child, kind, mark, own.cluster_uid)):
        return True
    group = round_.parent_of(child.meta, kind)
    metas = (child.meta,) if group is None else (child.meta, group.meta)
    if all(meta.annotations.get(names.ADOPT) != "true" for meta in metas):
        return False
    if mark is None:
        # Only under a name that nobody can choose: else an object by hand could take, and delete, what others made.
        return group is not None
    # What carries the mark of something else is never taken; an earlier object of the same name is gone.
    return replace(mark, uid=own.uid) == own


def mark_for(child: Child, kind: Kind, round_: Round) -> names.Mark:
    """Return the mark of resources that are made for a child: its group's where it has one."""
    group = round_.parent_of(child.meta, kind)
    cluster = round_.snapshot.cluster.uid
    if group is None:
        return names.mark_of(child.meta, kind, cluster)
    return names.mark_of(group.meta, Kind.TPU_NODE_GROUP, cluster)


def _has_name_of(child: Child, kind: Kind, mark: names.Mark, cluster_uid: str) -> bool:
    """Whether a child has the name of that of the group in a mark, which may be gone."""
    of_group = (mark.kind, mark.namespace, mark.cluster_uid) == (
        Kind.TPU_NODE_GROUP,
        child.meta.namespace,
        cluster_uid,
    )
    return of_group and child.meta.name == names.child_name(mark, kind)


def squats(kind: Kind, child: Child, round_: Round) -> Refusal | None:
    """Refuse what has the name of the child of a group of another namespace: the group's could not be made."""
    group = round_.parents.get((kind, child.meta.name))
    if group is None or group.meta.namespace == child.meta.namespace:
        return None
    return invalid(f"the name {child.meta.name} is that of the {kind} of TPUNodeGroup {group.meta}")
