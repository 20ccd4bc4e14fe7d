"""What people are told: the Events of a whole life on the right objects, verdicts, metrics."""

from __future__ import annotations

import pytest
import structlog

from provisioner import constants
from provisioner.cluster.protocol import object_path
from provisioner.model.capacity import FailureKind
from tests.controller.kit import World, jobset_path, raw_foreign_pod


@pytest.fixture
def world() -> World:
    """Nothing yet."""
    return World()


def metric(world: World, line: str) -> bool:
    """Tell whether the exposition has a line."""
    return f"tpu_provisioner_{line}\n" in world.metrics.exposition().decode()


def test_the_events_of_a_whole_life(world: World) -> None:
    """Creation is told on the leader pod, deletion on the JobSet while it exists, with the Go provisioner's reasons."""
    pool = world.run_to_use()
    world.change_jobset(status={"terminalState": "Completed"})
    world.remove_leader()
    world.rounds(8, every_seconds=5)
    world.finish_deletes()
    world.rounds(2, every_seconds=3)
    assert world.recorder.reasons("Pod") == ["NodePoolCreationStarted", "NodePoolCreationSucceeded"]
    assert world.recorder.reasons("JobSet") == ["NodePoolDeletionStarted", "NodePoolDeletionSucceeded"]
    assert world.recorder.reasons("Node") == []
    assert all(pool in each.message for each in world.recorder.told)
    assert {each.kind for each in world.recorder.told} == {"Normal"}


def test_deletion_is_told_on_a_node_when_the_jobset_is_gone(world: World) -> None:
    """Without a JobSet there is only the node to tell it on."""
    pool = world.run_to_use()
    world.kube.remove_object(jobset_path("train"))
    world.remove_leader()
    world.rounds(8, every_seconds=5)
    world.finish_deletes()
    world.rounds(2, every_seconds=3)
    assert world.recorder.reasons("Node") == ["NodePoolDeletionStarted", "NodePoolDeletionSucceeded"]
    told = [each.ref.name for each in world.recorder.told if each.ref.kind == "Node"]
    assert set(told) == {f"gke-test-{pool}-0"}


def test_a_failed_pool_is_told_in_gke_words(world: World) -> None:
    """A pool that ends in ERROR is told on the pod and the JobSet; so is the wait for the next try."""
    world.put_jobset()
    world.round()
    (pool,) = world.gke.pools
    world.gke.fail_pool(pool, FailureKind.STOCKOUT, message="GCE_STOCKOUT: no v4 in us-central2-b")
    world.round(after_seconds=3)
    world.finish_deletes()
    world.rounds(3, every_seconds=3)
    for kind in ("Pod", "JobSet"):
        told = {each.reason: each.message for each in world.recorder.told if each.ref.kind == kind}
        assert "GCE_STOCKOUT: no v4" in told["NodePoolCreationFailed"]
        assert "GCE_STOCKOUT: no v4" in told["NodePoolCreationWaiting"]


def test_a_refused_create_is_told_and_not_repeated(world: World) -> None:
    """What GKE refuses as invalid is told in its words, and sent once."""
    world.gke.fail_next("create_node_pool", FailureKind.INVALID, message="Machine type is not offered here.")
    world.put_jobset()
    world.rounds(20, every_seconds=10)
    assert len(world.gke.names_of("create_node_pool")) == 1
    failed = [each for each in world.recorder.told if each.reason == constants.CREATION_FAILED]
    assert {each.ref.kind for each in failed} == {"Pod", "JobSet"}
    assert all("Machine type is not offered here." in each.message and each.kind == "Warning" for each in failed)


def test_an_impossible_slice_is_told_on_pod_and_jobset(world: World) -> None:
    """A topology that is not sold is told with the value, on the pod and the JobSet, and nothing is sent."""
    world.put_jobset(topology="2x2x3")
    world.rounds(3, every_seconds=3)
    told = [each for each in world.recorder.told if each.reason == constants.INVALID_REQUEST]
    assert {each.ref.kind for each in told} == {"Pod", "JobSet"}
    assert all("2x2x3" in each.message for each in told)
    assert world.gke.names_of("create_node_pool") == []


