"""Tests of reports to users and administrators: Events and their repeats, log lines, alerts and metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog

from provisioner.kube.errors import Forbidden
from provisioner.kube.live import cordon
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import FailureKind, PoolName, PoolStatus
from provisioner.model.workloads import ObjectRef
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.metrics import Metrics, values_of
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import Alert, Notice, Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.report import Reporter
from tests.support.clock import NOW, FakeClock
from tests.support.controller import NAMESPACE, FakeRecorder, World, jobset_of, jobset_path, leader_of
from tests.support.models import make_jobset, make_node, make_pod, make_pool
from tests.support.objects import raw_foreign_pod
from tests.support.world import World as DecisionWorld

SNAPSHOT = Snapshot(pools_listed_at=NOW)


@pytest.fixture
def world() -> World:
    return World()


def metric(world: World, line: str) -> bool:
    return f"tpu_provisioner_{line}\n" in world.metrics.exposition().decode()


def test_events_of_a_pool_have_the_reasons_of_the_go_provisioner(world: World) -> None:
    pool = world.run_to_use()
    world.complete()
    world.rounds(8, every_seconds=5)
    world.finish_deletes()
    world.rounds(2, every_seconds=3)
    assert world.recorder.reasons("Pod") == ["NodePoolCreationStarted", "NodePoolCreationSucceeded"]
    assert world.recorder.reasons("JobSet") == ["NodePoolDeletionStarted", "NodePoolDeletionSucceeded"]
    assert world.recorder.reasons("Node") == []
    assert all(pool in event.message for event in world.recorder.told)
    assert {event.kind for event in world.recorder.told} == {"Normal"}
    # State of deleted pools is dropped; otherwise it would grow as long as the process runs.
    reporter = world.loop.reporter
    kept = (reporter._creates, reporter._deletes, reporter._wanted_at, reporter._timed, reporter._states)
    assert [state for state in kept if state] == []


def test_log_lines_of_a_pool_name_its_workload_and_slice(world: World) -> None:
    """An administrator finds all lines of a workload by one key."""
    with structlog.testing.capture_logs() as logs:
        pool = world.run_to_use()
        world.complete()
        world.rounds(8, every_seconds=5)
    lines = [line for line in logs if line["event"].startswith("node_pool.")]
    assert {"node_pool.create_accepted", "node_pool.delete_accepted"} < {line["event"] for line in lines}
    assert {line["node_pool"] for line in lines} == {pool}
    [workload] = {line["workload"] for line in lines}
    assert workload.startswith("JobSet/")
    slices = {line["event"]: line["slice"] for line in lines if line.get("new") != "idle"}
    assert slices["node_pool.create_accepted"].startswith(f"{workload}/")


def test_pool_whose_create_was_rejected_is_not_reported_as_gone(world: World) -> None:
    """In the past, the list of activities showed a node pool as gone although it had never existed."""
    world.gke.fail_always("create_node_pool", FailureKind.STOCKOUT)
    world.put_jobset()
    world.rounds(3, every_seconds=3)
    world.vanish()
    world.rounds(3, every_seconds=3)
    messages = [entry.message for entry in world.board.journal.entries() if entry.kind == "pool"]
    assert messages[-1].endswith(" was not created")
    assert [message for message in messages if message.endswith("is gone")] == []


def test_delete_blocked_by_a_pod_is_reported_without_naming_the_pod(world: World) -> None:
    """A pod of another namespace is named only in the log and the journal, not in the Event on the JobSet."""
    pool = world.run_to_use()
    world.complete()
    world.round(after_seconds=3)
    node = f"gke-test-{pool}-0"
    world.kube.put_object(object_path("pods", "stray", namespace="other"), raw_foreign_pod("stray", node))
    world.rounds(8, every_seconds=5)
    failed = [event for event in world.recorder.told if event.reason == EventReason.DELETION_FAILED]
    (message,) = {event.message for event in failed}
    assert message == f"Node pool {pool} is not deleted yet: unfinished pods of others are on it"
    assert {event.kind for event in failed} == {"Warning"}
    assert len({event.key for event in failed}) == 1
    assert any("other/stray" in entry.message for entry in world.board.journal.entries())
    assert metric(world, "deletes_blocked 1.0")


def test_delete_of_a_settling_pool_is_not_reported_as_failed(world: World) -> None:
    """A pool settles while a pod may still be bound to its cordoned nodes. This wait is no failure of the delete."""
    pool = world.run_to_use()
    world.kube.put_object(jobset_path("other"), jobset_of("other"))
    pending = leader_of("other", uid="uid-of-other")
    pending["status"] = {"phase": "Pending"}
    world.kube.put_object(object_path("pods", "other-workers-0-0", namespace=NAMESPACE), pending)
    world.complete()
    world.rounds(8, every_seconds=5)
    assert world.gke.names_of("delete_node_pool") == []
    assert EventReason.DELETION_FAILED not in world.recorder.reasons("JobSet")
    assert metric(world, "deletes_blocked 0.0")
    assert b"Its deletion waits: its nodes are cordoned" in world.board.everything()[1]
    world.rounds(12, every_seconds=5)
    assert world.gke.names_of("delete_node_pool") == [pool]


def test_delete_blocked_for_ten_minutes_raises_an_alert_that_names_the_pod(world: World) -> None:
    pool = world.run_to_use()
    world.complete()
    stray = object_path("pods", "stray", namespace="other")
    world.kube.put_object(stray, raw_foreign_pod("stray", f"gke-test-{pool}-0"))
    world.rounds(8, every_seconds=60)
    assert not metric(world, 'alerts{kind="pool_stuck"} 1.0')
    with structlog.testing.capture_logs() as logs:
        world.rounds(8, every_seconds=60)
    assert metric(world, 'alerts{kind="pool_stuck"} 1.0')
    (alert,) = (line for line in logs if line["event"] == "alert.began")
    assert "other/stray" in alert["problem"]
    world.kube.remove_object(stray)
    world.rounds(4, every_seconds=60)
    assert metric(world, 'alerts{kind="pool_stuck"} 0.0')


def test_pool_deleted_by_a_user_is_reported_on_the_jobset(world: World) -> None:
    pool = world.run_to_use()
    world.gke.remove_pool(pool)
    world.remove_nodes(pool)
    world.put_leader()
    world.rounds(30, every_seconds=3)
    assert EventReason.POOL_NOT_FOUND in world.recorder.reasons("JobSet")


def test_metrics_follow_a_pool_from_create_to_delete(world: World) -> None:
    world.run_to_use()
    assert metric(world, 'chips{state="in_use"} 4.0')
    assert metric(world, 'node_pools{phase="in_use"} 1.0')
    assert metric(world, 'slices{phase="in_use"} 1.0')
    assert metric(world, 'creates_total{result="ok"} 1.0')
    assert metric(world, "leader 1.0")
    assert metric(world, "cluster_proven 1.0")
    assert metric(world, 'time_to_phase_seconds_count{phase="in_use"} 1.0')
    # The pool is created in the first round, ready 3 s later, and in use 3 s after that.
    assert metric(world, 'time_to_phase_seconds_sum{phase="ready"} 3.0')
    assert metric(world, 'time_to_phase_seconds_sum{phase="in_use"} 6.0')
    world.complete()
    world.rounds(8, every_seconds=5)
    assert metric(world, 'deletes_total{reason="jobset_finished",result="ok"} 1.0')
    world.finish_deletes()
    world.rounds(2, every_seconds=3)
    assert metric(world, 'chips{state="in_use"} 0.0')
    assert metric(world, 'node_pools{phase="deleting"} 0.0')


def test_pool_that_is_ready_a_second_time_is_measured_once(world: World) -> None:
    """While the leader restarts, the pool has the phase ready again. Only a recreated pool counts a second time."""
    world.run_to_use()
    world.put_leader()
    world.rounds(2, every_seconds=600)
    assert metric(world, 'node_pools{phase="in_use"} 0.0')
    world.put_leader(node=f"gke-test-{next(iter(world.gke.pools))}-0")
    world.rounds(2, every_seconds=3)
    assert metric(world, 'node_pools{phase="in_use"} 1.0')
    assert metric(world, 'time_to_phase_seconds_count{phase="ready"} 1.0')
    assert metric(world, 'time_to_phase_seconds_count{phase="in_use"} 1.0')


def test_chips_and_pools_are_counted_by_state(world: World) -> None:
    world.put_jobset()
    seen = []
    for change in (
        lambda: None,
        world.finish_creates,
        lambda: (world.change_jobset(status={"terminalState": "Completed"}), world.remove_leader()),
        lambda: world.clock.advance(30),
        lambda: None,
    ):
        change()
        world.rounds(2, every_seconds=1)
        counts = [
            sample.labels["state"]
            for family in world.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "tpu_provisioner_chips" and sample.value == 4
        ]
        seen += [state for state in counts if state not in seen]
    assert seen == ["provisioning", "ready", "idle", "deleting"]


def test_slice_in_back_off_counts_as_blocked_without_a_pool(world: World) -> None:
    world.gke.fail_next("create_node_pool", FailureKind.STOCKOUT)
    world.put_jobset()
    world.rounds(2, every_seconds=1)
    assert metric(world, 'creates_total{result="stockout"} 1.0')
    assert metric(world, 'slices{phase="blocked"} 1.0')
    assert metric(world, 'chips{state="wanted"} 4.0')
    assert not metric(world, 'node_pools{phase="blocked"} 1.0')


def test_rejected_delete_is_counted_by_kind_and_reported(world: World) -> None:
    pool = world.run_to_use()
    world.complete()
    world.gke.fail_always("delete_node_pool", FailureKind.PERMISSION, message="Required 'delete'.")
    world.rounds(8, every_seconds=5)
    assert 'deletes_total{reason="jobset_finished",result="permission"}' in world.metrics.exposition().decode()
    told = {
        (event.kind, event.message, event.key)
        for event in world.recorder.told
        if event.ref.kind == "JobSet" and event.reason == EventReason.DELETION_FAILED
    }
    want = ("Warning", f"Node pool {pool} is not deleted yet: Required 'delete'.", f"{pool} permission")
    assert told == {want}
    assert metric(world, "deletes_blocked 1.0")
    assert world.recorder.reasons("JobSet") == [EventReason.DELETION_FAILED]


def test_dropped_events_are_counted_once(world: World) -> None:
    for dropped in (3, 3, 5):
        world.recorder.dropped_total = dropped
        world.round(after_seconds=1)
    assert metric(world, "events_dropped_total 5.0")


def test_notice_that_returns_is_logged_again(world: World) -> None:
    with structlog.testing.capture_logs() as logs:
        for topology in ("2x2x3", "2x2x1", "2x2x3"):
            world.put_jobset(topology=topology)
            world.rounds(2, every_seconds=3)
    assert [line["event"] for line in logs].count("slice.notice") == 2


def test_node_changes_rejected_for_ten_minutes_raise_an_alert(world: World) -> None:
    """Without the right to patch nodes, nodes of a used pool remain cordoned by the provisioner."""
    pool = world.run_to_use()
    node = f"gke-test-{pool}-0"
    cordon(world.kube, node)
    world.kube.fail("PATCH", "/nodes/", Forbidden("nodes is forbidden"), times=10**6)
    world.rounds(9, every_seconds=60)
    assert not metric(world, 'alerts{kind="node_change_rejected"} 1.0')
    world.rounds(3, every_seconds=60)
    assert metric(world, 'alerts{kind="node_change_rejected"} 1.0')
    assert world.loop.last_plan is not None
    (alert,) = world.loop.last_plan.alerts
    assert node in alert.message
    assert "nodes is forbidden" in alert.message
    world.kube.clear_faults()
    world.rounds(2, every_seconds=60)
    assert metric(world, 'alerts{kind="node_change_rejected"} 0.0')


def test_alert_of_each_pool_is_logged(world: World) -> None:
    first, second = (Alert(kind="pool_stuck", pool=PoolName(name), message=f"{name} hangs") for name in ("a", "b"))
    with structlog.testing.capture_logs() as logs:
        for alerts in ((first,), (first, second), (second,), ()):
            world.loop.reporter.tell(Plan(memory=Memory(), alerts=alerts), SNAPSHOT)
    told = [(line["event"], line.get("problem", line.get("node_pool"))) for line in logs]
    assert told == [("alert.began", "a hangs"), ("alert.began", "b hangs"), ("alert.ended", "a"), ("alert.ended", "b")]


def test_events_of_a_failed_pool_do_not_name_pods_of_other_namespaces(world: World) -> None:
    """The Events about the failure and about the blocked delete are readable by tenants of the JobSet's namespace."""
    world.put_jobset()
    world.rounds(2, every_seconds=3)
    (pool,) = world.gke.pools
    world.finish_creates()
    stray = object_path("pods", "stray", namespace="other")
    world.kube.put_object(stray, raw_foreign_pod("stray", f"gke-test-{pool}-0"))
    world.gke.set_pool(replace(world.gke.pools[pool], status=PoolStatus.ERROR))
    world.rounds(10, every_seconds=5)
    assert any("other/stray" in entry.message for entry in world.board.journal.entries())
    assert "NodePoolDeletionFailed" in {event.reason for event in world.recorder.told}
    assert not any("stray" in event.message for event in world.recorder.told)


