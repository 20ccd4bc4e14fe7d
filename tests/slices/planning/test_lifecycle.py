"""The life of a pool as a table."""

from __future__ import annotations

import itertools

import pytest

from provisioner.slices.planning.lifecycle import TRANSITIONS, Phase, passage


def test_every_phase_has_its_row() -> None:
    """None is forgotten."""
    assert set(TRANSITIONS) == set(Phase)


def test_every_phase_can_be_reached_from_wanted() -> None:
    """No dead rows."""
    assert all(phase is Phase.WANTED or passage(Phase.WANTED, phase) for phase in Phase)


def test_every_life_can_end_and_nothing_comes_after() -> None:
    """GONE is the end."""
    assert all(phase is Phase.GONE or passage(phase, Phase.GONE) for phase in Phase)
    assert TRANSITIONS[Phase.GONE] == ()


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Phase, Phase)))
def test_each_step_of_a_passage_is_in_the_table(old: Phase, new: Phase) -> None:
    """What was passed between two looks is not made up."""
    path = passage(old, new)
    assert all(after in TRANSITIONS[before] for before, after in itertools.pairwise((old, *path)))
    assert not path or path[-1] is new
    assert old is not new or path == ()


def test_a_late_look_reports_what_must_have_happened() -> None:
    """A pool in use has been made and was ready."""
    want = (Phase.CREATING, Phase.PROVISIONING, Phase.READY, Phase.IN_USE)
    assert passage(Phase.WANTED, Phase.IN_USE) == want
