"""Defines Grafana dashboards: panels, their layout, and their queries.

Replicas that do not lead also export metrics, so a gauge is the maximum over an installation's replicas, summed
over the installations that the variables `cluster` and `namespace` select. If Prometheus has no label `cluster`, "All"
includes everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

#: Data source of all panels. The variable has no braces, because Flux replaces variables in braces (postBuild).
_DATASOURCE = {"type": "prometheus", "uid": "$datasource"}
_CHOSEN = 'cluster=~"$cluster",namespace=~"$namespace"'
_ROW_HEIGHT = 1
_COLUMNS = 24
_QUANTILES = ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))
Steps = tuple[tuple[float | None, str], ...]
RED_BELOW_1: Steps = ((None, "red"), (1, "green"))
RED_FROM_1: Steps = ((None, "green"), (1, "red"))


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: its queries with their legends, and its appearance."""

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    #: For a panel of a single value: texts by value, and the values from which its color changes.
    texts: dict[str, str] = field(default_factory=dict)
    steps: Steps = ((None, "green"),)

    def json(self, number: int, *, x: int, y: int) -> dict[str, Any]:
        """Return the panel in Grafana's format."""
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


def stat(
    title: str,
    description: str,
    query: str,
    *,
    legend: str = "",
    width: int = 4,
    unit: str = "short",
    texts: dict[str, str] | None = None,
    steps: Steps = ((None, "green"),),
) -> Panel:
    """Return a panel of a single value."""
    return Panel(
        title,
        description,
        ((query, legend),),
        unit=unit,
        kind="stat",
        width=width,
        height=4,
        texts=texts or {},
        steps=steps,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dashboard:
    """A dashboard; its `uid` is the name of its file."""

    uid: str
    title: str
    description: str
    tags: tuple[str, ...]
    #: Prefix of the metrics on the dashboard.
    prefix: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    def json(self) -> dict[str, Any]:
        """Return the dashboard in Grafana's format."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": list(self.tags),
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "browser",
            "links": [],
            "annotations": {"list": []},
            "templating": {
                "list": [
                    {
                        "name": "datasource",
                        "label": "Data source",
                        "type": "datasource",
                        "query": "prometheus",
                        "refresh": 1,
                    },
                    self._variable("cluster"),
                    self._variable("namespace"),
                ]
            },
            "panels": list(self._laid_out()),
        }

    def content(self) -> str:
        """Return the content of the file."""
        return json.dumps(self.json(), indent=2) + "\n"

    def _variable(self, label: str) -> dict[str, Any]:
        return {
            "name": label,
            "label": label.capitalize(),
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": f"label_values({self.prefix}build_info, {label})", "refId": label},
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "sort": 1,
            "current": {"text": "All", "value": "$__all"},
        }

    def _laid_out(self) -> Iterable[dict[str, Any]]:
        number, y = 0, 0
        for title, panels in self.rows:
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


@dataclass(frozen=True, slots=True)
class Queries:
    """Builds queries for the metrics of one process; methods get names of metrics without the prefix."""

    prefix: str

    def series(self, name: str, *matchers: str) -> str:
        """Return a query for all series of a metric in the selected installations."""
        return f"{self.prefix}{name}{{{','.join((_CHOSEN, *matchers))}}}"

    def gauge(self, name: str, *labels: str, summed: tuple[str, ...] = (), matchers: tuple[str, ...] = ()) -> str:
        """Return the maximum over each installation's replicas, summed over installations and the labels `summed`."""
        grouping = ", ".join(("cluster", "namespace", *labels, *summed))
        inner = f"max by ({grouping}) ({self.series(name, *matchers)})"
        return f"sum by ({', '.join(labels)}) ({inner})" if labels else f"sum({inner})"

    def worst(self, name: str, *labels: str) -> str:
        """Return a query for the maximum over all replicas."""
        return f"max by ({', '.join(labels)}) ({self.series(name)})" if labels else f"max({self.series(name)})"

    def known(self, name: str) -> str:
        """Return a query for the minimum over installations of the maximum over replicas."""
        return f"min(max by (cluster, namespace) ({self.series(name)}))"

    def since(self, name: str) -> str:
        """Return a query for the seconds since a time stamp, in the installation with the oldest time stamp."""
        return f"time() - {self.known(name)}"

    def growth(
        self,
        name: str,
        *labels: str,
        function: str = "increase",
        window: str = "$__rate_interval",
        matchers: tuple[str, ...] = (),
    ) -> str:
        """Return a query for the growth of a counter, which begins at zero in each process."""
        by = f"sum by ({', '.join(labels)}) " if labels else "sum"
        return f"{by}({function}({self.series(f'{name}_total', *matchers)}[{window}]))"

    def rate(self, name: str, *labels: str) -> str:
        """Return a query for the rate of a series of a counter or histogram."""
        return f"sum by ({', '.join(labels)}) (rate({self.series(name)}[$__rate_interval]))"

    def mean(self, name: str, *labels: str) -> str:
        """Return a query for the mean of a histogram."""
        return f"{self.rate(f'{name}_sum', *labels)} / {self.rate(f'{name}_count', *labels)}"

    def quantiles(self, name: str, *labels: str, window: str = "$__rate_interval") -> tuple[tuple[str, str], ...]:
        """Return queries for the quantiles of a histogram, each with its legend."""
        legend = "".join(f"{{{{{label}}}}} " for label in labels)
        by = ", ".join(("le", *labels))
        buckets = f"sum by ({by}) (rate({self.series(f'{name}_bucket')}[{window}]))"
        return tuple((f"histogram_quantile({quantile}, {buckets})", f"{legend}{said}") for quantile, said in _QUANTILES)


def or_0(query: str) -> str:
    """Return a query that gives 0 without series, because a kind or phase that never occurred has no series."""
    return f"{query} or vector(0)"
