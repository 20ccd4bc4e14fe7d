"""docs/install.md, tried as a new user would: every command is copied from the page.

Those that need a cloud cannot run here; the test names them, so that none is forgotten by mistake.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from provisioner.rehearsal import Rehearsal
from provisioner.rehearsal.world import wait_for
from provisioner.simulator.app import Simulator
from tests.deploy import tools
from tests.deploy.kit import REPOSITORY
from tests.deploy.mainjob import uninstalled
from tests.deploy.pages import Block, read_blocks
from tests.e2e.kit import simulator_settings

_PAGE = REPOSITORY / "docs" / "install.md"
#: How all commands begin that are not tried, because they need Google Cloud, or a kubelet that runs pods.
_NEED_A_CLOUD = (
    "gcloud ",
    "PROJECT_NUMBER=$(gcloud ",
    "MEMBER=",
    "GOOGLE_SERVICE_ACCOUNT=",
    "kubectl --namespace=tpu-provisioner-system rollout status ",
    "kubectl --namespace=tpu-provisioner-system logs ",
)
_WAIT_SECONDS = 90


def _blocks(*where: str) -> list[Block]:
    return [block for block in read_blocks(_PAGE) if block.where in where]


def test_every_block_says_where_it_can_be_tried() -> None:
    """No command block of the page is overlooked."""
    known = {"environment", "here", "background", "docker", "helm", "cloud"}
    assert {block.where for block in read_blocks(_PAGE)} == known
    assert len(_blocks("environment")) == len(_blocks("background")) == 1


def test_what_needs_a_cloud() -> None:
    """What is not tried is known."""
    commands = [line for block in _blocks("cloud") for line in block.text.replace("\\\n", " ").splitlines()]
    assert [command for command in commands if not command.startswith(_NEED_A_CLOUD)] == []
    assert not [start for start in _NEED_A_CLOUD if not any(command.startswith(start) for command in commands)]


class Shell:
    """Runs blocks of the page in a copy of the repository, the page's own environment block first."""

    def __init__(self, checkout: Path, environment: dict[str, str]) -> None:
        self.checkout = checkout
        self.environment = environment
        (self._names,) = _blocks("environment")

    def start(self, block: Block) -> subprocess.Popen[str]:
        """Start a block."""
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"{self._names.text}\n{block.text}"],
            cwd=self.checkout,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, block: Block) -> str:
        """Run a block that has to succeed; return what it printed."""
        process = self.start(block)
        try:
            output, _ = process.communicate(timeout=_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        assert process.returncode == 0, f"{block.text}\n{output}"
        return output


@pytest.fixture(scope="module")
def bare(rehearsal: Rehearsal, cluster_overlay: Path, installed: list[dict[str, Any]]) -> Iterator[Rehearsal]:
    """Give the cluster as before any installation; what other tests count on is installed again afterwards."""
    with uninstalled(rehearsal, cluster_overlay):
        yield rehearsal


@pytest.fixture(scope="module")
def shell(bare: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Give a copy of what is under version control, and a GKE that serves the page's cluster.

    The virtual environment is the one that the tests run in: that `make` makes a new one is shown by every run of CI.
    """
    home = tmp_path_factory.mktemp("reader")
    checkout = home / "tpu-provisioner"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", ".coverage*", "dist")
    shutil.copytree(REPOSITORY, checkout, ignore=ignored)
    programs = home / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(bare.cluster.binaries["kubectl"])
    for name in ("kustomize", "helm"):
        (programs / name).symlink_to(tools.tool(name))
    docker = programs / "docker"
    docker.write_text(f'#!/bin/sh\necho "$*" >> {home}/docker-calls\n', encoding="ascii")
    docker.chmod(0o755)
    (checkout / "ready").touch()
    settings = replace(simulator_settings(), project="my-project", cluster="my-cluster")
    gke = Simulator(settings, kubeconfig=bare.cluster.kubeconfig, port=0)
    gke.start()
    kept = {key: value for key, value in os.environ.items() if key in ("LANG", "TZ", "COVERAGE_PROCESS_START")}
    flags = "--metrics-bind-address=0 --health-probe-bind-address=0"
    shell = Shell(
        checkout,
        {
            **kept,
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "KUBECONFIG": str(bare.cluster.kubeconfig),
            "GKE_ENDPOINT": gke.url,
            "NODEPOOL_DELETION_DELAY": "1s",
            "NODE_MIN_LIFESPAN": "0s",
            # Make's own variables: what is set up already, and ports that nobody else may have.
            "MAKEFLAGS": f"BIN={REPOSITORY / '.venv' / 'bin'} SETUP=ready",
            "ARGS": flags,
        },
    )
    yield shell
    gke.stop()


@pytest.mark.e2e
def test_the_page(shell: Shell) -> None:
    """In the order of the page, with the image not built and the controller run by `make run`."""
    (background,) = _blocks("background")
    running: subprocess.Popen[str] | None = None
    printed = []
    try:
        for block in _blocks("here", "background"):
            if block == background:
                running = shell.start(block)
                continue
            if "kubectl delete" in block.text:
                # The page says so: first the pools go.
                wait_for(lambda: not _pools(shell), "all pools are gone", _WAIT_SECONDS)
            printed.append(shell.run(block))
    finally:
        if running is not None:
            os.killpg(running.pid, signal.SIGTERM)
            output, _ = running.communicate(timeout=40)
            printed.append(output)
    text = "\n".join(printed)
    assert "jobset.jobset.x-k8s.io/tpu-demo condition met" in text
    assert "NodePoolCreationSucceeded" in text
    assert "controller.stopped" in text
    assert "Traceback" not in text


def _pools(shell: Shell) -> list[object]:
    path = "v1/projects/my-project/locations/us-central2/clusters/my-cluster/nodePools"
    answer = requests.get(f"{shell.environment['GKE_ENDPOINT']}/{path}", timeout=10)
    return list(answer.json().get("nodePools", []))


@pytest.mark.e2e
def test_the_image_commands(shell: Shell) -> None:
    """`make docker-build docker-push IMG=...` asks docker for a build of this folder, and to push it."""
    (block,) = _blocks("docker")
    shell.run(block)
    build, push = (shell.checkout.parent / "docker-calls").read_text(encoding="utf-8").splitlines()
    image = "us-docker.pkg.dev/my-project/tpu-provisioner/controller:v0.1.0"
    assert build.startswith("build --build-arg VERSION=")
    assert build.endswith(f"-t {image} .")
    assert push == f"push {image}"


@pytest.mark.e2e
def test_the_helm_command(shell: Shell) -> None:
    """The chart is installed by the page's command, and taken away again."""
    (block,) = _blocks("helm")
    assert "STATUS: deployed" in shell.run(block)
    shell.run(Block(where="here", text="helm uninstall tpu-provisioner --namespace=tpu-provisioner-system"))
