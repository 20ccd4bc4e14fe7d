"""Creates texts about why slices wait and what to do. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.wording import clock
from provisioner.model.workloads import WorkloadName
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.contention.usage import CREATES_PER_HOUR
from provisioner.slices.planning.contention.waits import ChoiceBlocker, Limit, WaitKind, WaitsFor, distinct
from provisioner.slices.planning.plan import Notice, Plan, PoolState, notice
from provisioner.slices.planning.round import Round

NO_POOL = "No TPU node pool is created: "
OTHER_OPERATIONS = "other node pool operations of this cluster to end"
#: Maximum number of characters of each failure in a message about several choices.
_MAX_FAILURE = 200
#: Maximum number of characters of a cause together with the supplier's message, in `brief`.
_MAX_CAUSE = 85
#: Maximum number of characters of the supplier's message about a rejection in `brief`.
_MAX_REJECTION = 100
#: Cause of a wait in a few words, by kind. `cause` uses it for PAUSE and for waits without scope, failure and causes.
_CAUSES: Mapping[WaitKind, str] = {
    WaitKind.VOLUME: "the request",
    WaitKind.CATALOGUE: "the request",
    WaitKind.REQUEST: "the request",
    WaitKind.PAUSE: "pause of creation",
    WaitKind.FAILURES: "failed create",
    WaitKind.HOLD: "slices that start together",
    WaitKind.TOGETHER: "slices that start together",
    WaitKind.LIMIT: "a limit",
    WaitKind.CHOICES: "the request",
    WaitKind.LABELS: "other operations",
    WaitKind.BURST: "other operations",
    WaitKind.OPERATIONS: "other operations",
}
#: Reason of the Event, by kind of wait; other kinds have CREATION_WAITING, or CREATION_FAILED after a rejection.
_EVENTS: Mapping[WaitKind, str] = {
    WaitKind.REQUEST: EventReason.INVALID_REQUEST,
    WaitKind.PAUSE: EventReason.LIMIT_REACHED,
    WaitKind.LIMIT: EventReason.LIMIT_REACHED,
}
#: Kinds of waits whose Events have no key if `WaitsFor.causes` is empty, so that each new text is a new Event.
_BY_TEXT = (WaitKind.CATALOGUE, WaitKind.REQUEST, WaitKind.CHOICES)
_NEW_ACCOUNT = "Create it, or name another in GCP_NODE_SERVICE_ACCOUNT or the pod's annotation."
_CORRECT = "Correct it in the workload or in the provisioner's settings."
_MORE_CHOICES = "To wait less, allow more capacity types or zones."
#: What to do apart from waiting, by kind of failure. `next_step_after` adds the step for a missing permission.
_NEXT_STEPS: Mapping[FailureKind, str] = {
    FailureKind.STOCKOUT: _MORE_CHOICES,
    FailureKind.QUOTA: "Request more quota from Google, or allow other capacity types or zones.",
    FailureKind.UNAVAILABLE: "If it lasts, allow other capacity types or zones, and see https://status.cloud.google.com.",
    FailureKind.INVALID: _CORRECT,
}
_FAILURES_IN_WORDS = {
    FailureKind.PERMISSION.value: "missing permission",
    FailureKind.UNAVAILABLE.value: "failed create",
    FailureKind.INVALID.value: "rejected request",
}


def cause(wait: WaitsFor) -> str:
    """Return why a slice waits, in a few words such as "stockout". The command `status` groups slices by this text."""
    if wait.scope is not None:
        return f"limit of {wait.scope.counted}"
    if wait.kind is WaitKind.PAUSE:
        return _CAUSES[wait.kind]
    kinds = wait.causes if wait.failure is None else (wait.failure.kind.value,)
    return " and ".join(map(failure_in_words, kinds)) or _CAUSES[wait.kind]


def brief(wait: WaitsFor) -> str:
    """Return the cause and the next step for a headline."""
    if wait.kind is WaitKind.REQUEST:
        return in_short(wait.problem)
    return joined(_cause_with_details(wait), next_step(wait))


def in_short(clauses: Sequence[str]) -> str:
    """Return the beginning of the first clause, and the next step, which is the last of several clauses."""
    first, *others = clauses
    return joined(re.split("[:.] ", first, maxsplit=1)[0], others[-1] if others else "")


def joined(cause: str, step: str) -> str:
    """Return a cause and a next step as text; either may be empty."""
    return f"{'. '.join(filter(None, (cause, step[:1].upper() + step[1:]))).rstrip('.')}."


def _cause_with_details(wait: WaitsFor) -> str:
    """Return the cause of a wait, with the supplier's message if it fits, or the text of a final limit or failure."""
    short, failed = cause(wait), distinct(wait.blockers)
    if wait.final and wait.limit is not None:
        return _of_limit(wait.limit, lasting=False)
    choice = f" of {failed[0].choice}" if failed else ""
    last = failed[0].last.failure if len(failed) == 1 else wait.failure
    # A message about a missing permission is left out, because the next step names the permission.
    if last is None or last.kind is FailureKind.PERMISSION:
        return short
    message = last.message.rpartition("creation failed: ")[2].rstrip(" .")
    if wait.final:
        return bounds.cut(message, _MAX_REJECTION)
    texts = (f"{short}{choice}: {message}", f"{short}: {message}", f"{short}{choice}")
    return next((text for text in texts if len(text) <= _MAX_CAUSE), short)


