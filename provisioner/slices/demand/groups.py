"""Which groups of pods a workload's spec lists: child Jobs of a JobSet, groups of a LeaderWorkerSet, a Job itself.

Pods, pools and the memory name groups, or have their keys alone. Whatever they say, only a group that the spec lists is
one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from provisioner.model import bounds
from provisioner.model.workloads import GroupKey, Pod, Workload, group_key

#: Of an index: counts are int32 in the API.
_MOST_DIGITS = 10


@dataclass(slots=True)
class Wanted:
    """A group of which something is there: pods, or a pool or the memory that refers to it."""

    #: Empty where nothing tells it.
    name: str
    pods: list[Pod] = field(default_factory=list)


class ListedGroup(NamedTuple):
    """One group that a workload's spec lists; they sort as they are listed there."""

    #: Of the pod group in the spec, and of the group among those that come from it.
    place: int
    number: int
    key: GroupKey
    name: str


def listed_groups(workload: Workload, wanted: Mapping[GroupKey, Wanted]) -> Iterator[ListedGroup]:
    """Yield those of the wanted groups that the spec lists."""
    places = {group.name: place for place, group in enumerate(workload.groups)}
    unnamed: list[GroupKey] = []
    for key, each in wanted.items():
        if group_key(workload.namespace, each.name) != key:
            # Nothing tells its name, or a label has only the beginning of it.
            unnamed.append(key)
            continue
        name, index = _parts(workload.name, each.name)
        place = places.get(name, -1)
        group = workload.groups[place] if place >= 0 else None
        most = group.replicas + (group.surge if each.pods else 0) if group is not None else 0
        if group is None or not 0 <= index < most:
            continue
        # What is taken apart has to come out the same again: "07" is no index.
        if each.name == _name_of(workload.name, group.name, index, numbered=group.numbered):
            yield ListedGroup(place, index, key, each.name)
    if unnamed:
        listed = tuple(
            _Listed(group.name, group.numbered, group.replicas, group.template.chips > 0) for group in workload.groups
        )
        by_key = _groups_by_key(workload.namespace, workload.name, listed)
        for key in unnamed:
            if key in by_key:
                group_name, index, name = by_key[key]
                yield ListedGroup(places[group_name], index, key, name)


@lru_cache(maxsize=16384)
def _parts(workload_name: str, group_name: str) -> tuple[str, int]:
    """Take the name of a group apart: the name in the spec, and the index; -1 for a text of another form."""
    if group_name == workload_name:
        return "", 0
    name, _, digits = group_name.removeprefix(f"{workload_name}-").rpartition("-")
    return name, int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else -1


class _Listed(NamedTuple):
    """What the names of groups depend on, of one entry of a workload's spec."""

    name: str
    numbered: bool
    replicas: int
    with_chips: bool


@lru_cache(maxsize=128)
def _groups_by_key(
    namespace: str, workload_name: str, listed: tuple[_Listed, ...]
) -> Mapping[GroupKey, tuple[str, int, str]]:
    """Index groups by their keys, those with chips first, no more than a workload may have with chips.

    Each has the name of its entry in the spec, its index, and its own name.

    Needed only for what names no group: what the memory holds of slices without pods, and pools with long names.
    """
    by_chips = sorted(listed, key=lambda each: not each.with_chips)
    groups = (
        (each.name, index, _name_of(workload_name, each.name, index, numbered=each.numbered))
        for each in by_chips
        for index in range(each.replicas)
    )
    return {group_key(namespace, each[2]): each for each in itertools.islice(groups, bounds.CHILD_JOBS)}


def representatives(workload: Workload, found: Collection[GroupKey]) -> Iterator[ListedGroup]:
    """Yield of each entry of the spec that has chips the first group that is not among those found already."""
    for place, group in enumerate(workload.groups):
        if group.template.chips == 0 or workload.problem:
            continue
        for index in range(group.replicas):
            name = _name_of(workload.name, group.name, index, numbered=group.numbered)
            key = group_key(workload.namespace, name)
            if key not in found:
                yield ListedGroup(place, index, key, name)
                break


def _name_of(workload_name: str, group: str, index: int, *, numbered: bool) -> str:
    if not numbered:
        return workload_name
    return f"{workload_name}-{group}-{index}" if group else f"{workload_name}-{index}"
