"""Finds managed instance groups with this cluster's mark and no object, as a restore of etcd may leave them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import Manager, Scope
from provisioner.nodegroups.planning.actions import ListManagers, Target
from provisioner.nodegroups.planning.memory import READ, ResourceMemory
from provisioner.nodegroups.planning.round import Round, Step, later, merged, want

#: Interval in seconds between lists of a project.
_INTERVAL_SECONDS = 3600.0
#: Maximum age in seconds of a list that is used. Groups in an older list may have been deleted with their objects.
_MAX_AGE_SECONDS = 60.0


def known(round_: Round) -> Mapping[Target, ResourceMemory]:
    """Return the memory of each project in which resources may be created."""
    kind = Kind.MANAGED_INSTANCE_GROUP
    scopes = [Scope(project=project) for project in round_.projects]
    targets = [Target(uid=f"project {each.project}", namespace="", kind=kind, scope=each, name="") for each in scopes]
    return {target: round_.memory.resources.get(target.uid, ResourceMemory()) for target in targets}


def look(projects: Mapping[Target, ResourceMemory], round_: Round) -> Step:
    """Return a step that lists the managed instance groups of each project when it is due."""
    began_at, steps = round_.memory.began_at, []
    for target, project in projects.items():
        reading = project.reading
        due_at = began_at if reading is None else later(reading.asked_at, _INTERVAL_SECONDS, target.uid)
        steps.append(want(project, READ, ListManagers(target=target), due_at, round_))
    return merged(steps)


def find(projects: Mapping[Target, ResourceMemory], round_: Round) -> tuple[Manager, ...] | None:
    """Return managed instance groups with this cluster's mark and no object. None if no list is new enough."""
    readings = [each.reading for each in projects.values() if each.reading is not None]
    fresh = [each for each in readings if (round_.now - each.asked_at).total_seconds() < _MAX_AGE_SECONDS]
    own = {child.meta.name for child in round_.snapshot.managers} | {name for _, name in round_.parents}
    managers = [manager for reading in fresh for manager in reading.managers if manager.name not in own]
    marked = [(manager, names.parse_mark(manager.description)) for manager in managers]
    cluster = round_.snapshot.cluster.uid
    return tuple(manager for manager, mark in marked if mark and mark.cluster_uid == cluster) if fresh else None
