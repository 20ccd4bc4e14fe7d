"""Tests of the demos, with the commands that users run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def assert_tells(story: list[str], *arguments: str, **environment: str) -> str:
    """Check that a command succeeds and prints matches of the regular expressions in order; return its output."""
    environment = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **environment}
    command, pipe = [sys.executable, "-m", "rehearsal", *arguments], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        told, _ = process.communicate(timeout=280)
    assert process.returncode == 0, told
    place = 0
    for line in story:
        found = re.compile(line).search(told, place)
        assert found is not None, f"{line!r} is not told after its predecessor:\n{told}"
        place = found.start()
    return told


def test_demo_shows_a_jobset_until_its_pools_are_deleted() -> None:
    story = [
        r"JobSet default/tpu-demo: created",
        r"leader pod default/tpu-demo-workers-0-0-\w+ cannot be scheduled",
        r"requests node pool tpu-demo-\w+ from GKE: 2 of ct5lp-hightpu-4t, 8 chips, for slice tpu-demo-workers-\d",
        r"node pool tpu-demo-\w+ is ready, 2 nodes",
        r"leader pod default/tpu-demo-workers-0-0-\w+ has succeeded",
        r"JobSet default/tpu-demo: completed",
        r"deleting node pool tpu-demo-\w+",
        r"nothing is left: no node pool, no node",
        r"Time in each step",
        r"nodePools.create +\W+2",
        r"16 chips in 2 node pools, created and deleted",
    ]
    told = assert_tells(story, "demo", "--create-seconds=2", "--delete-seconds=1", NODEPOOL_DELETION_DELAY="1s")
    # This Event may be printed between any two lines, so it is checked separately.
    assert told.count('`admission webhook "vpod.kb.io" denied the request`, which is no failure') == 1


def test_demo_of_node_groups_shows_joining_machines_until_all_are_deleted() -> None:
    story = [
        r"requests instance template slice-template-\w+ from Compute Engine",
        r"managed instance group slice-mig-\w+ exists",
        r"machine slice-mig-\w+-\w+ gets a token of its own",
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
    assert_tells(story, "demo-gce", "--create-seconds=1", "--boot-seconds=1")


def test_demo_of_partitions_shows_pods_until_all_partitions_are_removed() -> None:
    story = [
        r"the webhook server runs, and pods with IPUs are sent to it",
        r"the controller of partitions runs; V-IPU is simulated, with 16 IPUs",
        r"asks for 8 IPUs, and is held back from the scheduler",
        r"waits: 8 IPUs must be free in one allocation",
        r"is released to the scheduler with partition tpup-[\w-]+, for nodes with ipu-pod=one",
        r"has its IPUoF configuration, \d+ characters",
        r"has succeeded",
        r"partition tpup-[\w-]+ is removed",
        # This pod waited for the IPUs of the removed partition.
        r"is released to the scheduler with partition tpup-[\w-]+",
        r"has succeeded",
        r"nothing is left: no partition, no entry in the ledger",
        r"4 partitions, created, used and removed",
    ]
    assert_tells(story, "demo-ipu", "--create-seconds=0.5")
