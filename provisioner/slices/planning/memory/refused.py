"""Finds slices whose pods were refused: the scheduler bound none of them to a ready pool. Pure.

A refusal also concerns pods with equal requirements that replace the pods of the slice, such as pods of the next Job of
a CronJob. Pods of one workload are usually alike, so after the back-off only one slice is tried, with the slices that
can run only together with it. The others wait until the scheduler binds a pod of a refused slice, or for a day.
"""

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace

from provisioner.model.workloads import Term, Toleration, WorkloadKind
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.memory.backoff import OTHERS_WAIT
from provisioner.slices.planning.memory.state import Backoff, Memory, Refusals, RefusedPods
from provisioner.slices.planning.spec.specification import starts_together

#: Scheduled time in minutes since 1970, from 2025 on, which CronJobs append to the names of their Jobs.
_TIME = re.compile(r"-(29|[3-9]\d)\d{6}$")
#: Kinds whose pods may be replaced by pods of another group, such as the pods of the next Job of a CronJob.
_REPLACED = (WorkloadKind.POD, WorkloadKind.JOB)


def key_of(slice_: Slice) -> RefusedPods:
    """Return the key of a slice's pods. Volumes are left out: while they cannot be read, their zones are unknown."""
    demand = slice_.requirements
    requested = demand.chips, demand.cpu_millicores, demand.memory_bytes, demand.other_bytes
    selector = frozenset(demand.node_selector.items())
    digest = _digest_of(selector, demand.affinity_terms, demand.tolerations, requested)
    group = "" if slice_.workload.kind in _REPLACED else slice_.id.group_key
    return RefusedPods(*_family_of(slice_), group, digest)


# A decision may need the keys of thousands of slices, whose pods may be equal and have large affinities.
@functools.lru_cache(maxsize=64)
def _digest_of(
    selector: frozenset[tuple[str, str]],
    terms: tuple[Term, ...],
    tolerations: tuple[Toleration, ...],
    requested: Hashable,
) -> str:
    selected = sorted(selector), terms, tolerations
    return hashlib.sha256(repr((selected, requested)).encode()).hexdigest()[:16]


def _family_of(slice_: Slice) -> tuple[str, str]:
    workload = slice_.workload
    stem = _TIME.sub("", workload.owner_name) if workload.owner_kind == "Job" else workload.owner_name
    return workload.namespace, stem if stem != workload.owner_name else workload.uid


def refusals_of(slices: Iterable[Slice], refusals: Refusals) -> Iterator[tuple[Slice, RefusedPods, Backoff]]:
    """Yield each slice whose pods have the key of a refusal, with this key and its back-off."""
    families = {key.family for key in refusals}
    for slice_ in slices if families else ():
        if _family_of(slice_) in families and (last := refusals.get(key := key_of(slice_))):
            yield slice_, key, last


def find_refused(slices: Iterable[Slice], memory: Memory, settings: Settings) -> dict[SliceId, Backoff]:
    """Return the back-offs of the slices whose pods were refused and that have no bound leader pod."""
    unbound = (slice_ for slice_ in slices if slice_.leader is None or not slice_.leader.node_name)
    refused: dict[tuple[str, str], list[tuple[Slice, Backoff]]] = defaultdict(list)
    for slice_, key, last in refusals_of(unbound, memory.refusals):
        refused[key.family].append((slice_, last))
    backoffs: dict[SliceId, Backoff] = {}
    for siblings in refused.values():
        # Among pending slices, a slice that already counts on a pool is tried first.
        first = min(
            (slice_ for slice_, _ in siblings),
            key=lambda slice_: (not slice_.pending, memory.slice(slice_.id).claim is None, slice_.id),
        )
        for slice_, last in siblings:
            is_tried = _group_of(slice_, settings) == _group_of(first, settings)
            backoffs[slice_.id] = last if is_tried else replace(last, until=last.until + OTHERS_WAIT)
    return backoffs


def _group_of(slice_: Slice, settings: Settings) -> Hashable:
    """Return the same value for slices that can run only together."""
    return slice_.workload.uid if starts_together(slice_, settings) else slice_.gang or slice_.id