def failure_in_words(kind: str) -> str:
    """Return the kind of a failure as users read it."""
    return _FAILURES_IN_WORDS.get(kind, kind.replace("_", " "))


def next_step(wait: WaitsFor) -> str:
    """Return the next step as text; empty if no step is known, or if the message contains the step."""
    if wait.limit is not None:
        raises = f"raise {wait.limit.setting}"
        if wait.final:
            return f"Request fewer chips, or ask the administrator to {raises}."
        if wait.limit.used - wait.limit.going + wait.limit.kept + wait.limit.requested <= wait.limit.maximum:
            return "Wait until the failed node pools are deleted."
        return f"The administrator can {raises}; pods with a higher PriorityClass come first."
    if wait.kind in (WaitKind.HOLD, WaitKind.TOGETHER):
        return _MORE_CHOICES
    if wait.kind is WaitKind.CHOICES and wait.final:
        rejections = " ".join(blocker.last.failure.message for blocker in wait.blockers)
        return _NEW_ACCOUNT if "service account" in rejections.lower() else _CORRECT
    return next_step_after(wait.failure, *(blocker.last.failure for blocker in wait.blockers if not blocker.rejected))


def next_step_after(*failures: Failure | None) -> str:
    """Return the next steps after failed creates, as sentences; empty if no step is known."""
    known = [failure for failure in failures if failure is not None]
    # A message about a missing permission may end with the permission to grant.
    grants = (failure.message.partition(". Grant ") for failure in known if failure.kind is FailureKind.PERMISSION)
    steps = [_NEXT_STEPS.get(failure.kind, "") for failure in known] + [f"Grant {end}" for _, _, end in grants if end]
    return " ".join(dict.fromkeys(filter(None, steps)))


def message(wait: WaitsFor, ctx: Round, *, lasting: bool = False) -> str:
    """Return why a slice waits. `lasting`, for statuses, leaves out amounts that change because of other workloads."""
    text = _sentence(wait, ctx, lasting=lasting)
    if wait.kind is WaitKind.LIMIT and wait.position and not lasting:
        text = f"{text.rstrip('.')}; place {wait.position} of {wait.of}."
    if wait.together is not None:
        return f"Node pool {wait.pool} is not created, because the slices of {wait.together} start together: {text}"
    return f"Node pool {wait.pool} is not created: {text}" if wait.kind in (WaitKind.PAUSE, WaitKind.LIMIT) else text


