"""Derives the names and keys of a workload's groups from its spec, and finds groups by name or key. Pure."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.workloads import GroupKey, Pod, Workload, WorkloadKind, WorkloadUid, group_key

_FullKey = tuple[WorkloadKind, str, GroupKey]


# Slice IDs are tuples, because each decision hashes them tens of thousands of times, and a tuple's hash is fast.
class SliceId(NamedTuple):
    """Identity of a slice. A restart of a JobSet keeps the IDs; a new workload of the same name has other IDs."""

    workload_uid: WorkloadUid
    group_key: GroupKey

    def __str__(self) -> str:
        return f"{self.workload_uid}/{self.group_key}"


@dataclass(slots=True)
class Wanted:
    """Group that has pods, or that a node pool or the planner's memory refers to."""

    #: Name of the group, possibly cut to the length of a label; empty if unknown.
    name: str
    pods: list[Pod] = field(default_factory=list)


class ListedGroup(NamedTuple):
    """Group of a workload. Groups sort in the order of the spec."""

    #: Index of the entry (such as a replicated job) in the spec.
    place: int
    #: Index of this group within the entry or, for kind POD, within the workload.
    number: int
    key: GroupKey
    name: str


def listed_groups(workload: Workload, wanted: Mapping[GroupKey, Wanted]) -> Iterator[ListedGroup]:
    """Yield the groups in `wanted` that the spec allows or, for a workload of kind POD, that have pods."""
    if workload.kind is WorkloadKind.POD:
        places = {group.name: place for place, group in enumerate(workload.groups)}
        names = sorted((entry.name, key) for key, entry in wanted.items() if entry.pods)
        for number, (name, key) in enumerate(names):
            yield ListedGroup(places.get(name, 0), number, key, name)
        return
    groups = {group.name: (place, group) for place, group in enumerate(workload.groups)}
    unnamed: list[GroupKey] = []
    for key, entry in wanted.items():
        if group_key(workload.namespace, entry.name) != key:
            # The name is unknown or incomplete: a label has only the beginning of a long name.
            unnamed.append(key)
            continue
        name, index = parts_of_group(workload.name, entry.name)
        if index is None or name not in groups:
            continue
        place, group = groups[name]
        max_index = group.replicas + (group.surge if entry.pods else 0)
        # The name must be spelled as the controller spells it: "07" is not an index.
        if index < max_index and entry.name == name_of_group(workload.name, name, index, numbered=group.numbered):
            yield ListedGroup(place, index, key, entry.name)
    if unnamed:
        by_key = _find_groups(workload, set(unnamed))
        yield from (by_key[key] for key in unnamed if key in by_key)


def slices_by_key(workloads: Iterable[Workload], keys: Iterable[_FullKey]) -> dict[_FullKey, SliceId]:
    """Return the slices with one of the `keys`, which are kind, namespace and key of the group.

    At most CHILD_JOBS names are tried in each namespace. Names of suspended, ended and large workloads are tried last.
    """
    slices: dict[_FullKey, SliceId] = {}
    missing: dict[tuple[WorkloadKind, str], set[GroupKey]] = defaultdict(set)
    for kind, namespace, key in keys:
        missing[kind, namespace].add(key)
    untried = {namespace: bounds.CHILD_JOBS for _, namespace in missing}
    candidates = (workload for workload in workloads if (workload.kind, workload.namespace) in missing)
    sizes = ((sum(group.replicas for group in workload.groups), workload) for workload in candidates)
    for size, workload in sorted(sizes, key=lambda item: (not item[1].lives, item[0])):
        kind, namespace = workload.kind, workload.namespace
        if (wanted := missing[kind, namespace]) and untried[namespace]:
            for key in _find_groups(workload, wanted, untried[namespace]):
                slices[kind, namespace, key] = SliceId(workload.uid, key)
                wanted.remove(key)
            untried[namespace] = max(0, untried[namespace] - size)
    return slices


def _find_groups(
    workload: Workload, keys: AbstractSet[GroupKey], max_names: int = bounds.CHILD_JOBS
) -> dict[GroupKey, ListedGroup]:
    """Return the groups with one of the `keys`, which are hashes of names: names are hashed until all are found."""
    with_chips_first = sorted(enumerate(workload.groups), key=lambda item: item[1].template.chips == 0)
    names = (
        (place, index, name_of_group(workload.name, group.name, index, numbered=group.numbered))
        for place, group in with_chips_first
        for index in range(group.replicas)
    )
    groups: dict[GroupKey, ListedGroup] = {}
    for place, index, name in itertools.islice(names, max_names):
        key = group_key(workload.namespace, name)
        if key in keys:
            groups[key] = ListedGroup(place, index, key, name)
            if len(groups) == len(keys):
                break
    return groups


@lru_cache(maxsize=16384)
def parts_of_group(workload_name: str, group_name: str) -> tuple[str, int | None]:
    """Split the name of a group into the name of the entry in the spec and the index (None if missing)."""
    if group_name == workload_name:
        return "", 0
    name, _, digits = group_name.removeprefix(f"{workload_name}-").rpartition("-")
    return name, fields.index(digits)


def representatives(workload: Workload, keys: Collection[GroupKey]) -> Iterator[ListedGroup]:
    """Yield the first group not in `keys` of each entry with chips; nothing for kind POD or if `problem` is set."""
    for place, group in enumerate(workload.groups if workload.kind is not WorkloadKind.POD else ()):
        if group.template.chips == 0 or workload.problem:
            continue
        for index in range(group.replicas):
            name = name_of_group(workload.name, group.name, index, numbered=group.numbered)
            key = group_key(workload.namespace, name)
            if key not in keys:
                yield ListedGroup(place, index, key, name)
                break


def name_of_group(workload_name: str, group: str, index: int, *, numbered: bool) -> str:
    """Return the name of a group, given the name of its entry in the workload's spec (`group`) and its index."""
    if not numbered:
        return workload_name
    return f"{workload_name}-{group}-{index}" if group else f"{workload_name}-{index}"
