"""`tpu-provisioner inject` as people run it, with kubectl behind it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.cli import main
from provisioner.cli.exits import ExitCode
from provisioner.cli.yamlwriting import yaml_of
from tests.environment.test_manifest import environment, job, pod, pod_template, stateful_set

pytestmark = pytest.mark.timeout(60)

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"on": "1e3", "text": "a\n b"}}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, *raws: dict[str, Any]) -> str:
    Path(name).write_text(json.dumps(raws[0]) if len(raws) == 1 else yaml_of(raws), encoding="utf-8")
    return name


def inject(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["inject", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_object_is_printed_and_only_those_with_chips_change(capsys: pytest.CaptureFixture[str]):
    whole = {"apiVersion": "v1", "kind": "List", "items": [CONFIG, stateful_set(pod_template())]}
    code, told, said = inject(capsys, "-f", write("a.json", whole), write("b.yaml", job(pod_template()), CONFIG))
    assert (code, said) == (ExitCode.OK, "")
    config, changed, of_job, again = yaml.safe_load_all(told)
    assert config == again == CONFIG
    assert set(environment(changed)[0]) == set(environment(of_job)[0]) == {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"}


def test_what_is_printed_can_be_read_again_and_does_not_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    _, once, _ = inject(capsys, "-f", write("a.yaml", CONFIG, stateful_set(pod_template())), "--topology")
    assert "TPU_TOPOLOGY" in once
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(once.encode())))
    assert inject(capsys, "-f", "-", "--topology") == (ExitCode.OK, once, "")


def test_json_is_one_object_or_a_list(capsys: pytest.CaptureFixture[str]):
    _, told, _ = inject(capsys, "-f", write("a.json", CONFIG), "-o", "json")
    assert json.loads(told) == CONFIG
    _, told, _ = inject(capsys, "-f", write("a.yaml", CONFIG, CONFIG), "-o", "json")
    assert json.loads(told) == {"apiVersion": "v1", "kind": "List", "items": [CONFIG, CONFIG]}


def test_what_cannot_be_told_is_on_standard_error_with_its_place(capsys: pytest.CaptureFixture[str]):
    two_slices = stateful_set(pod_template(), 8)
    code, told, said = inject(capsys, "-f", write("a.yaml", CONFIG, two_slices))
    assert code == ExitCode.NOT_SERVED
    assert len(list(yaml.safe_load_all(told))) == 2
    assert said.startswith("tpu-provisioner inject: a.yaml:11: StatefulSet default/train: TPU_WORKER_ID, ")
    assert said.count("\n") == 1


def test_nothing_is_printed_when_a_file_cannot_be_read(capsys: pytest.CaptureFixture[str]):
    good = write("a.yaml", CONFIG, stateful_set(pod_template()))
    Path("broken.yaml").write_text("a: [1\n", encoding="utf-8")
    Path("list.yaml").write_text("- 1\n", encoding="utf-8")
    for wrong, message in (
        ("nowhere.yaml", "nowhere.yaml: cannot be read"),
        ("broken.yaml", "broken.yaml:2: is not YAML"),
        ("list.yaml", "list.yaml:1: is not a Kubernetes object"),
    ):
        code, told, said = inject(capsys, "-f", good, wrong)
        assert (code, told) == (ExitCode.ERROR, "")
        assert message in said
    Path("empty.yaml").write_text("", encoding="utf-8")
    assert inject(capsys, "-f", "empty.yaml")[0] == ExitCode.ERROR


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as error:
        main(["inject"])
    assert error.value.code == ExitCode.USAGE
    assert "use -f FILE" in capsys.readouterr().err


def test_with_opt_in_nobody_is_changed_who_does_not_ask(capsys: pytest.CaptureFixture[str]):
    raw = stateful_set(pod_template())
    code, told, _ = inject(capsys, "-f", write("a.yaml", raw, CONFIG), "--opt-in")
    assert code == ExitCode.OK
    assert next(yaml.safe_load_all(told)) == raw


def test_pods_are_printed_instead_and_the_rest_is_told(capsys: pytest.CaptureFixture[str]):
    raw = stateful_set(pod_template(), 80)
    code, told, said = inject(capsys, "-f", write("a.yaml", CONFIG, raw, pod(raw)), "--pods", "-n", "ml")
    assert code == ExitCode.OK
    pods = list(yaml.safe_load_all(told))
    assert [each["metadata"]["name"] for each in pods] == [*(f"train-{at}" for at in range(64)), "train-2"]
    assert "note: StatefulSet ml/train: the first 64 of its 80 pods are printed" in said
