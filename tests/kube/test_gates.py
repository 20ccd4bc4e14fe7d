"""Tests of gates before a delete: an object is kept if its gate rejects the delete, has no access, or raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner.kube.errors import Forbidden
from provisioner.kube.live import DeletionBlockedError, look_last, why_kept
from tests.support.clock import FakeClock

TOO_LONG = "the API server takes too long to confirm that its nodes are cordoned"


def raising(error: Exception) -> Callable[[], None]:
    def verify_deletable() -> None:
        raise error

    return verify_deletable


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(
            DeletionBlockedError("pod a/b is on it"), "pod a/b is on it", id="what says no is told in its words"
        ),
        pytest.param(
            Forbidden("no list of pods", status=403),
            "Kubernetes does not allow the check: no list of pods (HTTP 403)",
            id="a look that Kubernetes does not allow lets nothing through",
        ),
        pytest.param(ValueError("oh"), "the check failed: ValueError('oh')", id="a crash lets nothing through"),
    ],
)
def test_failed_gate_returns_a_reason_to_keep(error: Exception, want: str) -> None:
    assert want == why_kept(raising(error), call="delete a")


@pytest.mark.parametrize(
    ("looks_seconds", "want"),
    [
        pytest.param((2.0,), None, id="a short look is enough"),
        pytest.param((2.1, 30.0, 1.0), None, id="a long look counts for nothing, and the next may be short"),
        pytest.param((2.1, 2.1, 2.1, 0.0), TOO_LONG, id="three long looks are too many"),
    ],
)
def test_last_check_is_repeated_if_it_is_slow(looks_seconds: tuple[float, ...], want: str | None) -> None:
    """A check is valid for two seconds from its start."""
    clock, looks = FakeClock(), iter(looks_seconds)

    def strangers() -> list[str]:
        clock.advance(next(looks))
        return []

    assert want == why_kept(lambda: look_last(strangers, clock), call="delete a")


def test_node_found_by_the_last_check_keeps_the_pool() -> None:
    with pytest.raises(DeletionBlockedError, match="node n has registered or was uncordoned meanwhile"):
        look_last(lambda: ["n", "m"], FakeClock())
