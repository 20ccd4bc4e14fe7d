"""Partial responses select what a mask names, and refuse what a message doesn't have."""

from __future__ import annotations

import pytest

from rehearsal.simulators.gke import api, schema
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.http.fieldmask import apply

LIST = schema.message("ListNodePoolsResponse")
BODY = {
    "nodePools": [
        {"name": "a", "status": "RUNNING", "config": {"labels": {"k/x": "1", "y": "2"}, "machineType": "m"}},
        {"name": "b", "status": "ERROR", "config": {"machineType": "n"}},
    ]
}


@pytest.mark.parametrize(
    ("mask", "want"),
    [
        pytest.param("nodePools", BODY, id="a whole field"),
        pytest.param("nodePools/name", {"nodePools": [{"name": "a"}, {"name": "b"}]}, id="a path with a slash"),
        pytest.param("node_pools.name", {"nodePools": [{"name": "a"}, {"name": "b"}]}, id="a name in proto's spelling"),
        pytest.param(
            "nodePools.name,nodePools.config.machineType",
            {
                "nodePools": [
                    {"name": "a", "config": {"machineType": "m"}},
                    {"name": "b", "config": {"machineType": "n"}},
                ]
            },
            id="two paths into one field",
        ),
        pytest.param(
            "nodePools.config,nodePools/config/labels",
            {"nodePools": [{"config": pool["config"]} for pool in BODY["nodePools"]]},
            id="a narrower path after a wider one takes nothing away",
        ),
    ],
)
def test_a_mask_selects(mask: str, want: object) -> None:
    """A mask leaves exactly what it names."""
    assert want == apply(api.parse(mask, LIST), BODY)


def test_a_wrong_mask_is_refused() -> None:
    with pytest.raises(ApiError, match="Request contains an invalid argument"):
        api.parse("nodePools/name/first", LIST)
