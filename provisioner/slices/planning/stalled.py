"""What the owners of waiting slices are told while nothing can be decided for anybody."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner import constants
from provisioner.model.snapshot import Snapshot
from provisioner.model.workloads import Workloads
from provisioner.settings import Settings
from provisioner.slices.demand import find_slices
from provisioner.slices.planning.notices import notice
from provisioner.slices.planning.plan import Notice
from provisioner.slices.planning.round import policy_of


def notices_while_stalled(snapshot: Snapshot, settings: Settings, problems: Sequence[str]) -> tuple[Notice, ...]:
    """Say on each slice that waits what keeps the provisioner from deciding: a person looks at the pod first."""
    workloads, policy = Workloads.of(snapshot.workloads), policy_of(snapshot, settings)
    message = f"No node pools are created or deleted at the moment: {'; '.join(problems)}"
    return tuple(
        notice(each, constants.NOT_READY, message, key="not ready")
        for each in find_slices(workloads, snapshot.pods, policy).values()
        if each.pending
    )
