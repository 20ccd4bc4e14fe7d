"""When workloads were last suspended or resumed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.workloads.jobset import parse_jobset

_MOMENT = "2026-06-01T12:00:00Z"
_CONDITION = {"type": "Suspended", "status": "False", "lastTransitionTime": _MOMENT}


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({}, None, id="no conditions"),
        pytest.param({"conditions": "none"}, None, id="conditions of a wrong type"),
        pytest.param({"conditions": [{"type": "Completed", "lastTransitionTime": _MOMENT}]}, None, id="another one"),
        pytest.param({"conditions": [{**_CONDITION, "lastTransitionTime": 7}]}, None, id="no time"),
        pytest.param({"conditions": [_CONDITION]}, datetime(2026, 6, 1, 12, tzinfo=UTC), id="resumed"),
        pytest.param(
            {"conditions": [{**_CONDITION, "status": "True"}]}, datetime(2026, 6, 1, 12, tzinfo=UTC), id="suspended"
        ),
    ],
)
def test_the_condition_says_when(status: dict[str, Any], want: datetime | None) -> None:
    """Whatever else is in the status."""
    metadata = {"namespace": "research", "name": "train", "uid": "u"}
    assert parse_jobset({"metadata": metadata, "spec": {}, "status": status}).suspension_changed_at == want
