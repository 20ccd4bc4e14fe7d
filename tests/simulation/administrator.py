"""The administrator of the provisioner: chooses further limits and settings, and pauses creates in the storm.

The draws have a separate source, so that they do not change the other draws of a run.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from provisioner import constants
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import object_path
from rehearsal.simulators.gke.records import Pool
from tests.simulation.pools import chips_in

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_ACCELERATORS = ("tpu-v4-podslice", "tpu-v5-lite-podslice", "tpu-v6e-slice")
_PAUSE_CHANCE, _HOURLY_CHANCE, _SETTING_CHANCE = 0.15, 0.1, 0.2
_PAUSED_SECONDS, _PAUSE_AFTER_SECONDS = (5.0, 400.0), (1.0, 120.0)
_HOUR_SECONDS = 3600.0
#: Maximum seconds between the decision to create a pool, at which the hour begins, and the call.
_CALL_SECONDS = 150.0
_PATH = object_path("configmaps", constants.PAUSE_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE)


class Administrator:
    """Settings of the provisioner that belong to no team, and pauses of creates."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        rng = self._rng = random.Random(f"administrator {simulation.stage.seed}")
        quiet = simulation.hostile.present or simulation.pods.present
        #: Whether a ConfigMap pauses creates once. Bounds in runs with hostile tenants or Deployments include no pause.
        self.pauses = rng.random() < _PAUSE_CHANCE and not quiet
        #: Whether the limit on the chips of the run applies to each accelerator instead of to all of them together.
        self.per_accelerator = rng.random() < 0.5 and not quiet
        #: MAX_CREATES_PER_HOUR, None if unlimited.
        self.creates_per_hour = rng.choice((6, 12, 24)) if rng.random() < _HOURLY_CHANCE and not quiet else None
        self._drawn: dict[str, Any] = {
            name: value
            for name, value in (
                ("replace_stuck_slices", True),
                ("replaced_share_percent", 100),
                ("ready_timeout_seconds", rng.choice((300.0, 600.0))),
            )
            if rng.random() < _SETTING_CHANCE
        }
        #: Time since which creates are paused; None if they are not paused.
        self._paused_since: float | None = None
        self._created_at: list[float] = []

    @property
    def delays(self) -> bool:
        """Whether creates may have to wait for the end of a pause or for the next hour."""
        return self.pauses or self.creates_per_hour is not None

    @property
    def delay_seconds(self) -> float:
        """Maximum seconds for which creates wait after the storm."""
        return _PAUSED_SECONDS[1] + (0.0 if self.creates_per_hour is None else 2 * _HOUR_SECONDS)

    def settings(self) -> dict[str, Any]:
        market = self._simulation.market
        chips, drawn = market.max_chips, {**self._drawn, "max_creates_per_hour": self.creates_per_hour}
        if not self.per_accelerator or chips is None:
            return {**drawn, "max_chips": chips}
        return {**drawn, "max_chips_per_accelerator": tuple((label, chips) for label in _ACCELERATORS)}

    def begin(self) -> None:
        if self.pauses:
            self._stage.agenda.after(self._rng.uniform(*_PAUSE_AFTER_SECONDS), self._pause)

    def _pause(self) -> None:
        if not self._stage.stormy:
            return
        self._stage.fault("creation paused", "by ConfigMap %s", constants.PAUSE_CONFIGMAP_NAME)
        metadata = {
            "name": constants.PAUSE_CONFIGMAP_NAME,
            "namespace": constants.DEFAULT_NAMESPACE,
            "creationTimestamp": format_time(self._stage.agenda.wall()),
        }
        self._stage.store.put(_PATH, {"metadata": metadata})
        self._paused_since = self._stage.agenda.now
        self._stage.agenda.after(self._rng.uniform(*_PAUSED_SECONDS), self._resume)

    def _resume(self) -> None:
        self._paused_since = None
        self._stage.store.remove(_PATH)

    def judge_create(self, pool: Pool, ours: list[Pool], stale_seconds: float) -> str:
        """Record a create; return the reason why it is wrong, empty if none. `ours` includes the new pool."""
        now, market = self._stage.agenda.now, self._simulation.market
        if self._paused_since is not None and now - self._paused_since > stale_seconds:
            return f"although creates have been paused for {now - self._paused_since:.0f} s"
        self._created_at = [at for at in (*self._created_at, now) if now - at < _HOUR_SECONDS - _CALL_SECONDS]
        creates, most = len(self._created_at), self.creates_per_hour
        if most is not None and creates > most and not self._simulation.chaos.jumps:
            return f"which is create {creates} of an hour, and MAX_CREATES_PER_HOUR is {most}"
        chips = sum(map(chips_in, self.limited_with(pool, ours)))
        if market.max_chips is not None and chips > market.max_chips:
            return f"which brings all to {chips} chips of {market.max_chips}"
        return ""

    def limited_with(self, pool: Pool, ours: list[Pool]) -> list[Pool]:
        """Return the pools in `ours` to which the same limit on chips applies as to `pool`."""
        accelerator = pool.plan.machine.accelerator
        return [other for other in ours if not self.per_accelerator or other.plan.machine.accelerator == accelerator]
