"""Whose a node pool is: the labels that say so, written and read in one place, and the name.

Pools of JobSets carry the labels of the Go provisioner and ours beside them. Pools of other kinds carry none of those:
a release that knows JobSets alone would take their workload for gone.

Names are the same for every supplier. GKE takes at most 40 characters, `[a-z]([-a-z0-9]*[a-z0-9])?`; a TPUNodeGroup may
have some more. A JobSet's name is cut to leave room for a hash over (JobSet UID, job key, attempt). Shape and zone are
not in it: a fallback, and two leaders that overlap, collide on one name, and "already exists" means: adopt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from provisioner import constants
from provisioner.model.capacity import NodePool, PoolName
from provisioner.model.workloads import GroupKey, WorkloadKind, WorkloadName, WorkloadUid
from provisioner.slices.demand import Slice
from provisioner.slices.demand.slices import SliceId

_MAX_LABEL_VALUE = 63
_KINDS = {each.value: each for each in WorkloadKind}


_MAX_LENGTH = 40
_HASH_DIGITS = 10
_PREFIX_LENGTH = _MAX_LENGTH - _HASH_DIGITS - 1


@lru_cache(maxsize=65536)
def pool_name(workload_name: str, slice_id: SliceId, attempt: int) -> PoolName:
    """Return the name of the pool for one attempt of a slice: equal inputs, equal name."""
    seed = f"{slice_id.workload_uid}/{slice_id.group_key}/{attempt}"
    digest = hashlib.sha256(seed.encode()).hexdigest()[:_HASH_DIGITS]
    readable = re.sub(r"[^a-z0-9]+", "-", workload_name.lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"js-{readable}"
    return PoolName(f"{readable[:_PREFIX_LENGTH].rstrip('-')}-{digest}")


class Ownership(NamedTuple):
    """What the labels of a pool of ours say; empty where they do not say it."""

    workload: WorkloadName
    workload_uid: WorkloadUid
    group_key: GroupKey
    #: Cut to what a label holds.
    group_name: str


def owner_labels(slice_: Slice) -> dict[str, str]:
    """Return the labels of a pool that is created for a slice."""
    workload = slice_.workload
    if workload.kind is WorkloadKind.JOBSET:
        return {
            constants.NODEPOOL_MANAGER: constants.MANAGER,
            constants.PARENT_KIND: "job",
            constants.PARENT_NAME: _label_value(slice_.group_name),
            constants.PARENT_NAMESPACE: workload.namespace,
            constants.POOL_JOBSET_NAME: _label_value(workload.name),
            constants.POOL_JOBSET_NAMESPACE: workload.namespace,
            constants.POOL_JOBSET_UID: workload.uid,
            constants.POOL_JOB_KEY: slice_.id.group_key,
        }
    return {
        constants.NODEPOOL_MANAGER: constants.MANAGER,
        constants.POOL_WORKLOAD_KIND: workload.kind.value,
        constants.POOL_WORKLOAD_NAME: _label_value(workload.name),
        constants.POOL_WORKLOAD_NAMESPACE: workload.namespace,
        constants.POOL_WORKLOAD_UID: workload.uid,
        constants.POOL_GROUP_NAME: _label_value(slice_.group_name),
        constants.POOL_GROUP_KEY: slice_.id.group_key,
    }


def read_ownership(labels: Mapping[str, str]) -> Ownership | None:
    """Read whose a pool is; None for one that is not ours: such a pool is never touched."""
    if labels.get(constants.NODEPOOL_MANAGER) != constants.MANAGER:
        return None
    kind = _KINDS.get(labels.get(constants.POOL_WORKLOAD_KIND, ""))
    if kind is not None and labels.get(constants.POOL_WORKLOAD_NAME):
        return Ownership(
            WorkloadName(kind, labels.get(constants.POOL_WORKLOAD_NAMESPACE, ""), labels[constants.POOL_WORKLOAD_NAME]),
            WorkloadUid(labels.get(constants.POOL_WORKLOAD_UID, "")),
            GroupKey(labels.get(constants.POOL_GROUP_KEY, "")),
            labels.get(constants.POOL_GROUP_NAME, ""),
        )
    name = _jobset_of(labels)
    if not name:
        return None
    namespace = labels.get(constants.POOL_JOBSET_NAMESPACE) or labels.get(constants.PARENT_NAMESPACE, "")
    return Ownership(
        WorkloadName(WorkloadKind.JOBSET, namespace, name),
        WorkloadUid(labels.get(constants.POOL_JOBSET_UID, "")),
        GroupKey(labels.get(constants.POOL_JOB_KEY, "")),
        labels.get(constants.PARENT_NAME, ""),
    )


def is_ours(pool: NodePool) -> bool:
    """Whether the provisioner, or the Go provisioner, created the pool."""
    return read_ownership(pool.labels) is not None


def _jobset_of(labels: Mapping[str, str]) -> str:
    """Return the JobSet's name on a pool; releases of the Go provisioner before 2024-04 gave the name as pool id."""
    if labels.get(constants.POOL_JOBSET_NAME):
        return labels[constants.POOL_JOBSET_NAME]
    # Without a namespace nobody could tell whether the JobSet is there.
    return labels.get(constants.LEGACY_POOL_ID, "") if labels.get(constants.PARENT_NAMESPACE) else ""


def _label_value(text: str) -> str:
    """Cut a name to what a label holds: it must end in a letter or digit."""
    return text[:_MAX_LABEL_VALUE].rstrip("-_.")
