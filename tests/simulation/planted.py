"""Bugs planted on purpose, each a small mutation of the real code: every one must be found, or the checker is blind.

Some are the defects of the Go original, some are what this simulation found, some are what a tired person would write.
A mutation replaces one attribute of a module or class, wherever it was imported, by what `mutate` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner import kube
from provisioner.constants import (
    HELD,
    JOB_KEY,
    LIMIT_REACHED,
    MANAGER,
    NODEPOOL_MANAGER,
    POOL_JOB_KEY,
    POOL_JOBSET_NAME,
    POOL_JOBSET_UID,
)
from provisioner.google import errors as google_errors
from provisioner.kube import store
from provisioner.kube.lease import LeaseElector
from provisioner.kube.reflector import Reflector
from provisioner.kube.store import Store
from provisioner.model.capacity import Failure, FailureKind, PoolStatus, Taint
from provisioner.model.workloads import GroupKey, WorkloadKind, WorkloadName, Workloads, WorkloadUid
from provisioner.runtime.clock import FollowedClock
from provisioner.slices import act
from provisioner.slices.demand import SliceId
from provisioner.slices.gate import Gate
from provisioner.slices.planning import decide, ownership
from provisioner.slices.planning import round as rounds
from provisioner.slices.planning.launch import capacity, gangs, launches, limits, operations, reserving, specification
from provisioner.slices.planning.launch.limits import Budget
from provisioner.slices.planning.launch.specification import Specification
from provisioner.slices.planning.match import assignment
from provisioner.slices.planning.memory import answers, backoff
from provisioner.slices.planning.ownership import Ownership, pool_name
from provisioner.slices.planning.retire import unneeded
from provisioner.slices.planning.round import Supply
from provisioner.slices.report import Reporter
from provisioner.slices.suppliers.gke import identity_check, translate
from provisioner.slices.view import build as view_build
from provisioner.slices.view.timeline import Timeline
from provisioner.workloads import pods
from tests.support.simulations.bugs import mutated

#: A module or class, and the name of one of its attributes.
At = tuple[Any, str]
#: A clock that has seen every grace end.
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One mutation, or two where the code has the same care twice."""

    name: str
    description: str
    #: A module or class, and the attribute of it that is replaced.
    at: At
    mutate: Callable[[Any], Any]
    also: tuple[At, Callable[[Any], Any]] | None = None
    #: The seed from which it is searched for, one that shows it soon: some seeds show it after ten seconds, and what
    #: takes a rare coincidence shows once in hundreds.
    search_from: int = 0
    #: The kinds of faults that show it, for what would be a rare coincidence among all kinds.
    storm: tuple[str, ...] = ()


def _doing_nothing(_original: Any) -> Any:
    return lambda *_args, **_options: None


def _of_labels_only(original: Any) -> Any:
    """Holds a pool only through its labels, as the Go original does."""

    def use(round_: Any) -> Any:
        return replace(original(round_), held={}, holders={}, occupants={})

    return use


def _without_empty_pools(original: Any) -> Any:
    """Looks at pools only through their nodes."""

    def find(round_: Any, *rest: Any) -> Any:
        return original(replace(round_, supply={n: each for n, each in round_.supply.items() if each.nodes}), *rest)

    return find


def _unless_no_jobset_is_named(original: Any) -> Any:
    return lambda self, delete: original(self, delete) if delete.workload_name else None


def _without_claims(original: Any) -> Any:
    def find(round_: Any, matching: Any, *rest: Any) -> Any:
        return original(round_, replace(matching, claimed={}), *rest)

    return find


def _new_name_after_unknown_outcome(original: Any) -> Any:
    """Goes on with another name where nobody knows what became of the first."""

    def created(memory: Any, answer: Any) -> Any:
        call = memory.creates.get(answer.name)
        if call is None or answer.failure is None or answer.failure.kind is not FailureKind.UNKNOWN_OUTCOME:
            return original(memory, answer)
        creates = {name: each for name, each in memory.creates.items() if name != answer.name}
        attempts = {**memory.attempts, call.slice_id: memory.attempts.get(call.slice_id, 0) + 1}
        return replace(memory, creates=creates, attempts=attempts)

    return created


def _waiting_for_ever(_original: Any) -> Any:
    return lambda _delay, _failures, _key: 1e7


def _refused_for_good(original: Any) -> Any:
    """Never sends again what was refused once."""

    def refused(backoffs: Any, slice_id: Any, digest: str, *rest: Any) -> Any:
        found = original(backoffs, slice_id, digest, *rest)
        return {**found, digest: replace(found[digest], until=found[digest].until + timedelta(hours=3))}

    return refused


