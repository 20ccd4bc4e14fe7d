"""Boards and views for tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from provisioner.slices.board import About, Board
from provisioner.slices.view.build import build_view
from provisioner.slices.view.types import View
from tests.support.world import World


def make_board(clock: Callable[[], datetime], monotonic: Callable[[], float]) -> Board:
    about = About(
        release="test",
        project="my-project",
        location="us-east5",
        cluster="my-cluster",
        identity="here",
        started_at=clock(),
    )
    return Board(about=about, clock=clock, monotonic=monotonic)


def view_of(world: World) -> View:
    """Let a world decide once; return the view of the decision."""
    plan = world.look()
    return build_view(world.snapshot(), plan, world.settings, world.now)
