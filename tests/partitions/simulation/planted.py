"""Planted bugs, each a small mutation of the real code. The checks must find each bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any

from provisioner.model import writes
from provisioner.partitions import names
from provisioner.partitions.planning import (
    decide,
    entry_status,
    making,
    memory,
    placing,
    queue,
    round,  # noqa: A004 - the module's own name
)
from provisioner.partitions.planning.entry_status import Phase
from tests.partitions.simulation.process import Process
from tests.support.simulations.bugs import Bug, always


def _latched(original: Any) -> Any:
    def failed(before: Any, failure: Any, key: str, now: Any, delay: Any = None) -> Any:
        return replace(original(before, failure, key, now, delay), until=now + timedelta(days=365))

    return failed


def _nothing_reserved(original: Any) -> Any:
    def serve(self: Any, candidate: Any) -> None:
        original(self, candidate)
        for ground in self.grounds.values():
            ground.reserved = None

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
    def make_anew(state: Any, pod: Any, ctx: Any, notice: Any) -> Any:
        return original(state, replace(pod, begun=not pod.gated), ctx, notice)

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


#: Module or class, attribute, mutation, and the first seed of the search, by name of the bug.
_BUGS: dict[str, tuple[Any, str, Callable[[Any], Any], int]] = {
    "gates-open-too-early": (entry_status, "_phase_of", always(Phase.ACTIVE), 0),
    "removals-without-proof": (Process, "_kept", always(""), 17),
    "every-prefix-is-ours": (names, "id_prefix", always("tpup-"), 0),
    "orphans-stay": (making, "strays_of", always(()), 26),
    "reservations-are-not-kept": (placing._Places, "serve", _nothing_reserved, 0),
    "reservations-leave-all-to-others": (placing._Ground, "shadow", _with_all_to_spare, 0),
    "without-deadlines-nothing-is-kept": (placing._Ground, "shadow", _without_deadlines_at_once, 0),
    "who-passes-takes-no-grace": (queue, "longest_of", lambda _: lambda pod, _settings: queue.deadline_of(pod), 5),
    "who-never-fits-holds-up-others": (placing._Ground, "may_be_kept", always(value=True), 1816),
    "who-was-refused-is-not-waited-for": (queue, "crowded", lambda _: lambda found, _round: found, 0),
    "grace-ends-by-the-clock": (round.Round, "has_had_its_grace", _by_the_clock, 102),
    "only-active-ones-count": (entry_status, "OVER", lambda _: frozenset(Phase) - {Phase.ACTIVE}, 0),
    "youngest-first": (queue, "queue_of", _youngest_first, 0),
    "lost-calls-are-awaited": (writes, "lost_calls", always({}), 2),
    "lost-writes-are-awaited": (writes, "LOST_SECONDS", lambda _: 1e9, 2),
    "failures-are-latched": (memory, "failed", _latched, 0),
    "broken-partitions-are-awaited": (entry_status, "_phase_of", _broken_is_on_its_way, 31),
    "pods-wait-for-a-server-that-is-down": (entry_status, "_is_away", always(value=False), 10),
    "init-containers-wait-for-what-is-broken": (making, "_make_anew", _where_gated, 31),
    "pods-without-a-node-keep-ipus": (decide, "_take_back", always(()), 0),
    "pods-stay-where-they-may-not-run": (entry_status, "_is_misplaced", always(value=False), 90),
    "ids-collide": (names, "_POD_DIGITS", lambda _: 1, 4),
    "neighbours-take-nothing": (queue, "_may_be_in", always(value=False), 44),
    "limits-are-not-kept": (placing._Places, "may_have", always(value=True), 3),
    "unread-servers-are-trusted": (round.Round, "reading", _whatever_the_last_failure, 15),
}
BUGS = tuple(
    Bug(name=name, at=(place, attribute), mutate=mutate, search_from=seed)
    for name, (place, attribute, mutate, seed) in _BUGS.items()
)
