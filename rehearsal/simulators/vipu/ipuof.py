"""The IPUoF configuration of a partition: what the Poplar SDK is told to reach its IPUs. Pure.

The real one has a device for each IPU and attributes, among them "GCD Id"; what its other keys are is not published.
"""

from __future__ import annotations

from typing import Any

from rehearsal.simulators.vipu.records import PartitionView


def config_of(partition: PartitionView, server: str) -> dict[str, Any]:
    """Return the configuration of a partition; `server` is HOST:PORT."""
    return {
        "attributes": {
            "GCD Id": "0",
            "Partition": partition.id,
            "Reconfigurable": "1" if partition.reconfigurable else "0",
            "V-IPU server": server,
        },
        "devices": [
            {"id": number, "agent": agent, "ipu": index} for number, (agent, index) in enumerate(partition.ipus)
        ],
    }
