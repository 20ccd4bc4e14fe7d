"""Bugs planted on purpose, each a small mutation of the real code: an undetected bug shows a gap in the checks.

Some are defects of the Go provisioner, some were found by this simulation, and some are typical mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner import constants
from provisioner.google import errors as google_errors
from provisioner.kube import live, reflector
from provisioner.kube.lease import LeaseElector
from provisioner.kube.reflector import Reflector
from provisioner.model import bounds, membership, placement
from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus, Taint
from provisioner.model.membership import Membership
from provisioner.model.workloads import GroupKey, WorkloadKind, WorkloadName, Workloads, WorkloadUid
from provisioner.runtime.clock import FollowedClock
from provisioner.slices import act
from provisioner.slices.demand import SliceId, capacity_requests
from provisioner.slices.demand import slices as demand_slices
from provisioner.slices.gate import Gate
from provisioner.slices.messages import statuses
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning import assignment, pipeline, scale_in, seats, stuck
from provisioner.slices.planning import match as matching
from provisioner.slices.planning import round as rounds
from provisioner.slices.planning.contention import limits, operations, usage
from provisioner.slices.planning.contention import line as planning_line
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.create import gangs, options
from provisioner.slices.planning.delete import failing, room, unneeded
from provisioner.slices.planning.memory import answers, backoff, refused
from provisioner.slices.planning.round import OwnedPool
from provisioner.slices.planning.seats import Seats
from provisioner.slices.planning.spec import capacity, specification
from provisioner.slices.planning.spec import fit as spec_fit
from provisioner.slices.planning.spec.specification import Ownership, Specification, pool_name
from provisioner.slices.report import Reporter
from provisioner.slices.suppliers.gke import identity_check, translate
from provisioner.slices.view import build as view_build
from provisioner.slices.view.timeline import Timeline
from provisioner.workloads import plain, pods
from tests.simulation.asks import BUFFER, REQUEST
from tests.simulation.objects import NAMESPACE
from tests.support.simulations.bugs import Bug, always

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


def _of_labels_only(original: Any) -> Any:
    def use(ctx: Any) -> Any:
        return {}, {}, {}, original(ctx)[3]

    return use


def _without_empty_pools(original: Any) -> Any:
    def find(ctx: Any, *rest: Any) -> Any:
        return original(replace(ctx, owned={n: owned for n, owned in ctx.owned.items() if owned.nodes}), *rest)

    return find


def _unless_no_jobset_is_named(original: Any) -> Any:
    return lambda self, delete: original(self, delete) if delete.named.name else None


def _without_creates(original: Any) -> Any:
    def find(snapshot: Any, memory: Any, *rest: Any) -> Any:
        pools = {name: replace(known, create=None) for name, known in memory.pools.items()}
        return original(snapshot, replace(memory, pools=pools), *rest)

    return find


def _without_claims(original: Any) -> Any:
    def find(ctx: Any, matching: Any, *rest: Any) -> Any:
        return original(ctx, replace(matching, claimed={}), *rest)

    return find


def _new_name_after_unknown_outcome(original: Any) -> Any:
    def created(memory: Any, answer: Any) -> Any:
        call = memory.pool(answer.name).create
        if call is None or answer.failure is None or answer.failure.kind is not FailureKind.UNKNOWN_OUTCOME:
            return original(memory, answer)
        known = memory.slice(call.slice_id)
        slices = {**memory.slices, call.slice_id: replace(known, attempt=known.attempt + 1)}
        return replace(memory.with_pool(answer.name, create=None), slices=slices)

    return created


def _refused_for_good(original: Any) -> Any:
    """Retries a create that GKE rejected as invalid, but 3 hours too late."""

    def with_(backoffs: Any, key: str, delay: Any, *rest: Any) -> Any:
        found = original(backoffs, key, delay, *rest)
        late = found[key].until + timedelta(hours=3)
        return {**found, key: replace(found[key], until=late)} if delay is backoff.REFUSAL_DELAY else found

    return with_


def _never_idle_for_long(original: Any) -> Any:
    def find(ctx: Any, *rest: Any) -> Any:
        pools = {name: replace(known, unneeded_since=None) for name, known in ctx.memory.pools.items()}
        return original(replace(ctx, memory=replace(ctx.memory, pools=pools)), *rest)

    return find


def _no_slot_again(original: Any) -> Any:
    """Never drops the bound on operations that it learned from a rejection."""

    def learnt(operations: Any, running: int, now: Any) -> Any:
        found = original(operations, running, now)
        return replace(found, rejected_at=now + timedelta(days=30)) if operations.rejected else found

    return learnt


def _failed_is_left_alone(original: Any) -> Any:
    def read(*arguments: Any) -> Any:
        pool = original(*arguments)
        return replace(pool, status=PoolStatus.UNKNOWN) if pool.status is PoolStatus.ERROR else pool

    return read


def _without_terminating_pods(original: Any) -> Any:

    def use(ctx: Any) -> Any:
        pods = tuple(pod for pod in ctx.snapshot.pods if pod.deletion_deadline is None)
        return original(replace(ctx, snapshot=replace(ctx.snapshot, pods=pods)))

    return use


def _name_of_first_attempt(original: Any) -> Any:

    def stamped(self: Any, name: Any, attempt: int) -> Any:
        key = SliceId(WorkloadUid(self.labels[constants.POOL_JOBSET_UID]), self.labels[constants.POOL_JOB_KEY])
        return original(self, pool_name(self.labels[constants.POOL_JOBSET_NAME], key, 0), attempt)

    return stamped


def _best_choice_alone(original: Any) -> Any:
    def choices(*arguments: Any) -> Any:
        found = original(*arguments)
        return replace(found, open=found.open[:1])

    return choices


def _counting_what_is_up(original: Any) -> Any:
    """Counts pools towards the limits when they are created and when they are ready, but not in between."""
    counted = original.__func__ if hasattr(original, "__func__") else original

    def of(cls: Any, ctx: Any, *rest: Any) -> Any:
        return counted(cls, replace(ctx, owned={n: owned for n, owned in ctx.owned.items() if owned.ready}), *rest)

    return classmethod(of)


def _following_without_a_word(original: Any) -> Any:
    """Follows the new time of day without moving the remembered times."""

    def follow(self: Any) -> timedelta:
        original(self)
        return timedelta()

    return follow


def _by_label(_original: Any) -> Any:
    """Trusts the UID of the workload in a pod's labels in any namespace."""
    return lambda _self, pod: WorkloadUid(pod.workload_uid)


