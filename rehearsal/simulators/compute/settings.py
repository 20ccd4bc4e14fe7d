"""Settings of a simulated Compute Engine, for its start and while it runs. Times are in seconds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rehearsal.simulators.http.google import GoogleSettings

_DAY_SECONDS = 24 * 3600.0
_RESERVATION = re.compile(r"(?:[^/]+/)?[a-z0-9-]+/[a-z0-9-]+")
#: Metrics of supported quotas; each name says what is counted.
QUOTAS = ("INSTANCE_TEMPLATES", "INSTANCE_GROUP_MANAGERS", "RESOURCE_POLICIES", "TPUS", "PREEMPTIBLE_TPUS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings(GoogleSettings):
    """Options of the simulator."""

    fixed = ("project", "machines_join")

    zones: Collection[str] | None = None
    """The zones that there are; None: any of that form."""

    operation_seconds: float = 1.0
    """How long an insert or delete of a policy, template or group takes, beside what VMs take."""

    metadata_seconds: float = 0.5
    """From a setMetadata to its effect."""

    provisioning_seconds: float = 2.0
    """How long a VM is PROVISIONING."""

    staging_seconds: float = 3.0
    """How long a VM is STAGING, and so from then to RUNNING."""

    machine_jitter_seconds: float = 0.0
    """At most this much is added to the start of each VM at random; off, so that rehearsals repeat."""

    stopping_seconds: float = 2.0
    """How long a VM is STOPPING, also after the notice of a preemption (30 s in reality)."""

    machines_join: bool = False
    """VMs run their startup script's join and a kubelet, against the API server that their metadata names."""

    boot_seconds: float = 1.0
    """From RUNNING to the first try to join, which in reality takes minutes, or to the start of the kubelet."""

    join_retry_seconds: float = 2.0
    """After a try to join that failed; doubled with each further one, as by the startup script."""

    longest_join_retry_seconds: float = 60.0
    """The longest of these waits."""

    heartbeat_seconds: float = 10.0
    """How often kubelets renew their Lease."""

    device_plugin: str = "k8s-app=tpu-device-plugin"
    """The label selector of pods that show chips to the kubelet of their node; empty: chips are always shown."""

    graceful_shutdown: bool = False
    """Kubelets report that their machine is STOPPING. kubeadm's do not: their nodes stay Ready until their Lease is too
    old."""

    retry_seconds: float = 5.0
    """How often capacity that was not there is asked for again; also how old lastProgressCheck gets."""

    host_repair_seconds: float = 5.0
    """From a host error to the restart of a VM with automaticRestart."""

    group_repair_seconds: float = 5.0
    """From the loss of a VM to a group's own repair, for those that repair."""

    operations_kept_seconds: float = 14 * _DAY_SECONDS
    """How long a finished operation can be read. The references only speak of a limited retention period."""

    request_id_seconds: float = 3600.0
    """How long a request id is remembered: other services promise 60 minutes, Compute Engine's reference no time."""

    wait_seconds: float = 120.0
    """How long a wait for an operation takes at most (reference of zoneOperations.wait)."""

    visible_while_inserted: bool = True
    """A get finds a template or group before its insert is done. No document says so; off is worse for who looks."""

    capacity: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How many VMs there is room for outside reservations, by ZONE/MACHINE_TYPE; unlimited where nothing is said."""

    reservations: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """The reservations that there are, by ZONE/NAME or PROJECT/ZONE/NAME: {"machine_type": M, "count": N}, and with
    "status" (READY, CREATING ...) if it is another than READY."""

    quotas: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Limits by metric, one of QUOTAS: templates in a project, groups, policies and chips in each region."""

    reads_per_minute: int | None = None
    """More reads in a minute than this are refused, by project; None: no limit."""

    changes_per_minute: int | None = None
    """More changes in a minute than this are refused, by project; None: no limit."""

    rate_limit_code: int = 403
    """The HTTP status of a rate limit. 403 is the worse of the two: it looks like a missing permission."""

    violated_constraints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Organisation policies in the way, by method, such as {"instanceTemplates.insert": "constraints/compute.x"};
    "instances.insert" is the creation of VMs by groups."""

    def problems(self) -> list[str]:
        """Return the mistakes in the settings."""
        problems = [f"quotas: {name!r} is not one of {', '.join(QUOTAS)}" for name in self.quotas if name not in QUOTAS]
        problems += [
            f"{name}: {limit} is less than 1; null disables it"
            for name, limit in (
                ("reads_per_minute", self.reads_per_minute),
                ("changes_per_minute", self.changes_per_minute),
            )
            if limit is not None and limit < 1
        ]
        if not self.heartbeat_seconds:
            problems.append("heartbeat_seconds: 0 is not a time to wait")
        if self.rate_limit_code not in (403, 429):
            problems.append(f"rate_limit_code: {self.rate_limit_code} is neither 403 nor 429")
        for name, reservation in self.reservations.items():
            if _RESERVATION.fullmatch(name) is None:
                problems.append(f"reservations: {name!r} is neither ZONE/NAME nor PROJECT/ZONE/NAME")
            if not isinstance(reservation.get("machine_type"), str) or not isinstance(reservation.get("count"), int):
                problems.append(f'reservations: {name!r} needs a "machine_type" and a "count" of VMs')
        problems += [f"capacity: {name!r} is not ZONE/MACHINE_TYPE" for name in self.capacity if name.count("/") != 1]
        return problems + GoogleSettings.problems(self)
