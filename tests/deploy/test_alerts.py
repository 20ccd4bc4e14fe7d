"""Tests of alerts with Prometheus' own engine, of their runbooks, and of the alert policies for Google Cloud."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import alerts, chart
from generators.alert_form import ENDS, RUNBOOKS
from provisioner.nodegroups.metrics import Metrics as NodeGroupMetrics
from provisioner.partitions.metrics import Metrics as PartitionMetrics
from provisioner.slices.metrics import PREFIX, Metrics
from provisioner.webhook.app import Metrics as WebhookMetrics
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, only
from tests.support.metrics_table import described

_ROOT = DEPLOY.parent


def _controller(prefix: str, pods: tuple[str, str], known: str, watched: str) -> dict[str, str]:
    """Return a healthy leader's and follower's series, one sample a minute; "1x90" is 1, repeated 90 times."""
    leads, waits = pods
    return {
        f'{prefix}build_info{{pod="{leads}",version="1"}}': "1x90",
        f'{prefix}leader{{pod="{leads}"}}': "1x90",
        f'{prefix}{known}{{pod="{leads}"}}': "1x90",
        f'{prefix}loop_last_round_timestamp_seconds{{pod="{leads}"}}': "0+60x90",
        f'{prefix}watch_last_contact_age_seconds{{pod="{leads}",resource="{watched}"}}': "20x90",
        f'{prefix}leader{{pod="{waits}"}}': "0x90",
        f'{prefix}{known}{{pod="{waits}"}}': "0x90",
        f'{prefix}loop_last_round_timestamp_seconds{{pod="{waits}"}}': "0x90",
    }


_SLICES = _controller("", ("a", "b"), "cluster_proven", "pods") | {
    'alerts{pod="a",kind="mass_disappearance"}': "0x90",
    'alerts{pod="a",kind="pool_stuck"}': "0x90",
    'alerts{pod="a",kind="node_change_rejected"}': "0x90",
    'unneeded_overdue_seconds{pod="a"}': "0x90",
    'unneeded_overdue_seconds{pod="b"}': "0x90",
    'notices{pod="a",reason="SliceStuck"}': "0x90",
    'split_slices{pod="a"}': "0x90",
    'split_slices{pod="b"}': "0x90",
    'notices{pod="a",reason="NodePoolCreationWaiting"}': "3x90",
    'backoff_oldest_seconds{pod="a",kind="stockout"}': "9999x90",
    'longest_wait_seconds{pod="a"}': "99999x90",
    'waiting_oldest_seconds{pod="a",cause="stockout"}': "0x90",
    'waiting_oldest_seconds{pod="a",cause="quota"}': "99999x90",
    'waiting_oldest_seconds{pod="a",cause="MAX_CHIPS"}': "9999x90",
    'limit_waiting_slices{pod="a",limit="MAX_CHIPS"}': "5x90",
}
_WEBHOOK = {
    'webhook_build_info{pod="w",version="1"}': "1x90",
    'webhook_certificates_problem{pod="w"}': "0x90",
    'webhook_reviews_total{pod="w",hook="environment",outcome="patched"}': "0+100x90",
    'webhook_reviews_total{pod="w",hook="environment",outcome="failed"}': "0x90",
    'webhook_reviews_total{pod="w",hook="environment",outcome="malformed"}': "0x90",
    'webhook_reviews_total{pod="w",hook="environment",outcome="busy"}': "0x90",
    'webhook_review_duration_seconds_bucket{pod="w",hook="environment",le="1.0"}': "0+100x90",
    'webhook_review_duration_seconds_bucket{pod="w",hook="environment",le="5.0"}': "0+100x90",
    'webhook_review_duration_seconds_bucket{pod="w",hook="environment",le="+Inf"}': "0+100x90",
}
_NODE_GROUPS = _controller("nodegroups_", ("n", "o"), "cluster_known", "secrets") | {
    'nodegroups_groups{pod="n",reason="Ready"}': "3x90",
    'nodegroups_reason_oldest_seconds{pod="n",reason="Ready"}': "99999x90",
    'nodegroups_decisions_crashed_total{pod="n"}': "0x90",
    'nodegroups_orphans{pod="n",project="p"}': "0x90",
    'nodegroups_orphans{pod="n",project="q"}': "0x90",
}
_PARTITIONS = _controller("partitions_", ("i", "j"), "ledger_known", "pods") | {
    'partitions_server_readable{pod="i",server="vipu-1:8090"}': "1x90",
    'partitions_server_readable{pod="i",server="vipu-2:8090"}': "1x90",
    'partitions_oldest_wait_seconds{pod="i"}': "0x90",
    'partitions_oldest_wait_ipus{pod="i"}': "0x90",
    'partitions_ipus_free{pod="i",server="vipu-1:8090",allocation="a"}': "8x90",
    'partitions_ipus_free{pod="i",server="vipu-2:8090",allocation="a"}': "0x90",
    'partitions_partitions{pod="i",phase="active"}': "5x90",
    'partitions_partitions{pod="i",phase="orphan"}': "0x90",
    'partitions_decision_faults_total{pod="i"}': "0x90",
    'partitions_oldest_wait_seconds{pod="j"}': "0x90",
    'partitions_oldest_wait_ipus{pod="j"}': "0x90",
}
_WELL = _SLICES | _WEBHOOK | _NODE_GROUPS | _PARTITIONS
#: Minute later than all cases; in `want`, the end of an alert that still fires when its case ends.
_END = 1000


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    #: Series of the case by name; each replaces the series of that name of a healthy replica.
    series: dict[str, str]
    #: First minute in which each alert fires, and first later minute in which it does not.
    want: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Labels that the alerts in `want` must have.
    labels: dict[str, str] = field(default_factory=dict)
    minutes: int = 50


def _of_every_controller(
    alert: str, prefix: str, pod: str, known: str, unknown: str, watched: str
) -> tuple[_Case, ...]:
    leader, is_known = f'{prefix}leader{{pod="{pod}"}}', f'{prefix}{known}{{pod="{pod}"}}'
    rounds = f'{prefix}loop_last_round_timestamp_seconds{{pod="{pod}"}}'
    age = f'{prefix}watch_last_contact_age_seconds{{pod="{pod}",resource="{watched}"}}'
    return (
        _Case(f"{alert}: nobody leads for ten minutes", {leader: "1x5 0x9 1x80"}, {f"{alert}WithoutLeader": (11, 16)}),
        _Case(
            f"{alert}: who leads does not know what it has to",
            {is_known: "1x4 0x85"},
            {f"{alert}{unknown}": (15, _END)},
        ),
        # At minute 11, the last round is more than 5 minutes old; the alert fires after 5 more minutes.
        _Case(f"{alert}: rounds end at minute 5", {rounds: "0+60x5 300x85"}, {f"{alert}LoopStalled": (16, _END)}),
        # At minute 8, the watch has been silent for more than 150 s; the alert fires after 5 more minutes.
        _Case(
            f"{alert}: a watch falls silent at minute 5",
            {age: "20x4 0+60x40 20x44"},
            {f"{alert}WatchStale": (13, 46)},
            {"pod": pod, "resource": watched},
        ),
    )


#: Alerts that depend on one series: alert, series, values, minutes in which the alert fires (as in `_Case.want`),
#: duration of the case in minutes, and labels of the series that the alert has.
_OF_ONE_SERIES: tuple[tuple[str, str, str, tuple[int, int], int, tuple[str, ...]], ...] = (
    ("IPUPartitionsServerUnreadable", 'partitions_server_readable{pod="i",server="vipu-2:8090"}', "1x4 0x29 1x56",
     (20, 35), 50, ("server",)),
    ("IPUPartitionsOrphans", 'partitions_partitions{pod="i",phase="orphan"}', "0x4 2x85", (35, _END), 50, ()),
    ("TPUNodeGroupsOrphans", 'nodegroups_orphans{pod="n",project="q"}', "0x4 2x85", (35, _END), 50, ("project",)),
    *(
        (alert, f'nodegroups_reason_oldest_seconds{{pod="n",reason="{reason}"}}', values, minutes, last, ("reason",))
        for alert, reason, values, minutes, last in (
            ("TPUNodeGroupsRejected", "RequestRejected", "0+60x90", (17, _END), 50),
            ("TPUNodeGroupsWaitForCapacity", "InstancesCreationFailed", "0+60x70 0x19", (62, 71), 80),
            ("TPUNodeGroupsWaitForCapacity", "LimitReached", "0+60x70 0x19", (62, 71), 80),
            # Two groups that join within 20 minutes each fire no alert; the third group, which does not join, does.
            ("TPUNodeGroupsNotJoining", "AwaitingNodeJoin", "0+60x20 0+60x20 0+60x50", (74, _END), 90),
            ("TPUNodeGroupsNodeLost", "NodeLost", "0x9 0+60x80", (42, _END), 50),
            ("TPUNodeGroupsDeleteHeldUp", "DrainingNodes", "0+60x150", (122, _END), 150),
            ("TPUNodeGroupsDeleteHeldUp", "Recreating", "0+60x150", (122, _END), 150),
        )
    ),
    ("TPUProvisionerMassDisappearance", 'alerts{pod="a",kind="mass_disappearance"}', "0x4 2x9 0x76", (6, 15), 50, ()),
    ("TPUProvisionerNodePoolStuck", 'alerts{pod="a",kind="pool_stuck"}', "0x4 2x9 0x76", (10, 15), 50, ()),
    ("TPUProvisionerNodeChangeRejected", 'alerts{pod="a",kind="node_change_rejected"}', "0x4 1x9 0x76", (10, 15), 50,
     ()),
    ("TPUProvisionerNodePoolLeak", 'unneeded_overdue_seconds{pod="a"}', "0+60x90", (71, _END), 80, ()),
    ("TPUProvisionerSliceStuck", 'notices{pod="a",reason="SliceStuck"}', "0x4 1x85", (15, _END), 50, ()),
    ("TPUProvisionerSliceSplit", 'split_slices{pod="a"}', "0x4 2x85", (20, _END), 50, ()),
    # The wait exceeds half an hour at minute 31; the alert fires after 10 more minutes.
    ("TPUProvisionerStockout", 'waiting_oldest_seconds{pod="a",cause="stockout"}', "0+60x60 0x29", (41, 61), 80, ()),
    # The wait exceeds twelve hours at minute 4; the alert fires after 60 more minutes.
    ("TPUProvisionerLimitReached", 'waiting_oldest_seconds{pod="a",cause="MAX_CHIPS"}', "43000+60x90", (64, _END), 80,
     ("cause",)),
    ("TPUProvisionerWebhookCertificates", 'webhook_certificates_problem{pod="w"}', "0x4 1x39 0x46", (35, 45), 50, ()),
)  # fmt: skip


def _labels_of(series: str, *names: str) -> dict[str, str]:
    return {name: value for name, value in re.findall(r'(\w+)="([^"]*)"', series) if name in names}


#: Alerts with their labels, by the counter of failures that triggers them.
_FAULTS: dict[str, tuple[str, dict[str, str]]] = {
    'partitions_decision_faults_total{pod="i"}': ("IPUPartitionsDecisionFaults", {}),
    'nodegroups_decisions_crashed_total{pod="n"}': ("TPUNodeGroupsDecisionFaults", {}),
    **{
        f'webhook_reviews_total{{pod="w",hook="environment",outcome="{outcome}"}}': (
            "TPUProvisionerWebhookFailing",
            {"hook": "environment", "outcome": outcome},
        )
        for outcome in ("failed", "malformed", "busy")
    },
}
_CASES = (
    *_of_every_controller("TPUProvisioner", "", "a", "cluster_proven", "ClusterNotProven", "pods"),
    *_of_every_controller("TPUNodeGroups", "nodegroups_", "n", "cluster_known", "ClusterUnknown", "secrets"),
    *_of_every_controller("IPUPartitions", "partitions_", "i", "ledger_known", "LedgerUnknown", "pods"),
    *(
        _Case(
            f"{alert}: what was there within a day goes at minute 5",
            {f'{prefix}build_info{{pod="{pod}",version="1"}}': "1x5"},
            {alert: (20, _END)},
        )
        for alert, prefix, pod in (
            ("IPUPartitionsAbsent", "partitions_", "i"),
            ("TPUNodeGroupsAbsent", "nodegroups_", "n"),
            ("TPUProvisionerAbsent", "", "a"),
            ("TPUProvisionerWebhookAbsent", "webhook_", "w"),
        )
    ),
    # The query sees the faults from minute 10 to 18; the alert fires after one more minute.
    *(
        _Case(f"{alert}: three faults within a minute {labels or ''}", {series: "0x9 3x80"}, {alert: (11, 19)}, labels)
        for series, (alert, labels) in _FAULTS.items()
    ),
    _Case("a leader and a follower that are well", {}),
    _Case(
        "nothing is scraped",
        dict.fromkeys(_WELL, ""),
        {"TPUProvisionerAbsent": (10, _END)},
    ),
    _Case(
        "the provisioner of one of two clusters goes at minute 5",
        {'build_info{cluster="x",pod="a",version="1"}': "1x5"},
        {"TPUProvisionerAbsent": (20, _END)},
        {"cluster": "x"},
    ),
    _Case(
        "nobody leads in one of two clusters with the same name in two locations",
        {f'leader{{cluster="x",location="{place}",pod="a"}}': f"{value}x90" for place, value in (("y", 0), ("z", 1))},
        {"TPUProvisionerWithoutLeader": (5, _END)},
        {"cluster": "x", "location": "y"},
    ),
    _Case("node groups alone, for more than a day", dict.fromkeys(_SLICES | _PARTITIONS | _WEBHOOK, "")),
    _Case("the webhook server alone, for more than a day", dict.fromkeys(_SLICES | _PARTITIONS | _NODE_GROUPS, "")),
    _Case("no node groups, ever", dict.fromkeys(_NODE_GROUPS, "")),
    _Case("no webhook server, ever", dict.fromkeys(_WEBHOOK, "")),
    _Case("a restart of four minutes without a leader", {'leader{pod="a"}': "1x5 0x3 1x80"}),
    _Case(
        "nobody leads partitions, nor knows their ledger",
        {'partitions_leader{pod="i"}': "0x90", 'partitions_ledger_known{pod="i"}': "0x90"},
        {"IPUPartitionsWithoutLeader": (5, _END)},
    ),
    _Case(
        "a pod that waits while as many IPUs are free",
        {'partitions_oldest_wait_seconds{pod="i"}': "0+60x150", 'partitions_oldest_wait_ipus{pod="i"}': "8x150"},
        # The wait exceeds an hour at minute 61; the alert fires after 30 more minutes.
        {"IPUPartitionsPodWaits": (91, _END)},
        minutes=120,
    ),
    _Case(
        "the right to list MachineConfigs is missing since an upgrade",
        {
            'source_unknown{pod="a",source="machineconfigs"}': "0x4 1x85",
            'watch_last_contact_age_seconds{pod="a",resource="machineconfigs"}': "9999x90",
        },
        {"TPUProvisionerSourceUnknown": (15, _END)},
        {"source": "machineconfigs"},
    ),
    _Case(
        "reviews of which one in fifty takes four seconds",
        {
            f'webhook_review_duration_seconds_bucket{{pod="w",hook="environment",le="{bound}"}}': f"0+{count}x90"
            for bound, count in (("1.0", 98), ("5.0", 100), ("+Inf", 100))
        },
        {"TPUProvisionerWebhookSlow": (11, _END)},
        {"hook": "environment"},
    ),
    *(
        _Case(f"{series}: {values}", {series: values}, {alert: minutes}, _labels_of(series, *shown), minutes=last)
        for alert, series, values, minutes, last, shown in _OF_ONE_SERIES
    ),
)


def _chart_rules(**values: str) -> dict[str, Any]:
    made = {
        "image": {"repository": "registry.example/controller"},
        "prometheusRule": {"enabled": True, **values},
    }
    return only(tools.template(chart.CHART, made, namespace=NAMESPACE), "PrometheusRule")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(_chart_rules()["spec"]), encoding="utf-8")
    return path


def test_alert_fires_only_in_its_minutes_with_its_labels_and_texts(rules: Path, tmp_path: Path) -> None:
    (group,) = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    known = {rule["alert"]: rule for rule in group["rules"]}
    tests = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [_test(case, known) for case in _CASES]}
    path = tmp_path / "test.yaml"
    path.write_text(json.dumps(tests), encoding="utf-8")
    tools.run("promtool", "test", "rules", str(path))


def _test(case: _Case, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    assert case.want.keys() <= known.keys()
    last = f"x{case.minutes + 10}"
    series = {name: values.replace("x90", last) for name, values in (_WELL | case.series).items() if values}
    return {
        "name": case.name,
        "interval": "1m",
        "input_series": [{"series": PREFIX + name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": _expected(rule, case, minute)}
            for alert, rule in known.items()
            # Alerts that must not fire are evaluated only every fifth minute.
            for minute in range(0, case.minutes, 1 if alert in case.want else 5)
        ],
    }


def _expected(rule: dict[str, Any], case: _Case, minute: int) -> list[dict[str, Any]]:
    first, end = case.want.get(rule["alert"], (0, 0))
    if not first <= minute < end:
        return []
    said = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
        for name, text in rule["annotations"].items()
    }
    return [{"exp_labels": rule["labels"] | case.labels, "exp_annotations": said}]


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert {rule.name for rule in alerts.RULES} == {alert for case in _CASES for alert in case.want}


def test_description_of_an_alert_that_ends_after_a_day_names_its_end() -> None:
    """The alert ends when the controller has not run for a day, although node pools may still cost money."""
    ending = [rule for rule in alerts.RULES if "last_over_time" in rule.query]
    assert ending
    assert all(ENDS in rule.description for rule in ending)


def test_query_of_an_alert_uses_only_exported_metrics_and_labels() -> None:
    """If a metric were renamed only in the code, the alert would never fire again."""
    kinds = (Metrics, WebhookMetrics, NodeGroupMetrics, PartitionMetrics)
    metrics = [kind(version="test") for kind in kinds]
    registries = [metric.registry for metric in metrics]
    exported = {metric.name: set(metric.labels) for registry in registries for metric in described(registry)}
    for rule in alerts.RULES:
        found = re.findall(rf"({PREFIX}\w+?)(?:_bucket)?\b(?:\{{(\w+)=)?", rule.query)
        assert found
        for name, label in found:
            assert name in exported
            assert not label or label in exported[name]


def test_every_alert_in_the_log_of_the_controller_has_a_rule() -> None:
    """The rule reports the problem to administrators who do not read the log."""
    kinds = {
        kind
        for path in (_ROOT / "provisioner" / "slices" / "messages").rglob("*.py")
        for kind in re.findall(r"Alert\(\s*kind=\"(\w+)\"", path.read_text(encoding="utf-8"))
    }
    assert len(kinds) >= 2
    for kind in kinds:
        assert [rule.name for rule in alerts.RULES if f'kind="{kind}"' in rule.query], kind


# --- Runbooks ---


def test_each_rule_has_a_runbook_and_each_runbook_a_rule() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (_ROOT / RUNBOOKS).glob("*.md")}
    index = pages.pop("README.md")
    assert sorted(re.findall(r"(?m)^- \[[^]]+\]\((\S+\.md)\)", index)) == sorted(pages)
    sections = {
        f"{name}#{title.lower().replace(' ', '-')}": text
        for name, page in pages.items()
        for title, text in re.findall(r"(?ms)^## ([^\n]+)\n\n(.+?)(?=^## |\Z)", page)
    }
    assert set(sections) == {rule.runbook for rule in alerts.RULES}
    for runbook, text in sections.items():
        rules = [rule for rule in alerts.RULES if rule.runbook == runbook]
        assert re.match(rf"\*\*{', '.join(rule.name for rule in rules)}\*\* fires? ", text), runbook
        assert "**Find the cause" in text.partition("**What to do")[0], runbook
        assert "**What to do" in text, runbook


def test_alert_links_its_runbook_if_the_values_have_the_address() -> None:
    address = "https://wiki.example/tpu"
    for runbooks in ("", address):
        (group,) = _chart_rules(**({"runbooks": runbooks} if runbooks else {}))["spec"]["groups"]
        assert group["rules"] == [rule.json(runbooks) for rule in alerts.RULES]
        links = {rule["annotations"].get("runbook_url") for rule in group["rules"]}
        assert links == ({f"{address}/{rule.runbook}" for rule in alerts.RULES} if runbooks else {None})
    for rule in alerts.RULES:
        assert f"{RUNBOOKS}/{rule.runbook} in" in rule.json()["annotations"]["description"]


# --- Installation of the rules ---


def test_rules_of_kustomize_and_chart_are_equal(tmp_path: Path) -> None:
    (made,) = tools.built(tmp_path, "prometheus-rule")
    assert made["kind"] == "PrometheusRule"
    assert made["metadata"]["namespace"] == NAMESPACE
    assert made["spec"] == _chart_rules()["spec"]


def test_policies_of_google_cloud_satisfy_the_limits_of_its_api() -> None:
    policies = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in alerts.POLICIES.iterdir()}
    assert policies.keys() == {rule.slug for rule in alerts.RULES}
    for policy in policies.values():
        assert policy["severity"] in ("CRITICAL", "ERROR", "WARNING")
        (condition,) = policy["conditions"]
        promql = condition["conditionPrometheusQueryLanguage"]
        # Without this field, Google Cloud rejects policies on metrics without samples, as of products that do not run.
        assert promql["disableMetricValidation"] is True
        for name in ("duration", "evaluationInterval"):
            seconds = re.fullmatch(r"([0-9]+)s", promql[name])
            assert seconds is not None
            # The API accepts only multiples of 30 s.
            assert int(seconds[1]) % 30 == 0
        text = policy["documentation"]["content"]
        assert len(text.encode()) < 8192
        assert "<" not in text
