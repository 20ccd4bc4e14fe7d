"""Hostile tenants: in some runs one namespace tries to delay the honest JobSets of another namespace.

In these runs, no other team creates workloads. Most honest JobSets come at random times after the storm, and each must
be served while the hostile tenants stay. Then the hostile tenants leave, and the world settles.
"""

from __future__ import annotations

import functools
import math
import random
from typing import TYPE_CHECKING, Any

from provisioner import constants
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.admission import MARKS
from tests.simulation.asks import BufferRun
from tests.simulation.calls import Trouble, says
from tests.simulation.cloud import CLUSTER, ZONE
from tests.simulation.misfits import Misfits
from tests.simulation.objects import (
    HOSTILE_NAMESPACE,
    NAMESPACE,
    OTHER_NAMESPACE,
    SLICE,
    Claim,
    JobSetRun,
    PodRun,
    Shape,
    WorkloadRun,
)
from tests.simulation.people import FEASIBLE
from tests.simulation.pools import namespace_of
from tests.simulation.rivals import WARM_SECONDS, Rivals

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_NEIGHBOUR_CHANCE = 0.3
#: Node that does not belong to a pool of the provisioner.
_THEIR_NODE = "their-node"

_CHANCE = 0.2
#: Kind of hostile workload that a run usually has, by the resource that slices compete for.
_RESOURCES = {
    "limit": "never fits",
    "stock": "never fits",
    "operations": "burst",
    "threads": "burst",
    "chips of a namespace": "holds chips",
    "nothing": "never bound",
}
_KINDS = ("never fits", "never bound", "changes its request", "fails for itself", "holds chips", "foreign pools hang")
#: Ways in which a pool of the provisioner hangs, in runs that last until the hang must be reported.
_HANGS = (FaultKind.CREATE_NEVER_ENDS, FaultKind.DELETE_NEVER_ENDS, PoolStatus.RECONCILING)
_HANG_CHANCE = 0.1
HANGING_SECONDS = 4500.0
_V4, _V5E = "tpu-v4-podslice", "tpu-v5-lite-podslice"
_ONE_HOST = Shape(accelerator=_V4, topology="2x2x1", hosts=1, chips=4, parallelism=1)
_TWO_HOSTS = Shape(accelerator=_V4, topology="2x2x2", hosts=2, chips=4, parallelism=2)
_ONE_HOST_V5E = Shape(accelerator=_V5E, topology="2x4", hosts=1, chips=8, parallelism=1)
#: Pairs of shapes of honest slices; most hostile JobSets have the first shape of the pair.
_SHAPES = ((_ONE_HOST, _ONE_HOST), (_TWO_HOSTS, _ONE_HOST), (_ONE_HOST_V5E, _TWO_HOSTS))
#: Limit on the chips of all namespaces together, in runs that have this limit.
_MAX_CHIPS = 32
_LARGE = Shape(accelerator=_V4, topology="2x4x4", hosts=8, chips=4, parallelism=8)
_MAX_REPLICAS = 2
_BURST = 22
#: Seconds until all hostile JobSets are deleted, and duration of each delete, in runs with scarce operations.
_BUILT_SECONDS, _SLOW_DELETE_SECONDS = 300.0, 40.0
#: Seconds after the storm within which all faults are repaired.
_MENDED_SECONDS = 105.0
#: Maximum seconds until an honest JobSet comes, and seconds that are added before each honest JobSet in some runs,
#: so that hostile JobSets have waited for hours; then the probability of these runs.
_LATE_SECONDS, _LONG_SECONDS, _LONG_CHANCE = 900.0, 7000.0, 0.25
_PATCHED_EVERY_SECONDS, _PATCHED_FOR_SECONDS = 5.0, 300.0
#: Seconds that GKE takes to respond to creates of hostile tenants if threads are scarce.
SLOW_CALL_SECONDS = 8.0
_MISTAKES = (
    says(400, "Invalid value for field network: no such network."),
    says(503, "The service is currently unavailable."),
    says(403, 'Required "compute.subnetworks.use" permission(s).'),
)
_OWN_ACCOUNT = "mine@project-1.iam.gserviceaccount.com"
_NO_ADDRESSES = "IP_SPACE_EXHAUSTED: Instance 'x' creation failed: IP space of 'projects/p/.../tiny' is exhausted."
_OWN_TROUBLES: tuple[Trouble | None, ...] = (
    says(403, _NO_ADDRESSES),
    says(
        403,
        f'The user does not have access to service account "{_OWN_ACCOUNT}". Ask for the iam.serviceAccountUser role.',
    ),
    # With None, GKE accepts the create, and the pool fails later.
    None,
)
_FOREIGN = {"initialNodeCount": 1, "locations": [ZONE], "config": {"machineType": "e2-medium"}}


