"""Labels the nodes of pools that were created for one child Job of a JobSet, so that JobSet's node selector finds them.

Called by `decide`. Pure. Nodes that GKE recreates come back without the label, and get it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.model.placement import job_labels
from provisioner.slices.planning.plan import Assignment
from provisioner.slices.planning.round import Round


def label_job_nodes(round_: Round) -> Iterator[Assignment]:
    """Yield one assignment for each node that lacks the label of the child Job that its pool was created for."""
    for supply in round_.supply.values():
        labels = {} if supply.going else job_labels(supply.pool.labels, supply.pool.taints)
        if labels:
            yield from (
                Assignment(node.name, labels) for node in supply.nodes if not labels.items() <= node.labels.items()
            )
