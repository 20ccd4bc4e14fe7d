"""What one decision goes by, put together once: the world as it is observed, and what follows from it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import PoolName
from provisioner.model.snapshot import Snapshot
from provisioner.model.workloads import Workloads, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.demand.serving import ServingPolicy
from provisioner.slices.demand.slices import Found, all_slices, find_by_workload
from provisioner.slices.planning.launch.specification import Candidates
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.supply import Supply, by_owner, find_supply, referred
from provisioner.slices.supplier import PoolRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round. Each step takes it, and what the steps before it came to."""

    snapshot: Snapshot
    settings: Settings
    #: What the supplier's pools are like.
    rules: PoolRules
    now: datetime
    memory: Memory
    workloads: Workloads
    #: Whose pods are served.
    policy: ServingPolicy
    slices: Mapping[SliceId, Slice]
    #: Our pools: those that are listed, and creates that no list shows yet.
    supply: Mapping[PoolName, Supply]
    #: Slice -> the pools that were made for it.
    owned: Mapping[SliceId, Sequence[Supply]]
    #: The other way round.
    made_for: Mapping[PoolName, SliceId]
    #: The pools that could be created.
    candidates: Candidates
    #: For the next round.
    derived: Derived


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What a round found out that follows from single objects: the next takes over what has not changed."""

    #: By which the slices were found.
    policy: ServingPolicy = field(default_factory=ServingPolicy)
    found: Mapping[WorkloadUid, Found] = field(default_factory=dict)
    supply: Mapping[PoolName, Supply] = field(default_factory=dict)


def policy_of(snapshot: Snapshot, settings: Settings) -> ServingPolicy:
    """Say whose pods are served."""
    return ServingPolicy(
        namespaces=frozenset(settings.namespaces),
        opt_in_label=settings.opt_in_label,
        namespace_labels=snapshot.namespace_labels,
    )


def begin_round(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    rules: PoolRules,
    now: datetime,
    last: Derived | None = None,
) -> Round:
    """Find out what there is and what it is for."""
    last = last or Derived()
    workloads = Workloads.of(snapshot.workloads)
    policy = policy_of(snapshot, settings)
    supply = find_supply(snapshot, memory, settings, rules, now, last.supply)
    found = find_by_workload(
        workloads,
        snapshot.pods,
        policy,
        referred(supply.values(), workloads, memory),
        keep_suspended=settings.keep_suspended,
        # Compared once: it has the labels of all namespaces.
        last=last.found if last.policy == policy else {},
    )
    slices = all_slices(found)
    owned = by_owner(slices, supply.values())
    return Round(
        snapshot=snapshot,
        settings=settings,
        rules=rules,
        now=now,
        memory=memory,
        workloads=workloads,
        policy=policy,
        slices=slices,
        supply=supply,
        owned=owned,
        made_for={each.name: slice_id for slice_id, many in owned.items() for each in many},
        candidates=Candidates(settings, rules),
        derived=Derived(policy=policy, found=found, supply=supply),
    )
