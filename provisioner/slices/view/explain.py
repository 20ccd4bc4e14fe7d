"""Explains why a slice, workload or pool waits, runs or is deleted: a headline, then the facts. Pure."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce

from provisioner.model.wording import clock, first_of
from provisioner.model.workloads import WorkloadKind
from provisioner.settings.forms import cost_in_words
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.states import RUNS
from provisioner.slices.messages.waits import NO_POOL, failure_in_words
from provisioner.slices.view.timeline import Track
from provisioner.slices.view.types import (
    BackoffView,
    Entry,
    Host,
    NoticeView,
    PoolView,
    SliceView,
    State,
    View,
    WorkloadView,
)

_MAX_ACTIVITY_ENTRIES = 10
#: Number of random characters at the end of a name that Kubernetes generates.
_RANDOM_LETTERS = 5
#: Maximum number of characters before the random characters: Kubernetes cuts generated names to 63 characters.
_MAX_STEM = 58
_KIND_OF_WORD: Mapping[str, str] = {
    **{f"{kind.value.lower()}{end}": kind for kind in WorkloadKind for end in ("", "s")},
    "lws": WorkloadKind.LEADER_WORKER_SET,
    "provreq": WorkloadKind.PROVISIONING_REQUEST,
    "cb": WorkloadKind.CAPACITY_BUFFER,
    "po": "pod",
    "pod": "pod",
    "pods": "pod",
    "slice": "slice",
    "slices": "slice",
    "pool": "pool",
    "nodepool": "pool",
    "workload": "workload",
}
#: Kinds in KIND/NAME for which workloads are searched; "" for a NAME without KIND.
_WORKLOADS = ("", "workload", *WorkloadKind)
#: Kind of controller that an object creates, and pattern of the suffix of the controller's name, by kind of object.
_MAKERS = {"deployment": ("replicaset", r"-[a-z0-9]+"), "cronjob": ("job", r"-[0-9]+")}
#: Kinds that `explain` accepts in addition to `_KIND_OF_WORD`: `explain` finds the workloads of their pods by name.
_CONTROLLERS = frozenset({*_MAKERS, "replicaset", "statefulset"})
_DOING = {
    State.REJECTED: "is rejected",
    State.WAITING: "waits for a node pool",
    State.CREATING: "waits for node pool {pool}, whose create has been sent",
    State.JOINING: "waits for the hosts of node pool {pool}",
    State.READY: "has node pool {pool}, which is ready",
    State.RUNNING: "runs on node pool {pool}",
    State.SPLIT: "is split",
    State.DRAINING: "has ended or is suspended; pods are still on node pool {pool}",
    State.IDLE: "has node pool {pool}, which is not needed",
    State.DELETING: "has node pool {pool}, which is being deleted",
    State.FAILED: "has node pool {pool}, which failed",
    State.NONE: "has no node pool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """State of one object, with its reason and the facts."""

    #: Kind of the object: slice, workload or pool.
    kind: str
    id: str
    #: Sentences with the state, its duration and reason, and the next step.
    headline: str
    facts: tuple[tuple[str, str], ...]
    notices: tuple[NoticeView, ...]
    #: The last decisions about the object, oldest first.
    activity: tuple[Entry, ...]


def explain(
    view: View, now: datetime, tracks: Iterable[Track], activity: Iterable[Entry], name: str, namespace: str = ""
) -> list[Explanation]:
    """Explain [KIND/]NAME: a workload, slice, pod of a slice, or pool, in all namespaces if `namespace` is empty."""
    if (controllers := _controllers_of(view, name, namespace)) and "/" in name:
        return [_workload(view, workload_view, now, tuple(activity)) for workload_view in controllers]
    kind, name = _parts(name)
    activity, tracks = tuple(activity), tuple(tracks)
    results: list[Explanation] = []
    if kind in ("", "pool"):
        results += [_pool(view, pool, now, tracks, activity) for pool in view.pools if pool.name == name]
        results = results or [_absent_pool(view, track, now, activity) for track in tracks if track.pool == name]
    if kind in _WORKLOADS:
        results += [
            _workload(view, workload, now, activity)
            for workload in view.workloads
            if _is(workload.id, workload.name, name, namespace) and kind in ("", "workload", workload.kind)
        ]
    if kind in ("", "slice"):
        # If a slice has the name of its workload, as for a Job, only the workload is explained.
        explained = {explanation.id for explanation in results if explanation.kind == "workload"}
        results += [
            _slice(view, slice_, now, activity)
            for slice_ in view.slices
            if _is(slice_.id, slice_.group, name, namespace)
            and not (slice_.workload in explained and slice_.group == slice_.workload.rpartition("/")[2])
        ]
    if kind == "pod" or (kind == "" and not results):
        results += [_slice(view, slice_, now, activity, pod=name) for slice_ in _slices_of_pod(view, name, namespace)]
    return results


def _controllers_of(view: View, name: str, namespace: str) -> list[WorkloadView]:
    """Return the workloads of KIND/NAME, such as the Jobs of a CronJob; empty for kinds in `_KIND_OF_WORD`."""
    kind, _, rest = name.partition("/")
    kind = kind.lower().partition(".")[0].removesuffix("s")
    made, pattern = _MAKERS.get(kind, (kind, ""))
    return [
        workload
        for workload in view.workloads
        if kind not in _KIND_OF_WORD and workload.kind.lower() == made and namespace in ("", workload.namespace)
        if re.fullmatch(re.escape(rest) + pattern, workload.name)
    ]


def unknown_kind(name: str) -> str:
    """Return KIND of KIND/NAME if `explain` does not know the kind, otherwise ""."""
    kind, separator, rest = name.partition("/")
    known = _parts(name)[0] != "" or kind.lower().partition(".")[0].removesuffix("s") in _CONTROLLERS
    return kind if separator and "/" not in rest and not known else ""


def nearest_kind(kind: str) -> str:
    """Return the word of `_KIND_OF_WORD` that is most similar to an unknown kind, "" if no word is similar."""
    return next(iter(difflib.get_close_matches(kind.lower().partition(".")[0], _KIND_OF_WORD, n=1)), "")


def nearest_names(view: View, name: str) -> list[str]:
    """Return up to three KIND/NAME whose names are most similar to an unknown [KIND/]NAME."""
    names = {
        **{pool.name: "pool" for pool in view.pools},
        **{slice_.group: "slice" for slice_ in view.slices},
        **{workload.name: workload.kind.lower() for workload in view.workloads},
    }
    near = difflib.get_close_matches(name.rpartition("/")[2], names, n=3)
    return [f"{names[similar]}/{similar}" for similar in near]


def for_how_long(since: datetime, now: datetime) -> str:
    """Return a duration as text: 45 s, 12 min, 3 h 5 min, 2 d 4 h."""
    seconds = max(0, int((now - since).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def _parts(name: str) -> tuple[str, str]:
    kind, separator, rest = name.partition("/")
    known = _KIND_OF_WORD.get(kind.lower().partition(".")[0])
    # A name with more than one slash is the id of an object, so its first part is not a KIND.
    return (known, rest) if separator and known is not None and rest.count("/") == 0 else ("", name)


def _is(id_: str, short_name: str, name: str, namespace: str) -> bool:
    """Return whether `name` is an object's id, or its short name in `namespace` (empty for all namespaces)."""
    return id_ == name or (short_name == name and namespace in ("", id_.split("/")[1]))


