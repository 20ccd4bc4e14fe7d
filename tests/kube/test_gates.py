"""The way through a gate: what says no, cannot be asked or crashes keeps what is behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner import kube
from provisioner.kube.gates import KeptError, why_kept


def raising(error: Exception) -> Callable[[], None]:
    """Return a gate at which this happens."""

    def pass_through() -> None:
        raise error

    return pass_through


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(KeptError("pod a/b is on it"), "pod a/b is on it", id="what says no is told in its words"),
        pytest.param(
            kube.Forbidden("no list of pods", status=403),
            "Kubernetes does not allow the check: no list of pods (HTTP 403)",
            id="a look that Kubernetes does not allow lets nothing through",
        ),
        pytest.param(ValueError("oh"), "the check failed: ValueError('oh')", id="a crash lets nothing through"),
    ],
)
def test_what_keeps(error: Exception, want: str) -> None:
    """Whatever happens at the gate is a reason to keep what is behind it."""
    assert want == why_kept(raising(error), call="delete a")


def test_what_passes() -> None:
    """Nothing that was raised is no reason."""
    assert why_kept(lambda: None, call="delete a") is None
