"""Tests that users whose JobSet does not start find the cause in Events, in the output of the commands and on the page.

Each case runs the real loop in a world with one fault, in most cases with a second JobSet that runs normally.
"""

from __future__ import annotations

import json

import pytest

from provisioner.cli import status
from provisioner.cli.asking import attention
from provisioner.cli.explain import explanations, lines, nothing_found
from provisioner.cli.output import wrapped
from provisioner.model.capacity import FailureKind
from provisioner.slices.view.types import State
from tests.support.causes import CAUSES, Cause, beside_a_healthy_one, stockout
from tests.support.controller import jobset_path


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_cause_is_in_events_commands_and_page(cause: Cause) -> None:
    world = cause.play()
    document = world.board.document()
    problems = flat("; ".join(world.loop.problems()))
    assert [words for words in cause.words if (words in problems) is not cause.for_all] == []

    told = {event.ref.kind: event.message for event in world.recorder.told if "train" in event.ref.name}
    assert sorted(told) == (["JobSet", "Pod"] if cause.in_events else [])
    said = (*cause.words, cause.step)
    assert [words for message in told.values() for words in said if words not in message] == []

    for width in (80, 120, 200, None):
        shown = [*status.page(document, width=width)]
        # A narrow table has no room for long texts of GKE.
        seen = (cause.words[0], cause.step) if width == 80 else said
        assert [words for words in seen if words not in flat("\n".join(shown))] == [], width
        assert "not the leader" not in shown[0]
        assert [line for line in shown if width and "train-workers-0" in line and len(line) > width] == []
    for name in ("train", "train-workers-0", "pod/train-workers-0-0"):
        found = explanations(document, name, "")
        shown = [*attention(document), *(line for explanation in found for line in lines(explanation))]
        parts = [part for line in shown for part in wrapped(line, 80)]
        assert [part for part in parts if len(part) > 80] == []
        if name.startswith("pod/") and not cause.in_events:
            # The pod is skipped: in this world it does not exist, or the provisioner does not watch it.
            continue
        assert "\n".join(shown).count("Current errors: [") <= 1, "the text of GKE is repeated"
        answer = flat("\n".join(parts[:3])).lower()
        short = (cause.short,) if cause.short else cause.words
        assert [words for words in (*short, cause.step, cause.place) if words.lower() not in answer] == [], name
        assert [words for words in cause.words if words not in flat("\n".join(shown))] == [], name
        # A stalled provisioner may not have seen the workload yet, so the output must not claim that it does not exist.
        missing = "" if found else "\n".join(nothing_found(document, name, ""))
        assert [words for words in ("it does not exist", *cause.words) if words in missing] == []

    page = json.loads(world.board.everything()[1])
    banners = page["problems"]
    rows = [row for row in (page["view"] or {"slices": []})["slices"] if row["group"] == "train-workers-0"]
    # A problem that concerns all workloads is shown as a banner instead of as the reason of each slice.
    seen = banners if cause.for_all else [f"{row['reason']} {row['next_step']}" for row in rows]
    assert [words for words in said if words not in flat("; ".join(seen))] == []
    # The summary at the top of the page shows only the cause and the next step.
    assert cause.for_all or all(cause.step in row["next_step"] for row in rows if row["state"] == "waiting")
    assert page["leading"], "the page says who leads"
    # The slice of the second JobSet runs, because the fault does not concern it.
    if document.view is not None:
        assert [slice_.state.value for slice_ in document.view.slices if "healthy" in slice_.id] == ["running"]


def test_slice_of_an_outage_waits_for_the_list_and_no_time_of_a_change_is_shown() -> None:
    """In the past, the page showed the pods as missing, because the last decision was older than the leader pod."""
    world = beside_a_healthy_one(deletion_delay_seconds=600.0)
    world.put_jobset("train")
    for name in ("train", "healthy"):
        world.remove_leader(name)
    world.kube.remove_object(jobset_path("healthy"))
    world.round(after_seconds=3)
    before = world.board.document().view
    assert before is not None
    assert all(pool.delete_at for pool in before.pools)
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="503")
    for name in ("train", "later"):
        world.put_jobset(name)
    world.rounds(3, every_seconds=15)
    view = world.board.document().view
    assert view is not None
    for name in ("train", "later"):
        (found,) = (one for one in view.slices if one.group == f"{name}-workers-0")
        assert found.state is State.WAITING
        assert found.cause == "no decision since 00:16:49 UTC"
        assert found.reason.startswith("Nothing has been decided since 00:16:49 UTC: GKE does not list the node pools")
        assert found.since == found.unschedulable_since
        (answer,) = explanations(world.board.document(), name, "")
        assert "no decision since 00:16:49 UTC" in answer.headline
    assert [pool.delete_at for pool in view.pools] == [None]
    assert [slice_.next_try_at for slice_ in view.slices if slice_.next_try_at] == []


def test_new_attempt_after_a_stockout_shows_the_stockout_and_the_next_step() -> None:
    world = stockout()
    world.rounds(2, every_seconds=30)
    document = world.board.document()
    (found,) = explanations(document, "train", "")
    begin = "Attempt 2 (stockout since 00:16:52 UTC, unschedulable since 00:00:05 UTC): GKE is creating it;"
    assert f"{begin} 0 of 1 hosts are ready. To wait less, allow" in found.headline
    assert found.headline.count("stockout") == 1


def test_failed_pool_that_is_deleted_quickly_is_not_reported_as_missing() -> None:
    """GKE may delete a pool so fast that no list of pools shows it with status STOPPING."""
    assert "NodePoolNotFound" not in stockout().recorder.reasons("JobSet")
