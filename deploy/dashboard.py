"""The Grafana dashboard of what the controller exports; `make chart` writes it as JSON, into the chart.

Replicas that wait for the Lease export too: a gauge is the greatest of an installation's replicas, summed over what the
variables `cluster` and `namespace` choose. Where Prometheus gives no label `cluster`, "All" is everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.slices.metrics import PREFIX

#: The chart can read no file outside of its own folder; the kustomize component refers to this one.
PATH = Path(__file__).parent / "charts" / "tpu-provisioner" / "dashboards" / "tpu-provisioner.json"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = 'cluster=~"$cluster",namespace=~"$namespace"'
_ROW_HEIGHT = 1
_COLUMNS = 24
#: Of the counters that outlast a process: replicas continue one counter, so the greatest of them is the counter.
_USAGE = "cluster, namespace, workload_namespace, accelerator, capacity, use"
_QUANTILES = ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries with their legends, and how it looks."""

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    #: Of a single value: the text that stands for each value, and the values from which it turns red or green.
    texts: dict[str, str] = field(default_factory=dict)
    steps: tuple[tuple[float | None, str], ...] = ((None, "green"),)

    def json(self, number: int, *, x: int, y: int) -> dict[str, Any]:
        """Return it as Grafana has it."""
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": value, "color": color} for value, color in self.steps],
            },
            "mappings": [{"type": "value", "options": {value: {"text": text} for value, text in self.texts.items()}}]
            if self.texts
            else [],
        }
        if self.kind == "stat":
            options: dict[str, Any] = {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value",
                "graphMode": "none",
                "textMode": "auto",
            }
        else:
            defaults |= {
                "min": 0,
                "custom": {
                    "drawStyle": "line",
                    "fillOpacity": 30 if self.stacked else 0,
                    "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                    "showPoints": "never",
                },
            }
            options = {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": _DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend}
                for index, (query, legend) in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
        }


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    return {
        "uid": "tpu-provisioner",
        "title": "TPU provisioner",
        "description": "Chips, slices and node pools of tpu-provisioner, its calls to GKE, and its own health.",
        "tags": ["tpu-provisioner", "tpu", "gke"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), _variable("cluster"), _variable("namespace")]},
        "panels": list(_laid_out()),
    }