def _slices_of_pod(view: View, name: str, namespace: str) -> list[SliceView]:
    """Return the slices whose leader pod has this name; if none, the slices that a pod of this name may belong to."""
    in_namespace = [slice_ for slice_ in view.slices if namespace in ("", slice_.id.split("/")[1])]
    leaders = [slice_ for slice_ in in_namespace if slice_.leader == name]
    return leaders or [slice_ for slice_ in in_namespace if _is_pod_of(slice_, name)]


def _is_pod_of(slice_: SliceView, name: str) -> bool:
    if slice_.id.startswith(f"{WorkloadKind.LEADER_WORKER_SET.value}/"):
        of_group = f"{slice_.workload.rpartition('/')[2]}-{slice_.group.rpartition('-')[2]}"
        return re.fullmatch(rf"{re.escape(of_group)}(-[0-9]+)?", name) is not None
    stem, random = name[:-_RANDOM_LETTERS], name[-_RANDOM_LETTERS:]
    group = f"{slice_.group}-"[:_MAX_STEM]
    if not stem.startswith(group) or not random.isalnum():
        return False
    index = stem.removeprefix(group)
    if len(stem) == _MAX_STEM:
        # Kubernetes cuts long names, so the index may be incomplete or missing.
        return re.fullmatch(r"([0-9]+-?)?", index) is not None
    # Pods of a Job without indexes have no index in their names, and their slice has no leader pod.
    return re.fullmatch(r"[0-9]+-", index) is not None or (not index and not slice_.leader)


