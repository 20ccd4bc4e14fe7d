"""Hostile and honest tenants in addition to the tenants of `hostile`, to test assignment and the queue.

Each run may have some of these: a workload whose slices start together and need an accelerator that is never in stock;
many short slices that wait for the same stock or limit; a JobSet that selects marks of another tenant; a buffer that
fills the limit while another tenant requests capacity that is never in stock; honest JobSets that restart.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.admission import SLICE_NAMESPACE
from tests.simulation.asks import BufferRun, raw_template, template_path
from tests.simulation.objects import HOSTILE_NAMESPACE, NAMESPACE, SLICE, JobSetRun, MixedRun, Shape

if TYPE_CHECKING:
    from tests.simulation.hostile import Hostile

#: Shape that is never in stock, and its generation.
_BARREN = Shape(accelerator="tpu-v6e-slice", topology="4x4", hosts=4, chips=4, parallelism=4)
_BARREN_GENERATION = "ct6e"
_TWO_ACCELERATORS, _HERD, _FORGES, _WARM, _RESTARTS = "two accelerators", "herd", "forges marks", "warm", "restarts"
_HERD_SLICES = 12
#: Seconds that tenants stay in runs with a buffer: longer than an hour, in which a warm pool is replaced at most once.
WARM_SECONDS = 4500.0
_RESTART_EVERY_SECONDS = (40.0, 150.0)
_MAX_RESTARTS = 3


class Rivals:
    """Tenants of one run in addition to the tenants of `Hostile`."""

    def __init__(self, hostile: Hostile) -> None:
        self._hostile, self._stage = hostile, hostile.stage
        self._rng = rng = random.Random(f"rivals {hostile.stage.seed}")
        chances = {
            _TWO_ACCELERATORS: 0.4 * (hostile.resource == "stock"),
            _HERD: 0.5 * (hostile.resource in ("stock", "limit")),
            _FORGES: 0.3,
            # With scarce capacity, a workload that can never be served would keep the buffer empty.
            _WARM: 0.6 * (hostile.resource == "nothing" and not hostile.limited and hostile.hang is None),
            _RESTARTS: 0.4,
        }
        drawn = {kind for kind, chance in chances.items() if rng.random() < chance}
        self.kinds = drawn if hostile.present else set[str]()
        self._restarts = 0

    @property
    def has_buffer(self) -> bool:
        return _WARM in self.kinds

    @property
    def honest_priority(self) -> int:
        """Priority of honest pods, above all other priorities if many slices wait for a limit; otherwise 0."""
        return 100 if _HERD in self.kinds and self._hostile.resource == "limit" else 0

    @property
    def honest_replicas(self) -> int:
        """Minimum number of slices of an honest JobSet; if it is 3, some slices have to wait for other tenants."""
        return 3 if self.honest_priority else 1

    @property
    def barren(self) -> str:
        """Generation that is never in stock; empty if every generation may be in stock."""
        return _BARREN_GENERATION if {_WARM, _TWO_ACCELERATORS} & self.kinds else ""

    def begin(self) -> None:
        rng, agenda, seconds = self._rng, self._stage.agenda, self._hostile.simulation.storm_seconds
        marked = self._hostile.simulation.admission.always_marks(HOSTILE_NAMESPACE)
        if _TWO_ACCELERATORS in self.kinds and marked:
            agenda.after(rng.uniform(0.0, seconds), self._need_two_accelerators)
        if _FORGES in self.kinds:
            agenda.after(rng.uniform(5.0, seconds), self._forge)
        if _WARM in self.kinds:
            agenda.after(rng.uniform(0.0, 30.0), self._keep_warm)
            agenda.after(rng.uniform(60.0, 200.0), lambda: self._hostile.come("barren", shape=_BARREN))

    def begin_calm(self) -> None:
        if _HERD in self.kinds:
            self._hostile.come("herd", replicas=_HERD_SLICES, fate="complete", gang=False)
        if _RESTARTS in self.kinds:
            self._restart_later()

    def _need_two_accelerators(self) -> None:
        hostile, options = self._hostile, {"gang": True, "shape": _BARREN}
        hostile.come("mixed", run_type=MixedRun, replicas=2, gang=True, other_shape=_BARREN)
        for number in range(self._rng.randint(0, 3)):
            hostile.come(f"greedy-{number}", replicas=2, **options)

    def _forge(self) -> None:
        workloads = self._hostile.simulation.cluster.workloads.values()
        victim = next(
            (workload for workload in workloads if workload.namespace == NAMESPACE and workload.kind.has_pods), None
        )
        if victim is not None:
            marks = {SLICE: f"j-{victim.slice_id(0).group_key}"}
            marks[SLICE_NAMESPACE] = self._rng.choice((NAMESPACE, HOSTILE_NAMESPACE))
            self._hostile.come("forged", extra_selector=marks)

    def _keep_warm(self) -> None:
        hostile, store = self._hostile, self._stage.store
        shape = hostile.shapes[0]
        uid, name = store.new_uid("buffer"), "warm"
        store.put(template_path(f"{name}-{uid}"), raw_template(f"{name}-{uid}", shape))
        hostile.simulation.cluster.create(
            BufferRun(
                name=name,
                uid=uid,
                shape=shape,
                replicas=(hostile.max_chips or 0) // (shape.hosts * shape.chips),
                template=f"{name}-{uid}",
                created=self._stage.agenda.now,
            )
        )

    def _restart_later(self) -> None:
        self._stage.agenda.after(self._rng.uniform(*_RESTART_EVERY_SECONDS), self._restart)

    def _restart(self) -> None:
        """Restart an honest JobSet whose pods run, as after a failed pod; at most `_MAX_RESTARTS` times in the run."""
        cluster = self._hostile.simulation.cluster
        running = [
            workload
            for workload in cluster.workloads.values()
            if isinstance(workload, JobSetRun)
            and workload.namespace == NAMESPACE
            and workload.alive
            and workload.pods
            and all(pod.node for pod in workload.pods.values())
        ]
        if running and self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            cluster.restart(self._rng.choice(running), "a pod fails")
        if self._hostile.present:
            self._restart_later()
