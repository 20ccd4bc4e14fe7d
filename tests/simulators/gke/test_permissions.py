"""Tests of IAM permissions in the simulator: what is refused, as Google refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.simulators.gke import permissions
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.settings import SimulatorSettings

_ACT_AS = "iam.serviceAccounts.actAs"
_ACCOUNT = "nodes@p.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"permission": [_ACT_AS]}, 'Unknown name "permission"', id="an unknown field"),
        pytest.param({"permissions": _ACT_AS}, "Invalid value at 'permissions'", id="no list"),
        pytest.param({"permissions": [1]}, "Invalid value at 'permissions'", id="no text"),
        pytest.param({"permissions": ["container.clusters.get"]}, "is not valid for this", id="of another resource"),
        pytest.param({"permissions": [_ACT_AS] * 101}, "At most 100", id="too many"),
    ],
)
def test_what_is_refused(body: Any, words: str) -> None:
    """With 400, and words."""
    with pytest.raises(ApiError, match=words) as caught:
        permissions.on_account(body, _ACCOUNT, SimulatorSettings())
    assert caught.value.code == 400
