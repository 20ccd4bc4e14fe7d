"""Tests of the checks before a rehearsal starts, and of the summary at the end of the demo."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.cli.manifests import Manifests, read_documents
from provisioner.cli.output import ExitCode
from rehearsal.commands.demo import places, problem_with, summary
from rehearsal.commands.main import main
from rehearsal.demos.story import PoolTimes
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.support.objects import pod_spec, raw_job, raw_jobset

PHASES = ("wanted", "creating", "provisioning", "ready", "in_use", "idle", "deleting", "gone")


def times(name: str, job: str, *, until: str = "gone") -> PoolTimes:
    reached = PHASES[: PHASES.index(until) + 1]
    entered = {phase: float(step) for step, phase in enumerate(reached)}
    return PoolTimes(name=name, chips=8, jobs=[job], entered=entered)


CALLS = {"nodePools.create": {"200": 2}, "nodePools.list": {"200": 40, "429": 2}}


@pytest.mark.parametrize("until", ["creating", "ready", "in_use", "deleting"])
def test_summary_after_an_interruption_lists_the_pools_that_are_left(until: str) -> None:
    lines = list(summary([times("a-0123456789", "a-0"), times("b-0123456789", "b-0", until=until)], CALLS))
    assert not any("created and deleted" in line for line in lines)
    assert "16 chips in 2 node pools; 1 deleted, 1 left:" in lines
    assert f"  b-0123456789: 8 chips, {until.replace('_', ' ')}" in lines


def test_kept_demo_prints_the_page_and_commands_that_work_with_it() -> None:
    """The provisioner runs outside the cluster, so `tpu-provisioner status` finds it only with the option --server."""
    page = "http://127.0.0.1:8081/"
    process = SimpleNamespace(page_url=page, metrics_url="m", ready_url="r", log="l")
    found = places("http://127.0.0.1:8085", process)  # type: ignore[arg-type]
    assert found["status page"] == page
    assert found["commands"] == f"tpu-provisioner status --server {page}"
    command = shlex.split(found["simulated stockout"])
    assert Fault.from_json(json.loads(command[2])).kind is FaultKind.STOCKOUT
    assert command[-1] == "http://127.0.0.1:8085/simulator/v1/faults"


@pytest.mark.parametrize(
    ("command", "option", "words"),
    [
        ("demo", "--create-seconds=-1", "create_seconds: -1.0 is not a number of seconds"),
        ("demo", "--operations-quota=0", "operations_quota: 0 is less than 1"),
        ("demo-ipu", "--ipus=6", "is not a multiple of 4"),
        ("demo-ipu", "--ipus=0", "is not a multiple of 4"),
        ("demo-ipu", "--ipus=-4", "is not a multiple of 4"),
        ("simulator-gce", "--set=colour=red", "colour: no such setting"),
        ("simulator-gce", "--set=boot_seconds=soon", "boot_seconds: 'soon' is not valid"),
        ("simulator-gce", "--set=heartbeat_seconds=0", "heartbeat_seconds: 0 is not a time to wait"),
        ("simulator-gce", "--set=project=x", "project: can be set only at startup"),
    ],
)
def test_invalid_option_is_a_usage_error(
    command: str, option: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, option])
    assert ended.value.code == ExitCode.USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def problem(*raws: dict[str, Any], **environment: str) -> str:
    """Return the problem that the demo reports for manifests; empty if it can use them."""
    documents, problems = read_documents("f", yaml.safe_dump_all(raws))
    return problem_with(Manifests(documents=tuple(documents), problems=tuple(problems)), environment)


@pytest.mark.parametrize(
    ("raws", "words"),
    [
        pytest.param([], "there is no JobSet in these files, and", id="nothing"),
        pytest.param([raw_job()], "there is no JobSet in these files (only Job)", id="another kind"),
        pytest.param(
            [raw_jobset(pod=pod_spec(chips=0))], "no JobSet in these files requests google.com/tpu", id="no chips"
        ),
        pytest.param([raw_jobset(spec={"suspend": True})], "every JobSet in these files is suspended", id="suspended"),
        pytest.param(
            [raw_jobset(pod={**pod_spec(), "nodeSelector": {}})],
            f"no nodeSelector {constants.TPU_TOPOLOGY}",
            id="no topology, of which no Event tells",
        ),
        pytest.param([raw_jobset(metadata={"labels": {constants.DISABLE: "true"}})], "is not served", id="disabled"),
        pytest.param([raw_jobset(metadata={"labels": {"a": 1}})], "in quotes", id="rejected by the API server"),
    ],
)
def test_manifests_without_effect_are_reported_immediately(raws: list[dict[str, Any]], words: str) -> None:
    """Without the check, users would wait for minutes without any output."""
    assert words in problem(*raws)


def test_settings_in_the_environment_apply_except_for_the_cluster() -> None:
    """The rehearsal overrides the settings of its own cluster, such as the zone."""
    assert problem(raw_jobset(), SERVED_NAMESPACES="other", GCP_ZONE="nonsense") != ""
    assert problem(raw_jobset(), GCP_ZONE="nonsense") == ""
    assert "MAX_CHIPS" in problem(raw_jobset(), MAX_CHIPS="many")


def test_unusable_cluster_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The command `simulator` registers simulated nodes in the cluster of the kubeconfig."""
    assert main(["simulator", "--port=0", "--kubeconfig=missing"]) == ExitCode.ERROR
    assert "can't use the cluster of missing" in capsys.readouterr().err
