"""Request bodies for node pools, and an HTTP client of the simulators."""

from __future__ import annotations

import http.client
import json
from typing import Any

from rehearsal.simulators.gke.names import ClusterName

CLUSTER = ClusterName("proj", "us-east5-a", "main")
CLUSTER_PATH = "/v1/projects/proj/locations/us-east5-a/clusters/main"
POOLS_PATH = f"{CLUSTER_PATH}/nodePools"


def slice_pool(name: str = "slice", **changes: Any) -> dict[str, Any]:
    """Return the pool of a v5e 4x4 slice of four hosts, as a client would send it."""
    pool = {
        "name": name,
        "initialNodeCount": 4,
        "config": {"machineType": "ct5lp-hightpu-4t"},
        "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"},
    }
    return {**pool, **changes}


def empty_pool(name: str = "slice", **config: Any) -> dict[str, Any]:
    """Return the pool of a flex-start slice, which is created without nodes."""
    return slice_pool(
        name,
        initialNodeCount=0,
        autoscaling={"enabled": True, "maxNodeCount": 4, "locationPolicy": "ANY"},
        config={
            "machineType": "ct5lp-hightpu-4t",
            "flexStart": True,
            "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
            **config,
        },
    )


def reserved(reservation: str) -> dict[str, Any]:
    affinity = {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [reservation],
    }
    return {"machineType": "ct5lp-hightpu-4t", "reservationAffinity": affinity}


class Client:
    """A keep-alive HTTP client that returns (status, body)."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body)
        self._connection.request(method, path, body=sent, headers=named)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()
