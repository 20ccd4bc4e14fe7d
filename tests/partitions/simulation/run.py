"""Runs one seed: random faults, then a time without faults, after which all pods were served and nothing is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.settings.partitions import PartitionSettings, Server
from rehearsal.simulators.vipu.faults import CREATE, REMOVE, Fault, FaultKind
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Asked
from rehearsal.simulators.vipu.settings import FIRST, SCATTERED, VipuSettings
from tests.partitions.simulation.checks import Checks
from tests.partitions.simulation.kube import Kube
from tests.partitions.simulation.planted import BUGS
from tests.partitions.simulation.process import Process
from tests.partitions.simulation.servers import VipuServer
from tests.support.simulations.bugs import planted
from tests.support.simulations.runs import Outcome, outcome_of
from tests.support.simulations.stage import Stage

#: Maximum time in seconds after the last fault until all pods have been served and have ended.
SERVED_WITHIN_SECONDS = 7200.0
_QUIET_SECONDS = 600.0
#: Maximum number of reads of a server in `_QUIET_SECONDS`: an idle controller reads each server once a minute.
_MAX_READS = 13
#: Maximum CPU time of a run in seconds; a normal run takes 0.1 s, so a run that takes longer is an endless loop.
_CPU_SECONDS = 20.0
_NEIGHBOUR = names.id_prefix("another-cluster")
_HOURS = (3600.0, 3 * 3600.0)
_LATE = (FaultKind.ACTIVE_LATE, FaultKind.REMOVE_LATE)


class Run:
    """A simulated cluster with faults."""

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.stage = stage = Stage(seed, recording=recording)
        rng = stage.rng
        self.kube = Kube(stage)
        self.kube.lag_seconds = rng.choice((0.05, 0.5, 5.0))
        self.servers = {server.server.address: server for server in self._make_servers()}
        limits = rng.choice(((), (), (), (("team", 12), ("*", 8))))
        self.settings = PartitionSettings(
            servers=(),
            largest_size=16,
            namespace_limits=limits,
            busy_read_seconds=20.0,
            stuck_seconds=120.0,
            orphan_seconds=60.0,
            unscheduled_seconds=200.0,
            crowded_seconds=300.0,
        )
        self.checks = Checks(stage, self.kube, self.servers, self.settings)
        self.fault_chance = rng.choice((0.0, 0.03, 0.12))
        self.loss_chance = rng.choice((0.0, 0.0, 0.02))
        self.crash_chance = rng.choice((0.0, 0.01, 0.05))
        self.storm_seconds = rng.uniform(100.0, 400.0)
        self.processes: list[Process] = []
        self.start()

    def _make_servers(self) -> list[VipuServer]:
        rng, found = self.stage.rng, []
        for number in range(1, rng.choice((2, 2, 3))):
            allocations = {
                f"a{index}": {"cluster": f"c{index}", "agents": rng.choice((2, 4))}
                for index in range(rng.choice((1, 1, 2)))
            }
            settings = VipuSettings(
                allocations=allocations,
                create_seconds=rng.choice((1.0, 5.0)),
                create_jitter_seconds=rng.choice((0.0, 20.0)),
                placement=rng.choice((FIRST, SCATTERED)),
                lists_allocations=rng.random() < 0.5,
                largest_size=16,
            )
            server = Server(host=f"vipu-{number}", port=8090, node_selector=("ipu", str(number)))
            found.append(VipuServer(self.stage, server, settings, tells_sizes=rng.random() < 0.85))
        return found

    def start(self) -> Process:
        process = Process(self.stage, self.kube, self.servers, self.settings)
        process.fault_chance, process.loss_chance = self.fault_chance, self.loss_chance
        process.crash_chance, process.on_crash = self.crash_chance, self._restart
        process.on_plan = self.checks.judge
        self.processes.append(process)
        return process

    def _restart(self, process: Process) -> None:
        process.kill()
        self.processes.remove(process)
        self.stage.after(self.stage.rng.uniform(0.1, 20.0), self._lead)

    def _lead(self) -> None:
        if not any(not process.cache.frozen for process in self.processes):
            self.start()

    def run(self) -> dict[str, float]:
        """Run; return measured durations in seconds, by description. Raises Violated."""
        stage = self.stage
        stage.often(self.storm_seconds / 10, self._somebody)
        stage.often(self.storm_seconds / stage.rng.choice((3, 12, 40)), self._something)
        self._somebody()
        stage.agenda.wait(self.storm_seconds)
        self._calm()
        began, took = stage.agenda.now, 0.0
        while self.kube.pods or any(server.is_down for server in self.servers.values()):
            stage.agenda.wait(30.0)
            self.checks.outlived(began)
            self.checks.none_waits_for_a_server(began)
            if self.kube.pods.keys() <= self.kube.homeless:
                # Only pods without a node are left, which get nodes here so that they can end.
                for uid in list(self.kube.pods):
                    self.kube.make_room(uid)
            late = [pod for pod in self.kube.pods.values() if self._can_be_served_now(pod)]
            back_at = max(server.back_at for server in self.servers.values() if not server.is_down) if late else 0.0
            took = max(took, stage.agenda.now - max(began, back_at) if late else 0.0)
            if took > SERVED_WITHIN_SECONDS:
                left = ", ".join(f"{pod.name} ({pod.size} IPUs)" for pod in late)
                stage.violate(f"{SERVED_WITHIN_SECONDS:.0f} s after the last fault there are still {left}")
        for _ in range(20):
            stage.agenda.wait(30.0)
            self.checks.outlived(began)
        self.checks.nothing_left()
        self._check_silence()
        return {
            "seconds from the last fault until all are served": took,
            "seconds that a partition outlives its pod": self.checks.longest_outlived,
        }

    def _calm(self) -> None:
        """End all faults; delete pods that cannot be served, unreadable entries, and other clusters' partitions."""
        self.stage.stormy = False
        for server in self.servers.values():
            server.world.faults.clear()
            server.world.release()
            for partition_id in server.partitions():
                if partition_id.startswith(_NEIGHBOUR):
                    server.world.vanish(partition_id)
        for process in [candidate for candidate in self.processes if candidate.cache.frozen][:]:
            process.kill()
            self.processes.remove(process)
        self._lead()
        data = self.kube.data
        if data is not None:
            readable = {entry.id for entry in self.kube.read_ledger().entries}
            if readable != data.keys():
                # An administrator removes unreadable entries.
                self.kube.write_ledger({key: text for key, text in data.items() if key in readable})
                self.checks.tampered_at = self.stage.agenda.now
        largest = max(
            (allocation.ipus for server in self.servers.values() for allocation in server.world.all_allocations()),
            default=0,
        )
        limit = min((most for _, most in self.settings.namespace_limits), default=largest)
        for pod in list(self.kube.pods.values()):
            served = pod.size <= min(largest, limit) and self._can_be_served(pod, self.servers)
            if not served or pod.problem or not pod.injected:
                self.kube.delete(pod.uid, grace_seconds=1.0)
            elif pod.held_by_others:
                self.kube.change(pod.uid, held_by_others=False)

    def _can_be_served(self, pod: Pod, servers: Mapping[str, VipuServer]) -> bool:
        return any(
            allocation.ipus >= pod.size
            for address, server in servers.items()
            if (pod.servers is None or address in pod.servers) and pod.server_annotation in ("", address)
            for allocation in server.world.all_allocations()
        )

    def _can_be_served_now(self, pod: Pod) -> bool:
        up = {address: server for address, server in self.servers.items() if not server.is_down}
        told = [
            other for other in self.kube.pods.values() if other.server_annotation and other.server_annotation not in up
        ]
        if self.settings.namespace_limits and any(other.namespace == pod.namespace for other in told):
            # The pod may have to wait: partitions on servers that are down count against the limit of its namespace.
            return False
        return pod.uid not in self.kube.homeless and self._can_be_served(pod, up)

    def _check_silence(self) -> None:
        """Check that an empty cluster has only reads for _QUIET_SECONDS."""
        before = Counter[str]()
        for process in self.processes:
            before += process.sent
        self.stage.agenda.wait(_QUIET_SECONDS)
        made = Counter[str]()
        for process in self.processes:
            made += process.sent
        made -= before
        reads = made.pop("ReadServer", 0)
        if made or reads > _MAX_READS * len(self.servers):
            self.stage.violate(f"in ten minutes without events there were {reads} reads and {dict(made)}")

    def _somebody(self) -> None:
        rng = self.stage.rng
        for _ in range(rng.choice((1, 1, 4))):
            seconds = rng.uniform(5.0, 150.0)
            servers = frozenset({rng.choice(sorted(self.servers))}) if rng.random() < 0.2 else None
            pod = self.kube.create(
                size=rng.choice((1, 2, 2, 4, 4, 8, 16)),
                seconds=seconds,
                namespace=rng.choice(("team", "team", "other")),
                active_deadline_seconds=rng.choice((None, seconds, seconds + 50.0)),
                grace_seconds=rng.choice((0.0, 30.0)),
                priority=rng.choice((0, 0, 0, 100)),
                servers=servers,
                held_by_others=rng.random() < 0.05,
                gated=rng.random() > 0.05,
                problem="It asks for 3 IPUs." if rng.random() < 0.03 else "",
            )
            self._end_early(pod)
            if rng.random() < 0.08:
                self.kube.homeless.add(pod.uid)
                if rng.random() < 0.5:
                    self.stage.after(rng.uniform(50.0, 400.0), lambda uid=pod.uid: self.kube.make_room(uid))

    def _end_early(self, pod: Pod) -> None:
        """With some probability, delete, release or end a pod early, or add a node selector."""
        rng = self.stage.rng
        after, kind = rng.uniform(0.0, 200.0), rng.random()
        if kind < 0.15:
            self.stage.after(after, lambda: self.kube.delete(pod.uid, grace_seconds=rng.choice((1.0, 30.0))))
        elif kind < 0.2:
            self.stage.after(
                after, lambda: self.kube.delete(pod.uid, grace_seconds=30.0, dead_seconds=rng.choice((300.0, 1500.0)))
            )
        elif kind < 0.25:
            self.stage.after(after, lambda: self.kube.finish(pod.uid))
        elif kind < 0.3:
            self.stage.after(after, lambda: self.kube.change(pod.uid, released=True))
            self.stage.after(after + 60.0, lambda: self.kube.delete(pod.uid, grace_seconds=1.0))
        elif kind < 0.37:
            self.stage.after(after / 4, lambda: self._narrow(pod.uid))

    def _narrow(self, uid: str) -> None:
        """Add a node selector to a pod, which is allowed while it has its gate."""
        pod = self.kube.pods.get(uid)
        # After the faults, no pod may become one that no server can serve, because only `_calm` deletes such pods.
        if pod is not None and pod.gated and self.stage.stormy:
            chosen = self.stage.rng.choice(sorted(pod.servers if pod.servers is not None else self.servers))
            self.stage.fault("pod narrowed", f"{pod.name} to {chosen}")
            self.kube.change(uid, servers=frozenset({chosen}))

    def _something(self) -> None:
        rng, stage = self.stage.rng, self.stage
        server = self.servers[rng.choice(sorted(self.servers))]
        ours = sorted(server.partitions())
        chosen = rng.randrange(13)
        if chosen == 0 and self.processes:
            stage.fault("killed", "")
            self._restart(rng.choice(self.processes))
        elif chosen == 1 and self.processes:
            # The old process still believes that it leads, and its cache shows no changes.
            stage.fault("two leaders", "")
            stale = rng.choice(self.processes)
            stale.cache.frozen = True
            self.checks.tampered_at = stage.agenda.now
            stage.after(rng.uniform(5.0, 120.0), lambda: self._retire(stale))
            self._lead()
        elif chosen == 2:
            keeps = rng.random() < 0.5
            stage.fault("server restarted", f"{server.server.address} keeps={keeps}")
            server.restart(keeps_partitions=keeps, down_seconds=rng.choice((0.0, 5.0, 60.0, *_HOURS)))
        elif chosen == 3 and ours:
            stage.fault("partition vanishes", "")
            server.vanish(rng.choice(ours))
        elif chosen == 4 and ours:
            stage.fault("partition breaks", "")
            server.spoil(rng.choice(ours))
        elif chosen == 5:
            kind = rng.choice((FaultKind.CREATE_FAILS, FaultKind.CREATE_LEAKS, FaultKind.CREATE_STUCK, *_LATE))
            stage.fault(kind.value, server.server.address)
            server.world.faults.add(Fault(kind=kind, count=1, seconds=rng.uniform(1.0, 60.0)))
        elif chosen == 6:
            stage.fault("remove leaks", server.server.address)
            server.world.faults.add(Fault(kind=FaultKind.REMOVE_LEAKS, count=1))
        elif chosen == 7:
            method = rng.choice((CREATE, REMOVE, None))
            stage.fault("refused", f"{server.server.address} {method}")
            code = rng.choice(("Internal", "Unavailable", "InvalidArgument", "PermissionDenied"))
            server.world.faults.add(
                Fault(kind=FaultKind.REFUSED, method=method, grpc_code=code, count=rng.choice((1, 5)))
            )
        elif chosen == 8 and self.processes:
            stage.fault("clock set", "")
            rng.choice(self.processes).set_clock(rng.choice((-4000.0, -30.0, 30.0, 4000.0)))
        elif chosen == 9:
            self._tamper()
        elif chosen == 10:
            self._neighbour(server.world)
        elif chosen == 11 and self.kube.data is not None:
            stage.fault("ledger changed by somebody", "")
            self.kube.write_ledger(dict(self.kube.data))
        elif chosen == 12:
            stage.fault("neighbour leaves", "")
            for partition_id in ours:
                if partition_id.startswith(_NEIGHBOUR):
                    server.world.vanish(partition_id)

    def _retire(self, process: Process) -> None:
        # Until now, each of the two leaders may have written entries that the other one has not read.
        self.checks.tampered_at = self.stage.agenda.now
        process.kill()
        if process in self.processes:
            self.processes.remove(process)
        self._lead()

    def _tamper(self) -> None:
        rng, data = self.stage.rng, dict(self.kube.data or {})
        kind = rng.randrange(4)
        self.stage.fault("ledger tampered with", str(kind))
        self.checks.tampered_at = self.stage.agenda.now
        if kind == 0:
            data["x"] = "{"
        elif kind == 1 and data:
            data[rng.choice(sorted(data))] = "{"
        elif kind == 2 and data:
            del data[rng.choice(sorted(data))]
        elif kind == 3:
            self.kube.write_ledger(None)
            return
        self.kube.write_ledger(data)

    def _neighbour(self, world: World) -> None:
        rng = self.stage.rng
        self.stage.fault("neighbour", "")
        allocation = rng.choice([candidate.name for candidate in world.all_allocations()])
        asked = Asked(id=f"{_NEIGHBOUR}{rng.randrange(10**9)}", size=rng.choice((1, 2, 4)), allocation=allocation)
        try:
            world.create(asked)
        except Exception as refusal:  # noqa: BLE001 - no free IPUs, or the server is down
            self.stage.note("neighbour", "%s", refusal)


def run_seed(seed: int, *, bug: str = "", recording: bool = False) -> Outcome:
    run = Run(seed, recording=recording)
    with planted(BUGS, bug):
        return outcome_of(run.run, run.stage, cpu_seconds=_CPU_SECONDS)
