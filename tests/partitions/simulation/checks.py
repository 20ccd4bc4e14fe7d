"""Checks the invariants of a run, with as little of the tested code as possible."""

from __future__ import annotations

from math import inf

from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import Call, CreatePartition, OpenGate, RemovePartition
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.planning.round import Snapshot
from provisioner.settings.partitions import PartitionSettings
from tests.partitions.simulation.kube import CLUSTER, Kube
from tests.partitions.simulation.plans import faults_of
from tests.partitions.simulation.process import own
from tests.partitions.simulation.servers import VipuServer
from tests.support.simulations.stage import Stage

#: Maximum time in seconds until the controller knows a change.
_SEEN_SECONDS = 150.0
#: Maximum seconds for which a partition exists after the end of its pod, of the faults, and of its server's outage.
OUTLIVES_SECONDS = 600.0
#: Maximum time in seconds to detect a failed server: servers are read once a minute, in rounds up to 30 s apart.
_NOTICED_SECONDS = 120.0
#: Maximum number of creates of a partition in a minute, over all servers. A restarted controller counts from zero.
MAX_TRIES_A_MINUTE = 40


class Checks:
    """Checks the invariants of one simulated run."""

    def __init__(self, stage: Stage, kube: Kube, servers: dict[str, VipuServer], settings: PartitionSettings) -> None:
        self.stage, self.kube, self.servers, self.settings = stage, kube, servers, settings
        #: Ids of all partitions that were ever in the ledger.
        self.recorded: set[str] = set()
        #: Time at which a user or another leader may last have written the ledger.
        self.tampered_at = -inf
        self.longest_outlived = 0.0
        #: UID of the pod that last got a partition, by id of the partition.
        self.handed: dict[str, str] = {}
        #: Times of recent creates, by id of the partition.
        self.tries: dict[str, list[float]] = {}
        kube.on_open, kube.on_start, kube.on_save = self._open, self._start, self._save
        kube.on_take_back, kube.is_served = self._take_back, self._is_served
        for server in servers.values():
            server.on_change = lambda call, server=server: self._change(server, call)

    def _open(self, pod: Pod, gate: OpenGate) -> None:
        """Check that a gate is removed once, and only if the pod's own partition is active and in the ledger."""
        if gate.partition_id != names.partition_id(CLUSTER, pod.uid, gate.server.address):
            self.stage.violate(f"pod {pod.name} is told of partition {gate.partition_id}, which is not its own")
        other = self.kube.pods.get(self.handed.get(gate.partition_id, pod.uid))
        if other is not None and other.uid != pod.uid and self.kube.needs(other):
            self.stage.violate(f"pods {pod.name} and {other.name} share partition {gate.partition_id}")
        self.handed[gate.partition_id] = pod.uid
        if not pod.gated:
            self.stage.violate(f"the gate of pod {pod.name} is opened twice")
        entry = next((candidate for candidate in self.kube.read_ledger().entries if candidate.pod_uid == pod.uid), None)
        tampered = self.stage.agenda.now - self.tampered_at < _SEEN_SECONDS
        if entry is None and not tampered:
            self.stage.violate(f"the gate of pod {pod.name} is opened, and the ledger has no entry of it")
        self._has_its_partition(pod.name, gate.partition_id, gate.server.address, "its gate is opened")

    def _take_back(self, pod: Pod) -> None:
        """Check that a pod whose partition the controller takes back has neither a node nor its gate."""
        if pod.node or pod.gated:
            self.stage.violate(f"the partition of pod {pod.name} is taken back, and it is on {pod.node or 'its way'}")

    def _is_served(self, pod: Pod) -> bool:
        """Return whether the REST API serves a pod; True for a pod that has no server in its annotations."""
        if not pod.server_annotation:
            return True
        server = self.servers[pod.server_annotation]
        return not server.is_down and server.is_active(pod.partition_annotation)

    def _start(self, pod: Pod) -> None:
        # If a fault removes a pod's partition before the pod has a node, its init container waits for the next one.
        late = pod.uid in self.kube.late and self._was_robbed(pod)
        if pod.server_annotation and self.kube.needs(pod) and not late:
            self._has_its_partition(pod.name, pod.partition_annotation, pod.server_annotation, "it starts")

    def _was_robbed(self, pod: Pod) -> bool:
        server = self.servers.get(pod.server_annotation)
        return server is not None and pod.partition_annotation in server.robbed

    def _has_its_partition(self, name: str, partition_id: str, address: str, when: str) -> None:
        server = self.servers[address]
        robbed = self.stage.agenda.now - server.robbed.get(partition_id, -inf) < _SEEN_SECONDS
        if not server.is_active(partition_id) and not robbed:
            self.stage.violate(f"pod {name} has no active partition on {address} when {when}")

    def _change(self, server: VipuServer, call: Call) -> None:
        """Check a create or remove at the time at which it takes effect."""
        if isinstance(call, CreatePartition):
            if call.request.id not in self.recorded:
                self.stage.violate(f"partition {call.request.id} is made, and the ledger never had it")
            self._tries(call.request.id)
            return
        if not isinstance(call, RemovePartition):
            return
        if not own(call.id):
            self.stage.violate(f"partition {call.id} is removed, and it is not ours")
        pod = self.kube.by_partition(call.id)
        if pod is None or not self.kube.needs(pod) or pod.partition_annotation != call.id:
            return
        if not call.unused:
            self.stage.violate(f"partition {call.id} is removed under pod {pod.name}")
        # The remove was sent before the pod used the partition, and arrives late: this is a fault, not a violation.
        server.robbed[call.id] = self.stage.agenda.now

    def _tries(self, partition_id: str) -> None:
        now = self.stage.agenda.now
        tries = [at for at in self.tries.get(partition_id, []) if at > now - 60.0] + [now]
        self.tries[partition_id] = tries
        if len(tries) > MAX_TRIES_A_MINUTE:
            self.stage.violate(f"partition {partition_id} is tried {len(tries)} times within a minute")

    def _save(self, ledger: Ledger) -> None:
        self.recorded |= {entry.id for entry in ledger.entries}
        for entry in ledger.entries:
            if names.owner_of(entry.id) != names.owner_id(CLUSTER, entry.pod_uid):
                self.stage.violate(f"entry {entry.id} is of pod {entry.pod}, whose id is another one")

    def judge(self, snapshot: Snapshot, plan: Plan) -> None:
        tells_sizes = {address: server.tells_sizes for address, server in self.servers.items()}
        for fault in faults_of(snapshot, plan, self.settings, tells_sizes=tells_sizes):
            self.stage.violate(fault)
        self.stage.note_digest("controller", "shows", plan.view)

    def outlived(self, since: float) -> None:
        """Check that no partition outlives its pod by more than OUTLIVES_SECONDS, counted from `since` or later."""
        now = self.stage.agenda.now
        for server in self.servers.values():
            for partition_id in server.partitions():
                if not own(partition_id):
                    continue
                pod = self.kube.by_partition(partition_id)
                if server.is_down or (pod is not None and self.kube.needs(pod)):
                    continue
                owner = names.owner_of(partition_id)
                uid = next((uid for uid in self.kube.runs if names.owner_id(CLUSTER, uid) == owner), "")
                age = now - max(since, server.back_at, self.kube.ended.get(uid, 0.0) + 30.0)
                self.longest_outlived = max(self.longest_outlived, age)
                if age > OUTLIVES_SECONDS:
                    self.stage.violate(f"partition {partition_id} has outlived its pod by {age:.0f} s")

    def none_waits_for_a_server(self, since: float) -> None:
        """Check that no gated pod has an entry on a server that is down too long, counted from `since` or later."""
        for entry in self.kube.read_ledger().entries:
            server, pod = self.servers[entry.server], self.kube.pods.get(entry.pod_uid)
            down = self.stage.agenda.now - max(since, server.down_at)
            waits = pod is not None and pod.gated and self.kube.needs(pod)
            if server.is_down and waits and down > self.settings.stuck_seconds + _NOTICED_SECONDS:
                self.stage.violate(f"{entry.pod} has a place on {entry.server}, which is down for {down:.0f} s")

    def nothing_left(self) -> None:
        for address, server in self.servers.items():
            left = [partition for partition in server.partitions() if own(partition)]
            if left:
                self.stage.violate(f"left on {address}: {', '.join(left)}")
        ledger = self.kube.read_ledger()
        if ledger.entries or ledger.unreadable:
            self.stage.violate(f"left in the ledger: {[entry.pod for entry in ledger.entries]} {ledger.unreadable}")
