"""Alerts about TPUNodeGroups and their controller."""

from __future__ import annotations

from generators.alert_form import CRITICAL, EACH, ENDS, WARNING, Rule, gone, metric
from provisioner.kube.watches import MAX_SILENCE_SECONDS
from provisioner.nodegroups.api.statuses import Reason
from provisioner.nodegroups.metrics import PREFIX


def _lasts(minutes: int, *reasons: Reason) -> str:
    """Return a query for the reasons among `reasons` that a node group has had for longer than `minutes`."""
    chosen = "|".join(reasons)
    return f'max by ({EACH}, reason) ({PREFIX}reason_oldest_seconds{{reason=~"{chosen}"}}) > {minutes * 60}'


_NO_GROUPS = (
    "Until then TPUNodeGroups are neither created, repaired nor deleted, and machines that nobody needs cost money."
)
RULES = (
    Rule(
        name="TPUNodeGroupsAbsent",
        slug="nodegroups-absent",
        query=gone(PREFIX),
        minutes=10,
        severity=CRITICAL,
        summary="No controller of TPUNodeGroups is scraped any more.",
        description=f"Either none runs, or its metrics do not arrive. {_NO_GROUPS} {ENDS}",
    ),
    Rule(
        name="TPUNodeGroupsWithoutLeader",
        slug="nodegroups-no-leader",
        query=f"{metric('leader', function='sum', prefix=PREFIX)} < 1",
        minutes=5,
        severity=CRITICAL,
        summary="No controller of TPUNodeGroups leads.",
        description=f"The log says which process holds the Lease. {_NO_GROUPS}",
    ),
    Rule(
        name="TPUNodeGroupsLoopStalled",
        slug="nodegroups-loop-stalled",
        query=f"time() - {metric('loop_last_round_timestamp_seconds', prefix=PREFIX)} > 300",
        minutes=5,
        severity=CRITICAL,
        summary="The controller of TPUNodeGroups has not finished a round for five minutes.",
        description=f"The log says why. {_NO_GROUPS}",
    ),
    Rule(
        name="TPUNodeGroupsWatchStale",
        slug="nodegroups-watch-stale",
        query=f"{metric('watch_last_contact_age_seconds', 'pod', 'resource', prefix=PREFIX)} > "
        f"{MAX_SILENCE_SECONDS:.0f}",
        minutes=5,
        severity=CRITICAL,
        labels=("pod", "resource"),
        summary="The controller of TPUNodeGroups receives nothing about <resource> from the API server.",
        description=f"Replica <pod> decides nothing on a list that may be old. {_NO_GROUPS}",
    ),
    Rule(
        name="TPUNodeGroupsClusterUnknown",
        slug="nodegroups-cluster-unknown",
        query=f"{metric('cluster_known', prefix=PREFIX)} < 1",
        minutes=10,
        severity=CRITICAL,
        summary="Machines of TPUNodeGroups cannot join: what they need to know of the cluster is not known.",
        description="/readyz, the log (cluster.not_read) and the condition Ready of a group say what is missing.",
    ),
    Rule(
        name="TPUNodeGroupsRejected",
        slug="nodegroups-rejected",
        query=_lasts(
            15,
            Reason.INVALID_SPEC,
            Reason.NOT_ALLOWED,
            Reason.OPERATION_FAILED,
            Reason.RECONCILE_ERROR,
            Reason.REQUEST_REJECTED,
        ),
        minutes=1,
        severity=WARNING,
        labels=("reason",),
        summary="A TPUNodeGroup cannot be created: <reason>.",
        description="The message of its condition Ready has the cause in Google's message. The call is retried.",
    ),
    Rule(
        name="TPUNodeGroupsWaitForCapacity",
        slug="nodegroups-capacity",
        query=_lasts(60, Reason.INSTANCES_CREATION_FAILED, Reason.LIMIT_REACHED),
        minutes=1,
        severity=WARNING,
        labels=("reason",),
        summary="A TPUNodeGroup has waited for machines for an hour.",
        description="The message of its condition Ready has the answer of Google, or MAX_MACHINES_PER_NAMESPACE.",
    ),
    Rule(
        name="TPUNodeGroupsNotJoining",
        slug="nodegroups-not-joining",
        query=_lasts(30, Reason.AWAITING_NODE_JOIN),
        minutes=1,
        severity=WARNING,
        labels=("reason",),
        summary="A TPUNodeGroup has waited for its nodes for half an hour.",
        description="Its machines cost money and run nothing. status.machines says which have not joined.",
    ),
    Rule(
        name="TPUNodeGroupsNodeLost",
        slug="nodegroups-node-lost",
        query=_lasts(30, Reason.NODE_LOST),
        minutes=1,
        severity=WARNING,
        labels=("reason",),
        summary="A TPUNodeGroup has lacked a machine, a node or a chip for half an hour.",
        description="It is not recreated automatically: the message of its condition Ready says why.",
    ),
    Rule(
        name="TPUNodeGroupsDeleteHeldUp",
        slug="nodegroups-delete-held-up",
        query=_lasts(
            120,
            Reason.DELETING_DEVICE_PLUGIN,
            Reason.DELETING_MIG,
            Reason.DELETING_NODES,
            Reason.DELETING_POLICY,
            Reason.DELETING_TEMPLATE,
            Reason.DRAINING_NODES,
            Reason.RECREATING,
        ),
        minutes=1,
        severity=WARNING,
        labels=("reason",),
        summary="The deletion of the machines of a TPUNodeGroup has lasted for two hours: <reason>.",
        description="Its machines may cost money. The message of its condition Ready has the pod or the message of "
        "Google that prevents it.",
    ),
    Rule(
        name="TPUNodeGroupsOrphans",
        slug="nodegroups-orphans",
        query=f"{metric('orphans', 'project', prefix=PREFIX)} > 0",
        minutes=30,
        severity=WARNING,
        labels=("project",),
        summary="For half an hour there have been managed instance groups of this cluster without a Kubernetes object.",
        description="Their machines in project <project> cost money. The log (resource.orphaned) names them.",
    ),
    Rule(
        name="TPUNodeGroupsDecisionFaults",
        slug="nodegroups-decision-faults",
        query=f"sum by ({EACH}) (increase({PREFIX}decisions_crashed_total[10m])) > 0",
        minutes=1,
        severity=WARNING,
        summary="The controller of TPUNodeGroups cannot decide about a group or one of its children.",
        description="It is a mistake of the controller; others are not affected. The log (node_group.decide_crashed) "
        "names it.",
    ),
)
