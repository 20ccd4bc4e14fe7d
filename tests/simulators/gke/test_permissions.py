"""Tests of IAM permissions in the simulator: what is refused, as Google refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.simulators.gke import permissions
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.settings import SimulatorSettings

_ACT_AS = "iam.serviceAccounts.actAs"
_ACCOUNT = "nodes@p.iam.gserviceaccount.com"


def test_what_is_granted() -> None:
    """Everything that is not denied, in the order of the question; nothing is an empty object."""
    asked = {"permissions": ["container.clusters.get", _ACT_AS]}
    assert permissions.on_project(asked, ()) == asked
    assert permissions.on_project(asked, {_ACT_AS}) == {"permissions": ["container.clusters.get"]}
    assert permissions.on_account({"permissions": [_ACT_AS]}, _ACCOUNT, SimulatorSettings()) == {
        "permissions": [_ACT_AS]
    }
    assert permissions.on_account(None, _ACCOUNT, SimulatorSettings()) == {}


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({"denied_permissions": [_ACT_AS]}, {}, id="denied on whatever account"),
        pytest.param({"service_accounts": {_ACCOUNT: "forbidden"}}, {}, id="forbidden on this account"),
        pytest.param(
            {"service_accounts": {"other@p.iam": "forbidden"}}, {"permissions": [_ACT_AS]}, id="forbidden on another"
        ),
    ],
)
def test_who_may_act_as_an_account(settings: dict[str, Any], want: dict[str, Any]) -> None:
    """What is asked about is the very account."""
    asked = {"permissions": [_ACT_AS]}
    assert permissions.on_account(asked, _ACCOUNT, SimulatorSettings(**settings)) == want


def test_an_account_that_is_missing_is_not_known() -> None:
    """Nobody has permissions on it."""
    settings = SimulatorSettings(service_accounts={_ACCOUNT: "missing"})
    with pytest.raises(ApiError, match="Unknown service account") as caught:
        permissions.on_account({"permissions": [_ACT_AS]}, _ACCOUNT, settings)
    assert caught.value.code == 404


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