def test_event_of_a_failed_pool_says_that_it_is_replaced_when_its_pods_have_ended(world: World) -> None:
    world.put_jobset()
    pool = world.run_to_use()
    world.gke.set_pool(replace(world.gke.pools[pool], status=PoolStatus.ERROR))
    world.round(after_seconds=60)
    told = [event.message for event in world.recorder.told if event.reason == EventReason.CREATION_FAILED]
    when = "when the pods on it have ended"
    assert set(told) == {f"Node pool {pool} failed; it is deleted and replaced {when}: GKE gives no reason"}


def test_back_off_is_exposed_as_a_metric(world: World) -> None:
    world.put_jobset()
    world.round()
    (pool,) = world.gke.pools
    world.gke.fail_pool(pool, FailureKind.QUOTA)
    world.rounds(2, every_seconds=3)
    assert metric(world, 'backoff_active{kind="quota"} 1.0')


def ref(kind: str, number: int) -> ObjectRef:
    return ObjectRef(kind=kind, api_version="v1", namespace="flood", name=f"j-{number}", uid=f"{kind}-{number}")


def waiting(slices: int, ctx: int = 0) -> Plan:
    notices = (
        Notice(
            objects=(ref("Pod", number), ref("JobSet", number)),
            reason=EventReason.CREATION_WAITING,
            message=f"node pool j-{number} waits: out of stock, next try in {ctx} s",
            key=f"stockout j-{number}",
        )
        for number in range(slices)
    )
    return Plan(memory=Memory(), notices=tuple(notices))


