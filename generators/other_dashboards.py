"""Defines the dashboards of node groups, of the webhook server, and of partitions of IPUs."""

from __future__ import annotations

from generators.dashboard_form import RED_BELOW_1, RED_FROM_1, Dashboard, Panel, Queries, or_0, stat
from provisioner.nodegroups.metrics import PREFIX as NODE_GROUPS_PREFIX
from provisioner.partitions.metrics import PREFIX as PARTITIONS_PREFIX
from provisioner.webhook.app import PREFIX as WEBHOOK_PREFIX


def _leader(queries: Queries, nothing_done: str) -> Panel:
    return stat(
        "Leader",
        f"Replicas that lead: one in each installation. None: {nothing_done}.",
        f"sum({queries.series('leader')})",
        steps=RED_BELOW_1,
    )


def _last_round(queries: Queries) -> Panel:
    return stat(
        "Since the last round",
        "Time since the leader last observed and decided.",
        queries.since("loop_last_round_timestamp_seconds"),
        unit="s",
        steps=((None, "green"), (120, "orange"), (300, "red")),
    )


def _watches(queries: Queries) -> Panel:
    return Panel(
        "Watches: since the last contact",
        "Time since each replica's list-watch last heard from the API server.",
        ((queries.worst("watch_last_contact_age_seconds", "pod", "resource"), "{{pod}} {{resource}}"),),
        unit="s",
    )


