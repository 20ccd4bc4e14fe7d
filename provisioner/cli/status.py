"""`tpu-provisioner status`: shows slices, node pools and IPU partitions in the terminal."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from provisioner.cli import asking, ipus
from provisioner.cli.asking import attention, view_problem
from provisioner.cli.frame import FORMATS, Remote, RemoteError, command_with, format_option, remote_options
from provisioner.cli.output import ExitCode, aligned_with_words, drop_the_rest, plain, terminal_width, wrapped, write
from provisioner.model.wording import clock
from provisioner.settings.forms import cost_in_words
from provisioner.slices.board import Document
from provisioner.slices.messages.states import RUNS
from provisioner.slices.view.explain import for_how_long
from provisioner.slices.view.types import PoolView, SliceView, State, View

#: All states: first the states that need attention, then all others in the order of a slice's life.
_ORDER = tuple(dict.fromkeys((State.REJECTED, State.FAILED, State.SPLIT, *State)))
_STATES = f"only slices in this state: {', '.join(state.value for state in _ORDER)}"
_MAX_CAUSES = 4
#: Number of characters of a reason above which its brief form comes first, because the end may be cut off.
_MAX_WHY = 280
_LOOK_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J"


@command_with(
    "{prog} status",
    "{prog} status -n team-a --state waiting",
    "{prog} status --watch",
    "{prog} status -o json | jq .pools",
)
@click.option("--namespace", "-n", default="", metavar="NAME", help="only workloads of this namespace")
@click.option("--state", type=click.Choice([state.value for state in _ORDER]), metavar="STATE", help=_STATES)
@click.option("--watch", "-w", is_flag=True, help="show it again every two seconds, until Ctrl-C")
@format_option("wide")
@remote_options
def command(namespace: str, *, state: str | None, watch: bool, form: str | None, remote: Remote) -> int:
    """Show slices, their node pools, why they wait, and the next steps."""
    if form in FORMATS:
        write(asking.view_of(asking.board(remote)), form)
        return ExitCode.OK
    try:
        while True:
            try:
                shown = "\n".join(_lines(remote, namespace, state or "", wide=form == "wide"))
            except RemoteError as error:
                if not watch:
                    raise
                shown = f"tpu-provisioner: {error}"
            sys.stdout.write(f"{_CLEAR if watch and sys.stdout.isatty() else ''}{shown}\n")
            sys.stdout.flush()
            if not watch:
                return ExitCode.OK
            time.sleep(_LOOK_SECONDS)
    except BrokenPipeError:
        drop_the_rest()
        return ExitCode.OK


def _lines(remote: Remote, namespace: str, state: str, *, wide: bool) -> list[str]:
    width = terminal_width()
    answers = asking.Documents(slices=asking.board(remote)) if state else asking.documents(remote)
    lines: list[str] = []
    if answers.problem:
        lines += wrapped(plain(f"ATTENTION: {answers.problem}"), width)
    if answers.slices is not None:
        lines += page(answers.slices, namespace, state, wide=wide, width=width)
    if answers.partitions is not None:
        lines += [*([""] if lines else []), *ipus.page(answers.partitions, namespace, width=width)]
    return lines


def page(
    document: Document, namespace: str = "", state: str = "", *, wide: bool = False, width: int | None = None
) -> Iterator[str]:
    """Yield the lines about a document. `width` None does not wrap lines."""
    for line in _page(document, namespace, state, wide=wide, width=width):
        yield from wrapped(line, width)


def _page(document: Document, namespace: str, state: str, *, wide: bool, width: int | None) -> Iterator[str]:
    about = document.about
    yield (
        f"cluster {about.cluster} ({about.project}, {about.location}), tpu-provisioner {about.release}, "
        f"{'leader' if document.leading else 'not the leader:'} {about.identity}"
    )
    yield from attention(document, dated=True)
    view, now = document.view, document.served_at
    if view is None:
        yield "nothing has been decided yet" if document.problems else view_problem(document)
        return
    for alert in view.alerts:
        yield plain(f"ALERT {alert.kind}: {alert.message}")
    yield _chips(view)
    yield from causes_in_words(view.slices)
    yield from (f"limit {limit.name} ({limit.scope}): {limit.used} of {limit.most}" for limit in view.capacity.limits)
    yield ""
    slices = [
        slice_
        for slice_ in view.slices
        if namespace in ("", slice_.id.split("/")[1]) and state in ("", slice_.state.value)
    ]
    slices.sort(key=lambda slice_: (_ORDER.index(slice_.state), slice_.id))
    by_name = {pool.name: pool for pool in view.pools}
    if slices:
        yield from aligned_with_words([*_table(slices, by_name, now, wide=wide)], width=width)
    else:
        yield "no slices" + (" that match" if namespace or state else ": no workload requests TPUs")
    shown = {slice_.pool for slice_ in view.slices}
    others = [pool for pool in view.pools if pool.name not in shown and namespace in ("", pool.namespace) and not state]
    if others:
        yield ""
        yield "other node pools:"
        yield from aligned_with_words([*_pools_without_slices(others, now)], width=width)


def _chips(view: View) -> str:
    counts = [f"{count} {state}" for state, count in view.capacity.chips.items() if count]
    priced = [pool.cost_per_hour for pool in view.pools if pool.cost_per_hour is not None]
    cost = f"; {cost_in_words(sum(priced), view.capacity.currency)}" if priced else ""
    operations = view.capacity.operations
    of_limit = f" of {view.capacity.operations_limit}" if view.capacity.operations_limit is not None else ""
    paused = "; creation is paused" if view.capacity.creation_paused else ""
    return f"chips: {', '.join(counts) or 'none'}{cost}; operations in progress: {operations}{of_limit}{paused}"


def causes_in_words(slices: Sequence[SliceView]) -> Iterator[str]:
    """Yield up to two lines: about rejected slices, and about waiting slices with the causes of waiting."""
    for state, heading in ((State.REJECTED, "rejected, change them"), (State.WAITING, "waiting")):
        matching = [slice_ for slice_ in slices if slice_.state is state]
        causes = Counter(view.cause for view in matching if view.cause).most_common(_MAX_CAUSES)
        by_cause = f": {', '.join(f'{count} {cause}' for cause, count in causes)}" if state is State.WAITING else ""
        if matching:
            yield f"{heading}: {_counted(matching)}{by_cause}"


def _counted(slices: Sequence[SliceView]) -> str:
    number = f"{len(slices)} slice{'s' if len(slices) > 1 else ''}"
    return f"{number} ({sum(slice_.chips for slice_ in slices)} chips)"


def _table(
    slices: Sequence[SliceView], pools: dict[str, PoolView], now: datetime, *, wide: bool
) -> Iterator[tuple[str, ...]]:
    head = ("NAMESPACE", "WORKLOAD", "SLICE", "STATE", "FOR", "HOSTS", "NODE POOL")
    yield (*head, *(("MACHINE TYPE", "TOPOLOGY", "ZONE", "CAPACITY") if wide else ()), "WHY")
    for slice_ in slices:
        pool = pools.get(slice_.pool)
        _, namespace, name = slice_.workload.split("/")
        ready = f"{sum(pool.hosts.count(letter) for letter in 'rR')}/{len(pool.hosts)}" if pool else f"0/{slice_.hosts}"
        row = (
            namespace,
            name,
            slice_.group,
            slice_.state.value,
            _lasting(slice_, now),
            ready,
            slice_.pool or "-",
        )
        more = (
            slice_.machine_type or "-",
            slice_.topology or "-",
            pool.zone if pool else "-",
            f"{pool.capacity} {pool.reservation}".strip() if pool else "-",
        )
        reason = "" if slice_.reason == RUNS else f"{slice_.reason} {slice_.next_step}".rstrip()
        if slice_.cause and len(reason) > _MAX_WHY:
            reason = f"{slice_.brief} {slice_.reason}"
        due = clock(slice_.next_try_at, now) if slice_.next_try_at is not None else ""
        # The reason of a back-off already contains the time of the next try.
        if due not in reason:
            reason = f"(next try {due}) {reason}"
        yield (*row, *(more if wide else ()), reason)


def _lasting(item: SliceView | PoolView, now: datetime) -> str:
    return "-" if item.since is None else f"{'>' if item.since_start else ''}{for_how_long(item.since, now)}"


def _pools_without_slices(pools: Sequence[PoolView], now: datetime) -> Iterator[tuple[str, ...]]:
    yield ("NODE POOL", "STATE", "FOR", "CHIPS", "DELETED AT", "WHY")
    for pool in pools:
        due = "-"
        if pool.delete_at is not None:
            due = clock(pool.delete_at, now) if pool.delete_at > now else "due"
        yield (pool.name, pool.state.value, _lasting(pool, now), str(pool.chips), due, pool.reason)
