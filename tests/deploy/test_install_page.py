"""Runs every command of docs/install.md, its variants and docs/uninstall.md in one shell, as a new user would.

gcloud, docker and the kubelet are simulated; kubectl, helm, make and the control plane are real. The tests add no waits
to those of the pages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from provisioner import constants
from provisioner.kube.protocol import collection_path
from provisioner.workloads import JOBSET
from rehearsal.demos import Rehearsal
from rehearsal.localcluster import RUN_FOR
from rehearsal.simulators.gke.app import Simulator
from tests.deploy import fake_gcloud, tools
from tests.deploy.kit import NAMESPACE, REPOSITORY
from tests.deploy.mainjob import uninstalled
from tests.deploy.pages import Block, read_blocks
from tests.deploy.pods import PlayedPod
from tests.e2e.kit import simulator_settings

_PAGE, _VARIANTS, _UNINSTALL = (
    REPOSITORY / "docs" / name for name in ("install.md", "install-variants.md", "uninstall.md")
)
#: Choices of the reader for each path through the pages. Each choice is in at least one path.
_KUSTOMIZE = ("all", "principal", "kustomize", "tpu7x", "image")
_HELM = ("all", "account", "helm")
_MACHINE = ("machine", "background")
_WAIT_SECONDS = 200
_DONE = "drain --wait --timeout=30m"


def _blocks(*where: str, page: Path = _PAGE) -> list[Block]:
    return [block for block in read_blocks(page) if block.where in where]


def _commands(*pages: Path) -> list[str]:
    text = "".join(block.text for page in pages for block in read_blocks(page))
    return text.replace("\\\n", " ").splitlines()


def _script(choices: tuple[str, ...], before_uninstall: str) -> str:
    """Return the commands of a path through the pages. Commands of variants precede the step that they change."""
    install, variants = _blocks(*choices), _blocks(*choices, page=_VARIANTS)
    begin = [block for block in install if block.heading == "1. Names"]
    accounts = [block for block in variants if block.where in ("all", "account")]
    rights = [block for block in install if block.heading == "2. Rights in Google Cloud"]
    order = [*begin, *accounts, *rights, *variants, *install]
    return "".join(
        [
            *(block.text for block in dict.fromkeys(order)),
            before_uninstall,
            *(block.text for block in _blocks(*choices, page=_UNINSTALL)),
        ]
    )


def test_every_command_block_of_the_installation_is_run() -> None:
    # test_manifests.py runs the block "disabled", and test_node_groups.py the block "nodegroups".
    found = {block.where for page in (_PAGE, _VARIANTS, _UNINSTALL) for block in read_blocks(page)}
    assert found == {*_KUSTOMIZE, *_HELM, *_MACHINE, "disabled", "nodegroups"}


def test_installation_takes_at_most_twelve_commands() -> None:
    assert len(_commands(_PAGE)) <= 12


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A user with a shell in a clone of the repository."""

    checkout: Path
    environment: dict[str, str]
    pod: PlayedPod
    gke: Simulator
    gcloud_state: Path

    def start(self, script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.checkout,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str) -> str:
        process = self.start(script)
        try:
            output, _ = process.communicate(timeout=_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        assert process.returncode == 0, f"exit code {process.returncode}\n{output}\n{self.pod.log.read_text()[-3000:]}"
        return output

    def gcloud(self) -> dict[str, Any]:
        return dict(json.loads(self.gcloud_state.read_text(encoding="utf-8")))

    def pools(self) -> list[object]:
        path = "v1/projects/my-project/locations/us-central2/clusters/my-cluster/nodePools"
        return list(requests.get(f"{self.gke.url}/{path}", timeout=10).json().get("nodePools", []))


@pytest.fixture(scope="module")
def bare(rehearsal: Rehearsal, cluster_overlay: Path, installed: list[dict[str, Any]]) -> Iterator[Rehearsal]:
    with uninstalled(rehearsal, cluster_overlay):
        yield rehearsal


@pytest.fixture
def reader(bare: Rehearsal, tmp_path: Path) -> Iterator[Reader]:
    """Yield a user with a copy of the repository, and with a simulated GKE that has the cluster of the pages."""
    checkout, programs = tmp_path / "tpu-provisioner", tmp_path / "bin"
    ignored = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", ".coverage*", "dist")
    shutil.copytree(REPOSITORY, checkout, ignore=ignored)
    (checkout / "ready").touch()
    (checkout / ".venv-run" / "bin").mkdir(parents=True)
    (checkout / ".venv-run" / ".setup-done").touch()
    _program(checkout / ".venv-run" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    (checkout / "busy.yaml").write_text(_busy_jobset(), encoding="utf-8")
    programs.mkdir()
    gke = Simulator(
        replace(simulator_settings(), project="my-project", cluster="my-cluster"),
        kubeconfig=bare.cluster.kubeconfig,
        port=0,
    )
    gke.start()
    pod = PlayedPod(bare, gke.url, tmp_path)
    pod.write_kubectl(programs / "kubectl")
    (programs / "helm").symlink_to(tools.tool("helm"))
    state = tmp_path / "gcloud.json"
    script = Path(fake_gcloud.__file__)
    _program(programs / "gcloud", f'exec "{sys.executable}" "{script}" "{state}" "$@"')
    _program(programs / "docker", f'echo "$*" >> {tmp_path}/docker-calls')
    python = Path(sys.executable).parent
    kept = {key: value for key, value in os.environ.items() if key in ("LANG", "TZ", "COVERAGE_PROCESS_START")}
    environment = {
        **kept,
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(bare.cluster.kubeconfig),
        # These variables make `make` skip the set-up, and disable ports, which could collide with other processes.
        "MAKEFLAGS": f"BIN={python} SETUP=ready PYTHON={sys.executable}",
        "ARGS": "--metrics-bind-address=0 --health-probe-bind-address=0",
    }
    try:
        with pod.playing():
            yield Reader(checkout=checkout, environment=environment, pod=pod, gke=gke, gcloud_state=state)
    finally:
        gke.stop()
        # The page has labelled the namespace; without the removal, pods of later tests would get marks.
        bare.kubectl("label", "namespace", "default", f"{constants.PLACEMENT}-")


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


#: Commands that are not on the page: they start a JobSet that still runs when the user uninstalls too early.
_BUSY = """
kubectl get events --field-selector=source=tpu-provisioner
kubectl delete -f examples/jobset.yaml
kubectl apply -f busy.yaml
until [ "$(kubectl get pods | grep -c 'tpu-demo.* Running ')" = 4 ]; do sleep 0.3; done
kubectl get nodes --label-columns=tpu-provisioner/slice-namespace,tpu-provisioner/slice
"""


def _busy_jobset() -> str:
    body = yaml.safe_load((REPOSITORY / "examples" / "jobset.yaml").read_text(encoding="utf-8"))
    for job in body["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["metadata"] = {"annotations": {RUN_FOR: "600s"}}
    return yaml.safe_dump(body)


def _too_early(choices: tuple[str, ...]) -> str:
    (block,) = [block for block in _blocks(*choices, page=_UNINSTALL) if _DONE in block.text]
    return f"if {block.text.replace('--timeout=30m', '--timeout=1s').rstrip()}\nthen exit 90; fi\n"


@pytest.mark.e2e
# Helm differs in few commands; test_upgrade.py installs the chart, and test_chart.py applies its objects.
@pytest.mark.parametrize(
    "choices", [_KUSTOMIZE, pytest.param(_HELM, marks=pytest.mark.nightly)], ids=["kustomize", "Helm"]
)
def test_pages_install_and_uninstall_everything_with_pools_in_use(
    choices: tuple[str, ...], reader: Reader, bare: Rehearsal
) -> None:
    before = _jobsets(bare)
    printed = reader.run(_script(choices, _BUSY + _too_early(choices)))

    assert 'deployment "tpu-provisioner" successfully rolled out' in printed
    # The recording in the README shows this line of kubectl.
    assert "jobset.jobset.x-k8s.io/tpu-demo created" in printed
    assert "jobset.jobset.x-k8s.io/tpu-demo condition met" in printed
    assert "NodePoolCreationSucceeded" in printed
    # Two slices of two nodes: each node has the label that assigns it to its slice.
    assert len(re.findall(r" default +j-[0-9a-f]{40}\n", printed)) == 4
    assert "cluster.proven" in reader.pod.log.read_text(encoding="utf-8")
    # The attempt to uninstall too early printed the node pools that are in use.
    assert "2 node pools are left in my-project/us-central2/my-cluster:" in printed
    assert "JobSet default/tpu-demo needs it" in printed
    assert "Gave up waiting after 1 s." in printed
    assert "No node pool of the provisioner is left in my-project/us-central2/my-cluster." in printed
    assert "Traceback" not in printed
    assert _ours(bare) == []
    assert reader.pools() == []
    assert [name for name in _jobsets(bare) if name not in before] == []
    left = reader.gcloud()
    assert left == fake_gcloud.EMPTY | {"services": left["services"]}
    if "image" in choices:
        build, push = (reader.checkout.parent / "docker-calls").read_text(encoding="utf-8").splitlines()
        image = "us-docker.pkg.dev/my-project/tpu-provisioner/controller:v0.1.0"
        assert build.startswith("build --platform=linux/amd64 --build-arg VERSION=")
        assert build.endswith(f"-t {image} .")
        assert push == f"push {image}"


def _jobsets(rehearsal: Rehearsal) -> list[tuple[str, str]]:
    metadata = [object_["metadata"] for object_ in rehearsal.objects(collection_path("jobsets", root=JOBSET.root))]
    return [(str(entry["namespace"]), str(entry["name"])) for entry in metadata]


def _ours(rehearsal: Rehearsal) -> list[str]:
    kinds = (
        "clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies,"
        "validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings,namespaces"
    )
    names = rehearsal.kubectl("get", kinds, "-o", "name").splitlines()
    return [name for name in names if "tpu-provisioner" in name or NAMESPACE in name]


def test_run_on_a_machine_installs_only_the_packages_of_the_image(tmp_path: Path) -> None:
    """The lock file of the image has no tools of developers."""
    done = subprocess.run(
        ["make", "--dry-run", "run", f"RUN={tmp_path}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"pip install .* (\S+)", done.stdout) == ["requirements/run.txt"]


@pytest.mark.e2e
def test_make_run_serves_a_jobset_and_stops_in_order(reader: Reader) -> None:
    names, *_ = _blocks("all")
    (login,) = _blocks("machine", page=_VARIANTS)
    account = "GOOGLE_SERVICE_ACCOUNT=tpu-provisioner@my-project.iam.gserviceaccount.com\n"
    reader.run(names.text + account + login.text)
    (background,) = _blocks("background", page=_VARIANTS)
    quick = {"GKE_ENDPOINT": reader.gke.url, "NODEPOOL_DELETION_DELAY": "1s", "NODE_MIN_LIFESPAN": "0s"}
    reader.environment.update(quick)
    process = reader.start(names.text + background.text)
    output: list[str] = []
    # A thread reads the output, because the process would block if its pipe were full.
    pump = threading.Thread(target=lambda: output.extend(process.stdout or ()))
    pump.start()
    try:
        (first,) = [block for block in _blocks("all") if block.heading == "4. A first JobSet"]
        reader.run(first.text)
        # The page drains before the stop. The command gets the variables that the block passes to `make run`.
        variables = background.text.replace("\\\n", " ").split(" make run")[0]
        drain = f'{names.text}{variables} "{sys.executable}" -m provisioner drain --wait --timeout=1m\n'
        printed = reader.run(f"{drain}kubectl delete -f examples/jobset.yaml\n")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=40)
        pump.join()
        if process.stdout is not None:
            process.stdout.close()
    text = "".join(output)
    assert "No node pool of the provisioner is left" in printed
    assert "controller.stopped" in text
    assert "Traceback" not in text
    assert reader.pools() == []
