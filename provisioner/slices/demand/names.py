"""Names of node pools, the same for every supplier.

GKE takes at most 40 characters, `[a-z]([-a-z0-9]*[a-z0-9])?`; a TPUNodeGroup may have some more. A JobSet's name is cut
to leave room for a hash over (JobSet UID, job key, attempt). Shape and zone are not in it: a fallback, and two leaders
that overlap, collide on one name, and "already exists" means: adopt.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from provisioner.model.capacity import PoolName
from provisioner.slices.demand.slices import SliceId

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
