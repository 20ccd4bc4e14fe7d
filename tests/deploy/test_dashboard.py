"""Tests of the Grafana dashboards: their queries, their panels, and their installation by charts and kustomize."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from generators import chart, dashboard
from generators.dashboard_form import Dashboard
from provisioner.nodegroups.metrics import Metrics as NodeGroupMetrics
from provisioner.partitions.metrics import Metrics as PartitionMetrics
from provisioner.slices.metrics import PREFIX, Metrics
from provisioner.webhook.app import Metrics as WebhookMetrics
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, only
from tests.support.metrics_table import described, examples

#: Labels that Prometheus adds to scraped series; the label `cluster` only if it is configured.
_OF_THE_SCRAPE = {"cluster", "namespace", "pod"}
#: Metrics that processes of any program export. They are on no panel, because dashboards of pods show them.
_ON_NO_PANEL = {
    "process_cpu_seconds",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
}
_VARIABLES = {"datasource", "cluster", "namespace", "__rate_interval", "__all"}
_SERIES = re.compile(r"(tpu_provisioner_\w+)\{([^}]*)\}")
_SUMMED = re.compile(r"sum(?: by \([^)]*\) )?\(max by \(([^)]*)\) \((\w+)\{([^}]*)\}")
_BY = re.compile(r"\bby \(([^)]*)\)")


_METRICS: dict[Dashboard, type[Metrics | NodeGroupMetrics | WebhookMetrics | PartitionMetrics]] = {
    dashboard.SLICES: Metrics,
    dashboard.NODE_GROUPS: NodeGroupMetrics,
    dashboard.WEBHOOK: WebhookMetrics,
    dashboard.PARTITIONS: PartitionMetrics,
}
_each = pytest.mark.parametrize("board", _METRICS, ids=lambda board: board.uid)


def _exposed(board: Dashboard) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for metric in described(_METRICS[board](version="test").registry):
        name, labels = metric.name, set(metric.labels)
        if metric.kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


def _panels(board: Dashboard) -> list[dict[str, Any]]:
    return [panel for panel in board.json()["panels"] if panel["type"] != "row"]


def _queries(board: Dashboard) -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in _panels(board) for target in panel["targets"]]


@_each
def test_query_of_a_dashboard_uses_exported_metrics_and_labels(board: Dashboard) -> None:
    exposed = _exposed(board)
    for query, legend in _queries(board):
        series = _SERIES.findall(query)
        assert len(series) == query.count(PREFIX), query
        grouped = {label for labels in _BY.findall(query) for label in labels.split(", ")}
        for name, matchers in series:
            named = set(re.findall(r"(\w+)(?==~?\")", matchers))
            assert {"cluster", "namespace"} <= named, query
            assert named | grouped <= exposed[name] | _OF_THE_SCRAPE, query
        for labels, name, matchers in _SUMMED.findall(query):
            # All labels must be kept: a maximum over different series would make the sum too low.
            alike = set(re.findall(r"(\w+)=\"", matchers))
            assert exposed[name] - alike <= set(labels.split(", ")), query
        outermost = set(_BY.findall(query)[0].split(", ")) if _BY.search(query) else set()
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= outermost, query


def test_queries_are_valid_promql_and_match_values_of_the_code(tmp_path: Path) -> None:
    """A wrong value of a label would leave a panel empty."""
    queries = [query for board in _METRICS for query, _ in _queries(board)] + examples()
    assert len(queries) > 100
    filled = [query.replace("$__rate_interval", "5m").replace("$", "") for query in queries]
    rules = [{"record": f"tried:{number}", "expr": query} for number, query in enumerate(filled)]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "tried", "rules": rules}]}), encoding="utf-8")
    tools.run("promtool", "check", "rules", "--lint=none", str(path))
    code = "".join(file.read_text(encoding="utf-8") for file in (DEPLOY.parent / "provisioner").rglob("*.py"))
    values = {
        value
        for query in queries
        for label, text in re.findall(r'(\w+)=~?"([^"$]+)"', query)
        if label not in _OF_THE_SCRAPE
        for value in re.findall(r"\w+", text)
    }
    assert len(values) >= 5
    assert {value for value in values if f'"{value}"' not in code} == set()


def test_every_metric_of_slices_is_on_a_panel() -> None:
    """The dashboards of node groups, partitions and the webhook server show only some of their metrics."""
    shown = {
        re.sub(r"_(?:bucket|count|sum|total)$", "", name)
        for query, _ in _queries(dashboard.SLICES)
        for name, _ in _SERIES.findall(query)
    }
    families = {family.name for family in Metrics(version="test").registry.collect()}
    # The comparison is not for equality: on systems other than Linux, a process exports fewer metrics about itself.
    assert families - shown <= _ON_NO_PANEL


@_each
def test_panels_have_unique_ids_and_titles_and_known_variables(board: Dashboard) -> None:
    everything = board.json()
    panels = everything["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in _panels(board):
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "$datasource"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert set(re.findall(r"\$\{?(\w+)", board.content())) == _VARIABLES
    assert {entry["name"] for entry in everything["templating"]["list"]} == _VARIABLES - {"__rate_interval", "__all"}


def test_top_panels_show_cost_use_and_waiting_slices() -> None:
    top = [panel["title"] for panel in _panels(dashboard.SLICES)[:4]]
    assert top == ["Cost per hour", "Chips running", "Waiting slices", "Longest wait"]


@pytest.mark.parametrize(
    "values", [{}, {"namespace": "monitoring", "labels": {"team": "ml"}, "annotations": {"grafana_folder": "TPU"}}]
)
@pytest.mark.parametrize("name", dashboard.BY_CHART)
def test_chart_installs_dashboards_where_grafana_looks_for_them(name: str, values: dict[str, Any]) -> None:
    """Grafana's sidecar finds the ConfigMap by its label."""
    given: dict[str, Any] = {"image": {"repository": "registry.example/controller"}}
    given |= {"dashboards": {"enabled": True, **values}} | (
        {"vipuServerAddr": "vipu"} if name != chart.CHART.name else {}
    )
    objects = tools.template(chart.CHART.parent / name, given, namespace=NAMESPACE)
    made = only([document for document in objects if document["metadata"]["name"].endswith("-dashboards")], "ConfigMap")
    metadata = made["metadata"]
    assert metadata["labels"].items() >= {"grafana_dashboard": "1", **values.get("labels", {})}.items()
    assert metadata.get("annotations") == values.get("annotations")
    assert metadata["namespace"] == values.get("namespace", NAMESPACE)
    _has(made, dashboard.BY_CHART[name])


def test_kustomize_installs_dashboards_where_grafana_looks_for_them(tmp_path: Path) -> None:
    (made,) = tools.built(tmp_path, "dashboards")
    assert made["metadata"]["name"] == "tpu-provisioner-dashboards"
    assert made["metadata"]["namespace"] == NAMESPACE
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    _has(made, tuple(_METRICS))


def _has(made: dict[str, Any], boards: tuple[Dashboard, ...]) -> None:
    found = {name: json.loads(text) for name, text in made["data"].items()}
    assert found == {f"{board.uid}.json": board.json() for board in boards}