def test_a_verdict_is_logged_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict that stays is one line in the log, however many rounds repeat it."""
    world.put_jobset(topology="2x2x3")
    world.rounds(10, every_seconds=3)
    assert capsys.readouterr().out.count("slice.verdict") == 1


def test_a_postponed_delete_is_told(world: World) -> None:
    """A pool that must stay because of a pod is told with the pod's name, and counted as blocked."""
    pool = world.run_to_use()
    world.change_jobset(status={"terminalState": "Completed"})
    world.remove_leader()
    world.round(after_seconds=3)
    node = f"gke-test-{pool}-0"
    world.kube.put_object(object_path("pods", "stray", namespace="other"), raw_foreign_pod("stray", node))
    world.rounds(8, every_seconds=5)
    failed = [each for each in world.recorder.told if each.reason == constants.DELETION_FAILED]
    assert all("other/stray" in each.message and each.kind == "Warning" for each in failed)
    assert len({each.key for each in failed}) == 1
    assert metric(world, "deletes_blocked 1.0")


def test_a_delete_that_a_pod_holds_up_for_long_is_an_alert_that_names_the_pod(world: World) -> None:
    """After ten minutes a metric says so, for as long as it lasts."""
    pool = world.run_to_use()
    world.change_jobset(status={"terminalState": "Completed"})
    world.remove_leader()
    stray = object_path("pods", "stray", namespace="other")
    world.kube.put_object(stray, raw_foreign_pod("stray", f"gke-test-{pool}-0"))
    world.rounds(8, every_seconds=60)
    assert not metric(world, 'alerts{kind="delete_held_up"} 1.0')
    with structlog.testing.capture_logs() as logs:
        world.rounds(8, every_seconds=60)
    assert metric(world, 'alerts{kind="delete_held_up"} 1.0')
    (alert,) = (line for line in logs if line["event"] == "alert.began")
    assert "other/stray" in alert["problem"]
    world.kube.remove_object(stray)
    world.rounds(4, every_seconds=60)
    assert metric(world, 'alerts{kind="delete_held_up"} 0.0')


def test_a_pool_that_somebody_else_deletes_is_told(world: World) -> None:
    """A pool that vanishes under its JobSet is told on the JobSet as not found."""
    pool = world.run_to_use()
    world.gke.remove_pool(pool)
    world.remove_nodes(pool)
    world.put_leader()
    world.rounds(30, every_seconds=3)
    assert constants.POOL_NOT_FOUND in world.recorder.reasons("JobSet")


def test_metrics_of_a_life(world: World) -> None:
    """Chips, pools, slices, creates and deletes are counted by state."""
    world.run_to_use()
    assert metric(world, 'chips{state="in_use"} 4.0')
    assert metric(world, 'node_pools{phase="in_use"} 1.0')
    assert metric(world, 'slices{phase="in_use"} 1.0')
    assert metric(world, 'creates_total{result="ok"} 1.0')
    assert metric(world, "leader 1.0")
    assert metric(world, "cluster_proven 1.0")
    assert metric(world, 'time_to_phase_seconds_count{phase="in_use"} 1.0')
    world.change_jobset(status={"terminalState": "Completed"})
    world.remove_leader()
    world.rounds(8, every_seconds=5)
    assert metric(world, 'deletes_total{reason="jobset_finished",result="ok"} 1.0')
    world.finish_deletes()
    world.rounds(2, every_seconds=3)
    assert metric(world, 'chips{state="in_use"} 0.0')
    assert metric(world, 'node_pools{phase="deleting"} 0.0')


def test_back_off_is_a_metric(world: World) -> None:
    """What is backed off from is counted by kind."""
    world.put_jobset()
    world.round()
    (pool,) = world.gke.pools
    world.gke.fail_pool(pool, FailureKind.QUOTA)
    world.rounds(2, every_seconds=3)
    assert metric(world, 'backoff_active{kind="quota"} 1.0')