def _never_idle_for_long(original: Any) -> Any:
    """Begins the deletion delay anew in every round."""

    def find(round_: Any, *rest: Any) -> Any:
        return original(replace(round_, memory=replace(round_.memory, unneeded_since={})), *rest)

    return find


def _no_slot_again(original: Any) -> Any:
    """Once too many operations, always too many."""

    def learnt(operations: Any, running: int, now: Any) -> Any:
        found = original(operations, running, now)
        return replace(found, rejected_at=now + timedelta(days=30)) if operations.rejected else found

    return learnt


def _failed_is_left_alone(original: Any) -> Any:
    def read(body: Any) -> Any:
        pool = original(body)
        return replace(pool, status=PoolStatus.UNKNOWN) if pool.status is PoolStatus.ERROR else pool

    return read


def _without_terminating_pods(original: Any) -> Any:

    def use(round_: Any) -> Any:
        pods = tuple(pod for pod in round_.snapshot.pods if pod.deletion_deadline is None)
        return original(replace(round_, snapshot=replace(round_.snapshot, pods=pods)))

    return use


def _name_of_first_attempt(original: Any) -> Any:

    def stamped(self: Any, name: Any, attempt: int) -> Any:
        key = SliceId(WorkloadUid(self.labels[POOL_JOBSET_UID]), self.labels[POOL_JOB_KEY])
        return original(self, pool_name(self.labels[POOL_JOBSET_NAME], key, 0), attempt)

    return stamped


def _best_choice_alone(original: Any) -> Any:
    """Tries nothing but the best choice of capacity."""

    def choices(*arguments: Any) -> Any:
        found = original(*arguments)
        return replace(found, open=found.open[:1])

    return choices


def _counting_what_is_up(original: Any) -> Any:
    """Counts towards the limits what one decision buys, and forgets it in the next until it is up."""
    counted = original.__func__ if hasattr(original, "__func__") else original

    def of(cls: Any, round_: Any, *rest: Any) -> Any:
        return counted(cls, replace(round_, supply={n: each for n, each in round_.supply.items() if each.ready}), *rest)

    return classmethod(of)


def _following_without_a_word(original: Any) -> Any:
    """Goes by the new time of day, and moves nothing along."""

    def follow(self: Any) -> timedelta:
        original(self)
        return timedelta()

    return follow


def _turns_never_come(original: Any) -> Any:
    """Who gave back what was only partly there never tries again."""
    return lambda *arguments: original(*arguments[:-1], timedelta(days=30))


def _by_label(_original: Any) -> Any:
    """Believes the UID on a pod, whatever namespace it is in, and the job key beside it."""
    return lambda _self, pod: WorkloadUid(pod.workload_uid)


def _key_by_label(original: Any) -> Any:

    def parse(raw: Any) -> Any:
        pod, key = original(raw), (raw["metadata"].get("labels") or {}).get(JOB_KEY)
        return replace(pod, group_key=key) if pod is not None and key else pod

    return parse


def _merging(original: Any) -> Any:
    """Takes what a list shows, and keeps what it does not show any more."""

    def replace(self: Any, listing: Any) -> bool:
        for key, record in self._records.items():
            listing.records.setdefault(key, record)
        return bool(original(self, listing))

    return replace


def _ahead_of_the_list(original: Any) -> Any:
    """Watches from a little after the list."""
    return lambda self, listing, version: original(self, listing, str(int(version) + 20))


def _keeping_its_turn(original: Any) -> Any:
    """Who has a turn keeps it as long as it waits."""

    def next_turn(turn: Any, resource: str, waiting: Any, *rest: Any) -> Any:
        return turn if turn is not None and turn.holder in waiting else original(turn, resource, waiting, *rest)

    return next_turn


def _asking(**changes: Any) -> Callable[[Any], Any]:
    """Asks GKE for something else than was specified."""
    return lambda original: lambda path, request: original(path, replace(request, **changes))


def _without_surer_texts(original: frozenset[FailureKind]) -> Any:
    """Believes the reason of a 429 more than its text."""
    return original - {FailureKind.STOCKOUT}


def _giving_up_what_is_repaired(original: property) -> Any:
    """A pool that GKE calls RUNNING_WITH_ERROR has failed."""
    broken: Any = original.fget
    return property(lambda each: broken(each) or (each.pool.status is PoolStatus.RUNNING_WITH_ERROR and not each.ready))


