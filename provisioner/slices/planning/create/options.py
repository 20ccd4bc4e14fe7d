"""Finds the pools that a slice could have now, and the causes that block its other choices of capacity. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from provisioner import constants
from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.contention import limits
from provisioner.slices.planning.contention.line import Unit
from provisioner.slices.planning.contention.waits import ChoiceBlocker, WaitKind
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.spec.capacity import Choices
from provisioner.slices.planning.spec.specification import Specification
from provisioner.slices.supplier import UnmeetableError


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The pools that a slice could have now, without regard to limits and other slices."""

    choices: Choices
    #: Possible pools, best first. All but the last have capacity that was out of stock or exceeded a quota.
    offers: tuple[tuple[CapacityChoice, Specification], ...]
    blockers: tuple[ChoiceBlocker, ...]
    #: Why no pool is possible, usually until the workload or a setting is changed; empty if a pool may be possible.
    permanent_problem: tuple[str, ...]


def options_of(ctx: Round, slice_: Slice, zone: Zone | None) -> LaunchOptions:
    """Return the possible pools of a slice; if its workload must be in one zone, only pools in `zone`.

    Raises UnmeetableError if no pool is possible, or if the pod selects a node by its host name.
    """
    if slice_.host:
        raise UnmeetableError(
            f"the pod selects {constants.HOSTNAME}={slice_.host}, and no free node pool that fits has that node"
        )
    memory, now, candidates = ctx.memory, ctx.now, ctx.candidates
    choices = candidates.choices(slice_, zone)
    of_slice = ctx.refusals[slice_.id] if ctx.is_refused(slice_.id) else memory.backoffs.get(slice_.id)
    offers: list[tuple[CapacityChoice, Specification]] = []
    blockers: list[ChoiceBlocker] = []
    problems: dict[tuple[str, ...], None] = {}
    permanent = True
    for choice in choices.open:
        try:
            offer = candidates.specification(slice_, choice)
        except UnmeetableError as error:
            problems.setdefault(error.args)
            continue
        capacity, request = offer.blueprint.capacity, memory.backoffs.get(offer.digest)
        request = request if request is not None and request.until > now else None
        if request is not None and request.slice_id is not None:
            problems.setdefault((f"{ctx.rules.supplier_name} rejects {choice}: {request.failure.message}",))
        else:
            permanent = False
        blocking = backoff.blocking(memory.backoffs, capacity, of_slice, now) or request
        if blocking is not None:
            blockers.append(ChoiceBlocker(choice, blocking))
            continue
        offers.append((choice, offer))
        if backoff.probing(memory.backoffs, capacity) is None:
            break
    clauses = tuple(clause for problem in problems for clause in problem)
    if not (offers or blockers):
        raise UnmeetableError(*clauses)
    return LaunchOptions(
        choices=choices,
        offers=tuple(offers),
        blockers=tuple(blockers),
        permanent_problem=clauses if permanent else (),
    )


def has_fresh_offer(ctx: Round, slice_: Slice, zone: Zone | None) -> bool:
    """Whether a slice could have a pool whose capacity and request have not failed.

    False for slices of buffers, for slices that the scheduler refused, and for an hour after a lasting failure in the
    namespace: otherwise each new workload with the same mistake would delete warm pools of other namespaces.
    """
    backoffs, of_slice = ctx.memory.backoffs, ctx.memory.backoffs.get(slice_.id)
    if slice_.from_buffer or slice_.id in ctx.refusals or slice_.workload.namespace in ctx.memory.lasting_failures:
        return False
    capacities = of_slice.capacities if of_slice is not None else ()
    try:
        offers = options_of(ctx, slice_, zone).offers
    except UnmeetableError:
        return False
    keys = ((offer.blueprint.capacity, offer.digest) for _, offer in offers)
    return any(not (key in backoffs or key in capacities or digest in backoffs) for key, digest in keys)


def problem_of_all(
    ctx: Round, slices: Sequence[Slice], zones: Mapping[WorkloadUid, Zone] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return why slices that start together can never all have pools at the same time, empty if they can."""
    for slice_ in slices:
        try:
            problem = options_of(ctx, slice_, zones.get(slice_.workload.uid)).permanent_problem
        except UnmeetableError as error:
            problem = error.args
        if problem:
            return f"slice {slice_.group_name}: {problem[0]}", *problem[1:]
    return limits.problem_of(slices, ctx.settings)


def keep_from_lower(ctx: Round, budget: limits.Budget, units: Mapping[SliceId, Unit], slices: Sequence[Slice]) -> None:
    """If a limit refuses the slices together, withhold the amounts that they request from slices of lower priority.

    Nothing is withheld if a slice has no fresh offer (`has_fresh_offer`), or if they exceed the whole limit.
    """
    refusal = budget.refusal(slices, units[slices[0].id])
    limited = refusal is not None and refusal.kind is WaitKind.LIMIT and not refusal.final
    if limited and all(has_fresh_offer(ctx, slice_, None) for slice_ in slices):
        by_priority: dict[int, list[Slice]] = defaultdict(list)
        for slice_ in slices:
            by_priority[units[slice_.id].priority].append(slice_)
        for equals in by_priority.values():
            budget.keep(equals, units[equals[0].id])
