"""Defines the dashboard of slices, and generates the files of all dashboards, which `make chart` writes.

The other dashboards are in `generators.other_dashboards`, and their form in `generators.dashboard_form`.
"""

from __future__ import annotations

from pathlib import Path

from generators.dashboard_form import RED_BELOW_1, RED_FROM_1, Dashboard, Panel, Queries, or_0, stat
from generators.other_dashboards import NODE_GROUPS, PARTITIONS, WEBHOOK
from provisioner.slices.metrics import PREFIX

_CHARTS = Path(__file__).parents[1] / "deploy" / "charts"
_Q = Queries(PREFIX)
_ACCOUNT = ("workload_namespace", "accelerator", "capacity")
_ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            stat(
                "Cost per hour",
                "Cost of the existing chips an hour, in the currency of CHIP_HOUR_PRICES; nothing without prices.",
                _Q.gauge("cost_per_hour", summed=(*_ACCOUNT, "use")),
                width=6,
            ),
            stat(
                "Chips running",
                "Chips of node pools that pods run on.",
                _Q.gauge("chips", matchers=('state="in_use"',)),
                width=6,
            ),
            stat(
                "Waiting slices",
                "Slices without a node pool: about to be created, or kept by back-off, a limit or an invalid request. "
                "Events on their pods say why.",
                or_0(_Q.gauge("slices", summed=("phase",), matchers=('phase=~"wanted|blocked"',))),
                width=6,
                steps=((None, "green"), (1, "orange")),
            ),
            stat(
                "Longest wait",
                "For how long the longest waiting leader pod has been unschedulable.",
                _Q.worst("longest_wait_seconds"),
                width=6,
                unit="s",
            ),
            stat(
                "Leader",
                "Replicas that lead: one in each installation. None: node pools are neither created nor deleted.",
                f"sum({_Q.series('leader')})",
                steps=RED_BELOW_1,
            ),
            stat(
                "Cluster proven",
                "Whether the leader has proven that its kubeconfig and its GKE settings are of one cluster. Until then "
                "it creates and deletes nothing.",
                _Q.known("cluster_proven"),
                texts={"0": "no", "1": "yes"},
                steps=RED_BELOW_1,
            ),
            stat(
                "Since the last round",
                "Time since the leader last observed and decided.",
                _Q.since("loop_last_round_timestamp_seconds"),
                unit="s",
                steps=((None, "green"), (120, "orange"), (300, "red")),
            ),
            stat(
                "Alerts",
                "Alerts that the administrator must look at; the log describes them.",
                or_0(_Q.gauge("alerts", summed=("kind",))),
                steps=RED_FROM_1,
            ),
            stat(
                "Chips idle",
                "Chips of node pools that nothing needs, during their deletion delay.",
                _Q.gauge("chips", matchers=('state="idle"',)),
            ),
            stat(
                "Releases",
                "Replicas by release. Investigate two lines that stay longer than an upgrade takes.",
                f"sum by (version) ({_Q.series('build_info')})",
                legend="{{version}}",
            ),
        ),
    ),
    (
        "Capacity",
        (
            Panel(
                "Chips by state",
                "From requested to being deleted.",
                ((_Q.gauge("chips", "state"), "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Slices by phase",
                "Slices that workloads request.",
                ((_Q.gauge("slices", "phase"), "{{phase}}"),),
                stacked=True,
            ),
            Panel(
                "Node pools by phase",
                "Node pools that GKE has, or that are being created.",
                ((_Q.gauge("node_pools", "phase"), "{{phase}}"),),
                stacked=True,
            ),
        ),
    ),
    (
        "Waiting",
        (
            Panel(
                "Start of slices, over a day",
                "Time from a leader pod being unschedulable to its node pool being listed by GKE, to all nodes being "
                "ready, and to the pod being bound.",
                _Q.quantiles("slice_startup_seconds", "stage", window="1d")[:2],
                unit="s",
            ),
            Panel(
                "Longest wait by cause",
                "For how long the longest waiting leader pod has been unschedulable: of all, and by what it waits for, "
                "the kind of a failure or a limit.",
                (
                    (_Q.worst("longest_wait_seconds"), "longest"),
                    (_Q.worst("waiting_oldest_seconds", "cause"), "{{cause}}"),
                ),
                unit="s",
            ),
            Panel(
                "Split slices",
                "Slices that do not have one node pool to themselves; docs/events.md has the Event SliceSplit.",
                ((_Q.gauge("split_slices"), "split"),),
            ),
            Panel(
                "Events of slices",
                "Events that slices have now, by reason; docs/events.md has each reason.",
                ((_Q.gauge("notices", "reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Creates that back-off forbids",
                "Kinds of capacity, and slices, for which no create is allowed right now.",
                ((_Q.gauge("backoff_blocking", "kind"), "{{kind}}"),),
                stacked=True,
            ),
            Panel(
                "Failing for",
                "Since when creates of a kind of capacity, or of a slice, have failed without a success.",
                ((_Q.worst("backoff_oldest_seconds", "kind"), "{{kind}}"),),
                unit="s",
            ),
            Panel(
                "Failed node pools",
                "Node pools that failed after GKE had accepted their create.",
                ((_Q.growth("node_pool_failures", "kind"), "{{kind}}"),),
                stacked=True,
            ),
        ),
    ),
    (
        "Limits",
        (
            Panel(
                "Use of limits",
                "How much of each limit is used; * is the largest use of every other namespace or accelerator.",
                (
                    (
                        f"{_Q.worst('limit_used', 'limit', 'scope')} / ({_Q.worst('limit', 'limit', 'scope')} > 0)",
                        "{{limit}} {{scope}}",
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Slices that wait for a limit",
                "Slices that get no node pool because of a limit.",
                ((_Q.gauge("limit_waiting_slices", "limit"), "{{limit}}"),),
                stacked=True,
            ),
            Panel(
                "Operations in progress",
                "Node pool operations of the cluster, and how many GKE accepts at once, as far as known.",
                (
                    (_Q.worst("gke_operations_in_flight"), "in progress"),
                    (f"{_Q.worst('gke_operations_limit')} > 0", "limit after a rejection"),
                ),
            ),
        ),
    ),
    (
        "Chips and their cost",
        (
            Panel(
                "Chips by namespace",
                "Chips of nodes that exist, by the namespace of the workload that has them.",
                (
                    (
                        _Q.growth("chip_seconds", "workload_namespace", function="rate", window="10m"),
                        "{{workload_namespace}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Chips by accelerator and capacity type",
                "Chips of nodes that exist.",
                (
                    (
                        _Q.growth("chip_seconds", "accelerator", "capacity", function="rate", window="10m"),
                        "{{accelerator}} {{capacity}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Chips by use",
                "Starting: no pod is bound yet. Running. Idle: nothing needs them. Draining: being deleted.",
                ((_Q.growth("chip_seconds", "use", function="rate", window="10m"), "{{use}}"),),
                stacked=True,
            ),
            Panel(
                "Cost per hour by use",
                "Cost of the existing chips an hour, in the currency of CHIP_HOUR_PRICES.",
                ((_Q.gauge("cost_per_hour", "use", summed=_ACCOUNT), "{{use}}"),),
                stacked=True,
            ),
            Panel(
                "Cost of a day by namespace",
                "What the chips of each namespace cost in the day before, idle ones included.",
                (
                    (
                        _Q.growth("cost", "workload_namespace", window="1d"),
                        "{{workload_namespace}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Chips without a price",
                "Chips for which CHIP_HOUR_PRICES has no price: their cost is missing.",
                ((_Q.gauge("unpriced_chips"), "chips"),),
            ),
        ),
    ),
    (
        "Creates and deletes",
        (
            Panel(
                "Creates by result",
                "Node pool creates that were submitted: ok, or how they failed.",
                ((_Q.growth("creates", "result"), "{{result}}"),),
                stacked=True,
            ),
            Panel(
                "Deletes by reason and result",
                "Node pool deletes that were submitted: the reason, and ok or how they failed.",
                ((_Q.growth("deletes", "reason", "result"), "{{reason}}: {{result}}"),),
                stacked=True,
            ),
            Panel(
                "Time to phase, over a day",
                "Time from a slice being wanted to its pool being provisioned, ready, and in use.",
                _Q.quantiles("time_to_phase_seconds", "phase", window="1d")[:2],
                unit="s",
            ),
            Panel(
                "Back-off by kind",
                "Kinds of capacity whose last attempt failed, until an hour after the next attempt is allowed.",
                ((_Q.gauge("backoff_active", "kind"), "{{kind}}"),),
                stacked=True,
            ),
            Panel(
                "Deletes blocked",
                "Node pools that should be deleted and are not, because unfinished pods are on them.",
                ((_Q.gauge("deletes_blocked"), "node pools"),),
            ),
            Panel(
                "Overdue node pools",
                "For how long a node pool that nothing needs has been there beyond its deletion delay.",
                ((_Q.worst("unneeded_overdue_seconds"), "longest"),),
                unit="s",
            ),
            Panel(
                "Alerts by kind",
                "Alerts that the administrator must look at; docs/runbooks has each kind.",
                ((_Q.gauge("alerts", "kind"), "{{kind}}"),),
                stacked=True,
            ),
        ),
    ),
    (
        "Calls to GKE",
        (
            Panel(
                "Calls by method",
                "Calls a second, including failed ones.",
                ((_Q.rate("gke_request_duration_seconds_count", "method"), "{{method}}"),),
                unit="reqps",
            ),
            Panel(
                "Calls by status",
                "Calls a second by HTTP status; none: without an answer.",
                ((_Q.rate("gke_requests_total", "code"), "{{code}}"),),
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Failed calls by method and kind",
                "Failed calls a second, by the kind of failure.",
                ((_Q.rate("gke_request_errors_total", "method", "kind"), "{{method}}: {{kind}}"),),
                unit="reqps",
            ),
            Panel(
                "Duration of calls",
                "Quantiles over all methods, and the mean of each method.",
                (
                    *_Q.quantiles("gke_request_duration_seconds"),
                    (_Q.mean("gke_request_duration_seconds", "method"), "{{method}} mean"),
                ),
                unit="s",
            ),
        ),
    ),
    (
        "The controller",
        (
            Panel(
                "Rounds by result",
                "Rounds of observe, decide, act, a second. Another follows a crashed one; see its trace in the log.",
                ((_Q.rate("rounds_total", "result"), "{{result}}"),),
                unit="ops",
            ),
            Panel(
                "Duration of rounds", "The duration of a whole round.", _Q.quantiles("round_duration_seconds"), unit="s"
            ),
            Panel(
                "Duration of decisions",
                "The duration of the decision in a round.",
                _Q.quantiles("decide_duration_seconds"),
                unit="s",
            ),
            Panel(
                "Lag of rounds",
                "Time from the first event that asks for a round to the beginning of the round.",
                _Q.quantiles("loop_lag_seconds"),
                unit="s",
            ),
            Panel(
                "Age of the list of node pools",
                "Age of the list at the last decision.",
                ((_Q.worst("pool_list_age_seconds"), "age"),),
                unit="s",
            ),
            Panel(
                "Watches: since the last contact",
                "Time since each replica's list-watch last heard from the API server.",
                (
                    (
                        f"max by (pod, resource) ({_Q.series('watch_last_contact_age_seconds')})",
                        "{{pod}} {{resource}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Incomplete watches and unknown sources",
                "List-watches of each replica that have not listed everything, and optional sources that cannot be "
                "read; the leader needs complete lists.",
                (
                    (f"count by (pod, resource) ({_Q.series('watch_synced')} == 0)", "{{pod}} {{resource}}"),
                    (f"max by (pod, source) ({_Q.series('source_unknown')})", "{{pod}} {{source}}"),
                ),
            ),
            Panel(
                "Events dropped, and who leads",
                "Kubernetes Events a second that were not written: too many, or rejected. The leading replica is 1.",
                (
                    (f"sum(rate({_Q.series('events_dropped_total')}[$__rate_interval]))", "dropped a second"),
                    (f"max by (pod) ({_Q.series('leader')})", "{{pod}} leads"),
                ),
            ),
        ),
    ),
)
SLICES = Dashboard(
    uid="tpu-provisioner",
    title="TPU provisioner",
    description="Chips, slices and node pools of tpu-provisioner, its calls to GKE, and its own health.",
    tags=("tpu-provisioner", "tpu", "gke"),
    prefix=PREFIX,
    rows=_ROWS,
)
#: Dashboards by chart; a chart can read only files in its folder. kustomize uses the files of the first chart.
BY_CHART = {
    "tpu-provisioner": (SLICES, NODE_GROUPS, WEBHOOK, PARTITIONS),
    "ipu-partitions": (PARTITIONS, WEBHOOK),
}


def files() -> dict[Path, str]:
    """Return the content of every generated file."""
    return {
        _CHARTS / chart / "dashboards" / f"{dashboard.uid}.json": dashboard.content()
        for chart, dashboards in BY_CHART.items()
        for dashboard in dashboards
    }
