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
    """Options of the simulator."""

    # These identify the cluster or its credentials.
    fixed = ("project", "location", "cluster")

    location: str | None = None
    """The one cluster location (zone or region) served; None serves any."""

    cluster: str | None = None
    """The one cluster served; None serves any, each made when it is first spoken of."""

    create_seconds: float = 20.0
    """From a create to its pool being RUNNING; real pools take minutes."""

    create_jitter_seconds: float = 0.0
    """At most this much is added to each create at random; off, so that rehearsals repeat."""

    delete_seconds: float = 5.0
    """From a delete to its pool being gone."""

    node_stagger_seconds: float = 1.0
    """A pool's nodes register spread over this long before it is RUNNING."""

    scale_up_seconds: float = 10.0
    """An autoscaled pool made empty (flex-start) gets its nodes this long after it is RUNNING."""

    release_channel: str | None = "REGULAR"
    """The release channel of every cluster, REGULAR as that of clusters made through the API; None: none."""

    operations_quota: int | None = None
    """More concurrent operations than this in a cluster are refused with 429; None: no limit."""

    delete_while_creating: bool = False
    """Accept the delete of a pool whose create still runs; real GKE was seen to refuse it."""

    workload_policies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Workload policies that somebody made before, in every project and region, each with its topology."""

    policy_seconds: float = 1.0
    """From the insert of a workload policy to its being READY."""

    autopilot: bool = False
    """The clusters are Autopilot clusters, which take no node pools."""

    auto_provisioning_limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """What node auto-provisioning may buy, by resource ("tpu-v6e-slice"); it is on where this names any."""

    workload_identity: bool = True
    """Workload Identity is on in the clusters."""

    reservations: Mapping[str, str] | None = None
    """The reservations that there are, ZONE/NAME, each with its status, FULL for one that is used up; None: any, READY.
    """

    reservation_ends: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """When Compute Engine deletes reservations, ZONE/NAME, and their VMs with them: RFC 3339 times; others never end.
    """

    repair_seconds: float | None = None
    """Nodes that vanish come back after this long; None: they stay away."""

    pool_in_node_names: bool = False
    """Name nodes with TPUs after cluster and pool, as others are; real GKE names them gke-tpu-HASH-xxxx."""

    ready_nodes: bool = False
    """Report nodes Ready at registration; leave off where kwok or another kubelet stand-in does."""

    operations_kept: int = 2000
    """How many finished operations are remembered."""

    version: str = "1.34.1-gke.3084001"
    """The GKE version that clusters, pools and nodes report."""

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
