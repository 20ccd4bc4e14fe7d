"""All fields of the status of the four kinds, which the controller alone writes, each with its sentence and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from provisioner.model import bounds
from provisioner.nodegroups.api.conditions import ConditionStatus
from provisioner.nodegroups.api.forms import Array, Flag, Moment, Struct, Text, Whole, choice, values
from provisioner.nodegroups.api.types import Kind, OperationType, SizePolicyMode

#: The API server reads bounds as floating-point numbers, which know all whole numbers up to this one.
_LARGEST_GENERATION = 2**53 - 1

_CONDITIONS = Array(
    about="What is the case with the object, one entry for each question.",
    items=Struct(
        about="The answer to one question.",
        fields={
            "type": Text(
                about="The question, such as Ready.",
                most=316,
                pattern="([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
                "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])",
                meaning="a type of conditions",
            ),
            "status": choice("True, False or Unknown.", values(ConditionStatus)),
            "reason": Text(
                about="Why, in one word.",
                least=1,
                most=1024,
                pattern="[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
                meaning="a reason in one word",
            ),
            "message": Text(about="Why, in words for people.", most=32_768),
            "lastTransitionTime": Moment(about="Since when the status is what it is."),
            "observedGeneration": Whole(
                about="The generation of the object that this was concluded from.", most=_LARGEST_GENERATION
            ),
        },
        required=("type", "status", "reason", "message", "lastTransitionTime"),
    ),
    most=bounds.CONDITIONS,
    key="type",
)
_OBSERVED_GENERATION = Whole(
    about="The generation of the object that the status was concluded from.", most=_LARGEST_GENERATION
)
_COUNT = bounds.GROUP_NODES

_GROUP_STATUS = Struct(
    about="What there is of the machines.",
    fields={
        "conditions": _CONDITIONS,
        "observedGeneration": _OBSERVED_GENERATION,
        "nodeSummary": Struct(
            about="Counts of nodes.",
            fields={
                "ready": Whole(about="Nodes that are ready and show all their chips.", most=_COUNT),
                "reconciling": Whole(
                    about="Machines that are being made, have not joined, or whose node is not ready yet.", most=_COUNT
                ),
                "failed": Whole(about="Machines that could not be made, or whose node was lost.", most=_COUNT),
            },
            required=("ready", "reconciling", "failed"),
        ),
        "nodes": Text(about="Nodes that are ready, of those that are wanted, as 3/4.", most=16),
        "topology": Text(about="The topology in effect, given or derived.", most=bounds.LABEL_VALUE),
        "nodeCount": Whole(about="The number of machines in effect, given or derived.", least=1, most=_COUNT),
        "targetSizePolicyMode": choice("The mode in effect, given or derived.", values(SizePolicyMode)),
        "machines": Array(
            about="The machines, as Compute Engine and the cluster show them.",
            items=Struct(
                about="One machine.",
                fields={
                    "name": Text(
                        about="Its name in Compute Engine.", most=63, least=1, meaning="the name of a machine"
                    ),
                    "state": Text(
                        about="Compute Engine's status of it, or while it is not there what is done about it.", most=63
                    ),
                    "node": Text(about="Its node; empty until it has joined."),
                    "ready": Flag(about="Whether the node is ready and shows all its chips."),
                    "since": Moment(about="Since when state, node and ready are what they are."),
                },
                required=("name", "ready"),
            ),
            most=_COUNT,
            key="name",
        ),
        "recreations": Array(
            about="When all machines were made anew because one was lost, latest last.",
            items=Moment(about="One moment."),
            most=bounds.RECREATIONS,
        ),
    },
)


def _resource_status(address: str) -> Struct:
    return Struct(
        about="What there is of the resource.",
        fields={
            "conditions": _CONDITIONS,
            "observedGeneration": _OBSERVED_GENERATION,
            address: Text(about="Address of the resource; empty until it is there.", most=bounds.RESOURCE_ADDRESS),
            "operationName": Text(about="Compute Engine's operation that has not ended."),
            "operationType": choice("What the operation does.", values(OperationType)),
            "operationAttempt": Whole(about="Number of the latest attempt; a repeated request of one counts once."),
        },
    )


STATUSES: Mapping[Kind, Struct] = MappingProxyType(
    {
        Kind.TPU_NODE_GROUP: _GROUP_STATUS,
        Kind.WORKLOAD_POLICY: _resource_status("uri"),
        Kind.INSTANCE_TEMPLATE: _resource_status("uri"),
        Kind.MANAGED_INSTANCE_GROUP: _resource_status("url"),
    }
)
