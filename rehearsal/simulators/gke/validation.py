"""Checks a node pool before its create like GKE: immediate errors, and mistakes that show only later.

`check_pool` either raises an ApiError (the request is rejected) or returns a `PoolPlan`. A mistake that real GKE finds
only while it creates the pool is in the plan's `failure`: the create is accepted, and its operation ends with that
error. Quotas, existing names and faults are checked by the model. The rules for labels, taints and OAuth scopes are
also in this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rehearsal.simulators.gke import capacity, names, node_config
from rehearsal.simulators.gke.capacity import Capacity
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.settings import FULL, SimulatorSettings
from rehearsal.simulators.http import google
from rehearsal.simulators.machines import Machine, PolicyRule, find_machine

_POOL_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
_MAX_NODES_PER_ZONE = 1000


_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_MAX_CHARACTERS = 1024


_AUTH = "https://www.googleapis.com/auth/"
_SCOPE = re.compile(re.escape(_AUTH) + r"[a-z][a-z0-9._-]*")
#: Scopes that the cluster's logging and monitoring add to a pool without scopes; pulling images needs others.
ADDED = (f"{_AUTH}logging.write", f"{_AUTH}monitoring")
_PULLING = frozenset(
    f"{_AUTH}{name}"
    for name in ("cloud-platform", "devstorage.read_only", "devstorage.read_write", "devstorage.full_control")
)


def check_scopes(scopes: Sequence[str]) -> None:
    """Raise ApiError for texts that are not OAuth scopes of Google."""
    for scope in scopes:
        if _SCOPE.fullmatch(scope) is None:
            raise ApiError("INVALID_ARGUMENT", f'Invalid value for field "node_pool.config.oauth_scopes": "{scope}".')


def pulls_images(pool: Mapping[str, Any]) -> bool:
    """Return whether nodes of a pool in canonical JSON can pull private images, which most pods need."""
    return not _PULLING.isdisjoint(pool.get("config", {}).get("oauthScopes", ADDED))


#: Domains whose labels only Kubernetes sets on nodes.
_OF_KUBERNETES = re.compile(r"\.(kubernetes|k8s)\.io$")


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise ApiError for node labels with a wrong syntax, with a domain of Kubernetes, or above 1,024 characters."""
    for key, value in labels.items():
        _check_key(key)
        # https://github.com/bitpoke/stack/issues/86; the kubelet rejects the same domains in --node-labels.
        if _OF_KUBERNETES.search(f".{key.rpartition('/')[0]}") is not None:
            raise ApiError("INVALID_ARGUMENT", f"Applying kubernetes label is not allowed: {key}.")
        if value and _NAME.fullmatch(value) is None:
            raise ApiError(
                "INVALID_ARGUMENT",
                f'Invalid value for field "node_pool.config.labels": invalid label value "{value}" of "{key}": must be '
                "no more than 63 characters, begin and end with an alphanumeric character, with dashes, underscores, "
                "dots and alphanumerics between.",
            )
    total = sum(len(key) + len(value) for key, value in labels.items())
    if total > _MAX_CHARACTERS:
        raise ApiError(
            "INVALID_ARGUMENT",
            f'Invalid value for field "node_pool.config.labels": This field supports up to 1,024 total characters in '
            f"a single request, got {total}.",
        )


