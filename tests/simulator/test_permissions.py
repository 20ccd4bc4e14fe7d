"""Tests of IAM permissions in the simulator: what is refused, as Google refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.simulator import permissions
from provisioner.simulator.errors import ApiError

_ACT_AS = "iam.serviceAccounts.actAs"


def test_what_is_granted() -> None:
    """Everything that is not denied, in the order of the question; nothing is an empty object."""
    asked = {"permissions": ["container.clusters.get", _ACT_AS]}
    assert permissions.on_project(asked, ()) == asked
    assert permissions.on_project(asked, {_ACT_AS}) == {"permissions": ["container.clusters.get"]}
    assert permissions.on_account({"permissions": [_ACT_AS]}, {_ACT_AS}) == {}
    assert permissions.on_account(None, ()) == {}


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
        permissions.on_account(body, ())
    assert caught.value.code == 400