def note(wait: WaitsFor, ctx: Round) -> str:
    """Return `message`; several failures of choices are only summarized, because the view lists each of them."""
    if len(failed := distinct(wait.blockers)) > 1:
        kinds = " and ".join(dict.fromkeys(map(_kind, failed)))
        return f"None of {len(wait.blockers)} choices of capacity is available: {kinds}."
    return message(wait, ctx)


def note_of(state: PoolState, plan: Plan) -> str:
    """Return why a pool is not created yet, or the note about an existing pool."""
    wait = plan.waits.get(state.slice_id) if state.phase.before_create and state.slice_id is not None else None
    return note(wait, plan.decided) if wait is not None else state.note


def notices(
    waits_by_slice: Mapping[SliceId, WaitsFor], joined: Mapping[SliceId, Collection[Slice]], ctx: Round
) -> Iterator[Notice]:
    """Yield notices about keys of `joined` whose wait is not `silent`, and about the slices that share their pools."""
    for slice_id, wait in waits_by_slice.items():
        if slice_id not in joined or wait.silent:
            continue
        rejected = wait.kind is WaitKind.CHOICES and wait.final
        event = EventReason.CREATION_FAILED if rejected else _EVENTS.get(wait.kind, EventReason.CREATION_WAITING)
        text, step = message(wait, ctx), next_step(wait)
        text = f"{text.rstrip('.')}. {step}" if step and not text.endswith(step) else text
        key = _key(wait)
        # A shared pool is named after one of its slices. If that slice changes, keys of other slices must not change.
        for slice_, name in ((ctx.slices[slice_id], wait.pool), *((other, "") for other in joined[slice_id])):
            yield notice(slice_, event, text, key=f"{key} {name}" if key else "", warning=wait.warning)


def _key(wait: WaitsFor) -> str:
    """Return the key of the notice about a wait, without the pool; empty if the text is the key."""
    if wait.together is not None:
        return WaitKind.TOGETHER.value
    own = "" if wait.kind in _BY_TEXT else wait.kind.value
    return "; ".join(wait.problem) if wait.kind is WaitKind.VOLUME else " ".join(wait.causes) or own


def _sentence(wait: WaitsFor, ctx: Round, *, lasting: bool) -> str:
    waiting, supplier, problem = f"Node pool {wait.pool} waits", ctx.rules.supplier_name, "; ".join(wait.problem)
    match wait.kind:
        case WaitKind.VOLUME:
            return f"{waiting}: {problem}."
        case WaitKind.REQUEST:
            return f"{NO_POOL}{problem}"
        case WaitKind.CATALOGUE:
            why = "the provisioner has not read all MachineConfigs of the cluster, which may have it"
            return f"{waiting}: {problem}; {why}."
        case WaitKind.PAUSE:
            return _of_pause(ctx.snapshot.paused_since)
        case WaitKind.FAILURES:
            due = f", next try {clock(wait.until, ctx.now)}" if wait.until is not None else ""
            why = f"too many creates of this workload or of its namespace have failed ({cause(wait)}{due})"
            return f"{waiting} because {why}: {wait.failure.message if wait.failure is not None else ''}"
        case WaitKind.HOLD:
            return f"{waiting}: {_of_hold(wait, ctx.now)}"
        case WaitKind.TOGETHER if wait.first is not None:
            return f"because {supplier} rejected its node pool before, slice {wait.first.group_name} is tried first"
        case WaitKind.TOGETHER:
            return f"no choice of capacity is available for {problem}"
        case WaitKind.LIMIT:
            never = ", so waiting will not help" if wait.final else ""
            return f"{_of_limit(wait.limit, lasting=lasting)}{never}." if wait.limit is not None else ""
        case WaitKind.CHOICES:
            return _of_choices(wait, ctx, lasting=lasting)
        case WaitKind.OPERATIONS:
            limit = None if lasting else ctx.memory.operations.limit
            learned = f"; {supplier} rejected more than {limit} of them at once" if limit is not None else ""
            return f"{waiting} for {OTHER_OPERATIONS}{learned}"
        case WaitKind.LABELS:
            return f"{waiting} some seconds until node pool {wait.other} is no longer assigned to the slice"
        case WaitKind.BURST:
            return f"{waiting} some seconds for further pods that can share it"