def content() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": f"label_values({PREFIX}build_info, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _series(name: str, *matchers: str) -> str:
    return f"{PREFIX}{name}{{{','.join((_CHOSEN, *matchers))}}}"


def _gauge(name: str, *labels: str, matchers: tuple[str, ...] = ()) -> str:
    """Return the greatest of each installation's replicas, summed over the installations."""
    inner = f"max by ({', '.join(('cluster', 'namespace', *labels))}) ({_series(name, *matchers)})"
    return f"sum by ({', '.join(labels)}) ({inner})" if labels else f"sum({inner})"


def _or_0(query: str) -> str:
    """Return 0 where there is no series, since a kind or phase that never was has none."""
    return f"{query} or vector(0)"


def _increase(name: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (increase({_series(f'{name}_total')}[$__rate_interval]))"


def _rate(name: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (rate({_series(name)}[$__rate_interval]))"


def _usage(name: str, *labels: str, function: str, window: str) -> str:
    """Return how a counter grows; each process has its own, which begins at zero."""
    return f"sum by ({', '.join(labels)}) ({function}({_series(f'{name}_total')}[{window}]))"


def _worst(name: str, *labels: str) -> str:
    return f"max by ({', '.join(labels)}) ({_series(name)})" if labels else f"max({_series(name)})"


def _mean(name: str, *labels: str) -> str:
    return f"{_rate(f'{name}_sum', *labels)} / {_rate(f'{name}_count', *labels)}"


def _quantiles(name: str, *labels: str, window: str = "$__rate_interval") -> tuple[tuple[str, str], ...]:
    legend = "".join(f"{{{{{label}}}}} " for label in labels)
    by = ", ".join(("le", *labels))
    buckets = f"sum by ({by}) (rate({_series(f'{name}_bucket')}[{window}]))"
    return tuple((f"histogram_quantile({quantile}, {buckets})", f"{legend}{said}") for quantile, said in _QUANTILES)


_RED_BELOW_1: tuple[tuple[float | None, str], ...] = ((None, "red"), (1, "green"))
_RED_FROM_1: tuple[tuple[float | None, str], ...] = ((None, "green"), (1, "red"))
_ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            Panel(
                "Leader",
                "Replicas that lead: one in each installation. None: node pools are neither created nor deleted.",
                ((f"sum({_series('leader')})", ""),),
                kind="stat",
                width=3,
                height=4,
                steps=_RED_BELOW_1,
            ),
            Panel(
                "Cluster proven",
                "Whether the leader has proven that its kubeconfig and its GKE settings are of one cluster. Until then "
                "it creates and deletes nothing.",
                ((f"min(max by (cluster, namespace) ({_series('cluster_proven')}))", ""),),
                kind="stat",
                width=3,
                height=4,
                texts={"0": "no", "1": "yes"},
                steps=_RED_BELOW_1,
            ),
            Panel(
                "Since the last round",
                "Time since the leader last observed and decided.",
                (
                    (
                        f"time() - min(max by (cluster, namespace) ({_series('loop_last_round_timestamp_seconds')}))",
                        "",
                    ),
                ),
                unit="s",
                kind="stat",
                width=3,
                height=4,
                steps=((None, "green"), (120, "orange"), (300, "red")),
            ),
            Panel(
                "Alerts",
                "Alerts that the administrator must look at; the log describes them.",
                ((_or_0(_gauge("alerts")), ""),),
                kind="stat",
                width=3,
                height=4,
                steps=_RED_FROM_1,
            ),
            Panel(
                "Blocked slices",
                "Slices that get no node pool because of back-off, a limit or an invalid request. Events on their pods "
                "say why.",
                ((_or_0(_gauge("slices", matchers=('phase="blocked"',))), ""),),
                kind="stat",
                width=3,
                height=4,
                steps=((None, "green"), (1, "orange")),
            ),
            Panel(
                "Chips in use",
                "Chips of node pools that pods run on.",
                ((_gauge("chips", matchers=('state="in_use"',)), ""),),
                kind="stat",
                width=3,
                height=4,
            ),
            Panel(
                "Chips idle",
                "Chips of node pools that nothing needs, during their deletion delay.",
                ((_gauge("chips", matchers=('state="idle"',)), ""),),
                kind="stat",
                width=3,
                height=4,
            ),
            Panel(
                "Releases",
                "Replicas by release. Investigate two lines that stay longer than an upgrade takes.",
                ((f"sum by (version) ({_series('build_info')})", "{{version}}"),),
                kind="stat",
                width=3,
                height=4,
            ),
        ),
    ),
    (
        "Capacity",
        (
            Panel(
                "Chips by state",
                "From requested to being deleted.",
                ((_gauge("chips", "state"), "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Slices by phase",
                "Slices that workloads request.",
                ((_gauge("slices", "phase"), "{{phase}}"),),
                stacked=True,
            ),
            Panel(
                "Node pools by phase",
                "Node pools that GKE has, or that are being created.",
                ((_gauge("node_pools", "phase"), "{{phase}}"),),
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
                _quantiles("slice_startup_seconds", "stage", window="1d")[:2],
                unit="s",
            ),
            Panel(
                "Longest wait",
                "For how long the longest waiting leader pod has been unschedulable.",
                (
                    (_worst("longest_wait_seconds"), "longest"),
                    (_worst("waiting_oldest_seconds", "cause"), "{{cause}}"),
                ),
                unit="s",
            ),
            Panel(
                "What slices are told",
                "Events that stand now, by reason; docs/reliability.md says when each is sent.",
                ((_gauge("notices", "reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Creates that back-off forbids",
                "Kinds of capacity, and slices, for which no create is allowed right now.",
                ((_gauge("backoff_blocking", "kind"), "{{kind}}"),),
                stacked=True,
            ),
            Panel(
                "Failing for",
                "Since when creates of a kind of capacity, or of a slice, have failed without a success.",
                ((_worst("backoff_oldest_seconds", "kind"), "{{kind}}"),),
                unit="s",
            ),
            Panel(
                "Failed node pools",
                "Node pools that failed after GKE had accepted their create.",
                ((_increase("node_pool_failures", "kind"), "{{kind}}"),),
                stacked=True,
            ),
        ),
    ),
    (
        "Limits",
        (
            Panel(
                "Use of limits",
                "How much of each limit is used; * is the one that uses most of those that a setting does not name.",
                (
                    (
                        f"{_worst('limit_used', 'limit', 'scope')} / ({_worst('limit', 'limit', 'scope')} > 0)",
                        "{{limit}} {{scope}}",
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Slices that a limit keeps out",
                "Slices that get no node pool because of a limit.",
                ((_gauge("limit_waiting_slices", "limit"), "{{limit}}"),),
                stacked=True,
            ),
            Panel(
                "Operations in progress",
                "Node pool operations of the cluster, and how many GKE takes at once as far as that is learned.",
                (
                    (_worst("gke_operations_in_flight"), "in progress"),
                    (f"{_worst('gke_operations_limit')} > 0", "limit after a rejection"),
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
                        _usage("chip_seconds", "workload_namespace", function="rate", window="10m"),
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
                        _usage("chip_seconds", "accelerator", "capacity", function="rate", window="10m"),
                        "{{accelerator}} {{capacity}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Chips by use",
                "Starting: no pod is bound yet. Running. Idle: nothing needs them. Draining: being deleted.",
                ((_usage("chip_seconds", "use", function="rate", window="10m"), "{{use}}"),),
                stacked=True,
            ),
            Panel(
                "Cost per hour by use",
                "What the chips that exist cost an hour, in the currency of CHIP_HOUR_PRICES.",
                ((_gauge("cost_per_hour", "use"), "{{use}}"),),
                stacked=True,
            ),
            Panel(
                "Cost of a day by namespace",
                "What the chips of each namespace cost in the day before, idle ones included.",
                (
                    (
                        _usage("cost", "workload_namespace", function="increase", window="1d"),
                        "{{workload_namespace}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Chips without a price",
                "Chips for which CHIP_HOUR_PRICES has no price: their cost is missing.",
                ((_gauge("unpriced_chips"), "chips"),),
            ),
        ),
    ),
    (
        "Creates and deletes",
        (
            Panel(
                "Creates by result",
                "Node pool creates that were submitted: ok, or how they failed.",
                ((_increase("creates", "result"), "{{result}}"),),
                stacked=True,
            ),
            Panel(
                "Deletes by reason and result",
                "Node pool deletes that were submitted: the reason, and ok or how they failed.",
                ((_increase("deletes", "reason", "result"), "{{reason}}: {{result}}"),),
                stacked=True,
            ),
            Panel(
                "Time to phase, over a day",
                "Time from a slice being wanted to its pool being provisioned, ready, and in use.",
                _quantiles("time_to_phase_seconds", "phase", window="1d")[:2],
                unit="s",
            ),
            Panel(
                "Back-off by kind",
                "Kinds of capacity whose last attempt failed, until an hour after the next attempt is allowed.",
                ((_gauge("backoff_active", "kind"), "{{kind}}"),),
                stacked=True,
            ),
            Panel(
                "Deletes blocked",
                "Node pools that should be deleted and are not, because unfinished pods are on them.",
                ((_gauge("deletes_blocked"), "node pools"),),
            ),
            Panel(
                "Overdue node pools",
                "For how long a node pool that nothing needs has been there beyond its deletion delay.",
                ((_worst("unneeded_overdue_seconds"), "longest"),),
                unit="s",
            ),
            Panel(
                "Alerts by kind",
                "Alerts that the administrator must look at; docs/reliability.md says what each kind means.",
                ((_gauge("alerts", "kind"), "{{kind}}"),),
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
                ((_rate("gke_request_duration_seconds_count", "method"), "{{method}}"),),
                unit="reqps",
            ),
            Panel(
                "Calls by status",
                "Calls a second by HTTP status; none: without an answer.",
                ((_rate("gke_requests_total", "code"), "{{code}}"),),
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Failed calls by method and kind",
                "Failed calls a second, by the kind of failure.",
                ((_rate("gke_request_errors_total", "method", "kind"), "{{method}}: {{kind}}"),),
                unit="reqps",
            ),
            Panel(
                "Duration of calls",
                "Quantiles over all methods, and the mean of each method.",
                (
                    *_quantiles("gke_request_duration_seconds"),
                    (_mean("gke_request_duration_seconds", "method"), "{{method}} mean"),
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
                ((_rate("rounds_total", "result"), "{{result}}"),),
                unit="ops",
            ),
            Panel(
                "Duration of rounds", "The duration of a whole round.", _quantiles("round_duration_seconds"), unit="s"
            ),
            Panel(
                "Duration of decisions",
                "The duration of the decision in a round.",
                _quantiles("decide_duration_seconds"),
                unit="s",
            ),
            Panel(
                "Lag of rounds",
                "Time from the first event that asks for a round to the beginning of the round.",
                _quantiles("loop_lag_seconds"),
                unit="s",
            ),
            Panel(
                "Age of the list of node pools",
                "How old the list is that the last decision was made on.",
                ((_worst("pool_list_age_seconds"), "age"),),
                unit="s",
            ),
            Panel(
                "Watches: since the last contact",
                "Time since each replica's list-watch last heard from the API server.",
                (
                    (
                        f"max by (pod, resource) ({_series('watch_last_contact_age_seconds')})",
                        "{{pod}} {{resource}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Watches without a complete picture",
                "List-watches of each replica that have not listed everything; the leader needs complete lists.",
                ((f"count by (pod, resource) ({_series('watch_synced')} == 0)", "{{pod}} {{resource}}"),),
            ),
            Panel(
                "Events dropped, and who leads",
                "Kubernetes Events a second that were not written: too many, or rejected. The leading replica is 1.",
                (
                    (f"sum(rate({_series('events_dropped_total')}[$__rate_interval]))", "dropped a second"),
                    (f"max by (pod) ({_series('leader')})", "{{pod}} leads"),
                ),
            ),
        ),
    ),
)


def _laid_out() -> Iterable[dict[str, Any]]:
    """Yield rows and panels, from left to right and downwards."""
    number, y = 0, 0
    for title, panels in _ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": _ROW_HEIGHT},
            "panels": [],
        }
        x, y = 0, y + _ROW_HEIGHT
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + panel.height
            number += 1
            yield panel.json(number, x=x, y=y)
            x += panel.width
        y += panels[-1].height