def check_taints(taints: Sequence[Mapping[str, Any]]) -> None:
    """Raise ApiError for taints without a valid key or effect."""
    for taint in taints:
        _check_key(taint.get("key", ""))
        if taint.get("effect", "EFFECT_UNSPECIFIED") == "EFFECT_UNSPECIFIED":
            raise ApiError("INVALID_ARGUMENT", f'Taint "{taint["key"]}" has no effect.')


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    valid_prefix = not slash or (len(prefix) <= 253 and _DNS.fullmatch(prefix) is not None)
    if not valid_prefix or _NAME.fullmatch(name) is None:
        raise ApiError(
            "INVALID_ARGUMENT",
            f'Invalid value for field "node_pool.config.labels": invalid label key "{key}": must be a name of at most '
            "63 characters, optionally after a DNS subdomain and a slash.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Error of an operation: canonical status, message, and the legacy code of its condition (None if unknown)."""

    status: str
    message: str
    condition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The decided properties of a new pool."""

    machine: Machine
    zones: tuple[str, ...]
    hosts_per_zone: int
    topology: str | None
    capacity: Capacity
    reservation: str = ""
    scale_up_hosts: int = 0
    failure: Failure | None = None


def check_pool(
    pool: Mapping[str, Any], cluster: names.ClusterName, settings: SimulatorSettings, policies: Mapping[str, str]
) -> PoolPlan:
    """Return the plan for a pool in canonical JSON. Raises ApiError if GKE would reject it.

    `policies` are the topologies of the region's workload policies by name.
    """
    _check_name(pool.get("name", ""))
    config = pool.get("config", {})
    zones = _zones(pool, cluster)
    machine = _machine(config, zones[0])
    check_labels(config.get("labels", {}))
    check_taints(config.get("taints", []))
    _check_disk(config, machine)
    _check_pods_per_node(pool)
    check_scopes(config.get("oauthScopes", []))
    _check_service_account(config, cluster.project, settings)
    _check_upgrades(pool, settings)
    _check_host_maintenance(config)
    capacity.check_capacity(pool, machine)
    plan = _check_placement(pool, machine, zones, policies)
    multi_host = machine.is_tpu and plan.topology not in (None, machine.own_topology)
    node_config.check_node_config(pool, machine, multi_host=multi_host)
    return replace(plan, failure=plan.failure or _reservation_failure(pool, plan, cluster.project, settings))


def asked_topology(pool: Mapping[str, Any], policies: Mapping[str, str]) -> str | None:
    """Return the topology that a pool requests, without checks; None if it requests none."""
    placement = pool.get("placementPolicy", {})
    policy = policies.get(placement.get("policyName", "").rpartition("/")[2])
    machine = find_machine(pool.get("config", {}).get("machineType", ""))
    return placement.get("tpuTopology") or policy or (_own_topology(pool, machine) if machine is not None else None)


def _own_topology(pool: Mapping[str, Any], machine: Machine) -> str | None:
    """Return the topology of a pool for which neither placement nor policy contains one."""
    return machine.own_topology if pool.get("initialNodeCount", 0) <= 1 else None


def _invalid(text: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", text)


def _check_name(name: str) -> None:
    if _POOL_NAME.fullmatch(name) is None:
        raise _invalid(
            f'Invalid value for field "node_pool.name": "{name}". Must be a match of regex '
            f"'(?:[a-z](?:[-a-z0-9]{{0,38}}[a-z0-9])?)' (only lowercase alphanumerics and '-' allowed, must start with "
            f"a letter and end with an alphanumeric, and must be no longer than 40 characters)."
        )


def _zones(pool: Mapping[str, Any], cluster: names.ClusterName) -> tuple[str, ...]:
    zones = tuple(pool.get("locations") or names.zones_of(cluster.location))
    region = names.region_of(cluster.location)
    for zone in zones:
        if not google.is_zone(zone) or names.region_of(zone) != region:
            raise _invalid(f'Invalid value for field "node_pool.locations": "{zone}". Not a zone of region {region}.')
    if len(set(zones)) != len(zones):
        raise _invalid(f'Invalid value for field "node_pool.locations": duplicates in {", ".join(zones)}.')
    return zones


def _machine(config: Mapping[str, Any], zone: str) -> Machine:
    name = config.get("machineType") or "e2-medium"
    machine = find_machine(name)
    if machine is None:
        raise _invalid(f'Machine type with name "{name}" does not exist in zone "{zone}".')
    return machine


def _check_disk(config: Mapping[str, Any], machine: Machine) -> None:
    disk = config.get("diskType")
    if disk and disk not in machine.disks:
        raise _invalid(
            f"{disk} disk type cannot be used by {machine.name} machine type. "
            f"Supported disk types: {', '.join(machine.disks)}."
        )


def _check_pods_per_node(pool: Mapping[str, Any]) -> None:
    pods = pool.get("maxPodsConstraint", {}).get("maxPodsPerNode")
    if pods is not None and not 8 <= int(pods) <= 256:
        raise _invalid(
            f'Invalid value for field "node_pool.max_pods_constraint.max_pods_per_node": "{pods}". '
            "Must be between 8 and 256."
        )


def _check_service_account(config: Mapping[str, Any], project: str, settings: SimulatorSettings) -> None:
    account = config.get("serviceAccount", "default")
    if account == "default":
        account = google.default_account(project)
    state = settings.state_of_account(account)
    if state == "forbidden":
        raise _invalid(
            f'The user does not have access to service account "{account}". Ask a project owner to grant you the '
            "iam.serviceAccountUser role on the service account."
        )
    if state == "missing":
        raise _invalid(f'Service account "{account}" does not exist.')


def _check_upgrades(pool: Mapping[str, Any], settings: SimulatorSettings) -> None:
    channel = settings.release_channel
    # A pool without the field `management` is upgraded and repaired.
    upgraded = pool.get("management", {"autoUpgrade": True}).get("autoUpgrade", False)
    excluded = pool.get("maintenancePolicy", {}).get("exclusionUntilEndOfSupport", {}).get("enabled", False)
    if channel and not upgraded:
        raise _invalid(f"Auto_upgrade cannot be false when release_channel {channel} is set.")
    # GKE's reaction to these combinations is not documented, so no client should send them.
    if excluded and not channel:
        raise _invalid("Maintenance exclusion until end of support requires a release channel.")
    if excluded and not upgraded:
        raise _invalid("Maintenance exclusion until end of support requires node auto-upgrade.")


def _check_host_maintenance(config: Mapping[str, Any]) -> None:
    """Raise ApiError for policies without the required fields by Google's references; GKE's own message is unknown."""
    policy = config.get("hostMaintenancePolicy", {})
    strategy = policy.get("opportunisticMaintenanceStrategy")
    if strategy is None:
        return
    if policy.get("maintenanceInterval") != "PERIODIC":
        raise _invalid("Opportunistic maintenance requires maintenance_interval PERIODIC.")
    missing = {"nodeIdleTimeWindow", "maintenanceAvailabilityWindow", "minNodesPerPool"} - strategy.keys()
    if missing:
        raise _invalid(f"Opportunistic maintenance requires {', '.join(sorted(missing))}.")


def _reservation_failure(
    pool: Mapping[str, Any], plan: PoolPlan, project: str, settings: SimulatorSettings
) -> Failure | None:
    """Return the reason why a reservation has no capacity now. Raises ApiError if it does not exist.

    The messages were recorded from GKE. It is an assumption that a missing reservation is rejected immediately, and a
    full reservation only at the end of the create.
    """
    if not plan.reservation or settings.reservations is None:
        return None
    owner, name, _, _ = capacity.reservation_parts(plan.reservation)
    zone = plan.zones[0]
    state = settings.reservations.get(f"{zone}/{name}")
    if state is None:
        path = f"projects/{owner or project}/zones/{zone}/reservations/{name}"
        raise ApiError("NOT_FOUND", f"The resource '{path}' was not found")
    if state == "READY":
        return None
    text = capacity.full_reservation_text(pool["name"]) if state == FULL else google.NOT_READY_TEXT
    return Failure(status="INVALID_ARGUMENT", message=text)


def _check_placement(
    pool: Mapping[str, Any],
    machine: Machine,
    zones: tuple[str, ...],
    policies: Mapping[str, str],
) -> PoolPlan:
    placement = pool.get("placementPolicy", {})
    compact = _is_compact(placement, machine)
    topology: str = placement.get("tpuTopology", "")
    policy = _policy(placement.get("policyName", ""), policies)
    if compact and len(zones) != 1:
        raise _invalid(f"Placement policy of type COMPACT requires exactly one zone, got {', '.join(zones)}.")
    if not machine.is_tpu:
        if topology:
            raise _invalid(f"TPU topology can't be specified with machine type {machine.name}.")
        return _ordinary_plan(pool, machine, zones, topology=None)
    if policy is not None and machine.policy is PolicyRule.REFUSED:
        raise _invalid("Required field 'resource.requestedRunDuration' not specified")
    if policy == "" and not topology:
        # Without a topology, the number of nodes is the size of the slice.
        return _ordinary_plan(pool, machine, zones, topology=_own_topology(pool, machine))
    shape = _shape(machine, topology, policy)
    if shape is None or shape == machine.own_topology:
        return _single_host_plan(pool, machine, zones)
    hosts = machine.hosts_of(shape)
    if hosts is None:
        raise _invalid(f'invalid TPU topology "{shape}" for machine type "{machine.name}".')
    if len(zones) != 1:
        raise _invalid(f"Multi-host TPU slice requires exactly one zone, got {', '.join(zones)}.")
    return _slice_plan(pool, machine, zones, shape, hosts, compact=compact, has_policy=policy is not None)


def _is_compact(placement: Mapping[str, Any], machine: Machine) -> bool:
    """Return whether nodes are placed compactly. Before tpu7, gcloud requests it by a topology without a policy."""
    if placement.get("type") == "COMPACT":
        return True
    topology_alone = "tpuTopology" in placement and not placement.get("policyName")
    return topology_alone and machine.is_tpu and machine.policy is not PolicyRule.REQUIRED


def _policy(name: str, policies: Mapping[str, str]) -> str | None:
    """Return the workload policy's topology ("" if it has none), or None without a policy."""
    if not name:
        return None
    short = name.rpartition("/")[2]
    if not google.is_name(short):
        raise _invalid(f'Invalid value for field "node_pool.placement_policy.policy_name": "{name}".')
    if short not in policies:
        raise _invalid(f'Resource policy "{name}" is not found in the project and region of the node pool.')
    return policies[short]


def _shape(machine: Machine, topology: str, policy: str | None) -> str | None:
    if topology and policy and topology != policy:
        raise _invalid(f'TPU topology "{topology}" differs from the workload policy\'s topology "{policy}".')
    shape = topology or policy
    if shape:
        return shape
    if policy is None and machine.own_topology is None:
        raise _invalid(
            f"Machine type {machine.name} doesn't support single host topology; please specify the tpu_topology."
        )
    return None


def _single_host_plan(pool: Mapping[str, Any], machine: Machine, zones: tuple[str, ...]) -> PoolPlan:
    placement = pool.get("placementPolicy", {})
    placed = placement.get("tpuTopology") or placement.get("policyName") or placement.get("type") == "COMPACT"
    if placed:
        raise _invalid(
            "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology from "
            "the node pool creation request if the node pool is intented to run with single-host TPU slice nodes."
        )
    return _ordinary_plan(pool, machine, zones, topology=machine.own_topology)


def _ordinary_plan(
    pool: Mapping[str, Any], machine: Machine, zones: tuple[str, ...], *, topology: str | None
) -> PoolPlan:
    """Plan any number of independent nodes."""
    count = pool.get("initialNodeCount", 0)
    if not 0 <= count <= _MAX_NODES_PER_ZONE:
        raise _invalid(
            f'Invalid value for field "node_pool.initial_node_count": "{count}". '
            f"Must be between 0 and {_MAX_NODES_PER_ZONE}."
        )
    scaling = pool.get("autoscaling", {})
    later = scaling.get("maxNodeCount", 0) if scaling.get("enabled") and not count else 0
    return _plan(pool, machine, zones, topology, scale_up_hosts=later)


def _slice_plan(
    pool: Mapping[str, Any],
    machine: Machine,
    zones: tuple[str, ...],
    topology: str,
    hosts: int,
    *,
    compact: bool,
    has_policy: bool,
) -> PoolPlan:
    """Plan a multi-host slice, which has all of its hosts or none."""
    count = pool.get("initialNodeCount", 0)
    scaling = pool.get("autoscaling", {})
    scaled = bool(scaling.get("enabled"))
    if scaled and scaling.get("maxNodeCount", 0) != hosts:
        raise _invalid(
            f"Maximum node count {scaling.get('maxNodeCount', 0)} is not a valid size of TPU pod slice with topology "
            f"{topology}"
        )
    failure = None
    if machine.policy is PolicyRule.REQUIRED and compact:
        failure = Failure(
            status="INVALID_ARGUMENT",
            message=f"Creation of a managed instance group with {machine.name} machine type with placement policy is "
            "not supported. Use workload policy instead.",
        )
    elif machine.policy is PolicyRule.REQUIRED and not has_policy:
        raise _invalid(f"TPU topology {topology} with machine type {machine.name} requires a workload policy.")
    elif count != hosts and not (count == 0 and scaled):
        failure = Failure(
            status="INVALID_ARGUMENT",
            message=f"Google Compute Engine: Invalid value for field 'resource.resizeBy': '{count}'. Requested invalid "
            f"target size '{count}' for a Managed Instance Group in the gang mode of size '{hosts}'. Should be equal "
            "to the gang size.",
        )
    return _plan(pool, machine, zones, topology, scale_up_hosts=hosts if scaled and not count else 0, failure=failure)


def _plan(
    pool: Mapping[str, Any],
    machine: Machine,
    zones: tuple[str, ...],
    topology: str | None,
    *,
    scale_up_hosts: int,
    failure: Failure | None = None,
) -> PoolPlan:
    return PoolPlan(
        machine=machine,
        zones=zones,
        hosts_per_zone=pool.get("initialNodeCount", 0),
        topology=topology,
        capacity=capacity.capacity_of(pool),
        reservation=capacity.reservation_of(pool),
        scale_up_hosts=scale_up_hosts,
        failure=failure,
    )
