"""The statuses of the four kinds, which the controller alone writes: each field with its sentence and bounds.

Times are in UTC and have whole seconds, as the API's have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from provisioner.model import bounds
from provisioner.nodegroups.api.codec import declared, struct_of
from provisioner.nodegroups.api.conditions import LARGEST_GENERATION, Condition
from provisioner.nodegroups.api.forms import Array, Flag, Moment, Text, Whole, choice
from provisioner.nodegroups.api.specs import SizePolicyMode

_CONDITIONS = Array(
    about="What is the case with the object, one entry for each question.",
    items=struct_of(Condition),
    most=bounds.CONDITIONS,
    key="type",
)
_OBSERVED_GENERATION = Whole(
    about="The generation of the object that the status was concluded from.", most=LARGEST_GENERATION
)
_COUNT = bounds.GROUP_NODES


class OperationType(StrEnum):
    """What an operation of Compute Engine does."""

    CREATE = "CREATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRef:
    """An operation of Compute Engine that has not been seen to end."""

    name: str
    type: OperationType
    #: Which attempt of the object's it is, from 1: a part of its request id (`names.request_id`).
    attempt: int


@declared("What there is of the resource.")
@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """Status of a child: of the one resource of Compute Engine that it stands for."""

    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    observed_generation: Annotated[int, _OBSERVED_GENERATION] = 0
    url: Annotated[
        str, Text(about="Address of the resource; empty until it is there.", most=bounds.RESOURCE_ADDRESS)
    ] = ""
    operation_name: Annotated[str, Text(about="Compute Engine's operation that has not ended.")] = ""
    operation_type: Annotated[OperationType | None, choice("What the operation does.", OperationType)] = None
    #: That of an open operation included: numbers that are not used again.
    attempts: Annotated[
        int,
        Whole(about="Number of the latest attempt; a repeated request of one counts once."),
        "operationAttempt",
    ] = 0

    @property
    def operation(self) -> OperationRef | None:
        """The operation that has not ended; gke-labs/tpu-operator did not always write its type."""
        if not self.operation_name or self.operation_type is None:
            return None
        return OperationRef(name=self.operation_name, type=self.operation_type, attempt=self.attempts)


@declared("Counts of nodes.", required=("ready", "reconciling", "failed"))
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """Counts of a group's nodes."""

    ready: Annotated[int, Whole(about="Nodes that are ready and show all their chips.", most=_COUNT)] = 0
    reconciling: Annotated[
        int,
        Whole(about="Machines that are being made, have not joined, or whose node is not ready yet.", most=_COUNT),
    ] = 0
    failed: Annotated[int, Whole(about="Machines that could not be made, or whose node was lost.", most=_COUNT)] = 0


@declared("One machine.", required=("name", "ready"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine of a group, as its status lists it."""

    name: Annotated[str, Text(about="Its name in Compute Engine.", most=63, least=1, meaning="the name of a machine")]
    state: Annotated[
        str,
        Text(about="Compute Engine's status of it, or while it is not there what is done about it.", most=63),
    ] = ""
    node: Annotated[str, Text(about="Its node; empty until it has joined.")] = ""
    ready: Annotated[bool, Flag(about="Whether the node is ready and shows all its chips.")] = False
    since: Annotated[datetime | None, Moment(about="Since when state, node and ready are what they are.")] = None


@declared("What there is of the machines.")
@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupStatus:
    """What there is of a group."""

    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    observed_generation: Annotated[int, _OBSERVED_GENERATION] = 0
    node_summary: NodeSummary | None = None
    #: Empty until a count is known.
    nodes: Annotated[str, Text(about="Nodes that are ready, of those that are wanted, as 3/4.", most=16)] = field(
        init=False, default=""
    )
    topology: Annotated[str, Text(about="The topology in effect, given or derived.", most=bounds.LABEL_VALUE)] = ""
    node_count: Annotated[
        int | None, Whole(about="The number of machines in effect, given or derived.", least=1, most=_COUNT)
    ] = None
    target_size_policy_mode: Annotated[
        SizePolicyMode | None, choice("The mode in effect, given or derived.", SizePolicyMode)
    ] = None
    machines: Annotated[
        tuple[Machine, ...],
        Array(
            about="The machines, as Compute Engine and the cluster show them.",
            items=struct_of(Machine),
            most=_COUNT,
            key="name",
        ),
    ] = ()
    recreated_at: Annotated[
        tuple[datetime, ...],
        Array(
            about="When all machines were made anew because one was lost, latest last.",
            items=Moment(about="One moment."),
            most=bounds.RECREATIONS,
        ),
        "recreations",
    ] = ()

    def __post_init__(self) -> None:
        """Count the nodes for the column."""
        if self.node_count is not None:
            ready = self.node_summary.ready if self.node_summary is not None else 0
            object.__setattr__(self, "nodes", f"{ready}/{self.node_count}")
