"""Tests of two replicas with one Lease: if the leader ends, the other takes over, and no slice gets two pools."""

from __future__ import annotations

import re

import pytest

from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground, logged, metrics, ready

pytestmark = pytest.mark.e2e

ELECT = ("--leader-elect",)


def leads(process: ProvisionerProcess) -> bool:
    return bool(logged(process, "cluster.proven")) and "tpu_provisioner_leader 1.0" in metrics(process)


def chip_seconds(process: ProvisionerProcess, ground: Ground) -> float:
    of_namespace = rf'tpu_provisioner_chip_seconds_total\{{.*workload_namespace="{ground.namespace}"\}} (\S+)'
    return sum(map(float, re.findall(of_namespace, metrics(process))))


def test_follower_takes_over_from_a_stopped_or_killed_leader(alone: Ground) -> None:
    """The follower takes over within seconds after an orderly stop, and when the Lease expires after a kill."""
    first = alone.provisioner(arguments=ELECT)
    second = alone.provisioner(arguments=ELECT, wait=False)
    alone.wait(lambda: ready(second)[0] == 200, "the follower is ready")
    alone.apply("relay", run_for="1s")
    alone.await_completed("relay")
    assert not logged(second, "cluster.proven")
    alone.apply("second-leg", run_for="1s", topology="2x2x2", parallelism=2)
    assert first.stop() == 0
    # A limit of 20 s shows that the leader released the Lease, which would expire only after 30 s.
    alone.wait(lambda: leads(second), "the follower takes over", 20)
    # A process counts chip-seconds from its own start, without the chip-seconds of earlier leaders.
    alone.wait(lambda: chip_seconds(second, alone) > 0, "the chip-seconds go on")
    handed_over = chip_seconds(second, alone)
    alone.await_completed("relay", "second-leg")
    third = alone.provisioner(arguments=ELECT, wait=False)
    alone.wait(lambda: ready(third)[0] == 200, "the next follower is ready")
    alone.apply("third-leg", run_for="1s", topology="2x2x4", parallelism=4)
    alone.wait(lambda: alone.pools("third-leg-"), "its pool is in the making")
    second.kill()
    alone.wait(lambda: leads(third), "the lease runs out, and the next takes over", 60)
    alone.wait(lambda: chip_seconds(third, alone) >= handed_over, "the chip-seconds go on after a crash, too")
    alone.await_completed("third-leg")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 3
    # An orderly stop releases the Lease; otherwise the next test would have to wait until it expires.
    assert third.stop() == 0
