"""ProvisioningRequests, CapacityBuffers and PodTemplates of the simulated world, and users that create CapacityBuffers.

Runs with limited stock have no CapacityBuffers: the provisioner deletes warm pools at a limit but not after a stockout,
so workloads could wait without end. Not simulated: buffers that follow a workload.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from provisioner import constants
from provisioner.kube.protocol import JsonObject, object_path
from provisioner.model.workloads import WorkloadKind
from provisioner.workloads import KINDS
from provisioner.workloads.capacity_requests import NODE_POOLS
from tests.simulation.objects import NAMESPACE, JobSetRun, Shape, WorkloadRun, pod_spec
from tests.simulation.team import Team
from tests.support.simulations.stage import Agenda

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_TEMPLATE_LATE_SECONDS = (0.0, 0.0, 20.0)

REQUEST, BUFFER = WorkloadKind.PROVISIONING_REQUEST, WorkloadKind.CAPACITY_BUFFER
TEMPLATES = "podtemplates"
ENDS = (constants.FAILED, constants.CAPACITY_REVOKED, constants.BOOKING_EXPIRED)
_CHANCE = 1 / 8
_DRAWN = ((REQUEST,), (BUFFER,), (REQUEST, BUFFER))


def asked_in(seed: int) -> tuple[WorkloadKind, ...]:
    """Return which of ProvisioningRequests and CapacityBuffers the run of a seed has; most runs have neither."""
    rng = random.Random(f"asks {seed}")
    return rng.choice(_DRAWN) if rng.random() < _CHANCE else ()


@dataclass(eq=False, slots=True, kw_only=True)
class AskRun(WorkloadRun):
    """A ProvisioningRequest or CapacityBuffer: an object that requests slices and has no pods."""

    fate: str = "forever"
    labels_uid: bool = False
    template: str
    status: JsonObject = field(default_factory=dict)
    #: Time at which each condition became true.
    true_since: dict[str, float] = field(default_factory=dict)

    @property
    def separate(self) -> bool:
        """Always False: pods of any workload may run on the pools of a request or buffer."""
        return False

    def is_true(self, *conditions: str) -> bool:
        return any(condition in self.true_since for condition in conditions)

    def take_status(self, status: JsonObject, now: float) -> None:
        """Record a new status, and its node pools as the last pools of the slices."""
        self.status = status
        true = [condition["type"] for condition in status.get("conditions", []) if condition["status"] == "True"]
        self.true_since = {condition: self.true_since.get(condition, now) for condition in true}
        named = status.get("provisioningClassDetails", {}).get(NODE_POOLS, "")
        self.last_pool = dict(enumerate(filter(None, named.split(","))))

    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        raise AssertionError(f"{self.name} has no pods")

    def template_ref(self) -> JsonObject:
        return {"podTemplateRef": {"name": self.template}}


@dataclass(eq=False, slots=True, kw_only=True)
class RequestRun(AskRun):
    """A ProvisioningRequest, whose slices are provisioned once, all at the same time."""

    of = KINDS[REQUEST]
    gang: bool = True
    #: Number of slices of each pod set; 0 for a pod set without chips.
    sets: tuple[int, ...]

    @property
    def alive(self) -> bool:
        return not (self.gone or self.is_true(*ENDS))

    def group_name(self, job: int) -> str:
        for place, slices in enumerate(self.sets):
            if job < slices:
                return f"{self.name}-{place}-{job}"
            job -= slices
        return f"{self.name}-none-{job}"

    def raw(self, agenda: Agenda) -> JsonObject:
        sets = [
            {**self.template_ref(), "count": slices * self.shape.parallelism}
            if slices
            else {"podTemplateRef": {"name": helper_of(self.template)}, "count": 1}
            for slices in self.sets
        ]
        spec = {"provisioningClassName": constants.PROVISIONING_CLASS, "podSets": sets}
        return {"metadata": self._metadata(agenda), "spec": spec, "status": self.status}


@dataclass(eq=False, slots=True, kw_only=True)
class BufferRun(AskRun):
    """A CapacityBuffer, whose slices are idle and free for any workload."""

    of = KINDS[BUFFER]
    #: Lower than the priority of any pod, because the slices of buffers are last in the queue.
    priority: int = -(2**31) - 1
    #: False, because a buffer has no pods; its pools may therefore be deleted or used by other slices.
    bindable: bool = False
    max_chips: int | None = None

    def slots(self) -> range:
        chips = self.shape.hosts * self.shape.chips
        return range(self.replicas if self.max_chips is None else min(self.replicas, self.max_chips // chips))

    def group_name(self, job: int) -> str:
        return f"{self.name}-{job}"

    def raw(self, agenda: Agenda) -> JsonObject:
        limits = {"limits": {constants.TPU_RESOURCE: self.max_chips}} if self.max_chips is not None else {}
        spec = {"provisioningStrategy": constants.BUFFER_STRATEGY, **self.template_ref(), "replicas": self.replicas}
        return {"metadata": self._metadata(agenda), "spec": {**spec, **limits}, "status": self.status}


@dataclass(eq=False, slots=True, kw_only=True)
class QueuedRun(JobSetRun):
    """A JobSet that Kueue suspends until the request for its slices is served."""

    request: RequestRun | None = None
    #: Name of the ProvisioningRequest whose capacity the pods use; empty before the first request is served.
    consumes: str = ""
    asked_times: int = 0
    #: Number of consecutive requests that failed or expired.
    failures: int = 0
    #: Number of consecutive failures after which Kueue gives up.
    max_failures: int
    active: bool = True

    def pod_annotations(self) -> dict[str, str]:
        # super() without arguments does not work in a dataclass with slots.
        annotations = JobSetRun.pod_annotations(self)
        return annotations | ({constants.CONSUMES_REQUEST: self.consumes} if self.consumes else {})


def helper_of(template: str) -> str:
    """Return the name of the template for the pods without chips that accompany the pods of `template`."""
    return f"{template}-helper"


def template_path(name: str, namespace: str = NAMESPACE) -> str:
    return object_path(TEMPLATES, name, namespace=namespace)


def raw_template(name: str, shape: Shape | None, namespace: str = NAMESPACE) -> JsonObject:
    """Return a PodTemplate; without a shape, its pods request no chips."""
    spec: dict[str, Any] = {"containers": [{"name": "main"}]} if shape is None else pod_spec(shape)
    return {"metadata": {"name": name, "namespace": namespace}, "template": {"metadata": {}, "spec": spec}}


class BufferTeam(Team[BufferRun]):
    """Users that create CapacityBuffers."""

    run_type = BufferRun
    title, presence, creates = "buffer team", 1.0, 0.2
    names = ("warm",)

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        market = simulation.market
        self.present = BUFFER in simulation.asks and not simulation.hostile.present and market.stock_chips is None

    def _make(self, name: str) -> BufferRun:
        rng = self._rng
        people, market = self.simulation.people, self.simulation.market
        max_chips, max_pools = market.max_chips or 0, market.max_pools or 12
        # Some buffers fill the limit on chips, perhaps with a shape that no workload requests.
        fills = bool(max_chips) and rng.random() < 0.7
        shape = rng.choice(
            [candidate for candidate in (people.late_shapes if fills else people.shapes) if candidate.feasible]
        )
        shape = replace(shape, parallelism=shape.hosts)
        most = min(max_pools, max_chips // (shape.hosts * shape.chips))
        replicas = most if fills else rng.choice((1, 1, 2))
        # Each buffer has its own template, because an earlier buffer of the same name may have requested other slices.
        uid = self.stage.store.new_uid("buffer")
        template = f"{name}-{uid}"
        put = functools.partial(self.stage.store.put, template_path(template), raw_template(template, shape))
        self.stage.agenda.after(rng.choice(_TEMPLATE_LATE_SECONDS), put)
        return BufferRun(
            name=name,
            uid=uid,
            shape=shape,
            replicas=replicas,
            max_chips=shape.hosts * shape.chips * rng.choice((0, 1, 1)) + 1 if rng.random() < 0.2 else None,
            template=template,
            created=self.stage.agenda.now,
        )

    def _change(self, run: BufferRun) -> None:
        rng, cluster = self._rng, self.simulation.cluster
        match rng.choice(("delete", "again", "scale", "scale", "touch", "touch")):
            case "delete":
                cluster.remove(run)
            case "again":
                cluster.remove(run)
                self._create(run.name)
            case "scale":
                run.replicas = rng.choice((0, 1, 2))
                run.touch(self.stage.agenda.now)
                self.stage.note("user", "scales %s %s to %d", run.kind, run.name, run.replicas)
                cluster.write(run)
            case _:
                cluster.write(run)
