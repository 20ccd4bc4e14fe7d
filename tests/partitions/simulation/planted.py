"""Planted bugs, each a small mutation of the real code. The checks must find every one of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any

from provisioner.model import writes
from provisioner.partitions import names
from provisioner.partitions.planning import (
    decide,
    making,
    memory,
    placing,
    queue,
    round,  # noqa: A004 - the module's own name
    standing,
)
from provisioner.partitions.planning.standing import Phase
from tests.partitions.simulation.process import Process
from tests.support.simulations.bugs import Bug, always


def _latched(original: Any) -> Any:
    def failed(before: Any, failure: Any, key: str, now: Any, delay: Any = None) -> Any:
        return replace(original(before, failure, key, now, delay), until=now + timedelta(days=365))

    return failed


def _nothing_reserved(original: Any) -> Any:
    def serve(self: Any, candidate: Any) -> None:
        original(self, candidate)
        for each in self.grounds.values():
            each.reserved = None

    return serve


def _with_all_to_spare(original: Any) -> Any:
    return lambda *args: (original(*args)[0], 64)


def _without_deadlines_at_once(original: Any) -> Any:
    def shadow(*args: Any) -> Any:
        seconds, spare = original(*args)
        return (seconds, spare) if seconds < inf else (1e9, spare)

    return shadow


def _youngest_first(original: Any) -> Any:
    return lambda *args: original(*args)[::-1]


def _broken_is_on_its_way(original: Any) -> Any:
    def phase_of(*args: Any) -> Any:
        phase = original(*args)
        return Phase.CREATING if phase is Phase.BROKEN else phase

    return phase_of


def _where_gated(original: Any) -> Any:
    def make_anew(each: Any, pod: Any, round_: Any, notice: Any) -> Any:
        return original(each, replace(pod, begun=not pod.gated), round_, notice)

    return make_anew


def _whatever_the_last_failure(_original: Any) -> Any:
    def reading(self: Any, server: str) -> Any:
        view = self.servers.get(server)
        return view.reading if view is not None else None

    return reading


def _by_the_clock(_original: Any) -> Any:
    def has_had_its_grace(self: Any, pod: Any) -> bool:
        deadline = pod.deletion_deadline
        return deadline is not None and self.now >= deadline + timedelta(seconds=self.settings.past_grace_seconds)

    return has_had_its_grace


BUGS: tuple[Bug, ...] = (
    Bug(name="gates-open-too-early", at=(standing, "_phase_of"), mutate=always(Phase.ACTIVE)),
    Bug(name="removals-without-proof", at=(Process, "_kept"), mutate=always(""), search_from=17),
    Bug(name="every-prefix-is-ours", at=(names, "id_prefix"), mutate=always("tpup-")),
    Bug(name="orphans-stay", at=(making, "strays_of"), mutate=always(()), search_from=14),
    Bug(name="reservations-are-not-kept", at=(placing._Places, "serve"), mutate=_nothing_reserved),
    Bug(name="reservations-leave-all-to-others", at=(placing._Ground, "shadow"), mutate=_with_all_to_spare),
    Bug(name="without-deadlines-nothing-is-kept", at=(placing._Ground, "shadow"), mutate=_without_deadlines_at_once),
    Bug(
        name="who-passes-takes-no-grace",
        at=(queue, "longest_of"),
        mutate=lambda _: lambda pod, _settings: queue.deadline_of(pod),
        search_from=5,
    ),
    Bug(
        name="who-never-fits-holds-up-others",
        at=(placing._Ground, "may_be_kept"),
        mutate=always(value=True),
        search_from=432,
    ),
    Bug(name="who-was-refused-is-not-waited-for", at=(queue, "crowded"), mutate=lambda _: lambda found, _round: found),
    Bug(name="grace-ends-by-the-clock", at=(round.Round, "has_had_its_grace"), mutate=_by_the_clock, search_from=102),
    Bug(
        name="only-active-ones-count",
        at=(standing, "OVER"),
        mutate=lambda _: frozenset(Phase) - {Phase.ACTIVE},
    ),
    Bug(name="youngest-first", at=(queue, "queue_of"), mutate=_youngest_first),
    Bug(
        name="lost-calls-are-awaited",
        at=(writes, "lost_calls"),
        mutate=always({}),
        search_from=2,
    ),
    Bug(name="lost-writes-are-awaited", at=(writes, "LOST_SECONDS"), mutate=lambda _: 1e9, search_from=2),
    Bug(name="failures-are-latched", at=(memory, "failed"), mutate=_latched),
    Bug(name="broken-partitions-are-awaited", at=(standing, "_phase_of"), mutate=_broken_is_on_its_way, search_from=31),
    Bug(
        name="pods-wait-for-a-server-that-is-down",
        at=(standing, "_is_away"),
        mutate=always(value=False),
        search_from=10,
    ),
    Bug(name="init-containers-wait-for-what-is-broken", at=(making, "_make_anew"), mutate=_where_gated, search_from=31),
    Bug(name="pods-without-a-node-keep-ipus", at=(decide, "_take_back"), mutate=always(())),
    Bug(
        name="pods-stay-where-they-may-not-run",
        at=(standing, "_is_misplaced"),
        mutate=always(value=False),
        search_from=90,
    ),
    Bug(name="ids-collide", at=(names, "_POD_DIGITS"), mutate=lambda _: 1, search_from=4),
    Bug(name="neighbours-take-nothing", at=(queue, "_may_be_in"), mutate=always(value=False), search_from=44),
    Bug(name="limits-are-not-kept", at=(placing._Places, "may_have"), mutate=always(value=True), search_from=3),
    Bug(
        name="unread-servers-are-trusted",
        at=(round.Round, "reading"),
        mutate=_whatever_the_last_failure,
        search_from=15,
    ),
)
