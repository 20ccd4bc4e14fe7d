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
    own = names.mark_of(child.meta, kind, round_.snapshot.cluster.uid)
    mark = names.parse_mark(resource.description)
    if mark == own:
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


def squats(kind: Kind, child: Child, round_: Round) -> Refusal | None:
    """Refuse what has the name of the child of a group that it does not belong to: the group's could not be made."""
    name = child.meta.name
    if round_.parent_of(child.meta, kind) is not None:
        return None
    for group in round_.groups.values():
        # Hashes are for names that may match.
        if name.startswith(f"{group.meta.name}-") and name == names.child_name(group.meta, kind):
            return invalid(f"the name {name} is that of the {kind} of TPUNodeGroup {group.meta}")
    return None
