"""Tests of the metrics of slices and node pools: names, labels and values."""

from __future__ import annotations

from provisioner.model.capacity import FailureKind
from provisioner.runtime.metrics import Shown
from provisioner.slices.metrics import CHIP_STATES, PREFIX, Account, Metrics, usage_of
from provisioner.slices.planning.plan import DeleteReason

P = "tpu_provisioner_"
_ACCOUNT = Account("default", "tpu7x", "spot", "running")
_ACCOUNT_LABELS = {"workload_namespace": "default", "accelerator": "tpu7x", "capacity": "spot", "use": "running"}


def test_calls_to_gke_are_counted_with_duration_and_error() -> None:
    metrics = Metrics(version="1")
    metrics.gke.observe("list_node_pools", seconds=0.2, error_kind=None)
    assert b"gke_request_errors_total{" not in metrics.exposition()
    metrics.gke.observe("create_node_pool", seconds=0.3, error_kind="quota", code="429")
    found = metrics.registry.get_sample_value
    assert found(P + "gke_request_duration_seconds_sum", {"method": "list_node_pools"}) == 0.2
    assert found(P + "gke_request_errors_total", {"method": "create_node_pool", "kind": "quota"}) == 1
    assert found(P + "gke_requests_total", {"method": "create_node_pool", "code": "429"}) == 1


def test_metric_of_a_phase_without_slices_is_zero() -> None:
    metrics = Metrics(version="1")
    for shown in ({"wanted": 3, "ready": 1}, {"ready": 2}):
        metrics.show([Shown("slices", "Slices.", shown, ("phase",))])
    values = {phase: metrics.registry.get_sample_value(P + "slices", {"phase": phase}) for phase in ("wanted", "ready")}
    assert values == {"wanted": 0, "ready": 2}


def test_counters_exist_with_value_0_from_the_start() -> None:
    """Prometheus' `increase` ignores the first value of a series, so a process's first create would never count."""
    metrics = Metrics(version="1")
    wanted = [
        *(("chips", {"state": state}) for state in CHIP_STATES.values()),
        *(("creates_total", {"result": kind.value}) for kind in FailureKind),
        ("creates_total", {"result": "ok"}),
        *(("deletes_total", {"reason": reason.value, "result": "ok"}) for reason in DeleteReason),
        ("rounds_total", {"result": "crashed"}),
        ("time_to_phase_seconds_count", {"phase": "ready"}),
    ]
    assert [series for series in wanted if metrics.registry.get_sample_value(P + series[0], series[1]) != 0] == []


def test_metrics_have_bounded_labels_and_documented_names() -> None:
    Metrics(version="other")
    metrics = Metrics(version="1")
    families = [collected for collected in metrics.registry.collect() if not collected.name.startswith("process_")]
    assert len(families) == 43
    for family in families:
        assert family.name.startswith(PREFIX)
        assert family.documentation.endswith(".")
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    bounded = {"version", "method", "code", "kind", "result", "phase", "stage", "state", "reason", "resource", "le"}
    assert labels <= bounded | {"cause", "limit", "scope"} | _ACCOUNT_LABELS.keys()
    assert 'tpu_provisioner_build_info{version="1"} 1.0' in metrics.exposition().decode()


def test_metrics_of_the_process_have_the_names_of_go_programs() -> None:
    registry = Metrics(version="1").registry
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 2**20
    assert registry.get_sample_value("process_cpu_seconds_total") is not None


def test_cost_is_exposed_only_with_prices() -> None:
    metrics = Metrics(version="1")
    metrics.show(usage_of({_ACCOUNT: 0.0}, {}, ()))
    assert metrics.registry.get_sample_value(P + "chip_seconds_total", _ACCOUNT_LABELS) == 0
    assert metrics.registry.get_sample_value(P + "cost_total", _ACCOUNT_LABELS) is None
