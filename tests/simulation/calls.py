"""Faults of calls and watch events: delays, errors, lost responses, and crashes or pauses during a call."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rehearsal.simulators.gke.errors import of_http_code
from tests.simulation.store import Stage

if TYPE_CHECKING:
    from tests.simulation.process import Process

_HTML = "<html><body>not what you are looking for</body></html>"
_MAX_CRASHES = 5
#: Factor by which a pause is more likely during calls about pods and nodes, such as the gate's checks before a delete.
_DELICATE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Fault of one call: a delay, and an error response if `code` is not None (0 if the connection breaks)."""

    delay_seconds: float = 0.0
    code: int | None = None
    text: str = ""
    before_effect: bool = True
    #: Whether the error concerns the requested capacity, so that no other slice gets this capacity either.
    of_capacity: bool = False


def says(
    code: int, text: str, *, status: str | None = None, of_capacity: bool = False, before_effect: bool = True
) -> Trouble:
    body = of_http_code(code, text, status=status).body(request_id="0x1")
    return Trouble(code=code, text=json.dumps(body), of_capacity=of_capacity, before_effect=before_effect)


class Calls:
    """Draws the faults of the calls of one run; after the storm (`stage.stormy` is False), only short delays."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        rng = stage.rng
        self._gke_errors = rng.choice((0.0, 0.0, 0.03, 0.12))
        self._kube_errors = rng.choice((0.0, 0.0, 0.02, 0.08))
        self._slowness = rng.choice((0.0, 0.01, 0.05))
        self._crash_chance = rng.choice((0.0, 0.0, 0.002, 0.01))
        self._pause_chance = rng.choice((0.0, 0.0, 0.002, 0.01))
        self._lag_seconds = rng.choice((0.0, 0.0, 0.5, 5.0))
        self._breaks_watches = stage.chance(0.2)
        self.refuses_requests = stage.chance(0.1)
        self._crashes_left = self._pauses_left = _MAX_CRASHES
        # A separate random source, so that losses of decisions do not change the draws of other faults.
        self._losses = random.Random(f"losses {stage.seed}")
        self._loss_chance = self._losses.choice((0.0, 0.0, 0.0, 0.1))
        self.kube_down_until = self.gke_down_until = 0.0
        self.on_delicate_pause: Callable[[], None] = lambda: None

    @property
    def prompt(self) -> bool:
        """Whether this run has drawn no call fault that delays or loses watch events."""
        return not (self._lag_seconds or self._breaks_watches or self._slowness or self._kube_errors)

    def latency_seconds(self) -> float:
        rng = self.stage.rng
        if self.stage.stormy and self._slowness and rng.random() < self._slowness:
            return rng.uniform(0.1, 5.0)
        return rng.uniform(0.001, 0.04)

    def loses(self, kind: str, process: Process) -> bool:
        """Whether a decision is lost inside the process, before its calls are sent."""
        if not self.stage.stormy or self._losses.random() >= self._loss_chance:
            return False
        self.stage.fault(kind, process.name)
        return True

    def start_delay_seconds(self) -> float:
        return self.stage.rng.uniform(0.0, 0.05 if not self.stage.stormy else 0.5)

    def crashes(self, process: Process) -> bool:
        if not self.stage.stormy or not self._crash_chance or self._crashes_left == 0:
            return False
        if self.stage.rng.random() >= self._crash_chance:
            return False
        self._crashes_left -= 1
        self.stage.fault("crash within a call", process.name)
        return True

    def pause_seconds(self, process: Process, *, delicate: bool) -> float:
        """Return the seconds of a pause during a call, usually 0; `delicate` makes a pause 10 times as likely."""
        if not self.stage.stormy or not self._pause_chance or self._pauses_left == 0:
            return 0.0
        if self.stage.rng.random() >= self._pause_chance * (_DELICATE if delicate else 1.0):
            return 0.0
        self._pauses_left -= 1
        seconds = self.stage.rng.uniform(2.0, 70.0)
        self.stage.fault("pause within a call", "%s for %.0f s", process.name, seconds)
        if delicate:
            self.on_delicate_pause()
        return seconds

    def watch_trouble(self, resource: str) -> tuple[float, bool]:
        """Return the delay of an event, and whether the watch breaks instead of sending the event."""
        rng = self.stage.rng
        if not self.stage.stormy:
            return rng.uniform(0.002, 0.1), False
        lag = rng.uniform(0.002, 0.3)
        if self._lag_seconds:
            lag = min(rng.expovariate(1.0 / self._lag_seconds), 30.0)
            if lag > 1.0:
                self.stage.faults["event late"] += 1
        breaks = self._breaks_watches and rng.random() < 0.05
        if breaks:
            self.stage.fault("watch broken", resource)
        return lag, breaks

    def list_expires(self) -> bool:
        """Whether the history is compacted before the next page of a list is read."""
        return self.stage.stormy and self._breaks_watches and self.stage.rng.random() < 0.1

    def watch_ends(self, seconds: int) -> tuple[float, float | None]:
        """Return the seconds until a watch ends, and until its bookmark; None if it sends no bookmark."""
        rng = self.stage.rng
        early = self.stage.stormy and rng.random() < 0.1
        if early:
            self.stage.faults["watch ends early"] += 1
        return (
            rng.uniform(0.0, seconds) if early else float(seconds),
            rng.uniform(0.0, seconds) if rng.random() < 0.5 else None,
        )

    def gke_fault(self, process: Process, method: str) -> Trouble | None:
        if not self.stage.stormy:
            return None
        rng = self.stage.rng
        if self.stage.agenda.now < self.gke_down_until:
            self.stage.faults["gke call in outage"] += 1
            return says(503, "The service is currently unavailable.")
        if rng.random() >= self._gke_errors:
            return None
        before = rng.random() < 0.5
        choices = [
            ("gke rate limit", says(429, "Quota exceeded for quota metric 'API requests'.")),
            ("gke 503", says(503, "Try again.", before_effect=before)),
            ("gke connection broken", Trouble(code=0, before_effect=before)),
            ("gke proxy error", Trouble(code=502, text=_HTML, before_effect=before)),
            ("gke proxy 404", Trouble(code=404, text=_HTML)),
            ("gke hangs", Trouble(code=0, delay_seconds=rng.uniform(10.0, 25.0))),
            ("gke answer late", Trouble(delay_seconds=rng.uniform(1.0, 9.0))),
            ("gke permission", says(403, 'Required "container.clusters.update"')),
        ]
        if method in ("nodePools.create", "nodePools.delete"):
            text = "Cluster is running incompatible operation operation-1."
            choices.append(("gke operation in the way", says(400, text, status="FAILED_PRECONDITION")))
        if method == "nodePools.create" and self.refuses_requests:
            choices.append(("gke refuses", says(400, "Machine type x is not supported.")))
        kind, trouble = rng.choice(choices)
        self.stage.fault(kind, "%s of %s", method, process.name)
        return trouble

    def kube_fault(self, process: Process, method: str, path: str) -> Trouble | None:
        if not self.stage.stormy:
            return None
        rng = self.stage.rng
        if self.stage.agenda.now < self.kube_down_until:
            self.stage.faults["kubernetes call in outage"] += 1
            return Trouble(code=0, text="connection refused")
        if rng.random() >= self._kube_errors:
            return None
        kind, trouble = rng.choice(
            (
                ("kubernetes 503", Trouble(code=503, text="etcd is away", before_effect=True)),
                ("kubernetes answer lost", Trouble(code=0, text="connection reset", before_effect=False)),
                ("kubernetes answer late", Trouble(delay_seconds=rng.uniform(0.5, 4.0))),
                ("kubernetes hangs", Trouble(code=0, text="timed out", delay_seconds=rng.uniform(5.0, 15.0))),
            )
        )
        self.stage.fault(kind, "%s %s of %s", method, path.rsplit("/", 1)[-1], process.name)
        return trouble
