"""When workloads were last suspended or resumed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner import constants
from provisioner.workloads.job import parse_job
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.suspension import suspension_changed_at

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
    assert suspension_changed_at(status) == want


@pytest.mark.parametrize("parse", [parse_jobset, parse_job], ids=["JobSet", "Job"])
def test_workloads_know_it(parse: Any) -> None:
    """Both kinds that can be suspended."""
    metadata = {"namespace": "research", "name": "train", "uid": "u"}
    metadata = {**metadata, "annotations": {constants.SERVE: "true"}}
    raw = {"metadata": metadata, "spec": {}, "status": {"conditions": [_CONDITION]}}
    assert parse(raw).suspension_changed_at == datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert parse({"metadata": metadata, "spec": {}}).suspension_changed_at is None