def _slice(view: View, slice_: SliceView, now: datetime, activity: Iterable[Entry], *, pod: str = "") -> Explanation:
    pool = next((pool for pool in view.pools if pool.name == slice_.pool), None)
    others = [other for other in view.pools if other is not pool and slice_.id in (other.slice, *other.other_slices)]
    subject = f"Pod {pod}: slice {slice_.group}" if pod else f"Slice {slice_.group}"
    return Explanation(
        kind="slice",
        id=slice_.id,
        headline=f"{subject} {_answer(view, slice_, now)}",
        facts=(
            *_facts_of_waiting(view, slice_, now),
            *_facts_of_slice(slice_),
            *(_facts_of_pool(pool, now, view.capacity.currency) if pool is not None else ()),
            *((f"also node pool {other.name}", other.reason) for other in others),
        ),
        notices=tuple(notice for notice in slice_.notices if not _is_repeated(notice, slice_)),
        activity=_news(view, slice_, _about(activity, slice_.workload, slice_.pool)),
    )


def _is_repeated(notice: NoticeView, slice_: SliceView) -> bool:
    return notice.reason == EventReason.CREATION_WAITING or _is_in_reason(notice.message, slice_)


def _is_in_reason(message: str, slice_: SliceView) -> bool:
    return bool(slice_.reason) and (slice_.reason in message or message in slice_.reason)


