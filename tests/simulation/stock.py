"""Checks creates of capacity that was out of stock, and the number of warm pools that are deleted.

After a failure, one create may try the capacity again; each pool that comes up doubles the number of creates in flight
that are allowed. A create counts only if its process existed at the failure and sent the create after a cache's lag.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioner.kube.protocol import JsonObject
from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.asks import BufferRun
from tests.simulation.pools import chips_in, is_ours, owner_of

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

HERD = "18 creates of a capacity that was out of stock double with each pool that comes up"
WARM = "19 a warm pool is remade at most once an hour for each failed capacity"
#: Number of pools that came up after which the creates of a capacity are no longer limited.
_MAX_DOUBLINGS = 6
_HOUR_SECONDS = 3600.0
#: Number of warm pools that may be deleted in excess: before the response to a failing create, or by a second leader.
_BY_CHANCE = 2

_UP = (PoolStatus.PROVISIONING, PoolStatus.RUNNING)
#: Zone, machine type, number of nodes, placement topology, reservation or capacity type, and service account with
#: networks; the provisioner has a separate back-off for each combination.
_Capacity = tuple[str, str, int, str, str, str]


@dataclass(slots=True)
class _Failed:
    """State of one capacity that was out of stock."""

    at: float
    #: Number of pools that came up since `at`, or so shortly before that a process may see them only after `at`.
    up: int


class Stock:
    """Checks the creates after stockouts, and the warm pools, of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self._failed: dict[_Capacity, _Failed] = {}
        self._statuses: dict[str, PoolStatus] = {}
        #: Times at which pools of each capacity came up.
        self._up_at: defaultdict[_Capacity, list[float]] = defaultdict(list)
        #: Capacities and slices with a create that has failed at any time.
        self._causes: set[object] = set()
        #: Number of pools that came up, without buffers' pools, and of deleted warm pools that buffers wanted.
        self._came_up = self._gave_way = 0
        #: Time at which the first wanted warm pool was deleted.
        self._first_at = 0.0

    def look_at_pools(self) -> None:
        """Record which pools came up and which failed since the last call; called at each decision."""
        pools = self._simulation.cloud.pools
        for name, pool in pools.items():
            before = self._statuses.get(name)
            if before is pool.status or not is_ours(pool):
                continue
            capacity = _capacity(pool.body)
            if pool.status is PoolStatus.ERROR:
                self._causes.add(owner_of(pool.body["config"]["labels"]))
                if pool.trouble is not None and pool.trouble.condition is not None:
                    self._fail(capacity)
            elif pool.status is PoolStatus.RUNNING and before in (None, PoolStatus.PROVISIONING):
                self._came_up += not self._is_of_buffer(pool)
                self._up_at[capacity].append(self._stage.agenda.now)
                if capacity in self._failed:
                    self._failed[capacity].up += 1
        self._statuses = {name: pool.status for name, pool in pools.items()}

    def create_failed(self, body: JsonObject, *, of_capacity: bool) -> None:
        """Record a create with a fault; `of_capacity` if the fault concerns the capacity."""
        self._causes.add(owner_of(body["nodePool"]["config"]["labels"]))
        if of_capacity:
            self._fail(_capacity(body["nodePool"]))

    def _fail(self, capacity: _Capacity) -> None:
        now = self._stage.agenda.now
        since = now - self._simulation.checker.stale_seconds()
        self._failed[capacity] = _Failed(now, sum(at > since for at in self._up_at[capacity]))
        self._causes.add(capacity)

    def created(self, process: Process, pool: Pool) -> None:
        capacity, checker = _capacity(pool.body), self._simulation.checker
        failed = self._failed.get(capacity)
        if failed is None or failed.up >= _MAX_DOUBLINGS or process.started_at > failed.at:
            return
        if self._stage.agenda.now - failed.at > _HOUR_SECONDS:
            # Later creates are not checked: the provisioner forgets a failure an hour after its wait has ended.
            return
        known_at = failed.at + checker.stale_seconds()
        in_flight = [
            other.name
            for other in self._simulation.cloud.pools.values()
            if other.status is PoolStatus.PROVISIONING
            and is_ours(other)
            and _capacity(other.body) == capacity
            and checker.created_by.get(other.name, (None, 0.0))[0] is process
            and checker.created_by[other.name][1] > known_at
        ]
        if len(in_flight) > 2**failed.up:
            text = f"{process.name} has {len(in_flight)} creates of {capacity} in flight, {failed.up} pools came up"
            self._stage.violate(HERD, f"{text} since it was out of stock: {', '.join(sorted(in_flight))}")

    def is_warm(self, pool: Pool) -> bool:
        """Whether a pool is unused and buffers want it, because they have at most as many pools as they request."""
        asked = self._simulation.checker.asked
        return any(pool.name in asked.idle(run, _UP) and asked.missing(run, _UP) >= 0 for run in asked.buffers())

    def gave_way(self, process: Process, pool: Pool) -> None:
        """Check after an accepted delete of a warm pool that warm pools are not deleted too often."""
        now = self._stage.agenda.now
        if not self._gave_way:
            self._first_at = now
        self._gave_way += 1
        hours = 1 + int((now - self._first_at) // _HOUR_SECONDS)
        checker = self._simulation.checker
        waiting_chips = sum(
            workload.shape_of(job).hosts * workload.shape_of(job).chips
            for workload, job in checker.slices()
            if not (isinstance(workload, BufferRun) or checker.pods_bound(workload, job))
        )
        # Work that waits now may need several small warm pools.
        needed = math.ceil(waiting_chips / chips_in(pool))
        most = _BY_CHANCE + needed + self._came_up + hours * len(self._causes)
        if self._gave_way > most:
            text = f"{process.name} deletes {pool.name}: {self._gave_way} warm pools gave way in {hours} h"
            self._stage.violate(WARM, f"{text}, {self._came_up} pools for work came up, {len(self._causes)} failed")

    def _is_of_buffer(self, pool: Pool) -> bool:
        uid = owner_of(pool.body["config"]["labels"])[0]
        return any(
            isinstance(workload, BufferRun) and workload.uid == uid
            for workload in self._simulation.cluster.every_workload
        )


def _capacity(body: JsonObject) -> _Capacity:
    config = body["config"]
    nodes = body.get("initialNodeCount", 0) or body.get("autoscaling", {}).get("maxNodeCount", 0)
    topology = body.get("placementPolicy", {}).get("tpuTopology", "")
    networks = body.get("networkConfig", {}).get("additionalNodeNetworkConfigs", "")
    own = f"{config.get('serviceAccount', '')} {networks}"
    return body["locations"][0], config["machineType"], int(nodes), topology, _terms(config), own


def _terms(config: JsonObject) -> str:
    if config.get("reservationAffinity", {}).get("values"):
        return str(config["reservationAffinity"]["values"][0])
    return "spot" if config.get("spot") else "flex-start" if config.get("flexStart") else "on-demand"