def _key_by_label(original: Any) -> Any:

    def parse(raw: Any) -> Any:
        pod, key = original(raw), (raw["metadata"].get("labels") or {}).get(constants.JOB_KEY)
        return replace(pod, group_key=key) if pod is not None and key else pod

    return parse


def _merging(original: Any) -> Any:
    """Adds the objects of a list, and keeps objects that the list no longer has."""

    def replace(self: Any, listing: Any) -> bool:
        for key, record in self._records.items():
            listing.records.setdefault(key, record)
        return bool(original(self, listing))

    return replace


def _ahead_of_the_list(original: Any) -> Any:
    return lambda self, listing, version: original(self, listing, str(int(version) + 20))


def _asking(**changes: Any) -> Callable[[Any], Any]:
    """Requests a pool from GKE that differs from the specification in `changes`."""
    return lambda original: lambda path, request: original(path, replace(request, **changes))


def _without_scopes(original: Any) -> Any:
    def create_request_json(path: str, request: Any) -> Any:
        node = {name: value for name, value in request.node.items() if name != "node_oauth_scopes"}
        return original(path, replace(request, node=node))

    return create_request_json


def _without_surer_texts(original: frozenset[FailureKind]) -> Any:
    """Classifies a response 429 by its reason even if its text reports a stockout."""
    return original - {FailureKind.STOCKOUT}


def _giving_up_what_is_repaired(original: property) -> Any:
    """Considers a pool with status RUNNING_WITH_ERROR as failed if it is not ready."""
    broken: Any = original.fget
    return property(
        lambda owned: broken(owned) or (owned.pool.status is PoolStatus.RUNNING_WITH_ERROR and not owned.ready)
    )


def _by_manager_alone(original: Any) -> Any:
    def read(labels: Any) -> Any:
        found = original(labels)
        if found is not None or labels.get(constants.NODEPOOL_MANAGER) != constants.MANAGER:
            return found
        nobody = WorkloadName(WorkloadKind.JOBSET, "", "")
        return Ownership(nobody, WorkloadUid(""), GroupKey(""), "")

    return read


def _without_limits(original: Any) -> Any:
    def tell_notices(self: Any, notices: Any) -> None:
        original(self, tuple(notice for notice in notices if notice.reason != EventReason.LIMIT_REACHED))

    return tell_notices


