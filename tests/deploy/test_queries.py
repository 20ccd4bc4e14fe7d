"""Every query of the dashboard and of docs/metrics.md, run by Prometheus' own engine on a simulated day's metrics."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from deploy import dashboard
from tests.deploy import tools
from tests.deploy.day import SCRAPE_SECONDS, a_day

#: What Grafana fills in. Its rate interval is four times the scrape interval.
_VARIABLES = {"$cluster": ".*", "$namespace": ".*", "$__rate_interval": f"{4 * SCRAPE_SECONDS}s"}
_METRICS_TABLE = Path(__file__).parents[2] / "docs" / "metrics_table.py"


def _of_dashboard() -> list[str]:
    panels = json.loads(dashboard.PATH.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def _of_documentation() -> list[str]:
    spec = importlib.util.spec_from_file_location("metrics_table", _METRICS_TABLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [query.replace("[5m]", f"[{4 * SCRAPE_SECONDS}s]") for query in module.examples()]


def _filled(query: str) -> str:
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    return query


def _has_data(query: str) -> str:
    """Return a query for 1 where another has data at some time of the day: looked at every ten minutes, or at its end.

    The engine of promtool loads few samples at once, so what loads a whole day is looked at once.
    """
    found = f"count({query}) > bool 0"
    return found if "[1d]" in query else f"max_over_time(({found})[1d:10m])"


@pytest.mark.timeout(180)  # A day of a controller, and its queries, take ten seconds of a core.
def test_every_query_gives_data_on_a_simulated_day(tmp_path: Path) -> None:
    """None is empty for a mistake in a name, a label or a matcher."""
    queries = [_filled(query) for query in (*_of_dashboard(), *_of_documentation())]
    assert len(queries) > 80
    path = tmp_path / "test.yaml"
    day = {
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": a_day(),
        "promql_expr_test": [
            {"expr": _has_data(query), "eval_time": "1d", "exp_samples": [{"labels": "{}", "value": 1}]}
            for query in dict.fromkeys(queries)
        ],
    }
    # JSON is YAML, and written much faster.
    path.write_text(json.dumps({"evaluation_interval": "1h", "tests": [day]}), encoding="utf-8")
    tools.run("promtool", "test", "rules", str(path))
