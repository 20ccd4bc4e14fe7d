"""The tables of docs/upgrade.md contain existing reasons of Events, messages and metrics."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.vocabulary import reasons_of_slices
from tests.support.controller import World

_PAGE = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text(encoding="utf-8")
_TABLES = _PAGE.partition("### What is different")[2]
#: Cells of each row, for the Go provisioner and for this provisioner.
_ROWS = re.findall(r"(?m)^\| (.+) \| (.+) \|$", _TABLES)


def test_reasons_of_events_are_those_of_the_code() -> None:
    """A renamed or new reason must be changed on the page."""
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*[a-z])`", _TABLES))
    reasons = reasons_of_slices()
    assert named & reasons == reasons
    assert {name for name in named if name.startswith(("NodePool", "Slice"))} <= reasons


def test_messages_of_events_are_those_of_the_code() -> None:
    """The page quotes the messages for a pool's life, and for a delete by another client."""
    life, lost = World(), World()
    pools = [world.run_to_use() for world in (life, lost)]
    life.complete()
    life.rounds(8, every_seconds=5)
    life.finish_deletes()
    life.rounds(2, every_seconds=3)
    lost.gke.remove_pool(pools[1])
    lost.remove_nodes(pools[1])
    lost.put_leader()
    lost.rounds(30, every_seconds=3)
    told = {
        (each.reason, each.message.replace(pool, "X"))
        for world, pool in zip((life, lost), pools, strict=True)
        for each in world.recorder.told
        if pool in each.message
    }
    assert len(told) == 5
    assert [row for row in told if not any(row[0] in left and f"`{row[1]}`" in right for left, right in _ROWS)] == []