def _keeping(kind: WorkloadKind) -> Callable[[Any], Any]:
    """Never deletes a pool that was created for workloads of one kind."""

    def mutate(original: Any) -> Any:
        def find(ctx: Any, *rest: Any) -> Any:
            kept = {name for name, pool in ctx.owned.items() if pool.listed and _kind_of(pool) == kind}
            owned = {name: pool for name, pool in ctx.owned.items() if name not in kept}
            return original(replace(ctx, owned=owned), *rest)

        return find

    def _kind_of(pool: Any) -> str:
        found: str = pool.pool.labels.get(constants.POOL_WORKLOAD_KIND, "")
        return found

    return mutate


def _never_full(original: Any) -> Any:
    """Creates pools for a buffer regardless of the pools that it has."""

    def match(ctx: Any, *rest: Any) -> Any:
        found = original(ctx, *rest)
        waiting = tuple(slice_ for slice_ in ctx.slices.values() if slice_.from_buffer and slice_.pending)
        others = tuple(slice_ for slice_ in found.unserved if not slice_.from_buffer)
        return replace(found.without_buffered(found.claimed, ctx.slices), unserved=(*others, *waiting))

    return match


def _warm_at_any_price(original: Any) -> Any:
    """Keeps the pools of buffers even if workloads wait for a limit."""

    def idle(ctx: Any, matching: Any) -> Any:
        claimed = {n: user for n, user in matching.claimed.items() if not ctx.slices[user].from_buffer}
        warm = matching.claimed.keys() - claimed.keys()
        return [owned for owned in original(ctx, matching) if owned.name not in warm]

    return idle


def _of_low_numbers(original: Any) -> Any:
    """Assumes that the replicas of a RayCluster are numbered from 0 without a gap."""

    def listed(workload: Any, wanted: Any) -> Any:
        for listed_group in original(workload, wanted):
            group = workload.groups[listed_group.place]
            if not group.any_number or listed_group.number < group.replicas:
                yield listed_group

    return listed


def _of_any_namespace(original: Any) -> Any:
    """Counts the chips of all namespaces for the limit of each."""

    class Shared(original):  # type: ignore[misc]
        def __new__(cls, kind: str, name: str = "") -> Any:
            return original.__new__(cls, kind, "" if kind == "namespace" else name)

    return Shared


def _whoever_is_there(original: Any) -> Any:
    """Assigns pools as if they had no pods."""
    return lambda ctx, matching, partial: original(ctx, replace(matching, holders={}), partial)


def _without_occupants(original: Any) -> Any:
    """Lets slices count on pools that other slices use."""

    def use(ctx: Any) -> Any:
        holders, _, held, elsewhere = original(ctx)
        return holders, {}, held, elsewhere

    return use


def _as_claimed(original: Any) -> Any:
    """Labels a pool for the slice that counts on it, even if other pods are on the pool."""

    def wanted(pool: Any, ctx: Any, matching: Any, partial: Any) -> Any:
        holders = {} if pool.name in matching.claimed else matching.holders
        return original(pool, ctx, replace(matching, holders=holders), partial)

    return wanted


def _never_free(original: Any) -> Any:
    return lambda *arguments: tuple(
        assignment for assignment in original(*arguments) if assignment.labels != placement.FREE
    )


def _once_for_a_pool(original: Any) -> Any:
    """Skips a pool if one of its nodes already has the wanted labels."""

    def assign(ctx: Any, *rest: Any) -> Any:
        pools = [pool for pool in ctx.owned.values() if len(pool.nodes) > 1]
        pool_of = {node.name: pool for pool in pools for node in pool.nodes}

        def is_done(assignment: Any) -> bool:
            pool = pool_of.get(assignment.node)
            nodes = pool.nodes if pool is not None else ()
            return any(all(node.labels.get(key) == assignment.labels[key] for key in placement.MARKS) for node in nodes)

        return tuple(assignment for assignment in original(ctx, *rest) if not is_done(assignment))

    return assign


def _alone(original: Any) -> Any:
    return lambda slices, *rest, **options: [
        pair for slice_ in slices for pair in original((slice_,), *rest, **options)
    ]


def _not_handed_on(original: Any) -> Any:
    """Forgets the back-off of refused pods when their controller replaces them."""
    return lambda slice_: original(slice_)._replace(group=str(slice_.id))