def test_repeated_notice_is_emitted_at_most_every_310_s() -> None:
    clock, recorder = FakeClock(), FakeRecorder()
    reporter = Reporter(recorder=recorder, metrics=Metrics(version="test"), monotonic=clock)
    with structlog.testing.capture_logs() as logs:
        for second in range(300):
            reporter.tell(waiting(3 if second % 2 else 2, second), SNAPSHOT)
            clock.advance(1)
    assert len(recorder.told) == 6
    assert len(logs) == 2 + 30
    clock.advance(10)
    reporter.tell(waiting(3, 310), SNAPSHOT)
    assert [event.message for event in recorder.told[6:]][-1].endswith("next try in 310 s")


def test_equal_notices_of_two_slices_are_emitted_once() -> None:
    recorder = FakeRecorder()
    reporter = Reporter(recorder=recorder, metrics=Metrics(version="test"), monotonic=FakeClock())
    same = Notice(objects=(ref("JobSet", 0),), reason="R", message="m")
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            reporter.tell(Plan(memory=Memory(), notices=(same, same)), SNAPSHOT)
    assert (len(recorder.told), len(logs)) == (1, 1)


def test_past_notices_are_forgotten_beyond_a_limit() -> None:
    reporter = Reporter(recorder=FakeRecorder(), metrics=Metrics(version="test"), monotonic=FakeClock())
    with structlog.testing.capture_logs():
        for number in range(4200):
            notice = Notice(objects=(ref("JobSet", 0),), reason="R", message=str(number))
            reporter.tell(Plan(memory=Memory(), notices=(notice,)), SNAPSHOT)
    assert (len(reporter._reported), len(reporter._current_notices)) == (4097, 1)


def test_chips_of_split_slices_are_not_counted_as_in_use() -> None:
    """The pods of two slices are mixed on two pools, so none of the 16 chips belongs to a complete slice."""
    workloads = [make_jobset(name) for name in "ab"]
    world = DecisionWorld(*workloads)
    pools = [world.put_pool(make_pool(workload)) for workload in workloads]
    for number, workload in enumerate(workloads):
        world.end_pods(workload)
        world.put(*(make_pod(workload, index=index, node=make_node(pools[index], number).name) for index in (0, 1)))
    metrics = Metrics(version="")
    metrics.show(values_of(world.look(), (), {}, NOW, deletion_delay_seconds=0.0))
    lines = set(metrics.exposition().decode().splitlines())
    shown = ('chips{state="split"} 16.0', 'chips{state="in_use"} 0.0', 'slices{phase="split"} 2.0', "split_slices 2.0")
    assert {f"tpu_provisioner_{line}" for line in shown} <= lines
