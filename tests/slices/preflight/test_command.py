"""Tests of `tpu-provisioner check` as a user runs it, with the simulated GKE and a fake API server over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from provisioner import constants
from provisioner.cli import run as run_command
from provisioner.kube.protocol import collection_path
from provisioner.slices.preflight.checking import Subject
from provisioner.slices.preflight.in_kubernetes import ACCESS_REVIEWS
from provisioner.workloads import JOBSET, kinds_served
from rehearsal.simulators.gke.app import Simulator
from tests.support.kubeconfig import write_kubeconfig
from tests.support.preflight import ORIGINAL_LEASE, PLACEMENT_OBJECTS, World
from tests.support.settings import REQUIRED, settings
from tests.support.wire_server import WireServer, as_json, running

#: Time-out in seconds: most of the tests start Python with all of Google's libraries, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(60)

_NAMES = ("GCP_", "GKE_", "KUBE", "ALLOWED_", "MAX_", "CAPACITY", "ASSUME_", "ZONES")


@dataclass
class Machine:
    """A machine on which the command runs."""

    kube: WireServer
    gke: Simulator
    kubeconfig: Path

    def check(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NAMES)}
        given = {
            **REQUIRED,
            "GCP_CLUSTER": "c",
            "GCP_NODE_SERVICE_ACCOUNT": "tpu-nodes@project-1.iam.gserviceaccount.com",
            "GKE_ENDPOINT": self.gke.url,
            # The fake API server has no certificate that could prove the cluster, so the proof is replaced.
            "ASSUME_SAME_CLUSTER": "true",
            "MAX_CHIPS": "64",
            **{f"ALLOWED_{what}": "none" for what in ("RESERVATIONS", "SERVICE_ACCOUNTS", "NETWORKS", "LABEL_KEYS")},
            "CAPACITY": "reservation/r1, on-demand",
        }
        return subprocess.run(
            [sys.executable, "-m", "provisioner", "check", *arguments],
            env={**kept, "KUBECONFIG": str(self.kubeconfig), **given, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with running() as kube, Simulator() as gke:
        kube.answer("GET /version", as_json({"gitVersion": "v1.34.1-gke.3084001"}))
        kube.answer(f"GET {JOBSET.root}", as_json({"resources": [{"name": "jobsets"}]}))
        kube.answer(f"POST {ACCESS_REVIEWS}", as_json({"status": {"allowed": True}}))
        kube.answer(f"GET {ORIGINAL_LEASE}", as_json({"message": "not found", "reason": "NotFound"}, status=404))
        configmaps = f"GET {collection_path('configmaps', namespace=constants.DEFAULT_NAMESPACE)}"
        kube.answer(configmaps, as_json({"metadata": {"resourceVersion": "1"}, "items": []}))
        kube.answer("GET /api/v1/nodes", as_json({"metadata": {"resourceVersion": "1"}, "items": []}))
        for path in PLACEMENT_OBJECTS:
            kube.answer(f"GET {path}", as_json({"metadata": {"name": path.rpartition("/")[2]}}))
        kube.answer("GET /api/v1/namespaces", as_json({"metadata": {"resourceVersion": "1"}, "items": []}))
        yield Machine(kube=kube, gke=gke, kubeconfig=write_kubeconfig(tmp_path / "config", kube.url))


def test_check_of_a_correct_installation_is_ok(machine: Machine) -> None:
    done = machine.check()
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) == 17 + len(kinds_served(settings()))
    assert {request.method for request in machine.kube.requests if request.path != ACCESS_REVIEWS} == {"GET"}
    assert set(machine.gke.call_counts()) == {
        "clusters.get",
        "nodePools.list",
        "projects.testIamPermissions",
        "serviceAccounts.testIamPermissions",
        "reservations.get",
    }


def test_failed_check_is_printed_with_its_advice(machine: Machine) -> None:
    machine.gke.set(reservations={"us-central2-a/r1": "READY"}, auto_provisioning_limits={"tpu-v6e-slice": 8})
    done = machine.check("-o", "json")
    assert (done.returncode, done.stderr) == (1, "")
    told = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {name: check["status"] for name, check in told.items() if check["status"] != "ok"} == {
        "node auto-provisioning": "warning",
        "reservation r1": "failed",
    }
    assert told["reservation r1"] == {
        "name": "reservation r1",
        "status": "failed",
        "message": "project project-1 has no reservation of this name in us-central2-b",
        "advice": "Correct its name, project or zone in CAPACITY or ALLOWED_RESERVATIONS.",
    }
    assert yaml.safe_load(machine.check("-o", "yaml").stdout) == json.loads(done.stdout)
    machine.gke.set(reservations=None)
    assert machine.check().returncode == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_closed_output_pipe_causes_no_traceback(form: str) -> None:
    """`tpu-provisioner check | head -1` closes the pipe; the exit status is 1, as after a failed check."""
    reading, writing = os.pipe()
    os.close(reading)
    done = _check_nothing(writing, "-o", form)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_characters_that_the_terminal_lacks_are_escaped() -> None:
    """The output contains texts of other programs and mistyped values, which may have any characters."""
    done = _check_nothing(subprocess.PIPE, GCP_CLUSTER="cl\u00fcster", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")
    assert "cl\\xfcster" in done.stdout


def _check_nothing(stdout: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    nothing = {"PATH": os.environ["PATH"], "KUBECONFIG": "/none", "GKE_ENDPOINT": "http://127.0.0.1:1"}
    return subprocess.run(
        [sys.executable, "-m", "provisioner", "check", *arguments],
        env={**nothing, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )


def test_invalid_settings_and_missing_kubeconfig_are_findings(machine: Machine) -> None:
    """The checks of GKE run even if the kubeconfig is missing."""
    done = machine.check("--kubeconfig=no-such-file", MAX_CHIPS="many")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert [line[:22] for line in lines] == ["failed   settings: MAX", "failed   kubeconfig: t"]
    lines = machine.check("--kubeconfig=no-such-file").stdout.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith("ok ")] == ["failed   kubeconfig"]
    assert len(lines) == 11


def test_run_waits_for_its_checks_only_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usually the checks end before the controller starts. A check that hangs continues in the background."""
    world, release, ended = World(), threading.Event(), threading.Event()
    run_command.log_checks(world.subject)
    assert world.inspector.calls.count("test_account_permissions") == 1

    def hang(_: Subject) -> None:
        release.wait(10)
        ended.set()

    monkeypatch.setattr(run_command.checking, "log_findings", hang)
    monkeypatch.setattr(run_command, "_CHECKS_SECONDS", 0.01)
    run_command.log_checks(world.subject)
    assert not ended.is_set()
    release.set()
    assert ended.wait(10)