def _news(view: View, slice_: SliceView | None, activity: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the entries of `activity`, without texts that are in the headline or the facts of the slice."""
    if slice_ is None:
        return activity
    news = (entry for entry in activity if not _is_in_reason(entry.message, slice_))
    return tuple(replace(entry, message=_short(view, slice_, entry.message)) for entry in news)


def _short(view: View, slice_: SliceView | None, text: str) -> str:
    """Return a text with "as above" in place of the failures of a slice's choices, which the facts contain."""
    backoffs = backoffs_of(view, slice_) if slice_ is not None else ()
    # In the back-off, "…" replaces generated names of instances and node pools.
    failures = (re.escape(backoff.message.rstrip(".")) for backoff in backoffs if backoff.message)
    return reduce(lambda short, failure: re.sub(failure.replace("…", "[^']*"), "as above", short), failures, text)


def _facts_of_waiting(view: View, slice_: SliceView, now: datetime) -> Iterator[tuple[str, str]]:
    if slice_.brief:
        yield "why", slice_.reason
    if (queue := slice_.queue) is not None:
        ahead = f"; next: {queue.ahead[0]}" if queue.ahead else ""
        order = "; pods of higher priority come first, then namespaces take turns" if queue.place > 1 else ""
        yield "place in the queue", f"{queue.place} of {queue.length} for {queue.resource}{ahead}{order}"
        others = f"; {queue.other_users} more" if queue.other_users else ""
        if queue.users:
            yield "used by", "; ".join(queue.users) + others
        if queue.idle_until is not None:
            yield "becomes free", f"{queue.idle_chips} idle chips, {_when_deleted(queue.idle_until, now)}"
    for backoff in backoffs_of(view, slice_) if slice_.state in (State.WAITING, State.REJECTED) else ():
        choice = f"{backoff.zone} {backoff.terms}".strip() or "this request"
        times = f"since {clock(backoff.since, now)}, next try {clock(backoff.until, now)}"
        message = f": {backoff.message}" if backoff.message not in f"{slice_.reason} {slice_.next_step}" else ""
        yield f"paused: {choice}", f"{failure_in_words(backoff.kind)} {times}{message}"


def backoffs_of(view: View, slice_: SliceView) -> tuple[BackoffView, ...]:
    """Return the back-offs of a slice, and of the capacity that it may have requested."""
    shape = f"{slice_.topology} on {slice_.hosts}"
    return tuple(
        backoff
        for backoff in view.capacity.backoffs
        if backoff.capacity == slice_.id or (backoff.machine_type, backoff.shape) == (slice_.machine_type, shape)
    )


def _answer(view: View, slice_: SliceView, now: datetime) -> str:
    """Return the state of a slice, its place in the queue, the cause and the next step, as text."""
    pools = [pool.name for pool in view.pools if slice_.id in (pool.slice, *pool.other_slices)]
    where = (f"on {first_of(pools)}",) if slice_.state is State.SPLIT and pools else ()
    whole = f"{slice_.reason.removeprefix(NO_POOL)} {slice_.next_step}".rstrip()
    return _doing(replace(slice_, reason=slice_.brief or whole), now, where)


def _doing(slice_: SliceView, now: datetime, where: Iterable[str] = ()) -> str:
    state, details = _DOING[slice_.state].format(pool=slice_.pool), [*where]
    if slice_.since is not None:
        details.append(how_long(slice_.since, now, is_least=slice_.since_start))
    if slice_.queue is not None:
        details.append(f"place {slice_.queue.place} of {slice_.queue.length} in the queue")
    if slice_.next_try_at is not None and (due := clock(slice_.next_try_at, now)) not in slice_.reason:
        # The time is in the past if no decision has been made since then.
        details.append("next try now" if slice_.next_try_at <= now else f"next try {due}")
    state = f"{state} ({', '.join(details)})" if details else state
    return f"{state}: {slice_.reason}" if slice_.reason not in ("", RUNS) else f"{state}."


def how_long(since: datetime, now: datetime, *, is_least: bool) -> str:
    """Return the time since `since` as text, preceded by "more than" if the true start may be earlier (`is_least`)."""
    return f"for {'more than ' if is_least else ''}{for_how_long(since, now)}"


def moment(moment: datetime) -> str:
    """Return the date and time of day in UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _facts_of_slice(slice_: SliceView) -> Iterator[tuple[str, str]]:
    yield "workload", slice_.workload
    yield "leader pod", slice_.leader or "none"
    if slice_.unschedulable_since is not None:
        yield "unschedulable since", moment(slice_.unschedulable_since)
    if slice_.machine_type:
        yield (
            "slice",
            f"{slice_.accelerator} {slice_.topology}: {slice_.hosts} x {slice_.machine_type}, {slice_.chips} chips",
        )
    yield "pods", f"{slice_.bound_pods} of {slice_.pods} are bound to nodes"


def _facts_of_pool(pool: PoolView, now: datetime, currency: str) -> Iterator[tuple[str, str]]:
    yield "node pool", f"{pool.name} ({pool.state.value})"
    terms = f"{pool.capacity} {pool.reservation}".strip()
    yield "capacity", f"{terms} in {pool.zone}"
    ready = pool.hosts.count(Host.READY) + pool.hosts.count(Host.RUNNING)
    yield "hosts", f"{ready} of {len(pool.hosts)} are ready"
    if pool.unready_nodes:
        yield "not ready", ", ".join(pool.unready_nodes)
    if pool.cost_per_hour is not None:
        yield "cost", cost_in_words(pool.cost_per_hour, currency)
    if pool.delete_at is not None:
        yield "deleted", f"{_when_deleted(pool.delete_at, now)}: {pool.delete_reason}"


def _workload(view: View, workload: WorkloadView, now: datetime, activity: Iterable[Entry]) -> Explanation:
    slices = [slice_ for slice_ in view.slices if slice_.workload == workload.id]
    counts = Counter(slice_.state for slice_ in slices)
    in_order = sorted(slices, key=lambda slice_: (_WORST.index(slice_.state), slice_.reason == RUNS))
    first = in_order[0] if in_order and in_order[0].reason != RUNS else None
    by_state = ", ".join(f"{count} {state.value}" for state, count in counts.items())
    by_slices = f"slices: {by_state}" if slices else "no slice has pods"
    workload_state = f" {_WORKLOAD_DOING.get(workload.state, workload.state)}; {by_slices}."
    if first is not None and workload.state == "lives":
        # A short beginning leaves room for the cause and the next step on the first three lines.
        workload_state = f": {by_state};" if len(slices) > 1 else ":"
    headline = f"{workload.kind} {workload.namespace}/{workload.name}{workload_state}"
    if first is not None:
        answer = _answer(view, first, now)
        answer = answer.replace(_DOING[State.WAITING], "waits", 1) if len(slices) > 1 else answer
        headline += f" {'Slice' if workload_state.endswith('.') else 'slice'} {first.group} {answer}"
    elif not slices and (workload.notices or workload.reason):
        headline += f" {workload.notices[0].message if workload.notices else workload.reason}"
    facts = [*_facts_of_waiting(view, first, now)] if first is not None else []
    first_reason = first.reason if first is not None else ""
    # The headline has the reason of the slice `first`, so facts about other slices do not repeat this reason.
    facts += [
        (
            f"slice {slice_.group}",
            _doing(
                replace(slice_, reason="" if slice_.reason == first_reason else _short(view, first, slice_.reason)), now
            ),
        )
        for slice_ in slices
        if slice_ is not first
    ]
    pools = [
        (f"node pool {slice_.name}", _short(view, first, slice_.reason))
        for slice_ in view.pools
        if slice_.workload == workload.id and not slice_.slice
    ]
    return Explanation(
        kind="workload",
        id=workload.id,
        headline=headline,
        facts=(*facts, *pools),
        notices=(
            *workload.notices,
            *dict.fromkeys(
                notice for slice_ in slices for notice in slice_.notices if not _is_repeated(notice, slice_)
            ),
        ),
        activity=_news(view, first, _about(activity, workload.id, "")),
    )


_WORKLOAD_DOING = {
    "lives": "is active",
    "suspended": "is suspended",
    "completed": "has completed",
    "failed": "has failed",
    "deleting": "is being deleted",
}
#: States by urgency. The headline of a workload explains its most urgent slice.
_WORST = (
    *(State.REJECTED, State.FAILED, State.SPLIT, State.WAITING, State.NONE, State.CREATING),
    *(State.JOINING, State.READY, State.DRAINING, State.IDLE, State.DELETING, State.RUNNING),
)


def _pool(view: View, pool: PoolView, now: datetime, tracks: Iterable[Track], activity: Iterable[Entry]) -> Explanation:
    since = how_long(pool.since, now, is_least=pool.since_start)
    then = ""
    if pool.delete_at is not None and pool.state is not State.DELETING:
        then = f" It is deleted {_when_deleted(pool.delete_at, now)}."
    history = next((track for track in tracks if track.pool == pool.name), None)
    return Explanation(
        kind="pool",
        id=pool.name,
        headline=f"Node pool {pool.name} is {pool.state.value} ({since}): {pool.reason}{then}",
        facts=(
            ("slice", ", ".join(filter(None, (pool.slice, *pool.other_slices))) or "none"),
            ("workload", pool.workload or "none"),
            ("machines", f"{len(pool.hosts)} x {pool.machine_type}, topology {pool.topology}, {pool.chips} chips"),
            *(
                (name, value)
                for name, value in _facts_of_pool(pool, now, view.capacity.currency)
                if name not in ("node pool", "deleted")
            ),
            *(_history(history) if history is not None else ()),
        ),
        notices=(),
        activity=_about(activity, "", pool.name),
    )


def _when_deleted(at: datetime, now: datetime) -> str:
    return f"at {clock(at, now)} at the earliest" if at > now else "as soon as nothing blocks it"


def _absent_pool(view: View, track: Track, now: datetime, activity: Iterable[Entry]) -> Explanation:
    last = track.segments[-1]
    slice_ = next((slice_ for slice_ in view.slices if slice_.id == last.slice), None)
    if last.until is not None:
        headline = f"Node pool {track.pool} has not existed since {clock(last.until, now)}."
    elif slice_ is not None:
        headline = f"Node pool {track.pool} does not exist yet: slice {slice_.group} {_answer(view, slice_, now)}"
    else:
        headline = f"Node pool {track.pool} does not exist yet."
    return Explanation(
        kind="pool",
        id=track.pool,
        headline=headline,
        facts=(("slice", last.slice or "none"), ("workload", last.workload or "none"), *_history(track)),
        notices=slice_.notices if slice_ is not None and last.until is None else (),
        activity=_about(activity, "", track.pool),
    )


def _history(track: Track) -> Iterator[tuple[str, str]]:
    for part in track.segments:
        yield f"{part.state.value} since", f"{moment(part.since)} {part.slice}".strip()


def _about(activity: Iterable[Entry], workload: str, pool: str) -> tuple[Entry, ...]:
    entries = [
        entry for entry in activity if (workload and entry.workload == workload) or (pool and entry.pool == pool)
    ]
    return tuple(entries[-_MAX_ACTIVITY_ENTRIES:])
