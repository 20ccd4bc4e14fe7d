"""One run: random faults, then all groups must become ready, cause no writes for an hour, and leave nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.specs import ProvisioningModel
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import Scope
from provisioner.nodegroups.planning.actions import Target
from rehearsal.simulators.compute.records import Action, Loss, Member
from tests.nodegroups.simulation.planted import BUGS
from tests.nodegroups.simulation.world import World, make_group
from tests.support.compute import broken_invariants
from tests.support.simulations.bugs import planted
from tests.support.simulations.runs import Outcome, outcome_of

#: Maximum time in seconds until every group is ready, from 240 s after the last fault.
READY_WITHIN_SECONDS = 4200.0
GONE_WITHIN_SECONDS = 7200.0
_HOUR = 3600.0
#: Maximum CPU time in seconds of a run. A normal run takes 1 to 2 s, some runs with a planted bug several seconds.
_CPU_SECONDS = 12.0
_MAX_READS_PER_HOUR = 12
_BY_HAND = (
    *("resized", "reduced", "recreated", "dropped", "node", "token", "child", "finalizers", "partial", "unsynced"),
    *(Loss.HOST_ERROR, Loss.MAINTENANCE),
)
_READS = ("Read", "ListManagers", "ListMachines", "ReadMachines", "Poll")
_FOREIGN = Target(
    uid="", namespace="", kind=Kind.WORKLOAD_POLICY, scope=Scope(project="project-1", region="us-central1"), name="p"
)


def _is_at_rest(member: Member) -> bool:
    return member.machine is not None and member.action is Action.NONE


class Run:
    """A world with random faults for `storm_seconds`."""

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.world = world = World(seed, recording=recording)
        self.stage = world.stage
        rng = world.stage.rng
        world.stage.stormy = True
        world.fault_chance = rng.choice((0.0, 0.03, 0.15))
        world.loss_chance = rng.choice((0.0, 0.0, 0.02))
        world.kube.lag_seconds = rng.choice((0.05, 0.5, 3.0))
        world.process.fault_chance, world.process.loss_chance = world.fault_chance, world.loss_chance
        self.restart_seconds = rng.choice((20.0, 90.0, 1e9))
        self.storm_seconds = rng.uniform(60.0, 900.0)
        self.wanted: set[str] = set()
        self.count = 0
        #: Resources of other users with names that groups need.
        self.taken: list[Target] = []
        world.cloud.hold(_FOREIGN)

    def run(self) -> dict[str, float]:
        """Run; return the time from the last fault until all groups were ready. Raises Violated."""
        world, stage = self.world, self.stage
        stage.often(self.storm_seconds / 6, self._somebody)
        stage.often(self.storm_seconds / 8, self._something)
        stage.often(self.storm_seconds / 4, self._by_hand)
        stage.often(self.restart_seconds, world.restart)
        self._somebody()
        stage.agenda.wait(self.storm_seconds)
        stage.stormy = False
        for kind in list(Kind)[1:]:
            world.cloud.mend(kind)
        for target in self.taken:
            world.cloud.release(target)
        world.cloud.limit(None)
        world.cloud.partial_chance, world.kube.not_synced = 0.0, ()
        world.kube.protected.clear()
        for pod in world.kube.all("Pod"):
            if not pod.node.startswith("forged-"):
                world.kube.finish_pods(pod.name)
        for name in self.wanted:
            world.kube.annotate(name, names.RECREATIONS_RESET, world.stage.wall().isoformat().replace("+00:00", "Z"))
        began = stage.agenda.now
        # The controller needs time to notice faults and repairs; until then, groups may still look ready.
        world.wait(120.0)
        self._repair_by_hand()
        world.wait(120.0)
        world.wait_until(self._all_ready, within_seconds=READY_WITHIN_SECONDS, step_seconds=10.0)
        took = stage.agenda.now - began
        world.wait(120.0)
        world.check_tokens_gone()
        self._check_silence()
        for name in sorted(self.wanted):
            world.run_pods(name)
            world.delete_group(name)
        world.wait_until(
            lambda: not world.kube.all(Kind.TPU_NODE_GROUP), within_seconds=GONE_WITHIN_SECONDS, step_seconds=10.0
        )
        world.wait(300.0)
        for node in world.kube.all("Node"):
            if node.name.startswith("forged-"):
                world.kube.drop_node(node.name)
        world.check_nothing_left(foreign=1)
        return {"seconds from the last fault until all are ready": took}

    def _all_ready(self) -> bool:
        return all(self.world.is_ready(name) for name in self.wanted) and len(
            self.world.kube.all(Kind.TPU_NODE_GROUP)
        ) == len(self.wanted)

    def _check_silence(self) -> None:
        process = self.world.process
        calls, writes = Counter(process.calls), Counter(process.writes)
        self.world.wait(_HOUR)
        made = process.calls - calls
        written = process.writes - writes
        if written:
            self.stage.violate(f"in an hour without events there were writes: {dict(written)}")
        changes = {kind: count for kind, count in made.items() if kind not in _READS}
        reads = sum(count for kind, count in made.items() if kind in _READS and kind != "ListManagers")
        if changes or reads > _MAX_READS_PER_HOUR * max(1, len(self.wanted)):
            self.stage.violate(f"in an hour without events {len(self.wanted)} groups were called {dict(made)}")

    def _somebody(self) -> None:
        rng = self.stage.rng
        # A group whose finalizers were removed is not deleted here, because its nodes and tokens would be left.
        groups = [group for name in sorted(self.wanted) if (group := self.world.kube.group(name)) is not None]
        intact = [group.meta.name for group in groups if group.meta.finalizers or not group.status.conditions]
        if intact and rng.random() < 0.3:
            name = rng.choice(intact)
            self.wanted.discard(name)
            self.stage.note("user", "deletes %s", name)
            if rng.random() < 0.2:
                self.world.kube.annotate(name, names.FORCE, "true")
            self.world.delete_group(name)
            return
        self.count += 1
        name = f"g{self.count}"
        topology, count = rng.choice((("2x2", None), ("2x4", None), ("4x4", None), ("2x2", 2), ("2x2", 3)))
        model = rng.choice((None, None, ProvisioningModel.SPOT))
        self.stage.note("user", "creates %s of %s %s %s", name, topology, count or 1, model or "STANDARD")
        self.world.kube.create_group(make_group(name, topology=topology, node_count=count, provisioning_model=model))
        self.wanted.add(name)
        if rng.random() < 0.15:
            self._occupy(name)

    def _occupy(self, name: str) -> None:
        """Create another user's workload policy with the name that a group needs, until the faults end."""
        group = self.world.kube.group(name)
        if group is None:
            return
        policy = names.child_name(group.meta, Kind.WORKLOAD_POLICY)
        target = replace(_FOREIGN, name=policy)
        self.stage.fault("name taken", policy)
        self.world.cloud.hold(target)
        self.taken.append(target)

    def _something(self) -> None:
        rng, world = self.stage.rng, self.world
        for problem in broken_invariants(world.cloud.world):
            self.stage.violate(f"the simulated Compute Engine is wrong: {problem}")
        vms = [vm for vm in world.cloud.machines() if vm.status == "RUNNING"]
        nodes = [node.name for node in world.kube.all("Node")]
        pods = world.kube.all("Pod")
        chosen = rng.randrange(12)
        if chosen == 0 and vms:
            world.cloud.lose(rng.choice(vms), Loss.PREEMPTED)
        elif chosen == 1 and vms:
            world.cloud.lose(rng.choice(vms), Loss.DELETED)
        elif chosen == 2 and nodes:
            name = rng.choice(nodes)
            self.stage.fault("node not ready", name)
            world.kube.change_node(name, ready=False)
            if rng.random() < 0.6:
                self.stage.after(rng.uniform(1.0, 400.0), lambda: self._recover(name))
        elif chosen == 3 and nodes:
            name = rng.choice(nodes)
            self.stage.fault("chip gone", name)
            world.kube.change_node(name, allocatable_chips=3)
            self.stage.after(rng.uniform(1.0, 400.0), lambda: self._recover(name))
        elif chosen == 4:
            self.stage.fault("stockout", "")
            world.cloud.limit(rng.randrange(4))
            self.stage.after(rng.uniform(10.0, 600.0), self._restock)
        elif chosen == 5:
            kind = rng.choice(list(Kind)[1:])
            code = rng.choice(("QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED", "INTERNAL_ERROR"))
            self.stage.fault("operations fail", f"{kind} {code}")
            world.cloud.fail(kind, code, "Google will not have it.")
            self.stage.after(rng.uniform(10.0, 200.0), lambda: world.cloud.mend(kind))
        elif chosen in (6, 7):
            for name in sorted(self.wanted):
                world.run_pods(name, chips=rng.choice((0, 4)))
        elif chosen == 8 and pods:
            pod = rng.choice(pods)
            world.kube.finish_pods(pod.name)
        elif chosen == 9 and pods:
            world.kube.protected.add(rng.choice(pods).name)
        elif chosen == 10 and world.kube.all("Secret"):
            token = rng.choice(world.kube.all("Secret"))
            name = rng.choice([vm.name for vm in vms if vm.name != token.machine] or ["control-plane-1"])
            self.stage.fault("certificate of another", f"{token.name} asks for {name}")
            world.kube.ask(token, name)
        elif chosen == 11 and vms:
            vm, name = rng.choice(vms), f"forged-{len(nodes)}"
            self.stage.fault("forged node", f"{name} says that it is {vm.name}")
            world.kube.forge_node(name, vm)

    def _by_hand(self) -> None:
        """Change resources of groups as a user or another controller may, lose machines, or make lists incomplete."""
        rng, cloud, kube = self.stage.rng, self.world.cloud, self.world.kube
        groups = [(group, [member for member in group.members if _is_at_rest(member)]) for group in cloud.groups()]
        groups = [(group, members) for group, members in groups if members]
        children = sorted(key for key in kube.objects if key[0] in list(Kind)[1:])
        nodes, secrets = [node.name for node in kube.all("Node")], [secret.name for secret in kube.all("Secret")]
        vms = [vm for vm in cloud.machines() if vm.status == "RUNNING"]
        chosen = rng.choice(_BY_HAND)
        if chosen in ("resized", "reduced", "recreated", "dropped") and groups:
            group, members = rng.choice(groups)
            match chosen:
                case "resized":
                    cloud.resize(group, group.size + 1)
                case "reduced":
                    cloud.resize(group, group.size - 1, rng.choice(members))
                case "recreated":
                    cloud.recreate(group, rng.choice(members))
                case "dropped":
                    cloud.drop(group)
        elif chosen == "node" and nodes:
            self.stage.fault("node deleted", "")
            kube.drop_node(rng.choice(nodes))
        elif chosen == "token" and secrets:
            self.stage.fault("token deleted", "")
            kube.drop_token(rng.choice(secrets))
        elif chosen == "child" and children:
            self.stage.fault("child deleted", "")
            kube.delete(rng.choice(children))
        elif chosen == "finalizers" and self.wanted:
            self.stage.fault("finalizers removed", "")
            kube.drop_finalizers(rng.choice(sorted(self.wanted)))
        elif chosen in (Loss.HOST_ERROR, Loss.MAINTENANCE) and vms:
            cloud.lose(rng.choice(vms), Loss(chosen))
        elif chosen == "partial":
            cloud.partial_chance = rng.choice((0.0, 0.3, 1.0))
        elif chosen == "unsynced":
            self.stage.fault("caches not synced", "")
            kube.not_synced = ("nodes",)
            self.stage.after(rng.uniform(5.0, 600.0), self._sync)

    def _sync(self) -> None:
        self.world.kube.not_synced = ()
        self.world.kube.on_change()

    def _repair_by_hand(self) -> None:
        """Undo changes of sizes, and repair groups whose machines are a slice each. The controller does neither."""
        kube, cloud = self.world.kube, self.world.cloud
        sizes = {child.meta.name: child.spec for child in kube.all(Kind.MANAGED_INSTANCE_GROUP)}
        for group in cloud.groups():
            wanted = sizes.get(group.name)
            if wanted is not None and wanted.target_size != group.size:
                cloud.resize(group, wanted.target_size)
            if wanted is None or group.is_bulk or wanted.target_size == 1:
                continue
            for member in group.members:
                if (
                    _is_at_rest(member)
                    and kube.has_joined(member.name)
                    and ("Node", "", member.name) not in kube.objects
                ):
                    cloud.recreate(group, member)
                self._recover(member.name)

    def _recover(self, name: str) -> None:
        if self.world.kube.runs(name):
            self.world.kube.change_node(name, ready=True, capacity_chips=4, allocatable_chips=4)

    def _restock(self) -> None:
        self.world.cloud.limit(None)


def run_seed(seed: int, *, bug: str = "", recording: bool = False) -> Outcome:
    """Run one seed to its end or to a violation, with the planted bug of this name if `bug` is not empty."""
    run = Run(seed, recording=recording)
    with planted(BUGS, bug):
        return outcome_of(run.run, run.stage, cpu_seconds=_CPU_SECONDS)
