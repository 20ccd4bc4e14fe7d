"""Faults of the simulated world, drawn at random for each run; faults of calls are drawn in calls.py.

Each run first draws its kinds of faults, so that some runs have only one kind and other runs several. Faults occur in
the storm, the first part of a run. When the storm ends, the faults that an administrator would repair are repaired.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject, object_path
from provisioner.slices.observe import REQUIRED
from provisioner.workloads import JOBSET
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import PoolStatus
from tests.simulation.admission import FREE, MARKS, SLICE_NAMESPACE, mark_of
from tests.simulation.cloud import CLUSTER
from tests.simulation.objects import NAMESPACE, SLICE
from tests.simulation.pools import are_ours
from tests.support.selectors import merged

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

#: Minimum seconds for which hosts are missing in a repair; GKE reports the repair for this time after their return.
_REPAIR_SECONDS = 60.0
_EDITS_CHANCE = 0.15
_POOL_FAULTS = (
    FaultKind.STOCKOUT,
    FaultKind.QUOTA_EXCEEDED,
    FaultKind.CREATE_ERROR,
    FaultKind.CREATE_NEVER_ENDS,
    FaultKind.NODES_NEVER_REGISTER,
    FaultKind.NODES_WITHOUT_CHIPS,
    FaultKind.DELETE_FAILS,
    FaultKind.DELETE_NEVER_ENDS,
)


def _nonsense_jobset(name: str) -> tuple[str, JsonObject]:
    requests = {constants.TPU_RESOURCE: "1500m"}
    pod = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
    job = {"name": "workers", "replicas": 1, "template": {"spec": {"parallelism": 1, "template": {"spec": pod}}}}
    path = object_path("jobsets", name, namespace=NAMESPACE, root=JOBSET.root)
    return path, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"replicatedJobs": [job]}}


def _nonsense_pod(name: str) -> tuple[str, JsonObject]:
    """Return a pod with the label of a JobSet, but without a label that names the job."""
    requests = {constants.TPU_RESOURCE: "4"}
    return object_path("pods", name, namespace=NAMESPACE), {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {constants.JOBSET_NAME: "train-1"}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": "Pending"},
    }


_NONSENSE = (_nonsense_jobset, _nonsense_pod)

_REFUSED_SOURCES_CHANCE = 0.2


class Chaos:
    """The faults of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = stage = simulation.stage
        kinds: tuple[tuple[str, Callable[[], None]], ...] = (
            ("pool", self._break_a_pool),
            ("pool again", self._break_a_pool),
            ("shelf empty", self._empty_a_shelf),
            ("preemption", self._preempt),
            ("deletion by hand", self._delete_by_hand),
            ("pool status", self._change_status),
            ("operations quota", self._change_quota),
            ("cordon by hand", self._cordon_by_hand),
            ("node not ready", self._unready_a_node),
            ("hints", self._spoil_hints),
            ("crash", self._kill),
            ("pause", self._pause),
            ("restart", self._ask_to_end),
            ("clock jump", self._jump),
            ("kubernetes outage", self._kube_outage),
            ("gke outage", self._gke_outage),
            ("silent watch", self._silence),
            ("compaction", self._compact),
            ("malformed object", self._write_nonsense),
            ("pod killed", self._kill_a_pod),
            ("foreign pod", self._foreign_pod),
        )
        # A separate source, so that edits do not change the draws of other faults.
        self._edits = random.Random(f"edits {stage.seed}")
        edits_pools = self._edits.random() < _EDITS_CHANCE
        edits = (("labels by hand", self._edit_labels), ("pool label by hand", self._edit_pool_label))
        drawn = tuple(fault for fault in kinds if stage.chance(0.4))
        drawn += edits[:1] if simulation.admission.edits_labels else ()
        drawn += edits[1:] if edits_pools else ()
        kinds += edits
        self._kinds = tuple(fault for fault in kinds if fault[0] in simulation.storm) if simulation.storm else drawn
        #: Whether clocks of processes may jump.
        self.jumps = any(name == "clock jump" for name, _ in self._kinds)
        self._pool_faults = tuple(kind for kind in _POOL_FAULTS if stage.chance(0.4)) or (FaultKind.STOCKOUT,)
        self._by_hand: set[str] = set()
        #: Real pool of each node whose pool label a user has edited, by node name.
        self._pool_of_edited: dict[str, str] = {}
        self._repairs = random.Random(f"repairs {stage.seed}")
        self._nonsense = 0
        self._sources = random.Random(f"sources {stage.seed}")
        #: Whether the API server sometimes rejects reads of an optional resource, and all processes restart.
        self.refuses_sources = self._sources.random() < _REFUSED_SOURCES_CHANCE
        simulation.calls.on_delicate_pause = self._preempt_what_is_looked_at

    def begin(self) -> None:
        rng, agenda = self.stage.rng, self.stage.agenda
        if rng.random() < 0.3:
            self._break_a_pool()
        if self._kinds:
            agenda.after(rng.uniform(1.0, 15.0), self._strike)
        if self.refuses_sources:
            agenda.after(self._sources.uniform(5.0, 60.0), self._refuse_a_source)

    def end(self) -> None:
        """End the storm, and repair the faults that an administrator would repair."""
        self.stage.stormy = False
        self.stage.note("calm", "the storm is over, everything is mended")
        if self.refuses_sources:
            self.stage.store.forbidden.intersection_update(REQUIRED)
            self.stage.store.absent.intersection_update(REQUIRED)
        world = self.simulation.cloud.world
        self.simulation.cloud.limit_operations(None)
        for pool in list(self.simulation.cloud.pools.values()):
            if pool.status is PoolStatus.RECONCILING:
                world.set_status(pool.name, PoolStatus.RUNNING)
        self.simulation.cloud.repair()
        # The repair is repeated for operations that fail only after the storm.
        self.stage.agenda.after(100.0, self.simulation.cloud.repair)
        for name in list(self.simulation.cluster.nodes):
            self.simulation.cloud.set_status(name, ready=True)
        for name in list(self._by_hand):
            self._uncordon_by_hand(name)
        for name in list(self._pool_of_edited):
            self._restore_pool_label(name)
        for process in self.simulation.processes:
            process.skewed_before = (self.stage.agenda.now, process.skew_seconds)
            process.skew_seconds = 0.0
            for feed in process.feeds:
                feed.hear()

    def _strike(self) -> None:
        if not self.stage.stormy:
            return
        rng = self.stage.rng
        self.stage.agenda.after(rng.uniform(3.0, 25.0), self._strike)
        rng.choice(self._kinds)[1]()

    def _our_pool(self, *statuses: PoolStatus) -> str | None:
        ours = [
            pool.name
            for pool in self.simulation.cloud.pools.values()
            if pool.status in statuses and constants.POOL_JOBSET_NAME in pool.body["config"].get("labels", {})
        ]
        return self.stage.rng.choice(ours) if ours else None

    def _break_a_pool(self) -> None:
        rng, kind = self.stage.rng, self.stage.rng.choice(self._pool_faults)
        world = self.simulation.cloud.world
        after = rng.choice((None, rng.uniform(0.5, 90.0)))
        status = rng.choice(("INTERNAL", "INVALID_ARGUMENT")) if self.simulation.calls.refuses_requests else "INTERNAL"
        fault = world.faults.add(
            Fault(
                kind=kind, count=rng.choice((1, 1, 3)), after_seconds=after, status=status, hosts=rng.choice((None, 1))
            )
        )
        self.stage.fault(kind.value, "is due")
        if kind in (FaultKind.CREATE_NEVER_ENDS, FaultKind.DELETE_NEVER_ENDS):
            self._end_later(fault.fault_id)

    def _empty_a_shelf(self) -> None:
        """Make one kind of capacity unavailable in one zone for at most 120 s."""
        rng, market = self.stage.rng, self.simulation.market
        zone = rng.choice(market.zones)
        capacity = rng.choice(market.choices or ("on-demand",)).split("/")[0]
        world = self.simulation.cloud.world
        self.stage.fault("stockout of zone and terms", "%s in %s", capacity, zone)
        fault = world.faults.add(Fault(kind=FaultKind.STOCKOUT, zone=zone, capacity=capacity, after_seconds=3.0))
        self._end_later(fault.fault_id)

    def _end_later(self, fault_id: str) -> None:
        world = self.simulation.cloud.world

        def let_go() -> None:
            world.faults.remove(fault_id)
            world.release()

        self.stage.agenda.after(self.stage.rng.uniform(20.0, 120.0), let_go)

    def _preempt(self) -> None:
        name = self._our_pool(PoolStatus.RUNNING)
        if name is not None:
            hosts = self.stage.rng.choice((None, 1))
            self.stage.fault("preemption", "%s, hosts: %s", name, hosts)
            self.simulation.cloud.world.preempt(name, hosts=hosts)

    def _preempt_what_is_looked_at(self) -> None:
        """Preempt a pool whose delete has been decided, in half of the pauses within calls about pods or nodes."""
        running = {name for name, pool in self.simulation.cloud.pools.items() if pool.status is PoolStatus.RUNNING}
        named = {str(name) for process in self.simulation.processes for name in process.loop.memory.deletes}
        going = sorted(running & named)
        if going and self.stage.chance(0.5):
            name = self.stage.rng.choice(going)
            self.stage.fault("preemption", "%s, which is being deleted", name)
            self.simulation.cloud.world.preempt(name, hosts=None)

    def _delete_by_hand(self) -> None:
        name = self._our_pool(PoolStatus.RUNNING)
        if name is not None and self.simulation.cloud.pools[name].operation.is_done:
            self.stage.fault("pool deleted by hand", name)
            self.simulation.checker.deleted_by_hand.add(name)
            self.simulation.cloud.limit_operations(None)
            self.simulation.cloud.world.delete_pool(CLUSTER, name)

    def _change_status(self) -> None:
        name = self._our_pool(PoolStatus.RUNNING)
        if name is None:
            return
        status = self.stage.rng.choice((PoolStatus.RECONCILING, PoolStatus.RUNNING_WITH_ERROR))
        self.stage.fault("pool status", "%s is %s", name, status.value)
        self.simulation.cloud.world.set_status(name, status)
        seconds = self.stage.rng.uniform(2.0, 60.0)
        if status is PoolStatus.RUNNING_WITH_ERROR and self._repairs.random() < 0.5:
            self.stage.fault("auto-repair", name)
            self.simulation.checker.repaired_since[name] = self.stage.agenda.now
            self.simulation.cloud.repair_hosts(name, seconds=seconds + _REPAIR_SECONDS)
            seconds += 2 * _REPAIR_SECONDS

        def back() -> None:
            pool = self.simulation.cloud.pools.get(name)
            if pool is not None and pool.status is status:
                self.simulation.cloud.world.set_status(name, PoolStatus.RUNNING)

        self.stage.agenda.after(seconds, back)

    def _change_quota(self) -> None:
        quota = self.stage.rng.choice((None, 1, 2, 5))
        self.stage.fault("operations quota", "is now %s", quota)
        self.simulation.cloud.limit_operations(quota)

    def _a_node(self) -> str | None:
        names = list(self.simulation.cluster.nodes)
        return self.stage.rng.choice(names) if names else None

    def _cordon_by_hand(self) -> None:
        name = self._a_node()
        if name is None or self.simulation.cluster.nodes[name].cordoned:
            return
        self.stage.fault("node cordoned by hand", name)
        path = object_path("nodes", name)
        self.stage.store.put(path, merged(self.stage.store.get(path), {"spec": {"unschedulable": True}}))
        self._by_hand.add(name)
        self.stage.agenda.after(self.stage.rng.uniform(5.0, 100.0), lambda: self._uncordon_by_hand(name))

    def _uncordon_by_hand(self, name: str) -> None:
        self._by_hand.discard(name)
        path = object_path("nodes", name)
        raw = self.stage.store.find(path)
        if raw is not None and not self.simulation.cluster.nodes[name].cordoned_by_us:
            self.simulation.checker.opened_by_hand[self.simulation.cluster.nodes[name].pool_name] = (
                self.stage.agenda.now
            )
            self.stage.store.put(path, merged(raw, {"spec": {"unschedulable": None}}))

    def _edit_labels(self) -> None:
        rng, cluster = self.simulation.admission.rng, self.simulation.cluster
        ours = [node for node in cluster.nodes.values() if are_ours(node.labels)]
        if not ours:
            return
        chosen = rng.choice(ours)
        nodes = [node for node in ours if node.pool_name == chosen.pool_name] if rng.random() < 0.5 else [chosen]
        others = sorted({mark_of(node.labels) for node in ours if SLICE in node.labels} | {(FREE, FREE)})
        key, namespace = rng.choice(others)
        kind, labels = rng.choice(
            (
                ("removed", {SLICE: None, SLICE_NAMESPACE: None}),
                ("one removed", {rng.choice(MARKS): None}),
                ("of another pool", {SLICE: key, SLICE_NAMESPACE: namespace}),
                ("of no slice", {SLICE: "j-unknown", SLICE_NAMESPACE: NAMESPACE}),
            )
        )
        self.stage.fault("labels by hand", "%s on %d nodes of %s", kind, len(nodes), chosen.pool_name)
        self.simulation.checker.assigned.edited(chosen.pool_name)
        for node in nodes:
            path = object_path("nodes", node.name)
            self.stage.store.put(path, merged(self.stage.store.get(path), {"metadata": {"labels": labels}}))

    def _edit_pool_label(self) -> None:
        nodes = sorted(self.simulation.cluster.nodes.values(), key=lambda node: node.name)
        ours = [node for node in nodes if are_ours(node.labels) and node.name not in self._pool_of_edited]
        if not ours:
            return
        chosen = self._edits.choice(ours)
        others = sorted({node.pool_name for node in nodes} - {chosen.pool_name})
        value = self._edits.choice((None, "unknown", *others))
        self.stage.fault("pool label by hand", "%s of %s is %s", chosen.name, chosen.pool_name, value)
        self._pool_of_edited[chosen.name] = chosen.pool_name
        self._write_pool_label(chosen.name, value)
        self.stage.agenda.after(self._edits.uniform(5.0, 300.0), lambda: self._restore_pool_label(chosen.name))

    def _restore_pool_label(self, name: str) -> None:
        pool = self._pool_of_edited.pop(name, None)
        if pool is not None:
            self._write_pool_label(name, pool)

    def _write_pool_label(self, name: str, value: str | None) -> None:
        raw = self.stage.store.find(object_path("nodes", name))
        if raw is not None:
            labels = {"metadata": {"labels": {constants.NODE_POOL: value}}}
            self.stage.store.put(object_path("nodes", name), merged(raw, labels))

    def _unready_a_node(self) -> None:
        name = self._a_node()
        if name is not None:
            self.stage.fault("node not ready", name)
            self.simulation.cloud.set_status(name, ready=False)
            self.stage.agenda.after(
                self.stage.rng.uniform(1.0, 100.0), lambda: self.simulation.cloud.set_status(name, ready=True)
            )

    def _spoil_hints(self) -> None:
        path = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE)
        raw = self.stage.store.find(path)
        if raw is None:
            return
        if self.stage.chance(0.5):
            self.stage.fault("hints lost", "the ConfigMap is deleted")
            self.stage.store.remove(path)
        else:
            self.stage.fault("hints spoilt", "the ConfigMap holds rubbish")
            spoilt = {key: self.stage.rng.choice(("", "{", "[]", '{"a/b": "c", "d": -1}')) for key in raw["data"]}
            self.stage.store.put(path, {**raw, "data": spoilt})

    def _kube_outage(self) -> None:
        self.simulation.calls.kube_down_until = self.stage.agenda.now + self.stage.rng.uniform(2.0, 50.0)
        self.stage.fault("kubernetes outage", "until %.0f", self.simulation.calls.kube_down_until)

        if self.stage.chance(0.5):
            for process in self.simulation.processes:
                for feed in process.feeds:
                    feed.lose_server()

    def _compact(self) -> None:
        self.stage.fault("compaction", "of what happened until now")
        self.stage.store.compact()

    def _write_nonsense(self) -> None:
        self._nonsense += 1
        path, raw = self.stage.rng.choice(_NONSENSE)(f"nonsense-{self._nonsense}")
        self.stage.fault("malformed object", path)
        self.stage.store.put(path, raw)
        self.stage.agenda.after(self.stage.rng.uniform(5.0, 100.0), lambda: self.stage.store.remove(path))

    def _gke_outage(self) -> None:
        self.simulation.calls.gke_down_until = self.stage.agenda.now + self.stage.rng.uniform(2.0, 60.0)
        self.stage.fault("gke outage", "until %.0f", self.simulation.calls.gke_down_until)

    def _foreign_pod(self) -> None:
        self.stage.fault("foreign pod", "asks for chips")
        rng, admission = self.stage.rng, self.simulation.admission
        self.simulation.cluster.add_foreign(
            rng.choice(self.simulation.people.shapes),
            lasting_seconds=rng.uniform(10.0, 100.0),
            tolerates_all=admission.present and admission.rng.random() < 0.5,
        )

    def _kill_a_pod(self) -> None:
        bound = [pod for pod in self.simulation.cluster.pods if pod.node and not pod.finished]
        if bound:
            pod, stuck = self.stage.rng.choice(bound), self.stage.chance(0.3)
            self.stage.fault("pod killed", "%s, hangs: %s", pod.name, stuck)
            self.simulation.cluster.terminate(pod, stuck=stuck)

    def _a_process(self) -> Process | None:
        living = [process for process in self.simulation.processes if not process.dead]
        return self.stage.rng.choice(living) if living else None

    def _kill(self) -> None:
        process = self._a_process()
        if process is not None:
            self.stage.fault("crash", process.name)
            process.die()

    def _refuse_a_source(self) -> None:
        """Reject reads of an optional resource for at most 60 s, and restart all processes, as an upgrade does."""
        if not self.stage.stormy:
            return
        rng, store = self._sources, self.stage.store
        processes = [process for process in self.simulation.processes if not process.dead]
        resources = sorted({feed.resource for process in processes for feed in process.feeds} - REQUIRED)
        if resources:
            refused, resource = rng.choice((store.forbidden, store.absent)), rng.choice(resources)
            self.stage.fault("source refused", resource)
            refused.add(resource)
            self.stage.agenda.after(rng.uniform(5.0, 60.0), lambda: refused.discard(resource))
            for process in processes:
                process.die()
        self.stage.agenda.after(rng.uniform(30.0, 90.0), self._refuse_a_source)

    def _ask_to_end(self) -> None:
        process = self._a_process()
        if process is not None:
            self.stage.fault("restart", process.name)
            process.stop()

    def _pause(self) -> None:
        process = self._a_process()
        if process is not None:
            process.paused_until = self.stage.agenda.now + self.stage.rng.uniform(1.0, 70.0)
            self.stage.fault("pause", "%s until %.0f", process.name, process.paused_until)

    def _jump(self) -> None:
        process = self._a_process()
        if process is not None:
            jump = self.stage.rng.choice((-7200.0, -600.0, -30.0, 30.0, 600.0, 7200.0))
            process.skewed_before = (self.stage.agenda.now, process.skew_seconds)
            process.skew_seconds = jump if not process.skew_seconds else 0.0
            self.stage.fault("clock jump", "%s is now %+.0f s off", process.name, process.skew_seconds)

    def _silence(self) -> None:
        process = self._a_process()
        if process is not None:
            seconds = self.stage.rng.uniform(5.0, 250.0)
            self.stage.fault("silent watch", "of %s for %.0f s", process.name, seconds)
            self.stage.rng.choice(process.feeds).fall_silent(seconds)