_READY = 'state="ready"'
_N = Queries(NODE_GROUPS_PREFIX)
NODE_GROUPS = Dashboard(
    uid="tpu-node-groups",
    title="TPU node groups",
    description="TPUNodeGroups and their nodes, calls to Compute Engine, and the controller's own health.",
    tags=("tpu-provisioner", "tpu", "compute-engine"),
    prefix=NODE_GROUPS_PREFIX,
    rows=(
        (
            "Now",
            (
                _leader(_N, "machines are neither created nor deleted"),
                stat(
                    "Cluster known",
                    "Whether the controller knows all that machines need to join the cluster.",
                    _N.known("cluster_known"),
                    texts={"0": "no", "1": "yes"},
                    steps=RED_BELOW_1,
                ),
                _last_round(_N),
                stat(
                    "Nodes missing",
                    "Nodes that the groups should have and that are not ready.",
                    f"{_N.gauge('nodes_wanted')} - {_N.gauge('nodes', matchers=(_READY,))}",
                    steps=((None, "green"), (1, "orange")),
                ),
                stat(
                    "Decision faults in a day",
                    "Objects that could not be decided on because of a mistake of the controller, each time.",
                    or_0(_N.growth("decisions_crashed", window="1d")),
                    steps=RED_FROM_1,
                ),
            ),
        ),
        (
            "Groups and nodes",
            (
                Panel(
                    "Groups by reason",
                    "TPUNodeGroups by the reason of their condition Ready.",
                    ((_N.gauge("groups", "reason"), "{{reason}}"),),
                    stacked=True,
                ),
                Panel(
                    "Nodes by state",
                    "Nodes of all groups by state, and how many the groups should have.",
                    ((_N.gauge("nodes", "state"), "{{state}}"), (_N.gauge("nodes_wanted"), "wanted")),
                ),
                Panel(
                    "Failing resources",
                    "Resources of Compute Engine whose last read, create or delete failed, by kind of failure.",
                    ((_N.gauge("failing", "kind"), "{{kind}}"),),
                    stacked=True,
                ),
            ),
        ),
        (
            "Calls and writes",
            (
                Panel(
                    "Calls to Compute Engine by status",
                    "Calls a second by HTTP status; none: without an answer.",
                    ((_N.rate("compute_requests_total", "code"), "{{code}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Duration of calls",
                    "Quantiles over all methods, and the mean of each method.",
                    (
                        *_N.quantiles("compute_request_duration_seconds"),
                        (_N.mean("compute_request_duration_seconds", "method"), "{{method}} mean"),
                    ),
                    unit="s",
                ),
                Panel(
                    "Writes to Kubernetes",
                    "Writes a second, by what is written and result.",
                    ((_N.rate("writes_total", "write", "result"), "{{write}}: {{result}}"),),
                    unit="ops",
                ),
                _watches(_N),
            ),
        ),
    ),
)

_W = Queries(WEBHOOK_PREFIX)
_FAILED, _PROBLEM = 'outcome=~"failed|malformed|busy"', 'outcome=~"warned|denied|malformed|failed|busy"'
WEBHOOK = Dashboard(
    uid="tpu-webhook",
    title="TPU webhook server",
    description="Reviews of pods and other objects by the webhook server, and its certificates.",
    tags=("tpu-provisioner", "tpu"),
    prefix=WEBHOOK_PREFIX,
    rows=(
        (
            "Now",
            (
                stat(
                    "Replicas",
                    "Replicas by release. None: API servers create pods without TPU variables, or reject them.",
                    f"sum by (version) ({_W.series('build_info')})",
                    legend="{{version}}",
                    steps=RED_BELOW_1,
                ),
                stat(
                    "Certificates",
                    "Whether a replica cannot renew its certificates, or have them trusted; its log says why.",
                    _W.worst("certificates_problem"),
                    texts={"0": "good", "1": "problem"},
                    steps=RED_FROM_1,
                ),
                stat(
                    "Failed reviews in a day",
                    "Objects that were not reviewed: the server failed, could not read the review, or was too busy.",
                    or_0(_W.growth("reviews", window="1d", matchers=(_FAILED,))),
                    steps=RED_FROM_1,
                ),
                stat(
                    "Slowest reviews",
                    "The time in which 99 of 100 reviews of the last hour were answered. API servers wait for five or "
                    "ten seconds.",
                    _W.quantiles("review_duration_seconds", window="1h")[-1][0],
                    unit="s",
                    steps=((None, "green"), (1, "orange"), (5, "red")),
                ),
            ),
        ),
        (
            "Reviews",
            (
                Panel(
                    "Reviews by webhook",
                    "Reviews a second.",
                    ((_W.rate("reviews_total", "hook"), "{{hook}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Reviews by outcome",
                    "Reviews by outcome; patched: the object was changed.",
                    ((_W.growth("reviews", "outcome"), "{{outcome}}"),),
                    stacked=True,
                ),
                Panel(
                    "Reviews with a problem, by webhook",
                    "Reviews that ended with a warning, a rejection or a failure; busy: too many reviews at once.",
                    ((_W.growth("reviews", "hook", "outcome", matchers=(_PROBLEM,)), "{{hook}}: {{outcome}}"),),
                ),
                Panel(
                    "Duration of reviews",
                    "Time from a whole review to its answer, of all webhooks.",
                    _W.quantiles("review_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "Duration of reviews by webhook",
                    "The mean time from a whole review to its answer.",
                    ((_W.mean("review_duration_seconds", "hook"), "{{hook}}"),),
                    unit="s",
                ),
            ),
        ),
    ),
)

_P = Queries(PARTITIONS_PREFIX)
PARTITIONS = Dashboard(
    uid="ipu-partitions",
    title="IPU partitions",
    description="Partitions of IPUs, pods that wait for them, V-IPU servers, and the controller's own health.",
    tags=("tpu-provisioner", "ipu", "graphcore"),
    prefix=PARTITIONS_PREFIX,
    rows=(
        (
            "Now",
            (
                _leader(_P, "partitions are neither created nor removed"),
                stat(
                    "Ledger known",
                    "Whether the leader knows which partition is whose. Until then it changes nothing.",
                    _P.known("ledger_known"),
                    texts={"0": "no", "1": "yes"},
                    steps=RED_BELOW_1,
                ),
                _last_round(_P),
                stat(
                    "Pods waiting",
                    "Pods that wait for their partition.",
                    _P.gauge("pods_waiting"),
                    steps=((None, "green"), (1, "orange")),
                ),
                stat(
                    "Longest wait",
                    "How long the pod that waits longest has waited.",
                    _P.worst("oldest_wait_seconds"),
                    unit="s",
                ),
            ),
        ),
        (
            "Partitions and IPUs",
            (
                Panel(
                    "IPUs by allocation",
                    "IPUs in no partition, and all IPUs, of each allocation of each V-IPU server.",
                    (
                        (_P.worst("ipus_free", "server", "allocation"), "{{server}} {{allocation}} free"),
                        (_P.worst("ipus", "server", "allocation"), "{{server}} {{allocation}} all"),
                    ),
                ),
                Panel(
                    "IPUs in partitions by phase",
                    "IPUs of this cluster's partitions. Orphan: no pod has the partition.",
                    ((_P.gauge("ipus_held", "phase"), "{{phase}}"),),
                    stacked=True,
                ),
                Panel(
                    "Partitions by phase",
                    "Partitions of this cluster.",
                    ((_P.gauge("partitions", "phase"), "{{phase}}"),),
                    stacked=True,
                ),
                Panel(
                    "Wait of pods, over a day",
                    "Time from the creation of a pod until it could be scheduled.",
                    _P.quantiles("pod_wait_seconds", window="1d"),
                    unit="s",
                ),
            ),
        ),
        (
            "V-IPU servers",
            (
                Panel(
                    "Servers that can be read",
                    "1 where the last read of a V-IPU server succeeded, 0 where not.",
                    ((_P.worst("server_readable", "server"), "{{server}}"),),
                ),
                Panel(
                    "Duration of calls to servers",
                    "The mean time of each call.",
                    ((_P.mean("vipu_call_duration_seconds", "call"), "{{call}}"),),
                    unit="s",
                ),
                Panel(
                    "Failed calls to servers",
                    "Calls to V-IPU servers that failed, by call and kind of failure.",
                    ((_P.growth("vipu_call_errors", "call", "kind"), "{{call}}: {{kind}}"),),
                    stacked=True,
                ),
            ),
        ),
    ),
)
