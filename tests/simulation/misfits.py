"""Tenants whose pods fit no host, in some runs with hostile tenants, and the invariant on their pools.

If the provisioner can predict that pods fit no host, it creates no pool for them. Otherwise a workload gets at most 6
pools in a run, each deleted within 120 s of its readiness, or 720 s if the scheduler's message about the pods stays the
same.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

from rehearsal.simulators.gke.records import PoolStatus
from tests.simulation.objects import JobSetRun
from tests.simulation.pools import is_ours, owner_of

if TYPE_CHECKING:
    from tests.simulation.hostile import Hostile

FIT = "8 no pool is bought, or kept for two minutes, for pods that fit no host"
_CHANCE = 1.0
#: Values of `Hostile.resource` in runs in which a pool that is held for minutes delays no honest tenant.
_RESOURCES = ("nothing", "chips of a namespace")
#: Requests that exceed every machine, so that no pool is created.
_PREDICTED = (
    {"memory": "4000Gi"},
    {"cpu": "1000"},
    {"ephemeral-storage": "5Ti"},
    {"hugepages-2Mi": "4Gi"},
)
#: Resource that only the scheduler knows to be missing.
_UNKNOWN = {"example.com/fuse": "1"}
#: Maximum time in seconds from the readiness of a pool to its delete, and maximum number of pools of a workload.
_KEPT_SECONDS, _MAX_POOLS = 120.0, 6
#: `_KEPT_SECONDS` if the scheduler's message stays the same: then no object shows that the scheduler tried again.
_KEPT_WITHOUT_NEWS_SECONDS = 600.0 + 120.0


class Misfits:
    """Tenants of one run whose pods fit no host."""

    def __init__(self, hostile: Hostile) -> None:
        self._hostile, self._stage = hostile, hostile.stage
        self._rng = random.Random(f"misfits {hostile.stage.seed}")
        chance = _CHANCE * (hostile.resource in _RESOURCES and hostile.hang is None and not hostile.hangs_operations)
        self._present = self._rng.random() < chance and hostile.present
        #: Time since which each pool of a tenant has been ready and unused, and the messages of the tenant's pods then.
        self._ready_since: dict[str, tuple[float, set[str]]] = {}
        self._pools: defaultdict[str, set[str]] = defaultdict(set)

    def begin_calm(self) -> None:
        if not self._present:
            return
        shape = self._rng.choice(self._hostile.shapes)
        for name, requests in (("fits-none", self._rng.choice(_PREDICTED)), ("fuse", _UNKNOWN)):
            self._hostile.come(name, shape=shape, requests=requests, bindable=False, gang=False)

    def look(self) -> None:
        simulation, now = self._hostile.simulation, self._stage.agenda.now
        tenants = [workload for workload in simulation.cluster.workloads.values() if isinstance(workload, JobSetRun)]
        requests = {tenant.uid: tenant.requests for tenant in tenants if tenant.requests and tenant.alive}
        for pool in simulation.cloud.pools.values():
            uid = owner_of(pool.body["config"]["labels"])[0] if is_ours(pool) else ""
            if uid not in requests:
                continue
            self._pools[uid].add(pool.name)
            if requests[uid] != _UNKNOWN:
                self._stage.violate(FIT, f"{pool.name} is created for pods that request {requests[uid]}")
            if len(self._pools[uid]) > _MAX_POOLS:
                self._stage.violate(FIT, f"{len(self._pools[uid])} pools are created for pods that fit none of them")
            used = any(not pod.finished for pod in simulation.cluster.pods_on_pool(pool.name))
            if pool.status is not PoolStatus.RUNNING or used or not simulation.checker.healthy(pool):
                self._ready_since.pop(pool.name, None)
                continue
            messages = {pod.message for pod in simulation.cluster.pods if pod.workload and pod.workload.uid == uid}
            since, before = self._ready_since.setdefault(pool.name, (now, messages))
            if now - since > (_KEPT_WITHOUT_NEWS_SECONDS if messages == before else _KEPT_SECONDS):
                self._stage.violate(FIT, f"{pool.name} is kept for {now - since:.0f} s")
