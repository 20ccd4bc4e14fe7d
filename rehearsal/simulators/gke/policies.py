"""Compute Engine's resource policies, limited to the create and get of workload policies.

Policies are regional, outlive clusters, and can be used by many pools. Not thread-safe: the model holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rehearsal.simulators.gke import names
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.http import google
from rehearsal.simulators.machines import parse_topology

_TYPES = ("HIGH_THROUGHPUT", "HIGH_AVAILABILITY")
_FIELDS = {
    "": frozenset({"name", "description", "kind", "region", "workloadPolicy"}),
    "workloadPolicy": frozenset({"type", "acceleratorTopology", "acceleratorTopologyMode", "maxTopologyDistance"}),
}


@dataclass(frozen=True, slots=True, order=True)
class RegionName:
    """A region of a project."""

    project: str
    region: str

    def policy_path(self, policy: str) -> str:
        """Return the full name of a policy."""
        return f"projects/{self.project}/regions/{self.region}/resourcePolicies/{policy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A workload policy; `body` is its workloadPolicy as it was sent."""

    name: str
    body: Mapping[str, Any]
    created: datetime
    ready_at: datetime

    @property
    def topology(self) -> str:
        """Topology of the policy's slices; empty if it has no topology."""
        return str(self.body.get("acceleratorTopology", ""))


class PolicyBook:
    """The policies of every region."""

    def __init__(self, *, settings: Callable[[], SimulatorSettings]) -> None:
        self._settings = settings
        self._made: dict[RegionName, dict[str, Policy]] = {}

    def in_region(self, region: RegionName, now: datetime) -> dict[str, Policy]:
        """Return all policies of a region by name: those of the settings, and those that were created."""
        given = {
            name: Policy(
                name=name,
                body={"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology},
                created=now,
                ready_at=now,
            )
            for name, topology in self._settings().workload_policies.items()
        }
        return given | self._made.get(region, {})

    def usable(self, region: RegionName, now: datetime) -> dict[str, str]:
        """Return the topologies of the policies that a node pool may use."""
        return {name: policy.topology for name, policy in self.in_region(region, now).items() if policy.ready_at <= now}

    def get(self, region: RegionName, name: str, now: datetime) -> Policy:
        """Return one policy."""
        found = self.in_region(region, now).get(name)
        if found is None:
            raise ApiError("NOT_FOUND", f"The resource '{region.policy_path(name)}' was not found")
        return found

    def insert(self, region: RegionName, raw: object, now: datetime) -> Policy:
        """Begin to create a policy from the body of an insert."""
        name, body = _read(raw)
        if name in self.in_region(region, now):
            raise ApiError("ALREADY_EXISTS", f"The resource '{region.policy_path(name)}' already exists")
        ready_at = now + timedelta(seconds=self._settings().policy_seconds)
        policy = Policy(name=name, body=body, created=now, ready_at=ready_at)
        self._made.setdefault(region, {})[name] = policy
        return policy


def _invalid(field: str, value: object, rule: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", f"Invalid value for field 'resource.{field}': '{value}'. {rule}")


def _read(raw: object) -> tuple[str, Mapping[str, Any]]:
    sent = raw if isinstance(raw, dict) else {}
    _check_fields("", sent)
    name = sent.get("name", "")
    if not isinstance(name, str) or not google.is_name(name):
        raise _invalid("name", name, f"Must be a match of regex '{google.NAME_PATTERN}'")
    body = sent.get("workloadPolicy")
    if not isinstance(body, dict):
        raise _invalid(
            "workloadPolicy", body, "The simulator creates only workload policies and no other resource policies."
        )
    _check_fields("workloadPolicy", body)
    if body.get("type") not in _TYPES:
        raise _invalid("workloadPolicy.type", body.get("type"), f"Must be one of {', '.join(_TYPES)}.")
    topology = body.get("acceleratorTopology")
    if topology is not None and (not isinstance(topology, str) or parse_topology(topology) is None):
        raise _invalid("workloadPolicy.acceleratorTopology", topology, "Must be a topology such as 4x4x4.")
    return name, body


def _check_fields(path: str, sent: Mapping[str, Any]) -> None:
    for field in sent:
        if field not in _FIELDS[path]:
            place = f" at '{path}'" if path else ""
            raise ApiError(
                "INVALID_ARGUMENT", f'Invalid JSON payload received. Unknown name "{field}"{place}: Cannot find field.'
            )


def policy_body(region: RegionName, policy: Policy, now: datetime) -> dict[str, Any]:
    """Return a ResourcePolicy."""
    link = f"{google.COMPUTE_API}/projects/{region.project}/regions/{region.region}"
    return {
        "kind": "compute#resourcePolicy",
        "id": str(google.number_of(region.policy_path(policy.name))),
        "creationTimestamp": names.timestamp(policy.created),
        "selfLink": f"{google.COMPUTE_API}/{region.policy_path(policy.name)}",
        "region": link,
        "name": policy.name,
        "status": "READY" if policy.ready_at <= now else "CREATING",
        "workloadPolicy": dict(policy.body),
    }


def insert_body(region: RegionName, policy: Policy) -> dict[str, Any]:
    """Return the Operation of an insert. It is not stored, so it cannot be read again."""
    link = f"{google.COMPUTE_API}/projects/{region.project}/regions/{region.region}"
    name = f"operation-{google.number_of(f'{policy.name} {policy.created}')}"
    return {
        "kind": "compute#operation",
        "id": str(google.number_of(name)),
        "name": name,
        "operationType": "insert",
        "targetLink": f"{google.COMPUTE_API}/{region.policy_path(policy.name)}",
        "status": "RUNNING",
        "progress": 0,
        "insertTime": names.timestamp(policy.created),
        "selfLink": f"{link}/operations/{name}",
        "region": link,
    }