class Hostile:
    """The hostile and the honest tenant of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self.rng = rng = random.Random(f"hostile {simulation.stage.seed}")
        self.present = rng.random() < _CHANCE and simulation.same_cluster and not simulation.pods.present
        self.resource = rng.choice(tuple(_RESOURCES)) if self.present else ""
        self._kinds = {_RESOURCES.get(self.resource, ""), *rng.sample(_KINDS, k=rng.choice((0, 1, 1, 2)))}
        if self.resource == "operations":
            # Hanging foreign pools could use up GKE's limit on operations, so that no operation would ever run.
            self._kinds.discard("foreign pools hang")
        self.hang = rng.choice(_HANGS) if self.resource == "nothing" and rng.random() < _HANG_CHANCE * 4 else None
        #: Whether the run has no storm, so that only the hostile tenants may excuse a wait.
        self.quiet = self.present and rng.random() < 0.5
        self.shapes = rng.choice(_SHAPES)
        chips = max(shape.hosts * shape.chips for shape in self.shapes)
        self._limits = {NAMESPACE: _MAX_REPLICAS * chips, HOSTILE_NAMESPACE: rng.choice((0, chips))}
        self.limited = self.resource == "chips of a namespace" or (self.resource == "nothing" and rng.random() < 0.5)
        if self.resource == "nothing" and not self.limited:
            # Idle pools that were created for never-bound pods would serve honest slices, and hide other failures.
            self._kinds = self._kinds - {"never bound"} | {"fails for itself"}
        #: Chips that hostile tenants may hold permanently; the other chips suffice for the largest honest JobSet.
        held = chips + _ONE_HOST.chips if "holds chips" in self._kinds else 0
        self.stock_chips = _MAX_REPLICAS * chips + held if self.resource == "stock" else None
        self.stockout_seconds = rng.choice((5.0, 5.0, 240.0)) if self.stock_chips else 5.0
        self._gangs = self.resource == "stock" and rng.random() < 0.7
        self._mistake = rng.choice(_MISTAKES)
        self._own_trouble = rng.choice(_OWN_TROUBLES)
        self._still_to_come = 0
        self._stays_until = 0.0
        self._bare: list[PodRun] = []
        self._patches = 0
        self.takes_operations = True
        self.rivals = Rivals(self)
        self.misfits = Misfits(self)

    @property
    def threads(self) -> float:
        """Maximum number of calls of one kind that a process makes at the same time; infinite if there is no limit."""
        return 1 if self.resource == "threads" else math.inf

    @property
    def hangs_operations(self) -> bool:
        """Whether foreign pools hang, and GKE rejects creates for up to 90 s because of too many operations."""
        return "foreign pools hang" in self._kinds

    @property
    def sits_on_pools(self) -> bool:
        """Whether bare pods, which the controller does not see, may be on pools that look idle."""
        return bool(self._bare)

    def settings(self) -> dict[str, Any]:
        return {"max_chips_per_namespace": tuple(self._limits.items())} if self.limited else {}

    @property
    def max_chips(self) -> int | None:
        """Limit on the chips of all namespaces together; None without a limit."""
        return _MAX_CHIPS if self.resource == "limit" or self.rivals.has_buffer else None

    def max_chips_of(self, namespace: str) -> int | None:
        return self._limits.get(namespace) if self.limited else None

    def begin(self) -> None:
        if not self.present:
            return
        rng, agenda, seconds = self.rng, self.stage.agenda, self.simulation.storm_seconds
        agenda.after(1.0, lambda: self._come_honest("honest-0"))
        come = {
            "never fits": self._never_fits,
            "never bound": lambda: self.come("never-bound", replicas=_MAX_REPLICAS, bindable=False),
            "holds chips": self._hold_chips,
        }
        for kind, act in come.items():
            if kind in self._kinds:
                agenda.after(rng.uniform(0.0, seconds), act)
        self.rivals.begin()

    def restock(self) -> None:
        """Add the lasting faults again after all faults were repaired."""
        faults = self.simulation.cloud.world.faults
        if "fails for itself" in self._kinds and self._own_trouble is None:
            faults.add(_fault_of("own-trouble", FaultKind.CREATE_ERROR, message=_NO_ADDRESSES, after_seconds=5.0))
        if isinstance(self.hang, FaultKind):
            faults.add(_fault_of("hangs", self.hang))

    def begin_calm(self) -> None:
        """Start the tenants that need a working GKE, after all faults are repaired."""
        # Few honest JobSets make the check strict, because the bound on a wait depends on the number of waiting slices.
        self._still_to_come = 1 if self.stock_chips else 3
        seconds = WARM_SECONDS if self.rivals.has_buffer else _MENDED_SECONDS + 300.0
        self._stays_until = self.stage.agenda.now + (HANGING_SECONDS if self.hang else seconds)
        long = self.resource == "limit" and self.rng.random() < _LONG_CHANCE
        for number in range(1, self._still_to_come + 1):
            # The first JobSet comes shortly after the hostile tenants have begun.
            name, later = f"honest-{number}", self.rng.uniform(3.0, 30.0 if number == 1 else _LATE_SECONDS)
            later += number * _LONG_SECONDS * long
            self.stage.agenda.after(_MENDED_SECONDS + later, functools.partial(self._come_honest, name, late=True))
        self.stage.agenda.after(_MENDED_SECONDS, self._act_in_calm)

    def _act_in_calm(self) -> None:
        self.rivals.begin_calm()
        self.misfits.begin_calm()
        if "changes its request" in self._kinds:
            workload = self.come("changing", replicas=self.rng.choice((1, 2)), networks="vpc0:subnet0")
            self._patch(workload, self.stage.agenda.now + _PATCHED_FOR_SECONDS)
        if "fails for itself" in self._kinds:
            self.come("own-trouble", networks="vpc1:tiny", service_account=_OWN_ACCOUNT, bindable=False)
        if self.hangs_operations:
            self._hang_foreign_pools()
        if "burst" in self._kinds:
            # The burst has its own shape, so that no honest JobSet can use its pools.
            shape = _ONE_HOST_V5E if _ONE_HOST in self.shapes else _ONE_HOST
            fate = "complete" if self.resource == "threads" else "forever"
            self.come("burst", shape=shape, replicas=_BURST, fate=fate)
        if self.resource == "operations":
            self.simulation.cloud.world.change_settings({"delete_seconds": _SLOW_DELETE_SECONDS})
            self.stage.agenda.after(_BUILT_SECONDS, self._end_all_at_once)
        if self.hang is not None:
            self.come("hangs", shape=_ONE_HOST, fate="complete" if self.hang is FaultKind.DELETE_NEVER_ENDS else "")
        if self.hang is PoolStatus.RECONCILING:
            self.stage.agenda.after(300.0, self._reconcile)

    @property
    def done(self) -> bool:
        """Whether all honest JobSets have come and ended, and the hostile tenants have stayed long enough."""
        served = not self._still_to_come and all(not jobset.alive for jobset in self._jobsets(NAMESPACE))
        return served and self.stage.agenda.now >= self._stays_until

    def leave(self) -> None:
        """Remove all hostile tenants, and end the operations that hang because of them."""
        cloud, cluster = self.simulation.cloud, self.simulation.cluster
        self.stage.note("mallory", "leaves")
        self.present = False
        for workload in self._jobsets(HOSTILE_NAMESPACE):
            cluster.delete(workload)
        for buffer in [workload for workload in cluster.workloads.values() if isinstance(workload, BufferRun)]:
            cluster.remove(buffer)
        for pod in self._bare:
            cluster.terminate(pod)
        # Faults of foreign pools are kept, so that these pools continue to hang.
        for fault in cloud.world.faults.all():
            if fault.pool is not None and not fault.pool.startswith("gpu-"):
                cloud.world.faults.remove(fault.fault_id)
        cloud.world.release()
        cloud.limit_operations(None)
        for pool in cloud.pools.values():
            if pool.status is PoolStatus.RECONCILING:
                self._set_status(pool.name, PoolStatus.RUNNING, ready=True)

    def answer(self, pool: dict[str, Any]) -> Trouble | None:
        """Return GKE's rejection of a create of a hostile tenant, None if GKE accepts it."""
        troubles = {"changing": self._mistake, "own-trouble": self._own_trouble} if self.present else {}
        return troubles.get(pool["config"]["labels"].get(constants.POOL_JOBSET_NAME))

    def call_seconds(self, body: dict[str, Any]) -> float:
        hostile = namespace_of(body["nodePool"]["config"]["labels"]) == HOSTILE_NAMESPACE
        return SLOW_CALL_SECONDS if hostile and self.present and self.resource == "threads" else 0.0

    def is_private(self, pool: Pool) -> bool:
        """Whether a pool may fail for reasons that concern only its own workload."""
        return pool.body["config"]["labels"].get(constants.POOL_JOBSET_NAME) == "own-trouble"

    def _jobsets(self, namespace: str) -> list[JobSetRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [
            workload for workload in workloads if isinstance(workload, JobSetRun) and workload.namespace == namespace
        ]

    def _come_honest(self, name: str, *, late: bool = False) -> None:
        self._still_to_come -= late
        # Two slices of the larger shape use the limit of their namespace completely.
        replicas = _MAX_REPLICAS if self.limited or self._gangs else 1
        shape = self.rng.choice(self.shapes) if late else self.shapes[0]
        replicas, priority = max(replicas, self.rivals.honest_replicas), self.rivals.honest_priority
        self._create(name, NAMESPACE, shape, replicas=replicas, fate="complete", priority=priority)

    def come(self, name: str, *, shape: Shape | None = None, **options: Any) -> JobSetRun:
        self.stage.fault("hostile tenant", name)
        return self._create(name, HOSTILE_NAMESPACE, shape or self.shapes[0], **options)

    def _create(
        self,
        name: str,
        namespace: str,
        shape: Shape,
        *,
        gang: bool | None = None,
        run_type: type[JobSetRun] = JobSetRun,
        **options: Any,
    ) -> JobSetRun:
        admission, together = self.simulation.admission, self._gangs if gang is None else gang
        workload = run_type(
            name=name,
            namespace=namespace,
            exclusive=admission.exclusive(namespace),
            uid=self.stage.store.new_uid("jobset"),
            shape=shape,
            replicas=options.pop("replicas", 1),
            run_seconds=self.rng.uniform(5.0, 90.0),
            fate=options.pop("fate", "") or "forever",
            restarts_left=50,
            ordered=False,
            created=self.stage.agenda.now,
            labels_uid=self.simulation.labels_uid,
            together=together,
            gang=together and admission.marks(namespace),
            **options,
        )
        self.simulation.cluster.create(workload)
        return workload

    def _never_fits(self) -> None:
        """Request more chips than the stock or the limits ever leave."""
        if self.resource == "limit":
            # The limit allows the second JobSet only without the first one, which never ends.
            self.come("holder", shape=_ONE_HOST)
            self.stage.agenda.after(120.0, lambda: self.come("never-fits", shape=_LARGE, bindable=False))
            return
        shape = self.shapes[0]
        replicas = (self.stock_chips or 0) // (shape.hosts * shape.chips) + 1
        for number in range(self.rng.randint(2, 3) if self.stock_chips else 1):
            self.come(f"never-fits-{number}", replicas=replicas, gang=True, bindable=False)

    def _hold_chips(self) -> None:
        """Run a JobSet that never ends, and in some runs a bare pod, to which no limit applies."""
        self.come("holds", replicas=_MAX_REPLICAS if self.limited else 1, gang=False)
        if _ONE_HOST in self.shapes:
            self._hold_one_host()
            self.stage.agenda.after(self.rng.uniform(200.0, 900.0), self._look_finished)

    def _hold_one_host(self) -> None:
        cluster = self.simulation.cluster
        pod = cluster.add_foreign(_ONE_HOST, lasting_seconds=math.inf, namespace=HOSTILE_NAMESPACE)
        self._bare += [pod] if pod is not None else []

    def _look_finished(self) -> None:
        for pod in self._bare:
            if pod.node:
                pod.phase = "Succeeded"
                self.simulation.cluster.show(pod)

    def _patch(self, workload: JobSetRun, until: float) -> None:
        """Change the networks that pending pods request, every few seconds."""
        if not workload.alive or self.stage.agenda.now > until:
            return
        self._patches += 1
        workload.networks = f"vpc{self._patches}:subnet{self._patches}"
        for pod in workload.pods.values():
            if not pod.node:
                self.simulation.cluster.show(pod)
        seconds = self.rng.uniform(0.5, 2.0) * _PATCHED_EVERY_SECONDS
        self.stage.agenda.after(seconds, lambda: self._patch(workload, until))

    def _hang_foreign_pools(self) -> None:
        """Let foreign pools hang, and let GKE reject creates for up to 90 s because too many operations run."""
        cloud, agenda = self.simulation.cloud, self.stage.agenda
        kind = self.rng.choice((FaultKind.CREATE_NEVER_ENDS, FaultKind.DELETE_NEVER_ENDS))
        cloud.world.faults.add(Fault(kind=kind, pool="gpu-.*"))
        for number in range(2):
            cloud.world.create_pool(CLUSTER, {**_FOREIGN, "name": f"gpu-{number}"})
        self.takes_operations = False
        cloud.limit_operations(1)
        self.come("rejected", shape=_ONE_HOST, fate="complete")
        agenda.after(90.0, functools.partial(self._go_on_hanging, kind))

    def _go_on_hanging(self, kind: FaultKind) -> None:
        cloud = self.simulation.cloud
        self.takes_operations = True
        cloud.limit_operations(None)
        for number in range(2 if kind is FaultKind.DELETE_NEVER_ENDS else 0):
            pool = cloud.pools[f"gpu-{number}"]
            if pool.operation.is_done:
                cloud.world.delete_pool(CLUSTER, pool.name)

    def _end_all_at_once(self) -> None:
        """Delete the hostile JobSets while GKE accepts few operations, and create an honest JobSet soon after."""
        cluster = self.simulation.cluster
        self.simulation.cloud.limit_operations(self.rng.choice((1, 2)))
        for workload in self._jobsets(HOSTILE_NAMESPACE):
            cluster.delete(workload)
        self.stage.agenda.after(self.rng.uniform(10.0, 60.0), lambda: self._come_honest("honest-between"))

    def _reconcile(self) -> None:
        """Let the pools of the hostile tenant stay RECONCILING, without a ready node."""
        for name in {
            pod.pool for workload in self._jobsets(HOSTILE_NAMESPACE) for pod in workload.pods.values() if pod.node
        }:
            self._set_status(name, PoolStatus.RECONCILING, ready=False)

    def _set_status(self, name: str, status: PoolStatus, *, ready: bool) -> None:
        self.simulation.cloud.world.set_status(name, status)
        for node in self.simulation.cloud.pools[name].nodes:
            self.simulation.cloud.set_status(node.name, ready=ready)


def _fault_of(jobset: str, kind: FaultKind, **options: Any) -> Fault:
    return Fault(kind=kind, pool=rf"{jobset}-[0-9a-f]{{10}}", **options)


class Neighbour:
    """Pods in other namespaces with the labels of a user's workload, and pods that select the marks of its slices.

    Some pods with the labels are bound to nodes, and some are controlled by an object with the name of the workload's
    child object. No pool may be created for the workload because of these pods, and the workload must keep its pools.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self._rng = random.Random(f"neighbour {simulation.stage.seed}")
        self._present = self._rng.random() < _NEIGHBOUR_CHANCE

    def begin(self) -> None:
        if self._present:
            self.stage.agenda.after(self._rng.uniform(0.5, 10.0), self._act)

    def _act(self) -> None:
        rng, cluster = self._rng, self.simulation.cluster
        if not self.stage.stormy:
            return
        self.stage.agenda.after(rng.uniform(1.0, 15.0), self._act)
        workloads = [workload for workload in cluster.workloads.values() if workload.kind.has_pods]
        victims = [workload for workload in workloads if workload.alive and workload.replicas]
        if not victims:
            return
        victim = rng.choice(victims)
        claim = Claim(workload=victim, job=rng.randrange(victim.replicas), controlled=rng.random() < 0.5)
        self.stage.fault("hostile neighbour", "claims %s", victim.group_name(claim.job))
        node = rng.choice(("", _THEIR_NODE, *cluster.nodes))
        shape, seconds = rng.choice(FEASIBLE), rng.uniform(10.0, 100.0)
        cluster.add_foreign(shape, lasting_seconds=seconds, claim=claim, node=node)
        self._forge(victim)

    def _forge(self, victim: WorkloadRun) -> None:
        """Create a pod without a group that tolerates every taint and may select the marks of the victim."""
        rng = self.simulation.admission.rng
        marks = [pod.selector for pod in victim.pods.values() if SLICE in pod.selector]
        selector = {key: rng.choice(marks)[key] for key in MARKS} if marks and rng.random() < 0.7 else {}
        namespace = rng.choice((OTHER_NAMESPACE, HOSTILE_NAMESPACE, victim.namespace))
        self.stage.fault("forged marks", "%s in %s", selector.get(SLICE, "none"), namespace)
        self.simulation.cluster.add_foreign(
            victim.shape,
            lasting_seconds=rng.uniform(10.0, 100.0),
            namespace=namespace,
            selector=selector,
            tolerates_all=True,
        )
