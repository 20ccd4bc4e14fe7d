"""What a simulated GKE can be told about itself, at its start and while it runs.

Times are in seconds. Reading from JSON reports every mistake at once; nothing is read from the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioner.simulators.gke.machines import parse_topology

# Settings that identify the cluster or its credentials can't change under the clients that use them.
FIXED_SETTINGS = frozenset({"project", "location", "cluster"})
CHANNELS = ("RAPID", "REGULAR", "STABLE", "EXTENDED")
#: The permission without which a caller can give no node a service account.
ACT_AS = "iam.serviceAccounts.actAs"
#: A reservation that is READY, and all of it in use.
FULL = "FULL"
_RESERVATION_STATES = ("CREATING", "DELETING", "INVALID", "READY", "UPDATING", FULL)


class SettingsError(ValueError):
    """One or more settings are unknown or out of range; the text names each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """Every option of the simulator."""

    project: str | None = None
    """The one project served; None serves any."""

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

    update_seconds: float = 1.0
    """How long an update of labels takes."""

    pending_seconds: float = 0.0
    """How long an operation is PENDING before it is RUNNING."""

    request_seconds: float = 0.0
    """Every API call is answered this much later."""

    node_stagger_seconds: float = 1.0
    """A pool's nodes register spread over this long before it is RUNNING."""

    scale_up_seconds: float = 10.0
    """An autoscaled pool made empty (flex-start) gets its nodes this long after it is RUNNING."""

    release_channel: str | None = "REGULAR"
    """The release channel of every cluster, REGULAR as that of clusters made through the API; None: none."""

    service_accounts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Node service accounts that cannot be used: "forbidden" (the caller may not act as it) or "missing"."""

    operations_quota: int | None = None
    """More concurrent operations than this in a cluster are refused with 429; None: no limit."""

    delete_while_creating: bool = False
    """Accept the delete of a pool whose create still runs; real GKE was seen to refuse it."""

    accept_single_host_placement: bool = False
    """Accept a topology or COMPACT placement on single-host TPU pools; real GKE was seen to refuse it."""

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

    denied_permissions: Sequence[str] = ()
    """IAM permissions that clients do not have, on whatever resource: calls that need them are refused."""

    reservations: Mapping[str, str] | None = None
    """The reservations that there are, ZONE/NAME, each with its status, FULL for one that is used up; None: any, READY.
    """

    repair_seconds: float | None = None
    """Nodes that vanish come back after this long; None: they stay away."""

    pool_in_node_names: bool = False
    """Name nodes with TPUs after cluster and pool, as others are; real GKE names them gke-tpu-HASH-xxxx."""

    ready_nodes: bool = False
    """Report nodes Ready at registration; leave off where kwok or another kubelet stand-in does."""

    operations_kept: int = 2000
    """How many finished operations are remembered."""

    calls_kept: int = 10_000
    """How many API calls the log remembers."""

    version: str = "1.34.1-gke.3084001"
    """The GKE version that clusters, pools and nodes report."""

    def __post_init__(self) -> None:
        problems = [*_range_problems(self), *_policy_problems(self.workload_policies)]
        problems += _reservation_problems(self.reservations or {})
        problems += [
            f"service_accounts: {account!r} has {state!r}, which is neither forbidden nor missing"
            for account, state in self.service_accounts.items()
            if state not in ("forbidden", "missing")
        ]
        if self.release_channel not in (None, *CHANNELS):
            problems.append(
                f"release_channel: {self.release_channel!r} is not one of {', '.join(CHANNELS)}; null means no channel"
            )
        if problems:
            raise SettingsError("; ".join(problems))

    def state_of_account(self, account: str) -> str:
        """Return what is wrong with a service account for nodes: "forbidden", "missing", or nothing."""
        denied = "forbidden" if ACT_AS in self.denied_permissions else ""
        return self.service_accounts.get(account, denied)

    def changed(self, changes: Mapping[str, Any]) -> SimulatorSettings:
        """Return a copy with the changes, given as JSON would give them."""
        known = {item.name: item for item in dataclasses.fields(self)}
        problems = []
        for name, value in changes.items():
            if name not in known:
                problems.append(f"{name}: no such setting; known are {', '.join(sorted(known))}")
            elif name in FIXED_SETTINGS and value != getattr(self, name):
                problems.append(f"{name}: can be set only at startup")
            elif (problem := _type_problem(name, value, str(known[name].type))) is not None:
                problems.append(problem)
        if problems:
            raise SettingsError("; ".join(problems))
        return dataclasses.replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}


def _type_problem(name: str, value: object, annotation: str) -> str | None:
    if value is None:
        return None if "None" in annotation else f"{name}: null is not allowed"
    base = annotation.split(" | ", maxsplit=1)[0].split("[", maxsplit=1)[0]
    accepted: dict[str, tuple[type, ...]] = {
        "float": (int, float),
        "int": (int,),
        "bool": (bool,),
        "str": (str,),
        "Mapping": (dict,),
        "Sequence": (list, tuple),
    }
    if not isinstance(value, accepted[base]) or (isinstance(value, bool) and base != "bool"):
        return f"{name}: {value!r} is not of type {base}"
    return None


def _range_problems(settings: SimulatorSettings) -> list[str]:
    problems = []
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if item.name.endswith("_seconds") and value is not None and not 0 <= value < 1e7:
            problems.append(f"{item.name}: {value!r} is not a number of seconds from 0 to 10,000,000")
    if settings.operations_quota is not None and settings.operations_quota < 1:
        problems.append(f"operations_quota: {settings.operations_quota} is less than 1; null disables it")
    problems += [
        f"{name}: {getattr(settings, name)} is less than 1"
        for name in ("operations_kept", "calls_kept")
        if getattr(settings, name) < 1
    ]
    return problems


def _policy_problems(policies: Mapping[str, object]) -> list[str]:
    return [
        f"workload_policies: {name!r} has {topology!r}, which is not a topology such as 4x4x4"
        for name, topology in policies.items()
        if not isinstance(topology, str) or parse_topology(topology) is None
    ]


def _reservation_problems(reservations: Mapping[str, object]) -> list[str]:
    states = ", ".join(_RESERVATION_STATES)
    return [f"reservations: {name!r} is not ZONE/NAME" for name in reservations if name.count("/") != 1] + [
        f"reservations: {name!r} has {state!r}, which is not one of {states}"
        for name, state in reservations.items()
        if state not in _RESERVATION_STATES
    ]
