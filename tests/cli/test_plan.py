"""`tpu-provisioner plan`, with output for the terminal and for programs."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.cli import main
from provisioner.cli.output import ExitCode
from provisioner.settings import OPTIONS
from tests.support.objects import pod_spec, raw_job, raw_jobset

#: Long time-out, because some of these tests start Python with Google's library.
pytestmark = pytest.mark.timeout(60)

SETTINGS = """# A cluster.
GCP_PROJECT_ID=project-1
GCP_CLUSTER_LOCATION=us-central2
GCP_ZONE=us-central2-b
GCP_CLUSTER=cluster-1
NODEPOOL_AUTO_UPGRADE=off
MAX_CHIPS=64
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.chdir(tmp_path)


def write(name: str, *raws: dict[str, Any]) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(yaml.safe_dump_all(raws), encoding="utf-8")
    return name


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["plan", *arguments])
    return code, capsys.readouterr().out


GOOD, WRONG = raw_jobset("good", uid="", replicas=2), raw_jobset("wrong", uid="", pod=pod_spec(topology="2x2x3"))


@pytest.mark.parametrize(
    ("raws", "want"),
    [
        pytest.param([GOOD], ExitCode.OK, id="all is served"),
        pytest.param([GOOD, WRONG], ExitCode.NOT_SERVED, id="a mistake"),
        pytest.param([raw_jobset(pod=pod_spec(chips=0))], ExitCode.OK, id="nothing requests chips"),
        pytest.param(
            [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}], ExitCode.OK, id="another kind"
        ),
        pytest.param([raw_job()], ExitCode.OK, id="a Job without SERVE_JOBS"),
        pytest.param([{**raw_job(), "kind": "Workflow"}], ExitCode.NOT_SERVED, id="a kind without known pods"),
        pytest.param([], ExitCode.ERROR, id="an empty file"),
    ],
)
def test_exit_code_is_0_only_if_all_workloads_are_served(
    raws: list[dict[str, Any]], want: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts and CI jobs depend on the exit code."""
    code, _ = plan(capsys, "-f", write("a.yaml", *raws))
    assert code == want


def test_unreadable_file_is_an_error_and_other_files_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.yaml").write_text("a: [1\n", encoding="utf-8")
    Path("binary.yaml").write_bytes(b"a: 1\nb: \xff\n")
    Path("empty").mkdir()
    code, told = plan(capsys, "-f", write("a.yaml", GOOD), "-f", "nowhere.yaml", "broken.yaml", "binary.yaml", "empty")
    assert code == ExitCode.ERROR
    assert "2 node pools would be created" in told
    assert "nowhere.yaml: cannot be read: No such file or directory" in told
    assert "broken.yaml:2: is not YAML" in told
    assert "binary.yaml:2: is not YAML: invalid leading UTF-8 octet" in told
    assert "empty: cannot be read: no file in it ends with .json, .yaml, .yml" in told


def test_folders_and_standard_input_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("d/a.yaml", raw_jobset("one", uid=""))
    write("d/b.json", raw_jobset("two", uid=""))
    write("d/notes.txt", raw_jobset("three", uid=""))
    write("d/deeper/c.yml", raw_jobset("four", uid=""))
    assert "2 node pools" in plan(capsys, "-f", "d")[1]
    assert "3 node pools" in plan(capsys, "-R", "-f", "d")[1]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(yaml.safe_dump(WRONG).encode())))
    code, told = plan(capsys, "-f", "-")
    assert code == ExitCode.NOT_SERVED
    assert "-:" in told


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["plan"])
    assert error.value.code == ExitCode.USAGE
    assert "use -f FILE" in capsys.readouterr().err


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    raw = raw_jobset("a" * 50, uid="", job="b" * 60, pod=pod_spec(accelerator="tpu7x", topology="2x2x2"))
    _, told = plan(capsys, "-f", write("a.yaml", raw, GOOD))
    table = told.partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert table.splitlines()[0].split() == ["SLICES", "OF", "POOLS", "MACHINE", "TYPE", "TOPOLOGY", "HOSTS", "CHIPS"]
    assert "\x1b" not in told


def test_control_characters_in_names_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    raw = raw_jobset("a\x1b[31m\x07", uid="", pod=pod_spec(topology="\x1b]0;x\x07"))
    _, told = plan(capsys, "-f", write("a.yaml", raw, raw_jobset("b\x1b[31m", uid="")), "-o", "wide")
    assert "\x1b" not in told
    assert "\x07" not in told


def test_ignored_objects_are_counted_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    path = write(
        "a.yaml",
        config_map,
        GOOD,
        config_map,
        raw_jobset(pod=pod_spec(chips=0)),
        raw_job(metadata={"annotations": {}}, pod=pod_spec(chips=0)),
    )
    code, told = plan(capsys, "-f", path)
    assert code == ExitCode.OK
    assert "Ignored: 2 ConfigMaps (a.yaml:1)\nIgnored: 1 JobSet (a.yaml:" in told
    ignored = json.loads(plan(capsys, "-f", path, "-o", "json")[1])["ignored"]
    assert [(entry["kind"], entry["count"]) for entry in ignored] == [("ConfigMap", 2), ("JobSet", 1), ("Job", 1)]


def test_prices_show_the_cost_of_the_first_possible_choice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIP_HOUR_PRICES", "*=0.5, */on-demand=2, currency=USD")
    monkeypatch.setenv("CAPACITY", "spot, on-demand")
    path = write(
        "a.yaml", GOOD, raw_jobset("dear", uid="", metadata={"annotations": {constants.CAPACITY: "on-demand"}})
    )
    _, told = plan(capsys, "-f", path)
    assert "1. spot in your-region1-a (not possible: " in told
    assert "    cost: 32.00 USD an hour" in told
    assert "    cost: 16.00 USD an hour" in told
    assert told.endswith("3 node pools would be created: 6 hosts, 24 chips, 48.00 USD an hour.\n")
    found = json.loads(plan(capsys, "-f", path, "-o", "json")[1])
    assert [pool["costPerHour"] for pool in found["nodePools"]] == [16, 16, 16]
    assert (found["totals"]["costPerHour"], found["totals"]["currency"]) == (48, "USD")


def test_wide_has_labels_and_taints(capsys: pytest.CaptureFixture[str]) -> None:
    """Labels that depend on the UID have a placeholder, because the UID is not known yet."""
    raw = raw_jobset("train", uid="", metadata={"annotations": {"tpu-provisioner.cloud.google.com/capacity": "spot"}})
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    _, told = plan(capsys, "-f", write("a.yaml", raw), "-o", "wide")
    assert "label: google.com/tpu-provisioner-jobset-name=train" in told
    assert "label: google.com/tpu-provisioner-jobset-uid=*" in told
    assert "taint: cloud.google.com/gke-spot=true:NoSchedule" in told
    assert "from: a.yaml:1, namespace default" in told


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_json_and_yaml_contain_the_request_to_gke(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("settings.env").write_text(SETTINGS, encoding="utf-8")
    code, told = plan(capsys, "-f", write("a.yaml", GOOD, WRONG), "--settings", "settings.env", "-o", form)
    found = json.loads(told) if form == "json" else yaml.safe_load(told)
    assert code == found["exitCode"] == ExitCode.NOT_SERVED
    assert (found["totals"]["nodePools"], found["totals"]["hosts"], found["totals"]["chips"]) == (2, 4, 16)
    assert found["totals"]["nodePoolsByKind"] == {"JobSet": 2}
    pool = found["nodePools"][0]
    assert (pool["name"], pool["group"], pool["machineType"]) == ("good-*", "good-slice-0", "ct4p-hightpu-4t")
    assert pool["workload"] == {"kind": "JobSet", "namespace": "default", "name": "good", "file": "a.yaml", "line": 1}
    assert pool["capacity"] == [{"choice": "on-demand in us-central2-b", "possible": True, "problem": ""}]
    request = pool["request"]
    assert request["parent"] == "projects/project-1/locations/us-central2/clusters/cluster-1"
    assert request["nodePool"]["placementPolicy"] == {"type": "COMPACT", "tpuTopology": "2x2x2"}
    (remark,) = found["remarks"]
    assert (remark["file"], remark["object"], remark["reason"]) == (
        "a.yaml",
        "JobSet default/wrong",
        "InvalidTPURequest",
    )
    assert Path("a.yaml").read_text(encoding="utf-8").splitlines()[remark["line"] - 1].endswith("2x2x3")
    assert found["assumptions"] == []


def test_json_without_gke_contains_the_node_group(capsys: pytest.CaptureFixture[str]) -> None:
    Path("settings.env").write_text(
        "PROVIDER=gce\nGCP_PROJECT_ID=project-1\nGCP_ZONE=us-east5-a\nNODE_GROUP_NAMESPACE=slices\n"
        "NODE_GROUP_IMAGES=*=projects/p/global/images/i\n",
        encoding="utf-8",
    )
    seven = raw_jobset("seven", uid="", parallelism=2, pod=pod_spec(accelerator="tpu7x", topology="2x2x2"))
    path = write("a.yaml", seven, GOOD)
    code, told = plan(capsys, "-f", path, "--settings", "settings.env", "-o", "json")
    found = json.loads(told)
    assert code == found["exitCode"] == ExitCode.NOT_SERVED
    (pool,) = found["nodePools"]
    group = pool["request"]
    assert (group["kind"], group["metadata"]["namespace"], group["metadata"]["name"]) == (
        "TPUNodeGroup",
        "slices",
        "seven-*",
    )
    assert (group["spec"]["topology"], group["spec"]["nodeLocation"]) == ("2x2x2", "us-east5-a")
    (remark,) = found["remarks"]
    assert remark["object"] == "JobSet default/good"
    assert any("ExtendedResourceToleration" in assumption for assumption in found["assumptions"])
    assert "tpu7x-standard-4t" in plan(capsys, "-f", path, "--settings", "settings.env")[1]


@pytest.mark.parametrize("wrapped", [False, True], ids=["lines", "a ConfigMap"])
def test_settings_are_read_from_a_file(capsys: pytest.CaptureFixture[str], *, wrapped: bool) -> None:
    """The file is the overlay's settings.env, or the ConfigMap that is generated from it."""
    text = SETTINGS.replace("MAX_CHIPS=64", "MAX_CHIPS=8")
    if wrapped:
        data = dict(line.split("=") for line in text.splitlines()[1:])
        text = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": data})
    Path("settings.env").write_text(text, encoding="utf-8")
    code, told = plan(capsys, "-f", write("a.yaml", GOOD), "--settings=settings.env")
    assert code == ExitCode.NOT_SERVED
    assert "NodePoolLimitReached: Node pool good-* is not created: Limit of all node pools" in told
    assert "not set" not in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("GCP_ZONE=us-east1\n", "is a region; set a zone in it", id="a wrong value"),
        pytest.param("GCP_ZONE\n", "settings.env:1 is not of the form NAME=value", id="no value"),
        pytest.param("kind: ConfigMap\n", "is not one ConfigMap with data", id="a ConfigMap without data"),
        pytest.param(None, "settings.env: cannot be read: No such file or directory", id="no file"),
    ],
)
def test_invalid_settings_file_is_an_error(text: str | None, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        Path("settings.env").write_text(text, encoding="utf-8")
    assert main(["plan", "-f", write("a.yaml", GOOD), "--settings=settings.env"]) == ExitCode.ERROR
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "zones", "want"),
    [
        pytest.param({}, "", "on-demand in your-region1-a", id="nothing says it"),
        pytest.param({}, "us-east5-a", "on-demand in us-east5-a", id="the manifest names a zone"),
        pytest.param({"GCP_ZONE": "us-east5-b"}, "", "on-demand in us-east5-b", id="the zone is set"),
        pytest.param({"GCP_CLUSTER_LOCATION": "us-east5"}, "", "on-demand in us-east5-a", id="the region is set"),
        pytest.param({"GCP_CLUSTER_LOCATION": "us-east5-c"}, "", "on-demand in us-east5-c", id="a zonal cluster"),
        pytest.param(
            {"CAPACITY": "spot@us-east5-c, on-demand"}, "", "on-demand in us-east5-c", id="a choice has a zone"
        ),
    ],
)
def test_unset_settings_are_assumed_and_reported(
    environment: dict[str, str],
    zones: str,
    want: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The assumed region is that of the settings or manifests, because a placeholder would reject valid zones."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    annotations = {"tpu-provisioner.cloud.google.com/zones": zones} if zones else {}
    code, told = plan(capsys, "-f", write("a.yaml", raw_jobset(uid="", metadata={"annotations": annotations})))
    assert code == ExitCode.OK
    assert want in told
    assert "GCP_PROJECT_ID" in told
    assert "this plan uses your-project" in " ".join(told.split())


def test_unknown_setting_is_reported_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt limit has no effect, so the plan would show pools that exceed the limit."""
    Path("settings.env").write_text(f"{SETTINGS}MAX_CHIP=4\n", encoding="utf-8")
    assert "did you mean MAX_CHIPS?" in plan(capsys, "-f", write("a.yaml", GOOD), "--settings=settings.env")[1]