BUGS: tuple[Bug, ...] = (
    # The first three bugs take longest to be found; if they begin first, all processes end at about the same time.
    Bug(name="failures-do-not-wait", at=(backoff, "wait_seconds"), mutate=always(1.0), search_from=143),
    Bug(
        name="creators-pay",
        at=(usage, "charge_of"),
        mutate=lambda original: lambda owned, _users: original(owned, {}),
        search_from=68,
    ),
    Bug(
        name="namespaces-do-not-alternate",
        at=(planning_line, "in_line"),
        mutate=lambda _original: (
            lambda _resource, units, _stamps: sorted(units, key=lambda unit: (unit.since, unit.id))
        ),
        search_from=77,
    ),
    Bug(name="limits-of-namespaces-are-not-looked-at", at=(limits, "_amount"), mutate=always(None), search_from=92),
    Bug(name="namespaces-share-one-limit", at=(usage, "LimitScope"), mutate=_of_any_namespace, search_from=101),
    Bug(name="limits-are-not-told", at=(Reporter, "tell_notices"), mutate=_without_limits, search_from=125),
    Bug(
        name="failed-creates-do-not-count",
        at=(backoff, "create_counted"),
        mutate=lambda _original: lambda tallies, *_args: tallies,
        search_from=51,
    ),
    Bug(name="private-failures-are-shared", at=(specification, "_own_inputs"), mutate=always(""), search_from=293),
    Bug(name="hanging-pools-are-no-alert", at=(failing, "find_hanging"), mutate=always({}), search_from=272),
    Bug(
        name="arrivals-are-not-awaited",
        at=(unneeded, "_selected_by_pending_pods"),
        mutate=always(()),
        search_from=161,
    ),
    Bug(name="gate-trusts-the-cache", at=(Gate, "_refuse_if_used"), mutate=always(None), search_from=78),
    Bug(name="gate-without-cordon", at=(live, "cordon"), mutate=always(None), search_from=3),
    Bug(
        name="terminating-pods-do-not-count",
        at=(Gate, "_running_pods"),
        mutate=lambda original: lambda self, *rest: original(replace(self, clock=lambda: _END_OF_TIME), *rest),
        also=((matching, "_use"), _without_terminating_pods),
        search_from=1,
    ),
    Bug(name="cordon-is-never-undone", at=(live, "uncordon"), mutate=always(None), search_from=93),
    # Defect of the Go provisioner: a slice has the pool that was created for it, wherever its pods are.
    Bug(name="pools-belong-by-label", at=(matching, "_use"), mutate=_of_labels_only, search_from=31),
    Bug(
        name="pods-belong-by-label",
        at=(Workloads, "uid_of"),
        mutate=_by_label,
        also=((pods, "parse_pod"), _key_by_label),
    ),
    Bug(
        name="lost-calls-stay-open",
        at=(answers, "give_up_lost_calls"),
        mutate=lambda _original: lambda memory, *_rest: memory,
        search_from=76,
    ),
    Bug(name="claims-keep-no-pool", at=(unneeded, "find_unneeded"), mutate=_without_claims, search_from=1),
    # Defect of the Go provisioner: deletion starts from nodes, so that a pool without nodes is never deleted.
    Bug(name="pools-without-nodes-are-not-seen", at=(unneeded, "find_unneeded"), mutate=_without_empty_pools),
    # Defect of the Go provisioner: a pool in ERROR is never deleted while its JobSet exists.
    Bug(
        name="failed-pools-are-left-alone", at=(translate, "node_pool_of"), mutate=_failed_is_left_alone, search_from=3
    ),
    # Defect of the Go provisioner: the outcome of an operation is never looked up.
    Bug(name="operation-error-is-not-read", at=(answers, "_look_up_due"), mutate=always(False), search_from=43),
    # Defect of the Go provisioner: garbage collection is not gated by leader election.
    Bug(name="every-replica-acts", at=(LeaseElector, "remaining_seconds"), mutate=always(float("inf"))),
    Bug(
        name="lease-is-not-looked-at-before-a-call",
        at=(act, "CALL_TIMEOUT_SECONDS"),
        mutate=lambda _original: float("-inf"),
        search_from=279,
    ),
    Bug(name="name-without-attempt", at=(Specification, "stamped"), mutate=_name_of_first_attempt, search_from=1),
    Bug(
        name="new-name-after-unknown-outcome",
        at=(answers, "_created"),
        mutate=_new_name_after_unknown_outcome,
        search_from=38,
    ),
    Bug(
        name="creates-under-way-are-forgotten",
        at=(rounds, "find_pools"),
        mutate=_without_creates,
    ),
    Bug(name="back-off-never-lets-go", at=(backoff, "wait_seconds"), mutate=always(1e7), search_from=10),
    Bug(name="refused-for-good", at=(backoff, "_with_failure"), mutate=_refused_for_good, search_from=76),
    Bug(
        name="full-reservation-is-a-rate-limit",
        at=(google_errors, "SURER_THAN_REASONS"),
        mutate=_without_surer_texts,
        search_from=40,
    ),
    Bug(
        name="auto-upgrade-is-off-on-a-channel",
        at=(translate, "create_request_json"),
        mutate=_asking(auto_upgrade=False),
        search_from=21,
    ),
    # Defect of the Go provisioner: no OAuth scopes are sent, so that nodes cannot pull private images.
    Bug(name="nodes-have-no-scopes", at=(translate, "create_request_json"), mutate=_without_scopes),
    Bug(
        name="late-capacity-is-held-by-any-taint",
        at=(specification, "HELD_LATE_TAINT"),
        mutate=lambda _original: Taint(key="tpu-provisioner.cloud.google.com/held", value="true"),
        search_from=417,
    ),
    Bug(
        name="repaired-pools-are-given-up",
        at=(OwnedPool, "broken"),
        mutate=_giving_up_what_is_repaired,
        search_from=83,
        storm=("pool status",),
    ),
    Bug(name="deletion-delay-starts-anew", at=(unneeded, "find_unneeded"), mutate=_never_idle_for_long),
    Bug(name="quota-is-never-probed-again", at=(operations, "_learnt"), mutate=_no_slot_again, search_from=55),
    Bug(
        name="manager-label-is-enough",
        at=(specification, "read_ownership"),
        mutate=_by_manager_alone,
        also=((Gate, "_prove"), _unless_no_jobset_is_named),
    ),
    Bug(
        name="cluster-is-not-proven",
        at=(identity_check, "prove"),
        mutate=lambda original: lambda *args, **_: original(*args, trusted_ca_pem=None, assume=True),
        search_from=15,
    ),
    Bug(name="best-choice-alone", at=(capacity, "choices_of"), mutate=_best_choice_alone),
    Bug(
        name="pauses-are-ignored",
        at=(Budget, "refusal"),
        mutate=lambda original: lambda budget, *rest: original(replace(budget, paused=None), *rest),
    ),
    Bug(name="creates-of-an-hour-are-forgotten", at=(limits, "remembered"), mutate=always(()), search_from=246),
    Bug(name="limits-count-what-is-up", at=(Budget, "of"), mutate=_counting_what_is_up, search_from=17),
    Bug(
        name="holds-never-end",
        at=(gangs, "_kept_holds"),
        mutate=lambda _original: lambda ctx, _queued: dict(ctx.memory.holds),
        search_from=77,
    ),
    Bug(name="free-for-ever", at=(gangs, "_is_ready"), mutate=always(False), search_from=4),
    Bug(name="taints-are-never-removed", at=(gangs, "_releases"), mutate=always(()), search_from=7),
    Bug(
        name="relist-keeps-old-records",
        at=(reflector, "_same_or_new"),
        mutate=lambda _original: lambda before, record: before if before is not None and before != record else record,
        search_from=19,
    ),
    Bug(name="relist-forgets-nothing", at=(Reflector, "_replace"), mutate=_merging, search_from=20),
    Bug(
        name="instances-are-named-to-all",
        at=(Failure, "for_all"),
        mutate=lambda _original: property(lambda self: self),
        search_from=77,
    ),
    Bug(
        name="watch-begins-late",
        at=(Reflector, "_listed"),
        mutate=_ahead_of_the_list,
        storm=("restart", "crash"),
        search_from=70,
    ),
    Bug(
        name="clock-that-was-set-stops-everything",
        at=(FollowedClock, "follow"),
        mutate=_following_without_a_word,
        search_from=286,
    ),
    Bug(name="every-host-is-shown-as-ready", at=(view_build, "_host"), mutate=always("r")),
    Bug(
        name="shown-on-the-pool-that-was-made-for-it",
        at=(view_build, "_users"),
        mutate=lambda _original: lambda pool: (pool.slice_id,) if pool.slice_id is not None else (),
        search_from=2,
    ),
    Bug(
        name="timeline-without-an-end",
        at=(Timeline, "_begin"),
        mutate=lambda original: (
            lambda self, pool, now: original(self, pool, now) if pool.name not in self._tracks else None
        ),
    ),
    Bug(
        name="replicas-of-high-numbers-are-dropped",
        at=(demand_slices, "listed_groups"),
        mutate=_of_low_numbers,
        search_from=54,
    ),
    Bug(
        name="removed-replicas-keep-their-pools",
        at=(unneeded, "find_unneeded"),
        mutate=_keeping(WorkloadKind.RAY_CLUSTER),
        search_from=30,
    ),
    Bug(
        name="pods-of-requests-buy-again", at=(capacity_requests, "awaiting_request"), mutate=always({}), search_from=26
    ),
    Bug(name="requests-keep-their-pools", at=(unneeded, "find_unneeded"), mutate=_keeping(REQUEST), search_from=13),
    Bug(name="requests-are-served-in-part", at=(statuses, "_is_free"), mutate=always(True), search_from=13),
    Bug(name="buffers-are-filled-twice", at=(pipeline, "_match"), mutate=_never_full, search_from=74),
    Bug(name="buffers-keep-their-pools", at=(unneeded, "find_unneeded"), mutate=_keeping(BUFFER), search_from=103),
    Bug(name="buffers-come-first", at=(room, "_longest_idle"), mutate=_warm_at_any_price, search_from=505),
    Bug(name="pods-do-not-keep-labels", at=(assignment, "assignments"), mutate=_whoever_is_there),
    Bug(
        name="pools-in-use-are-given-away",
        at=(matching, "_use"),
        mutate=_without_occupants,
        also=((assignment, "_wanted"), _as_claimed),
    ),
    Bug(name="labels-are-never-freed", at=(assignment, "assignments"), mutate=_never_free, search_from=7),
    Bug(
        name="recreated-nodes-keep-their-labels", at=(assignment, "assignments"), mutate=_once_for_a_pool, search_from=4
    ),
    Bug(
        name="namespace-of-a-mark-is-ignored",
        at=(placement, "labels_of"),
        mutate=lambda original: lambda key, _namespace: original(key, NAMESPACE),
    ),
    Bug(
        name="marks-are-requirements",
        at=(placement, "without_marks"),
        mutate=lambda _original: lambda requirements, _namespace: (requirements, ""),
    ),
    Bug(
        name="priorities-are-ignored",
        at=(planning_line, "unit_of"),
        mutate=lambda original: lambda *arguments: original(*arguments)._replace(priority=0),
        search_from=34,
    ),
    Bug(
        name="label-names-the-pool",
        at=(membership, "reported_pool"),
        mutate=lambda _original: lambda labels, _annotations: PoolName(str(labels.get(constants.NODE_POOL) or "")),
        also=((Membership, "pool_of"), lambda _original: lambda _self, _node, reported: reported),
        storm=("pool label by hand",),
        search_from=6,
    ),
    Bug(name="creates-double-without-limit", at=(backoff, "max_in_flight"), mutate=always(64), search_from=77),
    Bug(name="refused-pools-are-kept", at=(stuck, "_is_refused"), mutate=always(False), search_from=129),
    Bug(name="pools-for-pods-that-fit-none", at=(spec_fit, "check_fit"), mutate=always(None), search_from=14),
    Bug(name="room-for-failed-capacity", at=(options, "has_fresh_offer"), mutate=always(True), search_from=14),
    Bug(name="terminating-pods-keep-their-nodes", at=(Seats, "_is_leaving"), mutate=always(False), search_from=1155),
    Bug(name="pods-buy-a-pool-each", at=(seats, "join"), mutate=_alone, search_from=1119),
    Bug(name="shared-pools-have-no-maximum", at=(bounds, "SHARED_POOL_NODES"), mutate=lambda _: 64, search_from=1365),
    Bug(name="deletion-costs-are-equal", at=(scale_in, "_cost_of"), mutate=always(5), search_from=1167),
    Bug(name="replaced-misfits-buy-again", at=(refused, "key_of"), mutate=_not_handed_on, search_from=1056),
    Bug(name="guests-hold-pools", at=(matching, "is_guest"), mutate=always(False), search_from=2011),
    Bug(name="serve-pods-is-ignored", at=(plain, "is_asked_for"), mutate=always(True), search_from=1227),
)
