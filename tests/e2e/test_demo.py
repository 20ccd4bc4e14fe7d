"""The demo as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "jobset.yaml"


def assert_told(told: str, story: list[str]) -> None:
    """Assert that these lines, as regular expressions, are told in this order."""
    place = 0
    for line in story:
        found = re.compile(line).search(told, place)
        assert found is not None, f"{line!r} is not told after its predecessor:\n{told}"
        place = found.start()


def demo(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the demo."""
    fast = ("--create-seconds=2", "--delete-seconds=1")
    return started("demo", *fast, *arguments, NODEPOOL_DELETION_DELAY="1s", **environment)


def started(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command."""
    return subprocess.Popen(
        [sys.executable, "-m", "rehearsal", *arguments],
        env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_shows_a_whole_life_and_ends_well() -> None:
    """From leader pods that cannot be scheduled to nothing left, then the tables, then exit code 0."""
    process = demo()
    told, _ = process.communicate(timeout=240)
    assert process.returncode == 0, told
    story = [
        r"JobSet default/tpu-demo: created",
        r"leader pod default/tpu-demo-workers-0-0-\w+ cannot be scheduled",
        r"requests node pool tpu-demo-\w+ from GKE: 2 of ct4p-hightpu-4t, 8 chips",
        r"node pool tpu-demo-\w+ is ready, 2 nodes",
        r"leader pod default/tpu-demo-workers-0-0-\w+ has succeeded",
        r"JobSet default/tpu-demo: completed",
        r"deletes node pool tpu-demo-\w+",
        r"nothing is left: no node pool, no node",
        r"Time in each step",
        r"nodePools.create +\W+2",
        r"16 chips in 2 node pools, created and deleted",
    ]
    assert_told(told, story)


def test_the_demo_of_node_groups_shows_machines_that_join_and_ends_well() -> None:
    """From pods that cannot be scheduled to nothing left in the cluster and in Compute Engine, then exit code 0."""
    process = started("demo-gce", "--create-seconds=1", "--boot-seconds=1")
    told, _ = process.communicate(timeout=280)
    assert process.returncode == 0, told
    story = [
        r"requests instance template slice-template-\w+ from Compute Engine",
        r"managed instance group slice-mig-\w+ is there",
        r"machine slice-mig-\w+-\w+ gets a token of its own",
        r"machine slice-mig-\w+-\w+ has joined: its token leaves its metadata",
        r"2 of 2 nodes are ready and show their chips",
        r"leader pod default/train-workers-0-0-\w+ has succeeded",
        r"JobSet default/train: completed",
        r"the TPUNodeGroups are deleted",
        r"managed instance group slice-mig-\w+ is gone",
        r"TPUNodeGroup default/slice is gone",
        r"nothing is left: no policy, template, group, machine, node or token",
        r"Time in each step",
        r"instanceGroupManagers.insert +1\b",
        r"2 machines, created, joined and deleted",
    ]
    assert_told(told, story)


def test_the_demo_of_partitions_shows_pods_from_waiting_to_released_and_ends_well() -> None:
    """From pods that are held back to nothing left on the V-IPU server and in the ledger, then exit code 0."""
    process = started("demo-ipu", "--create-seconds=0.5")
    told, _ = process.communicate(timeout=280)
    assert process.returncode == 0, told
    story = [
        r"the webhook server runs, and pods with IPUs are sent to it",
        r"the controller of partitions runs; V-IPU is simulated, with 16 IPUs",
        r"asks for 8 IPUs, and is held back from the scheduler",
        r"waits: 8 IPUs have to be free in one allocation",
        r"is let to the scheduler with partition tpup-[\w-]+, for nodes with ipu-pod=one",
        r"has its IPUoF configuration, \d+ characters",
        r"has succeeded",
        r"partition tpup-[\w-]+ is removed",
        # One that waited for these IPUs.
        r"is let to the scheduler with partition tpup-[\w-]+",
        r"has succeeded",
        r"nothing is left: no partition, no entry in the ledger",
        r"4 partitions, created, used and removed",
    ]
    assert_told(told, story)


def test_a_jobset_that_google_does_not_serve_fails_the_demo(tmp_path: Path) -> None:
    """The reason and the nearest valid values are told, and the exit code is not 0."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(EXAMPLE.read_text(encoding="utf-8").replace("2x2x2", "2x2x3"), encoding="utf-8")
    process = demo(str(wrong))
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "topology 2x2x3 is not valid for tpu-v4-podslice" in told
    assert "nearest valid: 2x2x2, 2x2x4" in " ".join(told.split())


def test_a_file_that_is_not_there_is_named() -> None:
    """Before anything is started."""
    process = demo("nowhere.yaml")
    told, _ = process.communicate(timeout=60)
    assert (process.returncode, told.strip()) == (2, "no such file: nowhere.yaml")


def test_an_interrupted_demo_says_what_is_left() -> None:
    """Nothing is called deleted that is not."""
    process = demo("--create-seconds=60")
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if "GKE creates it" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "created and deleted" not in rest
    assert re.search(
        r"chips in \d node pools?; 0 deleted, \d left:\n  tpu-demo-\w+: 8 chips, (creating|provisioning)", rest
    )
    assert max(map(len, rest.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "there is no JobSet", id="another kind"),
        pytest.param("a: [1\n", "is not YAML", id="no YAML"),
    ],
)
def test_manifests_without_a_jobset_are_named_at_once(text: str, words: str, tmp_path: Path) -> None:
    """Before anything is started."""
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    process = demo(str(file))
    told, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert words in told


def test_keep_stays_up_until_it_is_told_to_end(tmp_path: Path) -> None:
    """With KEEP=1 it prints where everything is; --watch opens the page; Ctrl-C ends it all in good order."""
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    process = demo("--watch", KEEP="1", BROWSER=f"{browser} %s")
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if "provisioner's log" in line:
            break
    page = re.search(r"the status page is at (\S+)", "".join(told))
    assert page is not None
    assert opened.read_text().strip() == page[1]
    with urllib.request.urlopen(page[1]) as answer:
        assert b"<title>TPU provisioner</title>" in answer.read()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    kubeconfig = re.search(r"export KUBECONFIG=(\S+)", "".join(told))
    assert kubeconfig is not None
    assert not Path(kubeconfig[1]).exists()