def _of_pause(since: datetime | None) -> str:
    cause, end = "PAUSE_CREATION is set", "unsets it"
    if since is not None:
        cause = f"Creation is paused since {since:%Y-%m-%d %H:%M} UTC, by ConfigMap {constants.PAUSE_CONFIGMAP_NAME}"
        end = "deletes it"
    return f"{cause}: no node pools are created until the administrator {end}."


def _of_hold(wait: WaitsFor, now: datetime) -> str:
    accelerator, hold = wait.accelerator, wait.hold
    if hold is None:
        return f"an earlier workload in the line waits for several accelerators, {accelerator} among them"
    if hold.released:
        end = clock(hold.until, now) if hold.until is not None else "after the pools have been deleted"
        return f"slices of {accelerator} were released because not all of them were available; next try {end}"
    return f"another workload that starts together holds slices of {accelerator}"


def _of_limit(limit: Limit, *, lasting: bool) -> str:
    _, scope, maximum, requested, slices, used, going, kept = limit
    never = requested > maximum
    title, unit, in_use = f"Limit of {scope.counted}", scope.unit, used - going
    if never:
        # Amounts of other workloads do not matter, and each of their changes would be written to a status.
        words = f"at most {maximum} {unit}"
    elif lasting:
        return f"{title}: at most {maximum} {unit} ({limit.setting})"
    elif scope == CREATES_PER_HOUR:
        words = f"{used} of {maximum} were created"
    elif isinstance(scope.name, WorkloadName):
        words = f"{scope.name.name} uses {in_use} of {maximum}"
    else:
        words = f"{in_use} of {maximum} chips in use"
    words += f", {going} more in node pools that failed or are being deleted" if going and not never else ""
    words += f", {kept} kept for pods of higher priority" if kept and not never else ""
    needs = f"this slice needs {requested}" if slices == 1 else f"these slices need {requested}"
    words += f"; {needs}" if unit == "chips" else ""
    return f"{title}: {words}"


def _of_choices(wait: WaitsFor, ctx: Round, *, lasting: bool) -> str:
    now, supplier_name = ctx.now, ctx.rules.supplier_name
    blockers = distinct(wait.blockers)
    blockers = [blocker._replace(position=0) for blocker in blockers] if lasting else blockers
    if len(blockers) > 1:
        failures = "; ".join(
            f"{blocker.choice} ({_when(blocker, now)}): "
            f"{bounds.cut(blocker.last.failure.message.rstrip(' .'), _MAX_FAILURE)}"
            for blocker in blockers
        )
        return f"No choice of capacity is available for node pool {wait.pool} yet. {failures}."
    (blocker,) = blockers
    if blocker.rejected:
        return (
            f"{supplier_name} rejects node pool {wait.pool} (next try {clock(blocker.last.until, now)}, or when the "
            f"workload or the settings change): {blocker.last.failure.message}"
        )
    return f"Node pool {wait.pool} waits for {blocker.choice} ({_when(blocker, now)}): {blocker.last.failure.message}"


def _when(blocker: ChoiceBlocker, now: datetime) -> str:
    if blocker.rejected:
        return f"rejected, next try {clock(blocker.last.until, now)}"
    words = f"{_kind(blocker)} since {clock(blocker.last.since, now)}"
    if blocker.probed:
        place = f", place {blocker.position} of {blocker.of} in the queue" if blocker.position else ""
        return f"{words}, other node pools try first{place}"
    return f"{words}, next try {clock(blocker.last.until, now)}"


def _kind(blocker: ChoiceBlocker) -> str:
    return failure_in_words(blocker.last.failure.kind.value)
