"""Kubernetes at its worst: lists with holes, silent watches, a kind that goes, pods that stay; and a frozen leader."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from provisioner import cluster, localcluster
from provisioner.cluster.protocol import JOBSETS_ROOT, collection_path, object_path
from provisioner.localcluster import recipes
from provisioner.rehearsal import ProvisionerProcess
from tests.e2e.kit import Ground, logged, metrics, ready
from tests.e2e.proxy import Proxy

pytestmark = pytest.mark.e2e

ELECT = ("--leader-elect",)
#: The read time-out of a watch, and what may come on top on a loaded machine.
SILENCE_NOTICED_SECONDS = 115.0
THROUGH_PROXY = {"ASSUME_SAME_CLUSTER": "true"}


@pytest.fixture
def proxy(alone: Ground) -> Iterator[Proxy]:
    """Give a way to the cluster on which answers get lost."""
    with Proxy(alone.rehearsal.cluster.kubeconfig) as proxy:
        yield proxy
        # Before its server goes: a process without one would log what has nothing to do with the test.
        for process in alone.provisioners:
            process.kill()


def _seconds_since(record: dict[str, Any]) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(record["timestamp"])).total_seconds()


def _leads(process: ProvisionerProcess) -> bool:
    return bool(logged(process, "cluster.proven")) and "tpu_provisioner_leader 1.0" in metrics(process)


def test_a_leader_that_was_frozen(alone: Ground) -> None:
    """A leader frozen for longer than its lease, with creates unsent, acts on nothing any more: it ends."""
    names = [f"frost-{index}" for index in range(6)]
    alone.gke.set(request_seconds=0.5)
    first = alone.provisioner(arguments=ELECT, environment={"CONCURRENCY": "1", "POD_NAME": "first"})
    second = alone.provisioner(arguments=ELECT, environment={"POD_NAME": "second"}, wait=False)
    alone.wait(lambda: ready(second)[0] == 200, "the follower is ready")
    for name in names:
        alone.apply(name, run_for="1h")
    alone.wait(lambda: alone.accepted("nodePools.create") >= 2, "some creates are taken")
    first.pause()
    assert alone.accepted("nodePools.create") < 6
    alone.gke.set(request_seconds=0.0)
    alone.wait(lambda: _leads(second), "the lease runs out, and the second takes over", 60)
    alone.wait(lambda: all(alone.runs(name) for name in names), "all run")
    assert alone.accepted("nodePools.create") == len(alone.pools()) == 6
    # What the frozen one still has to send would make these anew.
    for name in names[2:]:
        alone.delete(name)
    alone.wait(lambda: len(alone.pools()) == 2, "the pools of four are gone")
    sent = alone.gke.count("nodePools.create")
    first.resume()
    alone.wait(lambda: not first.running, "the frozen one ends")
    assert first.exit_code == 1
    assert logged(first, "controller.lease_lost")
    assert alone.gke.count("nodePools.create") == sent
    assert (len(alone.pools()), alone.accepted("nodePools.delete")) == (2, 4)
    assert all(alone.runs(name) for name in names[:2])
    for name in names[:2]:
        alone.delete(name)
    alone.await_gone()
    # In good order, or the next test would have to wait for its lease.
    assert second.stop() == 0


def test_half_of_all_jobsets_missing_from_a_list(alone: Ground, proxy: Proxy, tmp_path: Path) -> None:
    """JobSets, and their pods, that a list leaves out lose no pool; an alert says so, and ends with the next list."""
    names = [f"half-{index}" for index in range(8)]
    lost = tuple(names[:5])
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    process = alone.provisioner(kubeconfig=kubeconfig, environment=THROUGH_PROXY)
    for name in names:
        # A selector of its own keeps each on its own pool.
        alone.apply(name, run_for="1h", selector={"example.com/half": name})
    alone.wait(lambda: all(alone.runs(name) for name in names), "all run")

    def missing(path: str, item: dict[str, Any]) -> bool:
        name = item["metadata"]["name"]
        if path.endswith("/jobsets"):
            return name in lost
        return path.endswith("/pods") and name.startswith(tuple(f"{each}-" for each in lost))

    proxy.hide(missing)
    proxy.expire_watches()
    alert = 'tpu_provisioner_alerts{kind="mass_disappearance"}'
    alone.wait(lambda: f"{alert} 1.0" in metrics(process), "the alert is raised")
    alone.wait(lambda: logged(process, "node_pool.delete_postponed"), "a delete is tried, and not confirmed")
    (began, *_) = logged(process, "alert.began")
    # The deletion delay several times over: time enough for wrong deletes.
    alone.wait(lambda: _seconds_since(began) > 8, "time passes")
    assert {"lives" in record["reason"] for record in logged(process, "node_pool.delete_postponed")} == {True}
    # One a minute, not five.
    assert len({record["node_pool"] for record in logged(process, "node_pool.delete_postponed")}) == 1
    assert proxy.lists_cut >= 2
    proxy.hide(None)
    proxy.expire_watches()
    alone.wait(lambda: f"{alert} 0.0" in metrics(process), "the alert ends")
    assert alone.gke.count("nodePools.delete") == 0
    assert len(alone.living("half-")) == 8
    assert all(alone.runs(name) for name in names)
    alone.wait(lambda: not any(node["spec"].get("unschedulable") for node in alone.nodes()), "all nodes are open")
    for name in names:
        alone.delete(name)
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 8


def test_a_pod_that_stays_on_a_dead_node(alone: Ground) -> None:
    """A pod that is past its grace and does not go, on a node that is dead, does not keep the pool."""
    process = alone.provisioner()
    alone.apply("ghost", run_for="1h")
    alone.wait(lambda: alone.runs("ghost"), "it runs")
    leader = alone.leader("ghost")
    assert leader is not None
    path = object_path("pods", leader["metadata"]["name"], namespace=alone.namespace)
    node = object_path("nodes", leader["spec"]["nodeName"])
    alone.api.patch(path, {"metadata": {"finalizers": ["example.com/stuck"]}})
    try:
        # The kubelet's stand-in must not bring it back.
        alone.api.patch(node, {"metadata": {"annotations": {localcluster.KEEP_NOT_READY: "true"}}})
        alone.rehearsal.kubectl(
            "patch", "node", leader["spec"]["nodeName"], "--subresource=status", "--type=strategic",
            "-p", '{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}',
        )  # fmt: skip
        alone.delete("ghost")
        alone.wait(lambda: "deletionTimestamp" in alone.api.get(path)["metadata"], "its pod is to go")
        assert alone.api.get(path)["status"]["phase"] == "Running"
        alone.await_gone("ghost-")
        assert alone.api.get(path)["metadata"]["uid"] == leader["metadata"]["uid"]
        assert alone.accepted("nodePools.delete") == 1
        assert logged(process, "node_pool.delete_accepted")
    finally:
        alone.api.patch(path, {"metadata": {"finalizers": None}})


def test_the_jobset_kind_is_removed_and_put_back(alone: Ground) -> None:
    """While the kind is missing nothing is deleted, and readiness says why; once it is back all goes on."""
    running = alone.rehearsal.cluster
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "6s"})
    alone.apply("before", run_for="1h")
    alone.wait(lambda: alone.runs("before"), "it runs")
    alone.rehearsal.kubectl("delete", "crd", "jobsets.jobset.x-k8s.io", "--wait=true")
    try:
        alone.wait(lambda: "JobSet CRD is not installed" in ready(process)[1], "readiness says why", 90)
        assert ready(process)[0] == 503
        (failed, *_) = logged(process, "watch.failed")
        # Longer than the deletion delay: time enough for a wrong delete.
        alone.wait(lambda: _seconds_since(failed) > 10, "time passes")
        assert alone.gke.count("nodePools.delete") == 0
        assert len(alone.living("before-")) == 1
    finally:
        manifests = running.binaries.jobset_manifests / "crd" / "bases"
        alone.rehearsal.kubectl("apply", "--server-side", "-f", str(manifests))
        alone.wait(lambda: _jobsets_are_served(alone), "the kind is back")
        # How long JobSet's own controller takes to notice is not the question here.
        running.restart(recipes.JOBSET)
    alone.wait(lambda: ready(process)[0] == 200, "it is ready again")
    alone.wait(lambda: _taken(alone, "after"), "a JobSet is taken", 60)
    alone.await_completed("after", seconds=60)
    # The JobSet was removed with its kind, so that its Job and its pods are garbage; then its pool may go.
    alone.await_gone(seconds=60)


def _jobsets_are_served(ground: Ground) -> bool:
    try:
        ground.rehearsal.objects(collection_path("jobsets", namespace=ground.namespace, root=JOBSETS_ROOT))
    except cluster.ClusterError:
        return False
    return True


def _taken(ground: Ground, name: str) -> bool:
    try:
        ground.apply(name, run_for="1s", topology="2x2x2", parallelism=2)
    except cluster.ClusterError:
        return False
    return True


def test_watches_that_fall_silent(alone: Ground, proxy: Proxy, tmp_path: Path) -> None:
    """Watches that hang without a word are noticed; what they hid is proven live before anything is deleted."""
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    process = alone.provisioner(kubeconfig=kubeconfig, environment={**THROUGH_PROXY, "NODEPOOL_DELETION_DELAY": "8s"})
    alone.apply("waker", run_for="1h")
    alone.apply("leaver", run_for="1h", topology="2x2x2", parallelism=2)
    alone.wait(lambda: alone.runs("waker") and alone.runs("leaver", pods=2), "both run")
    alone.patch("waker", {"spec": {"suspend": True}})
    alone.wait(lambda: _idle(process, "waker-"), "the pool of the suspended one is idle")
    proxy.hold_watches()
    # What the provisioner does not hear of: one goes on, one goes, one comes.
    alone.patch("waker", {"spec": {"suspend": False}})
    alone.wait(lambda: alone.runs("waker"), "it runs again")
    alone.delete("leaver")
    alone.apply("comer", run_for="1h", topology="2x2x4", parallelism=4)
    alone.wait(lambda: logged(process, "node_pool.delete_postponed"), "the delete is tried, and not confirmed")
    assert "lives" in logged(process, "node_pool.delete_postponed")[0]["reason"]
    alone.wait(lambda: logged(process, "watch.failed"), "the silence is noticed", SILENCE_NOTICED_SECONDS)
    assert alone.gke.count("nodePools.delete") == 0
    assert alone.runs("waker")
    proxy.let_watches_flow()
    alone.wait(lambda: alone.runs("comer", pods=4), "the one that came runs")
    alone.await_gone("leaver-")
    assert len(alone.living("waker-")) == 1
    assert alone.restarts("waker") == 0
    alone.wait(lambda: ready(process)[0] == 200, "it is ready")
    assert alone.accepted("nodePools.create") == 3
    alone.delete("waker")
    alone.delete("comer")
    alone.await_gone()


def _idle(process: ProvisionerProcess, prefix: str) -> bool:
    return any(
        record["node_pool"].startswith(prefix) and record["new"] == "idle"
        for record in logged(process, "node_pool.phase_changed")
    )
