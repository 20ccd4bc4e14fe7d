"""Finds managed instance groups that this cluster created and that have no object, as after a restore. Pure."""

from collections.abc import Mapping

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import Manager, Scope
from provisioner.nodegroups.planning.actions import ListManagers, Target
from provisioner.nodegroups.planning.memory import READ, Reading, ResourceMemory
from provisioner.nodegroups.planning.round import Round, Step, later, merged, want

_INTERVAL_SECONDS = 3600.0
#: Seconds until a second list, to confirm that a managed instance group has no Kubernetes object.
_CONFIRM_SECONDS = 300.0
#: Maximum age in seconds of a list that `find` uses. Groups in an older list may have been deleted.
_MAX_AGE_SECONDS = 60.0


def known(ctx: Round) -> Mapping[Target, ResourceMemory]:
    """Return the memory of each project in which resources may be created."""
    kind = Kind.MANAGED_INSTANCE_GROUP
    scopes = [Scope(project=project) for project in ctx.projects]
    targets = [
        Target(uid=f"project {scope.project}", namespace="", kind=kind, scope=scope, name="") for scope in scopes
    ]
    return {target: ctx.memory.resources.get(target.uid, ResourceMemory()) for target in targets}


def look(projects: Mapping[Target, ResourceMemory], ctx: Round) -> Step:
    """Return a step that lists the managed instance groups of all projects whose lists are due."""
    steps, own = [], _own(ctx)
    for target, project in projects.items():
        reading, due_at = project.reading, ctx.memory.began_at
        if reading is not None:
            is_sure = all(manager.name in reading.repeated for manager in _marked(reading, ctx))
            seconds = _INTERVAL_SECONDS if is_sure else _CONFIRM_SECONDS
            due_at = later(reading.asked_at, seconds, target.uid)
        steps.append(want(project, READ, ListManagers(target=target, own=own), due_at, ctx))
    return merged(steps)


def find(projects: Mapping[Target, ResourceMemory], ctx: Round) -> Mapping[str, tuple[Manager, ...]]:
    """Return the groups of recently listed projects that are in the last two lists and have no object, by project."""
    groups, own = {}, _own(ctx)
    for target, project in projects.items():
        reading = project.reading
        if reading is not None and (ctx.now - reading.asked_at).total_seconds() < _MAX_AGE_SECONDS:
            sure = reading.repeated - own
            groups[target.scope.project] = tuple(manager for manager in _marked(reading, ctx) if manager.name in sure)
    return groups


def _own(ctx: Round) -> frozenset[str]:
    return frozenset(child.meta.name for child in ctx.snapshot.managers) | {name for _, name in ctx.parents}


def _marked(reading: Reading, ctx: Round) -> tuple[Manager, ...]:
    marks = ((manager, names.parse_mark(manager.description)) for manager in reading.managers)
    cluster = ctx.snapshot.cluster.uid
    return tuple(manager for manager, mark in marks if mark is not None and mark.cluster_uid == cluster)
