"""What a pool passed between two looks."""

from __future__ import annotations

import pytest

from provisioner.slices.planning.lifecycle import Phase, passage


@pytest.mark.parametrize(
    ("old", "new", "between"),
    [
        pytest.param("wanted", "in_use", ("creating", "provisioning", "ready"), id="a pool in use has been ready"),
        pytest.param("blocked", "provisioning", ("creating",), id="what blocked a pool is over when it is listed"),
        pytest.param("creating", "idle", ("provisioning",), id="an idle pool has been listed"),
        pytest.param("wanted", "failed", ("creating", "provisioning"), id="a failed pool has been listed"),
        pytest.param("provisioning", "deleting", (), id="somebody else deletes a pool that is being created"),
        pytest.param("creating", "wanted", (), id="a create is rejected"),
        pytest.param("creating", "blocked", (), id="a create is rejected, and its capacity is out of stock"),
        pytest.param("wanted", "gone", (), id="a pool is wanted no more"),
        pytest.param("ready", "provisioning", (), id="a node is lost"),
        pytest.param("deleting", "in_use", (), id="a delete is rejected"),
        pytest.param("failed", "ready", (), id="GKE has repaired it"),
        pytest.param("in_use", "gone", (), id="somebody else deleted it"),
    ],
)
def test_a_late_look_reports_what_must_have_happened(old: str, new: str, between: tuple[str, ...]) -> None:
    """Each step once, and nothing that was not."""
    assert passage(Phase(old), Phase(new)) == (*map(Phase, between), Phase(new))


@pytest.mark.parametrize("old", ["provisioning", "in_use", "idle", "deleting", "failed", "gone"])
@pytest.mark.parametrize("new", ["wanted", "blocked", "creating"])
def test_a_pool_that_was_listed_is_not_wanted_again(old: str, new: str) -> None:
    """It is another pool of that name."""
    assert passage(Phase(old), Phase(new)) == ()
