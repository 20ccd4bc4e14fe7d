"""Settings of a simulated GKE, for its start and while it runs. Times are in seconds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rehearsal.simulators.http.google import GoogleSettings
from rehearsal.simulators.machines import parse_topology

CHANNELS = ("RAPID", "REGULAR", "STABLE", "EXTENDED")
#: Permission that a caller needs to give nodes a service account.
ACT_AS = "iam.serviceAccounts.actAs"
#: State of a reservation that is READY and completely in use.
FULL = "FULL"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?(Z|[+-]\d\d:\d\d)")
_RESERVATION_STATES = ("CREATING", "DELETING", "INVALID", "READY", "UPDATING", FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings(GoogleSettings):
    """Settings of the simulated GKE."""

    # These settings are fixed, because they identify the cluster or its credentials.
    fixed = ("project", "location", "cluster")

    #: The only cluster location (zone or region) that is served; None if all are.
    location: str | None = None
    #: The only cluster that is served; None if all are, each created when it is first used.
    cluster: str | None = None
    #: Time from a create until its pool is RUNNING; real pools take minutes.
    create_seconds: float = 20.0
    #: Maximum random addition to each create. 0 by default, so that rehearsals are repeatable.
    create_jitter_seconds: float = 0.0
    #: Time from a delete until its pool does not exist any longer.
    delete_seconds: float = 5.0
    #: Time before RUNNING over which the registrations of a pool's nodes are spread.
    node_stagger_seconds: float = 1.0
    #: Time from RUNNING until an autoscaled pool that was created empty (flex-start) gets its nodes.
    scale_up_seconds: float = 10.0
    #: Release channel of every cluster, REGULAR like that of clusters created through the API; None for no channel.
    release_channel: str | None = "REGULAR"
    #: Maximum number of concurrent operations in a cluster, above which calls get status 429. None if unlimited.
    operations_quota: int | None = None
    #: Whether the delete of a pool is accepted while its create runs; real GKE was seen to reject it.
    delete_while_creating: bool = False
    #: Topologies of workload policies that exist from the beginning in every project and region, by name.
    workload_policies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Time from the insert of a workload policy until it is READY.
    policy_seconds: float = 1.0
    #: Whether the clusters are Autopilot clusters, which reject node pools.
    autopilot: bool = False
    #: Limits of node auto-provisioning by resource ("tpu-v6e-slice"); auto-provisioning is off if empty.
    auto_provisioning_limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    workload_identity: bool = True
    #: Statuses of the existing reservations by ZONE/NAME, FULL if used up; None if all names exist and are READY.
    reservations: Mapping[str, str] | None = None
    #: Times (RFC 3339) at which Compute Engine deletes reservations and their VMs, by ZONE/NAME; others never end.
    reservation_ends: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Time until a lost node registers again; None if it does not.
    repair_seconds: float | None = None
    #: Whether names of nodes with TPUs contain cluster and pool; real GKE names them gke-tpu-HASH-xxxx.
    pool_in_node_names: bool = False
    #: Whether Nodes are Ready when they are registered; must be False if kwok or another simulated kubelet sets this.
    ready_nodes: bool = False
    #: Maximum number of finished operations that can be read.
    operations_kept: int = 2000
    #: GKE version of clusters, pools and nodes.
    version: str = "1.34.1-gke.3084001"

    def problems(self) -> list[str]:
        """Return the mistakes in the settings."""
        problems = [*_policy_problems(self.workload_policies), *_reservation_problems(self.reservations or {})]
        problems += _end_problems(self.reservation_ends)
        if self.operations_quota is not None and self.operations_quota < 1:
            problems.append(f"operations_quota: {self.operations_quota} is less than 1; null disables it")
        problems += GoogleSettings.problems(self)
        if self.release_channel not in (None, *CHANNELS):
            problems.append(
                f"release_channel: {self.release_channel!r} is not one of {', '.join(CHANNELS)}; null means no channel"
            )
        return problems

    def has_ended(self, zone: str, reservation: str, now: datetime) -> bool:
        """Return whether a reservation has been deleted."""
        end = self.reservation_ends.get(f"{zone}/{reservation}")
        return end is not None and datetime.fromisoformat(end) <= now

    def state_of_account(self, account: str) -> str:
        """Return the problem with a service account for nodes: "forbidden", "missing", or "" if usable."""
        denied = "forbidden" if ACT_AS in self.denied_permissions else ""
        return self.service_accounts.get(account, denied)


def _policy_problems(policies: Mapping[str, object]) -> list[str]:
    return [
        f"workload_policies: {name!r} has {topology!r}, which is not a topology such as 4x4x4"
        for name, topology in policies.items()
        if not isinstance(topology, str) or parse_topology(topology) is None
    ]


def _end_problems(ends: Mapping[str, str]) -> list[str]:
    return [
        f"reservation_ends: {name!r} has {end!r}, which is not an RFC 3339 time"
        for name, end in ends.items()
        if not _TIME.fullmatch(end)
    ]


def _reservation_problems(reservations: Mapping[str, object]) -> list[str]:
    states = ", ".join(_RESERVATION_STATES)
    return [f"reservations: {name!r} is not ZONE/NAME" for name in reservations if name.count("/") != 1] + [
        f"reservations: {name!r} has {state!r}, which is not one of {states}"
        for name, state in reservations.items()
        if state not in _RESERVATION_STATES
    ]
