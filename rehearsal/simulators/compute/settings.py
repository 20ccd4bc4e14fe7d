"""Settings of a simulated Compute Engine, for its start and while it runs. Times are in seconds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rehearsal.simulators.http.google import GoogleSettings

_DAY_SECONDS = 24 * 3600.0
_RESERVATION = re.compile(r"(?:[^/]+/)?[a-z0-9-]+/[a-z0-9-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings(GoogleSettings):
    """Settings of the simulated Compute Engine."""

    fixed = ("project", "machines_join")

    #: Existing zones; None if every name in the format of a zone is valid.
    zones: Collection[str] | None = None
    #: Duration of an insert or delete of a policy, template or group, without the time for its VMs.
    operation_seconds: float = 1.0
    #: Time from a setMetadata to its effect.
    metadata_seconds: float = 0.5
    provisioning_seconds: float = 2.0
    staging_seconds: float = 3.0
    #: Maximum random addition to the start of each VM. 0 by default, so that rehearsals are repeatable.
    machine_jitter_seconds: float = 0.0
    #: Time for which a VM is STOPPING, also after the notice of a preemption (30 s in reality).
    stopping_seconds: float = 2.0
    #: Whether VMs join the cluster that their metadata names, as their startup script would, and run a kubelet.
    machines_join: bool = False
    #: Time from RUNNING to the first attempt to join (minutes in reality), or to the start of the kubelet.
    boot_seconds: float = 1.0
    #: Pause after a failed attempt to join. It doubles with each further failure, as in the startup script.
    join_retry_seconds: float = 2.0
    longest_join_retry_seconds: float = 60.0
    #: Interval at which kubelets renew their Lease.
    heartbeat_seconds: float = 10.0
    #: Label selector of pods that make chips visible to the kubelet of their node; empty if chips are always visible.
    device_plugin: str = "k8s-app=tpu-device-plugin"
    #: Whether kubelets report that their machine is STOPPING. With kubeadm's configuration they do not, and their nodes
    #: are Ready until the Lease is too old.
    graceful_shutdown: bool = False
    #: Interval at which a group requests missing capacity again; also the maximum age of lastProgressCheck.
    retry_seconds: float = 5.0
    #: Time from a host error to the restart of a VM with automaticRestart.
    host_repair_seconds: float = 5.0
    #: Time from the loss of a VM to its repair by the group, if the group repairs.
    group_repair_seconds: float = 5.0
    #: Retention period of finished operations. Compute Engine's references do not name its length.
    operations_kept_seconds: float = 14 * _DAY_SECONDS
    #: Time for which a request ID is remembered. Other services promise 60 minutes; Compute Engine promises no time.
    request_id_seconds: float = 3600.0
    #: Whether a get finds a template or group before its insert has ended. Not documented; False is harder for clients.
    visible_while_inserted: bool = True
    #: Maximum number of VMs outside of reservations, by ZONE/MACHINE_TYPE; unlimited if not listed.
    capacity: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: Reservations by ZONE/NAME or PROJECT/ZONE/NAME: {"machine_type": M, "count": N, "status": "READY" by default}.
    reservations: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)

    def problems(self) -> list[str]:
        """Return the mistakes in the settings."""
        problems = []
        if not self.heartbeat_seconds:
            problems.append("heartbeat_seconds: 0 is not a time to wait")
        for name, reservation in self.reservations.items():
            if _RESERVATION.fullmatch(name) is None:
                problems.append(f"reservations: {name!r} is neither ZONE/NAME nor PROJECT/ZONE/NAME")
            if not isinstance(reservation.get("machine_type"), str) or not isinstance(reservation.get("count"), int):
                problems.append(f'reservations: {name!r} needs a "machine_type" and a "count" of VMs')
        problems += [f"capacity: {name!r} is not ZONE/MACHINE_TYPE" for name in self.capacity if name.count("/") != 1]
        return problems + GoogleSettings.problems(self)
