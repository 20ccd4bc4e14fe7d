"""Planted bugs, each a small mutation of the real code. The simulation must find each bug."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from provisioner.model import writes
from provisioner.nodegroups.api import names, statuses
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.planning import group, manager, memory, nodes, repair
from provisioner.nodegroups.planning.round import Node
from tests.support.simulations.bugs import Bug, always


def _latched(original: Any) -> Any:
    def failed(before: Any, failure: Any, key: str, now: Any, wish: Any = None) -> Any:
        return replace(original(before, failure, key, now, wish), until=now + timedelta(days=365))

    return failed


def _waiting_for_forgotten_operations(original: Any) -> Any:
    def polled(known: Any, call: Any, answer: Any) -> Any:
        return known if answer.result is None and answer.failure is None else original(known, call, answer)

    return polled


def _latest_transition(original: Any) -> Any:
    def with_condition(conditions_: Any, new: Any, now: Any) -> Any:
        changed = original(conditions_, new, now)
        at = now.replace(microsecond=0)
        return tuple(
            replace(condition, last_transition_time=at) if condition.type == new.type else condition
            for condition in changed
        )

    return with_condition


def _without_proof(original: Any) -> Any:
    return lambda *args: (None, original(*args)[1])


def _without_attempts(original: Any) -> Any:
    return lambda uid, operation, _attempt: original(uid, operation, 1)


def _without_deletes(original: Any) -> Any:
    return lambda *args: replace(original(*args), delete=())


def _cordoned_by_taint(original: Any) -> Any:
    def cordon(node: Any, labels: Any) -> Any:
        return replace(original(node, labels), cordon=False)

    return cordon


def _without_recreating_first(_original: Any) -> Any:
    return lambda _group: False


BUGS = (
    Bug(name="failures-are-latched", at=(memory, "failed"), mutate=_latched),
    Bug(
        name="forgotten-operations-are-awaited",
        at=(memory, "_polled"),
        mutate=_waiting_for_forgotten_operations,
        search_from=3,
    ),
    Bug(name="cordon-without-unschedulable", at=(manager, "_cordon"), mutate=_cordoned_by_taint),
    Bug(name="ready-goes-stale", at=(repair, "find_loss"), mutate=always(None)),
    Bug(name="tokens-outlive-the-join", at=(tokens, "plan_tokens"), mutate=_without_deletes, search_from=2),
    Bug(name="defaults-are-differences", at=(group, "differs"), mutate=always(True)),
    Bug(name="transitions-are-rewritten", at=(statuses, "with_condition"), mutate=_latest_transition, search_from=1),
    Bug(name="machines-go-under-work", at=(manager, "drain"), mutate=_without_proof, search_from=1),
    Bug(name="one-request-id-for-all-attempts", at=(names, "request_id"), mutate=_without_attempts, search_from=15),
    Bug(
        name="lost-calls-are-awaited",
        at=(writes, "lost_calls"),
        mutate=always({}),
        search_from=6,
    ),
    Bug(name="any-certificate-is-approved", at=(tokens, "is_own"), mutate=always(True), search_from=25),
    Bug(
        name="nodes-are-what-they-say",
        at=(Node, "is_named_as_its_machine"),
        mutate=lambda _: property(lambda _node: True),
    ),
    Bug(name="nodes-are-left", at=(nodes, "left_over"), mutate=always(())),
    Bug(name="tokens-are-left", at=(group, "_delete_nodes"), mutate=always(None)),
    Bug(name="machines-are-not-listed-again", at=(manager, "SETTLED_SECONDS"), mutate=lambda _: 1.0),
    Bug(
        name="recreating-is-not-told-first",
        at=(repair, "recreating"),
        mutate=_without_recreating_first,
        search_from=22,
    ),
    Bug(name="lost-writes-are-awaited", at=(writes, "LOST_SECONDS"), mutate=lambda _: 1e9, search_from=12),
    Bug(
        name="slices-are-never-made-anew",
        at=(repair, "_with_limit"),
        mutate=lambda _: lambda _group, loss, _round: loss,
        search_from=3,
    ),
)