def _by_manager_alone(original: Any) -> Any:
    """Takes whatever bears the manager's label for a pool of ours."""

    def read(labels: Any) -> Any:
        found = original(labels)
        if found is not None or labels.get(NODEPOOL_MANAGER) != MANAGER:
            return found
        nobody = WorkloadName(WorkloadKind.JOBSET, "", "")
        return Ownership(nobody, WorkloadUid(""), GroupKey(""), "")

    return read


def _without_limits(original: Any) -> Any:
    """Tells nobody which limit is in the way."""

    def tell_notices(self: Any, notices: Any) -> None:
        original(self, tuple(notice for notice in notices if notice.reason != LIMIT_REACHED))

    return tell_notices


BUGS: tuple[Bug, ...] = (
    Bug(
        name="failures-do-not-wait",
        description="What has failed is sent again a second later.",
        at=(backoff, "wait_seconds"),
        mutate=lambda _original: lambda *_args: 1.0,
        search_from=1,
    ),
    Bug(
        name="limits-of-namespaces-are-not-looked-at",
        description="MAX_CHIPS_PER_NAMESPACE refuses nothing.",
        at=(limits, "_amount"),
        mutate=lambda _original: lambda *_args: None,
        search_from=92,
    ),
    Bug(
        name="namespaces-share-one-limit",
        description="What one namespace uses counts against the limits of the others.",
        at=(limits, "_namespace"),
        mutate=lambda _original: lambda _name: "namespace",
        search_from=101,
    ),
    Bug(
        name="limits-are-not-told",
        description="Who is kept out by a limit gets no Event.",
        at=(Reporter, "tell_notices"),
        mutate=_without_limits,
        search_from=101,
    ),
    Bug(
        name="turns-never-end",
        description="Who has its turn at a limit keeps it as long as it waits.",
        at=(reserving, "next_turn"),
        mutate=_keeping_its_turn,
        search_from=35,
    ),
    Bug(
        name="creators-pay",
        description="Chips count for the namespace that their pool was created for, whoever uses it.",
        at=(limits, "_charge_of"),
        mutate=lambda original: lambda each, _users: original(each, {}),
        search_from=55,
    ),
    Bug(
        name="failed-creates-do-not-count",
        description="A request that changes all the time is sent each time.",
        at=(backoff, "create_counted"),
        mutate=lambda _original: lambda tallies, *_args: tallies,
        search_from=34,
    ),
    Bug(
        name="private-failures-are-shared",
        description="What a slice chose itself, such as a network, is not part of what a stockout is kept by.",
        at=(specification, "_own_inputs"),
        mutate=lambda _original: lambda _slice: "",
        search_from=293,
    ),
    Bug(
        name="namespaces-do-not-alternate",
        description="Creates are sent in the order in which slices came, whosever they are.",
        at=(launches, "in_order"),
        mutate=lambda _original: lambda _resource, waiting, _last: sorted(waiting, key=waiting.__getitem__),
        search_from=77,
    ),
    Bug(
        name="hanging-pools-are-no-alert",
        description="A pool that hangs is reported to nobody.",
        at=(decide, "find_hanging"),
        mutate=lambda _original: lambda _round: {},
        search_from=55,
    ),
    Bug(
        name="arrivals-are-not-awaited",
        description="A pool goes to which the scheduler may be binding a pod that it has just looked at.",
        at=(unneeded, "_selected_by_pending_leaders"),
        mutate=lambda _original: lambda *_args: (),
        search_from=87,
    ),
    Bug(
        name="gate-trusts-the-cache",
        description="The gate does not list the pods on the nodes: what was decided on caches is believed.",
        at=(Gate, "_refuse_if_used"),
        mutate=_doing_nothing,
        search_from=18,
    ),
    Bug(
        name="gate-without-cordon",
        description="Nodes stay open for pods between the look at them and the delete.",
        at=(kube, "cordon"),
        mutate=_doing_nothing,
        search_from=3,
    ),
    Bug(
        name="terminating-pods-do-not-count",
        description="Pods that are being deleted are overlooked, although their grace is not over.",
        at=(Gate, "_blocking_pods"),
        mutate=lambda original: lambda self, *rest: original(replace(self, clock=lambda: _END_OF_TIME), *rest),
        also=((assignment, "_use"), _without_terminating_pods),
        search_from=1,
    ),
    Bug(
        name="cordon-is-never-undone",
        description="A pool that is kept after all stays closed.",
        at=(kube, "uncordon"),
        mutate=_doing_nothing,
        search_from=54,
    ),
    Bug(
        name="pools-belong-by-label",
        description="Go original: a slice has the pool that was made for it, wherever its pods are.",
        at=(assignment, "_use"),
        mutate=_of_labels_only,
        search_from=31,
    ),
    Bug(
        name="pods-belong-by-label",
        description="A pod is believed to be of the JobSet and the Job that its labels name.",
        at=(Workloads, "uid_of"),
        mutate=_by_label,
        also=((pods, "parse_pod"), _key_by_label),
    ),
    Bug(
        name="lost-calls-stay-open",
        description="What was decided and never sent counts as under way for ever.",
        at=(answers, "give_up_lost_calls"),
        mutate=lambda _original: lambda memory, *_rest: memory,
        search_from=30,
    ),
    Bug(
        name="claims-keep-no-pool",
        description="Only pods keep a pool: one that a slice waits for, or had before its restart, is unneeded.",
        at=(unneeded, "find_unneeded"),
        mutate=_without_claims,
        search_from=1,
    ),
    Bug(
        name="pools-without-nodes-are-not-seen",
        description="Go original: deletion starts from nodes, so that a pool without nodes is never deleted.",
        at=(unneeded, "find_unneeded"),
        mutate=_without_empty_pools,
    ),
    Bug(
        name="failed-pools-are-left-alone",
        description="Go original: a pool in ERROR is never deleted while its JobSet lives.",
        at=(translate, "_node_pool"),
        mutate=_failed_is_left_alone,
        search_from=3,
    ),
    Bug(
        name="operation-error-is-not-read",
        description="Go original: how an operation ended is never looked up.",
        at=(answers, "_look_up_due"),
        mutate=lambda _original: lambda *_args, **_options: False,
        search_from=19,
    ),
    Bug(
        name="every-replica-acts",
        description="Go original: garbage collection is not gated by leader election.",
        at=(LeaseElector, "remaining_seconds"),
        mutate=lambda _original: lambda _self: float("inf"),
    ),
    Bug(
        name="lease-is-not-looked-at-before-a-call",
        description="A call is sent however little is left of the lease.",
        at=(act, "CALL_TIMEOUT_SECONDS"),
        mutate=lambda _original: float("-inf"),
        search_from=385,
    ),
    Bug(
        name="name-without-attempt",
        description="A replacement has the name of the pool that it replaces.",
        at=(Specification, "stamped"),
        mutate=_name_of_first_attempt,
        search_from=1,
    ),
    Bug(
        name="new-name-after-unknown-outcome",
        description="A create whose answer was lost is sent again under another name.",
        at=(answers, "_created"),
        mutate=_new_name_after_unknown_outcome,
        search_from=19,
    ),
    Bug(
        name="creates-under-way-are-forgotten",
        description="A pool is bought again as long as GKE does not list the first one.",
        at=(rounds, "find_supply"),
        mutate=lambda original: lambda _all, memory, *rest: original(_all, replace(memory, creates={}), *rest),
    ),
    Bug(
        name="back-off-never-lets-go",
        description="After one failure nothing is tried again.",
        at=(backoff, "wait_seconds"),
        mutate=_waiting_for_ever,
        search_from=1,
    ),
    Bug(
        name="refused-for-good",
        description="What GKE has refused once is not sent again, whoever mends the reason.",
        at=(backoff, "refused"),
        mutate=_refused_for_good,
        search_from=50,
    ),
    Bug(
        name="full-reservation-is-a-rate-limit",
        description="A full reservation, answered with 429, is asked again and again, and nothing else is tried.",
        at=(google_errors, "SURER_THAN_REASONS"),
        mutate=_without_surer_texts,
        search_from=40,
    ),
    Bug(
        name="auto-upgrade-is-off-on-a-channel",
        description="Node pools are asked for as on a cluster without a release channel.",
        at=(translate, "create_request_json"),
        mutate=_asking(auto_upgrade=False),
        search_from=21,
    ),
    Bug(
        name="nodes-have-no-scopes",
        description="Go original: no OAuth scopes are sent, so that nodes cannot pull private images.",
        at=(translate, "create_request_json"),
        mutate=_asking(oauth_scopes=()),
    ),
    Bug(
        name="late-capacity-is-held-by-any-taint",
        description="Flex-start pools carry a taint that keeps the autoscaler from ever bringing nodes.",
        at=(specification, "HELD_LATE_TAINT"),
        mutate=lambda _original: Taint(key=HELD, value="true"),
        search_from=7,
    ),
    Bug(
        name="repaired-pools-are-given-up",
        description="A pool that GKE repairs is replaced at once.",
        at=(Supply, "broken"),
        mutate=_giving_up_what_is_repaired,
        search_from=94,
        storm=("pool status",),
    ),
    Bug(
        name="deletion-delay-starts-anew",
        description="Nothing is ever idle for long.",
        at=(unneeded, "find_unneeded"),
        mutate=_never_idle_for_long,
    ),
    Bug(
        name="quota-is-never-probed-again",
        description="Once GKE has too many operations under way, no more are started.",
        at=(operations, "_learnt"),
        mutate=_no_slot_again,
        search_from=55,
    ),
    Bug(
        name="manager-label-is-enough",
        description="A pool of others that bears our manager label counts as ours.",
        at=(ownership, "read_ownership"),
        mutate=_by_manager_alone,
        also=((Gate, "_prove"), _unless_no_jobset_is_named),
    ),
    Bug(
        name="cluster-is-not-proven",
        description="Kubeconfig and GCP_CLUSTER are believed to be one cluster.",
        at=(identity_check, "prove_same_cluster"),
        mutate=lambda original: lambda **options: original(**{**options, "kubernetes_ca_pem": None, "assume": True}),
        search_from=15,
    ),
    Bug(
        name="best-choice-alone",
        description="Capacity that is out of stock is waited for, although there is another choice.",
        at=(capacity, "choices_of"),
        mutate=_best_choice_alone,
    ),
    Bug(
        name="limits-count-what-is-up",
        description="Pools in the making do not count towards the limit on chips.",
        at=(Budget, "of"),
        mutate=_counting_what_is_up,
        search_from=17,
    ),
    Bug(
        name="turns-never-come",
        description="A JobSet that starts all together gives back what it has, and never tries again.",
        at=(gangs, "_after"),
        mutate=_turns_never_come,
        search_from=372,
    ),
    Bug(
        name="held-for-ever",
        description="The taint of slices that wait for others is never taken off.",
        at=(gangs, "_releases"),
        mutate=lambda _original: lambda *_args: (),
        search_from=20,
    ),
    Bug(
        name="relist-keeps-old-records",
        description="What changed while the list-watch was cut off is not taken from the new list.",
        at=(store, "_same_or_new"),
        mutate=lambda _original: lambda before, record: before if before is not None and before != record else record,
        search_from=30,
    ),
    Bug(
        name="relist-forgets-nothing",
        description="What was deleted while the list-watch was cut off stays.",
        at=(Store, "replace"),
        mutate=_merging,
        search_from=19,
    ),
    Bug(
        name="instances-are-named-to-all",
        description="GKE's message about missing capacity names the instance of the tenant that tried.",
        at=(Failure, "for_all"),
        mutate=lambda _original: property(lambda self: self),
    ),
    Bug(
        name="watch-begins-late",
        description="What is written between a list and its watch is missed.",
        at=(Reflector, "_listed"),
        mutate=_ahead_of_the_list,
        storm=("restart", "crash"),
        search_from=13,
    ),
    Bug(
        name="clock-that-was-set-stops-everything",
        description="What is remembered by the time of day is not moved along when the clock is set back.",
        at=(FollowedClock, "follow"),
        mutate=_following_without_a_word,
        search_from=275,
    ),
    Bug(
        name="every-host-is-shown-as-ready",
        description="The page does not see which hosts are joining.",
        at=(view_build, "_host"),
        mutate=lambda _original: lambda *_args: "r",
    ),
    Bug(
        name="shown-on-the-pool-that-was-made-for-it",
        description="A slice is shown on the pool that was made for it, whoever is there.",
        at=(view_build, "_users"),
        mutate=lambda _original: lambda pool: (pool.slice_id,) if pool.slice_id is not None else (),
    ),
    Bug(
        name="timeline-without-an-end",
        description="Of a pool that changes hands or ends, the timeline knows the beginning alone.",
        at=(Timeline, "_begin"),
        mutate=lambda original: (
            lambda self, pool, now: original(self, pool, now) if pool.name not in self._tracks else None
        ),
    ),
)


def bug_named(name: str) -> Bug:
    """Return a bug."""
    return next(each for each in BUGS if each.name == name)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Have a bug in the code."""
    with ExitStack() as stack:
        for at, mutate in ((bug.at, bug.mutate), *((bug.also,) if bug.also is not None else ())):
            stack.enter_context(mutated(at, mutate))
        yield
