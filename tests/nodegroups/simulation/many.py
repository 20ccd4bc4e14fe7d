"""Simulates many groups at the same time: python -m tests.nodegroups.simulation.many GROUPS [FILE]. Prints JSON.

FILE, if given, gets the caches, memory and settings of the controller at the time when all groups are ready.

The client and the decisions are real. The simulated Compute Engine has the times of real machines: an operation takes 5
s; a machine is PROVISIONING for 60 s and STAGING for 20 s, each up to 20 s longer. The startup script looks for the
data to join 60 s after STAGING, and again after waits that double from 2 s to 60 s; then it installs the packages of
Kubernetes for 40 s. The node is ready up to 10 s after it has joined. Each call takes up to 0.6 s.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.bootstrap.metadata import startup_script
from provisioner.nodegroups.planning.actions import Call
from rehearsal.simulators.compute.records import MachineView
from tests.nodegroups.simulation.world import SETTINGS, World, make_group

#: Topology of a slice of 16 machines with four chips each.
_TOPOLOGY = "8x8"
_MACHINES = 16
_LATENCIES = {
    "operation_seconds": 5.0,
    "pending_seconds": 0.0,
    "provisioning_seconds": 60.0,
    "staging_seconds": 20.0,
    "machine_jitter_seconds": 20.0,
    "operations_kept_seconds": 86_400.0,
    "visible_while_inserted": True,
    "capacity": {},
}
_BOOT_SECONDS = 60.0
_INSTALL_SECONDS = 40.0
_FIRST_WAIT_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 60.0
_STEP_SECONDS = 0.5
_MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of a run. Times are virtual seconds since all groups were created, `gone_seconds` since their deletes."""

    groups: int
    first_ready_seconds: float
    all_ready_seconds: float
    #: Time until all Secrets of tokens are deleted.
    settled_seconds: float
    #: Maximum number of calls of one kind in a minute, in a region or globally. Compute Engine allows 1,500.
    max_calls_a_minute: int
    #: Calls by method, until all Secrets of tokens are deleted.
    calls: dict[str, int]
    #: Calls by method, from the deletes of all groups until no resource is left.
    calls_to_delete: dict[str, int]
    #: Maximum number of calls for one group, until all Secrets of tokens are deleted.
    max_calls_of_a_group: int
    gone_seconds: float


class Many:
    """Many groups that are created, and later deleted, at the same time."""

    def __init__(self, count: int, *, on_ready: Callable[[World], None] = lambda _world: None) -> None:
        script = startup_script("https://pkgs.k8s.io")
        settings = replace(SETTINGS, startup_script=script, machines_per_namespace=0)
        self.world = world = World(settings=settings)
        world.cloud.world.change_settings(_LATENCIES)
        world.cloud.on_running = lambda machine: world.stage.after(_BOOT_SECONDS, lambda: self._look(machine, 0.0))
        world.process.on_call = self._count
        self.on_ready = on_ready
        # The gap is the same in all runs, so that runs with one group and with many groups are comparable.
        world.process.round_gap_seconds = 0.25
        self.names = [f"g{number:03d}" for number in range(count)]
        self.calls: Counter[str] = Counter()
        self.minutes: Counter[tuple[str, int]] = Counter()
        self.of_group: Counter[str] = Counter()

    def run(self) -> Figures:
        world = self.world
        for name in self.names:
            world.kube.create_group(make_group(name, topology=_TOPOLOGY))
        first = self._wait(lambda: any(world.is_ready(name) for name in self.names))
        last = self._wait(lambda: all(world.is_ready(name) for name in self.names))
        self.on_ready(world)
        settled = self._wait(lambda: not world.kube.all("Secret"))
        calls, most = Counter(self.calls), max(self.of_group.values())
        for name in self.names:
            world.delete_group(name)
        began = world.stage.agenda.now
        gone = self._wait(lambda: not world.kube.all(Kind.TPU_NODE_GROUP))
        world.check_nothing_left()
        return Figures(
            groups=len(self.names),
            first_ready_seconds=first,
            all_ready_seconds=last,
            settled_seconds=settled,
            max_calls_a_minute=max(self.minutes.values()),
            calls=dict(calls),
            calls_to_delete=dict(self.calls - calls),
            max_calls_of_a_group=most,
            gone_seconds=gone - began,
        )

    def _wait(self, condition: Callable[[], bool]) -> float:
        self.world.wait_until(condition, within_seconds=_MAX_SECONDS, step_seconds=_STEP_SECONDS)
        return self.world.stage.agenda.now

    def _look(self, machine: MachineView, waited: float) -> None:
        world = self.world
        now = world.cloud.machine(machine.name)
        if now is None or now.number != machine.number or now.status != "RUNNING":
            return
        if metadata.VERSION in now.metadata:
            world.stage.after(_INSTALL_SECONDS, lambda: world.kube.join(machine.name))
            return
        wait = min(_LONGEST_WAIT_SECONDS, 2 * waited or _FIRST_WAIT_SECONDS)
        world.stage.after(wait, lambda: self._look(machine, wait))

    def _count(self, call: Call) -> None:
        method, scope = type(call).__name__, call.target.scope
        self.calls[method] += 1
        self.of_group[call.target.name.partition("-")[0]] += 1
        sort = {"Insert": "change", "Delete": "change", "SetMetadata": "change", "Poll": "poll", "Read": "read"}
        place = scope.region or scope.zone.rpartition("-")[0] or "global"
        minute = int(self.world.stage.agenda.now // 60)
        self.minutes[f"{sort.get(method, 'list')} {place}", minute] += 1


def _keep(world: World, path: Path) -> None:
    """Write caches, memory and settings to a file, pickled separately, because in reality they share no strings."""
    parts = (world.kube.snapshot(frozenset()), world.process.memory, world.settings)
    path.write_bytes(pickle.dumps([pickle.dumps(part) for part in parts]))


def main() -> int:
    count, path = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    played = Many(count, on_ready=lambda world: _keep(world, path) if path is not None else None)
    sys.stdout.write(json.dumps(asdict(played.run())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
