"""The chart's alerts, evaluated by Prometheus' own engine on series as the controller exports them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import chart
from tests.deploy import tools
from tests.deploy.kit import NAMESPACE, only

#: A replica that leads and is well, and one that waits for the Lease: a sample a minute, and "1x30" is one and 30 more.
_LEADER = {
    'tpu_provisioner_build_info{pod="a",version="1"}': "1x30",
    'tpu_provisioner_leader{pod="a"}': "1x30",
    'tpu_provisioner_cluster_proven{pod="a"}': "1x30",
    'tpu_provisioner_loop_last_round_timestamp_seconds{pod="a"}': "0+60x30",
    'tpu_provisioner_alerts{pod="a",kind="mass_disappearance"}': "0x30",
}
_FOLLOWER = {
    'tpu_provisioner_build_info{pod="b",version="1"}': "1x30",
    'tpu_provisioner_leader{pod="b"}': "0x30",
    'tpu_provisioner_cluster_proven{pod="b"}': "0x30",
    'tpu_provisioner_loop_last_round_timestamp_seconds{pod="b"}': "0x30",
}
_WELL = _LEADER | _FOLLOWER
_MINUTES = 25


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    series: dict[str, str]
    #: Alerts that fire, from which to which minute.
    want: dict[str, tuple[int, int]] = field(default_factory=dict)


_CASES = (
    _Case("a leader and a follower that are well", _WELL),
    _Case("nothing is scraped", {}, {"TPUProvisionerAbsent": (10, _MINUTES)}),
    _Case(
        "scraped for five minutes and then no more",
        {series: values.replace("x30", "x5") for series, values in _WELL.items()},
        # A series counts for five minutes after its last sample.
        {"TPUProvisionerAbsent": (20, _MINUTES)},
    ),
    _Case("a restart of four minutes without a leader", _WELL | {'tpu_provisioner_leader{pod="a"}': "1x5 0x3 1x20"}),
    _Case(
        "nobody leads for ten minutes",
        _WELL | {'tpu_provisioner_leader{pod="a"}': "1x5 0x9 1x20"},
        {"TPUProvisionerWithoutLeader": (11, 16)},
    ),
    _Case(
        "the leader cannot prove its cluster",
        _WELL | {'tpu_provisioner_cluster_proven{pod="a"}': "0x30"},
        {"TPUProvisionerClusterNotProven": (10, _MINUTES)},
    ),
    _Case(
        "rounds end at minute 5",
        _WELL | {'tpu_provisioner_loop_last_round_timestamp_seconds{pod="a"}': "0+60x5 300x25"},
        # More than five minutes old at minute 11, and that for five minutes.
        {"TPUProvisionerLoopStalled": (16, _MINUTES)},
    ),
    _Case(
        "an alert of the controller that ends",
        _WELL | {'tpu_provisioner_alerts{pod="a",kind="mass_disappearance"}': "0x4 2x9 0x20"},
        {"TPUProvisionerAlert": (10, 15)},
    ),
)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the chart's rules as a file of Prometheus."""
    rendered = tools.run(
        "helm", "template", "test", str(chart.CHART), "--kube-version=1.30.0", f"--namespace={NAMESPACE}",
        "--set=image.repository=registry.example/controller,prometheusRule.enabled=true",
    )  # fmt: skip
    rule = only([each for each in yaml.safe_load_all(rendered) if each], "PrometheusRule")
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    return path


@pytest.mark.parametrize("case", _CASES, ids=[case.name for case in _CASES])
def test_alerts(case: _Case, rules: Path, tmp_path: Path) -> None:
    """Each alert fires in the minutes that are given and in no other, with its labels and words."""
    (group,) = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    known = {rule["alert"]: rule for rule in group["rules"]}
    assert case.want.keys() <= known.keys()
    expectations = [
        {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": _expected(rule, case, minute)}
        for alert, rule in known.items()
        for minute in range(_MINUTES)
    ]
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
                "alert_rule_test": expectations,
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test), encoding="utf-8")
    tools.run("promtool", "test", "rules", str(path))


def _expected(rule: dict[str, Any], case: _Case, minute: int) -> list[dict[str, Any]]:
    first, end = case.want.get(rule["alert"], (0, 0))
    if not first <= minute < end:
        return []
    more = {"kind": "mass_disappearance"} if "by (kind)" in rule["expr"] else {}
    said = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: more[found[1]], text)
        for name, text in rule["annotations"].items()
    }
    return [{"exp_labels": rule["labels"] | more, "exp_annotations": said}]


def test_every_alert_is_seen_to_fire(rules: Path) -> None:
    """No alert is without a case."""
    (group,) = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    assert {rule["alert"] for rule in group["rules"]} == {alert for case in _CASES for alert in case.want}
