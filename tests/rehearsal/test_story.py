"""Tests of the lines that a demo prints, from log lines that the provisioner's loop writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import structlog

from rehearsal.demos.story import Story
from tests.support.clock import NOW
from tests.support.controller import World


def test_story_of_a_pool_names_its_slice(tmp_path: Path) -> None:
    """In the past, the keys of the log lines had changed, and the demo printed empty names."""
    with structlog.testing.capture_logs() as logs:
        world = World()
        world.put_jobset("train")
        world.round(after_seconds=3)
        # The pool is not in the list yet, as in the first seconds after a create.
        (created,) = world.gke.pools.values()
        world.gke.remove_pool(created.name)
        world.round(after_seconds=3)
        world.gke.set_pool(created)
        world.round(after_seconds=3)
        (pool,) = world.finish_creates()
        world.round(after_seconds=3)
        world.put_leader("train", node=f"gke-test-{pool}-0")
        world.round(after_seconds=3)
        world.complete()
        world.rounds(8, every_seconds=5)
        world.finish_deletes()
        world.rounds(2, every_seconds=3)
    log = tmp_path / "log"
    log.write_text("".join(json.dumps({"time": NOW.isoformat(), **line}) + "\n" for line in logs))
    nothing = SimpleNamespace(objects=lambda *_, **__: [])
    story = Story(nothing, SimpleNamespace(log=log))  # type: ignore[arg-type]
    assert list(story.advance()) == [
        f"requests node pool {pool} from GKE: 1 of ct4p-hightpu-4t, 4 chips, for slice train-workers-0",
        f"node pool {pool}: GKE creates it",
        f"node pool {pool} is ready, 1 nodes",
        f"slice train-workers-0 runs on node pool {pool}",
        f"node pool {pool} is not needed any more",
        f"deleting node pool {pool}",
        f"node pool {pool} is gone",
    ]
    assert story.pools[pool].jobs == ["train-workers-0"]
