"""The kubelet of a VM that has joined: it registers its node once, reports its state and renews its Lease.

As of a real one, the node stays away once somebody has deleted it, until the VM starts again. Pods are not its
business: it only looks whether the device plugin runs, without which a node has no chips.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from rehearsal.simulators.compute.guests import kubelet
from rehearsal.simulators.compute.guests.client import MERGE, STRATEGIC, Client
from rehearsal.simulators.compute.guests.errors import ServerError
from rehearsal.simulators.compute.guests.kubelet import LEASES, NODES, Readiness
from rehearsal.simulators.compute.guests.startup import Invitation
from rehearsal.simulators.compute.records import MachineView
from rehearsal.simulators.compute.settings import ComputeSettings

#: A kubelet reports its whole state this often although nothing has changed.
_REPORT_SECONDS = 300.0
_FIRST_LOOK_SECONDS = 0.5
_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(slots=True, kw_only=True)
class Kubelet:
    """One start of a kubelet."""

    machine: MachineView
    invitation: Invitation
    client: Client
    settings: Callable[[], ComputeSettings]
    _uid: str = ""
    _state: Readiness | None = None
    _reported: Readiness | None = None
    _reported_at: datetime | None = None
    _renewed_at: datetime | None = None
    _look_seconds: float = field(default=_FIRST_LOOK_SECONDS)

    def turn(self, now: datetime, *, chips_work: bool) -> float:
        """Do what is due; return after how many seconds there is more. Raises ServerError."""
        if self._state is None:
            self._state = self._register(now)
            return 0.0
        self._state = state = self._seen(self._state, now, chips_work=chips_work)
        if state != self._reported or _is_older(self._reported_at, now, _REPORT_SECONDS):
            self._report(state, now)
        heartbeat_seconds = self.settings().heartbeat_seconds
        if _is_older(self._renewed_at, now, heartbeat_seconds):
            self._renew(state, now)
        if state.chips == self.machine.chips:
            self._look_seconds = _FIRST_LOOK_SECONDS
            return heartbeat_seconds
        # Soon, then less and less often: hundreds of nodes may wait for a device plugin.
        self._look_seconds = min(self._look_seconds * 2, heartbeat_seconds)
        return self._look_seconds

    def shut_down(self, now: datetime) -> None:
        """Report that the machine goes down. Raises ServerError."""
        if self._state is not None:
            self._report(kubelet.shutting_down(self._state, now), now)

    def _register(self, now: datetime) -> Readiness:
        state = kubelet.starting(now)
        try:
            made = self.client.call("POST", NODES, kubelet.node_body(self.machine, self.invitation, state, now))
        except ServerError as error:
            if error.status != _CONFLICT:
                raise
            # Of an earlier start, or of another machine of that name.
            made = self.client.call("GET", self._path)
        self._uid = made["metadata"]["uid"]
        return state

    def _seen(self, before: Readiness, now: datetime, *, chips_work: bool) -> Readiness:
        chips = self.machine.chips if chips_work and self.machine.chips and self._has_device_plugin() else 0
        return replace(kubelet.ready(before, now), chips=chips, seen_chips=max(chips, before.seen_chips))

    def _has_device_plugin(self) -> bool:
        selector = self.settings().device_plugin
        if not selector:
            return True
        query = urlencode({"fieldSelector": f"spec.nodeName={self.machine.name}", "labelSelector": selector})
        pods = self.client.call("GET", f"/api/v1/pods?{query}")["items"]
        return any(pod.get("status", {}).get("phase") == "Running" for pod in pods)

    def _report(self, state: Readiness, now: datetime) -> None:
        status = kubelet.status_of(self.machine, self.invitation, state, now)
        self.client.call("PATCH", f"{self._path}/status", {"status": status}, content_type=STRATEGIC)
        self._reported, self._reported_at = state, now

    def _renew(self, state: Readiness, now: datetime) -> None:
        body = kubelet.lease_body(self.machine, now)
        path = f"{LEASES}/{self.machine.name}"
        try:
            self.client.call("PATCH", path, {"spec": body["spec"]}, content_type=MERGE)
        except ServerError as error:
            if error.status != _NOT_FOUND:
                raise
            # The Lease goes with its node: it is made again only where that is there.
            self._report(state, now)
            self.client.call("POST", LEASES, self._owned(body))
        self._renewed_at = now

    def _owned(self, lease: dict[str, Any]) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.machine.name, "uid": self._uid}
        return {**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}}

    @property
    def _path(self) -> str:
        return f"{NODES}/{self.machine.name}"


def _is_older(moment: datetime | None, now: datetime, seconds: float) -> bool:
    # Half a second early is no harm, and saves a turn of its own.
    return moment is None or (now - moment).total_seconds() >= seconds - 0.5
