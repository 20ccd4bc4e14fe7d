"""Kubernetes at its worst: lists with holes, silent watches, a kind that goes, pods that stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants, kube
from provisioner.kube.protocol import collection_path, object_path
from provisioner.kube.watches import MAX_SILENCE_SECONDS
from provisioner.slices.observe import Watches, not_synced
from provisioner.workloads import JOBSET
from provisioner.workloads.watches import watch_pods, watch_workloads
from rehearsal import localcluster
from rehearsal.demos import ProvisionerProcess
from rehearsal.localcluster import recipes
from tests.e2e.kit import Ground, await_round, foreign_pod, logged, metric, metrics, moment, ready
from tests.e2e.proxy import Proxy
from tests.support.clock import FakeClock

pytestmark = pytest.mark.e2e

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
    alone.wait(lambda: logged(process, "node_pool.needed"), "a delete is tried, and not confirmed")
    (began, *_) = logged(process, "alert.began")
    # The deletion delay of two seconds twice over, and a round after that, in which wrong deletes would be sent.
    await_round(process, alone.api, after=moment(began) + timedelta(seconds=4))
    assert {"lives" in record["reason"] for record in logged(process, "node_pool.needed")} == {True}
    # One a minute, not five.
    assert len({record["node_pool"] for record in logged(process, "node_pool.needed")}) == 1
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


def test_pods_within_their_grace(alone: Ground) -> None:
    """A pod that is terminating keeps its pool until its grace is over, a JobSet's as well as a stranger's.

    Nobody plays the kubelets meanwhile, so the pods stay, as those do that save a checkpoint when told to end.
    """
    process = alone.provisioner()
    alone.apply("saver", run_for="1h", grace_seconds=10)
    alone.apply("host", run_for="1h", topology="2x2x2", parallelism=2)
    alone.wait(lambda: alone.runs("saver") and alone.runs("host", pods=2), "both run")
    (saver, *_), (host, *_) = alone.pods_of("saver"), alone.pods_of("host")
    stranger = foreign_pod(
        "stranger", alone.namespace, node=host["spec"]["nodeName"], chips=4, terminationGracePeriodSeconds=10
    )
    alone.api.post(collection_path("pods", namespace=alone.namespace), stranger)
    alone.delete("host")
    alone.wait(lambda: logged(process, "node_pool.delete_postponed"), "the stranger holds the delete up")
    pods = {
        prefix: object_path("pods", pod["metadata"]["name"], namespace=alone.namespace)
        for prefix, pod in (("saver-", saver), ("host-", stranger))
    }
    alone.wait(lambda: _phases(alone, pods.values()) == {"Running"}, "the stranger runs")
    alone.rehearsal.cluster.pause(recipes.KWOK)
    try:
        alone.delete("saver")
        alone.api.delete(pods["host-"])
        for prefix, pod in pods.items():
            ends = _grace_ends(alone, pod)
            alone.wait(lambda prefix=prefix: alone.calls("nodePools.delete", prefix), "its pool is deleted", 60)
            assert alone.calls("nodePools.delete", prefix)[0].when > ends
        # Nobody ended them: it was time alone that made the difference.
        assert _phases(alone, pods.values()) == {"Running"}
        alone.await_gone()
        assert alone.accepted("nodePools.delete") == 2
    finally:
        alone.rehearsal.cluster.resume(recipes.KWOK)
        for pod in pods.values():
            with contextlib.suppress(kube.NotFound):
                alone.api.delete(f"{pod}?gracePeriodSeconds=0")


def _phases(ground: Ground, pods: Iterable[str]) -> set[str]:
    return {ground.api.get(pod)["status"]["phase"] for pod in pods}


def _grace_ends(ground: Ground, pod: str) -> datetime:
    """Return when the grace of a pod that is to go is over."""
    ground.wait(lambda: "deletionTimestamp" in ground.api.get(pod)["metadata"], f"{pod} is to go")
    return datetime.fromisoformat(ground.api.get(pod)["metadata"]["deletionTimestamp"])


def test_the_jobset_kind_is_removed_and_put_back(alone: Ground) -> None:
    """While the kind is missing nothing is deleted, and readiness says why; once it is back all goes on."""
    running = alone.rehearsal.cluster
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "10s"})
    alone.apply("before", run_for="1h")
    alone.wait(lambda: alone.runs("before"), "it runs")
    alone.rehearsal.kubectl("delete", "crd", "jobsets.jobset.x-k8s.io", "--wait=true")
    try:
        alone.wait(lambda: "JobSet CRD is not installed" in ready(process)[1], "readiness says why", 90)
        assert ready(process)[0] == 503
        # The JobSet went with its kind, and its Job too, unless the collector was late: the pool looks idle now.
        alone.rehearsal.kubectl("delete", "jobs", "--all", "-n", alone.namespace)
        alone.wait(lambda: not alone.pods(), "its pod is gone")
        rounds = metric(process, "rounds_total", result="ok")
        # A provisioner that trusts what it has would send the delete by then.
        await_round(process, alone.api, after=datetime.now(UTC) + timedelta(seconds=10))
        assert metric(process, "rounds_total", result="ok") >= rounds + 2
        assert metric(process, "watch_synced", resource="jobsets") == 0
        # Not even tried: the gate would stop it as well, and say so.
        assert not logged(process, "node_pool.delete_postponed")
        assert alone.gke.count("nodePools.delete") == 0
        assert len(alone.living("before-")) == 1
        assert not any(node["spec"].get("unschedulable") for node in alone.nodes())
    finally:
        manifests = running.binaries.manifests["jobset"] / "crd" / "bases"
        alone.rehearsal.kubectl("apply", "--server-side", "-f", str(manifests))
        alone.wait(lambda: _jobsets_are_served(alone), "the kind is back")
        # How long JobSet's own controller takes to notice is not the question here.
        running.restart(recipes.JOBSET)
    alone.wait(lambda: ready(process)[0] == 200, "it is ready again")
    alone.wait(lambda: _taken(alone, "after"), "a JobSet is taken", 60)
    alone.await_completed("after", seconds=60)
    # The JobSet was removed with its kind, so that its pool may go now.
    alone.await_gone(seconds=60)
    assert alone.accepted("nodePools.delete") == 2


def _jobsets_are_served(ground: Ground) -> bool:
    try:
        ground.rehearsal.objects(collection_path("jobsets", namespace=ground.namespace, root=JOBSET.root))
    except kube.ClusterError:
        return False
    return True


def _taken(ground: Ground, name: str) -> bool:
    try:
        ground.apply(name, run_for="1s", topology="2x2x2", parallelism=2)
    except kube.ClusterError:
        return False
    return True


def test_silent_watches_are_distrusted(alone: Ground, proxy: Proxy, tmp_path: Path) -> None:
    """After 150 s without a word from the API server the caches are not decided on, until it is heard of again.

    The clock is the test's, so that the silence lasts as long as it says.
    """
    node = object_path("nodes", f"quiet-{alone.namespace}")
    labels = {constants.NODEPOOL_MANAGER: constants.MANAGER, constants.NODE_POOL: "quiet"}
    alone.api.post(
        collection_path("nodes"),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"quiet-{alone.namespace}", "labels": labels}},
    )
    alone.apply("quiet", run_for="1h")
    alone.wait(lambda: alone.unschedulable("quiet"), "its pod waits")
    now = FakeClock()
    with contextlib.ExitStack() as ending:
        ending.callback(alone.api.delete, node)
        api = ending.enter_context(
            contextlib.closing(kube.connect(str(proxy.write_kubeconfig(tmp_path / "kubeconfig"))))
        )
        options: dict[str, Any] = {"on_change": lambda: None, "options": kube.WatchOptions(clock=now)}
        watches = Watches(
            workloads={JOBSET.kind: watch_workloads(api, JOBSET, **options)},
            pods=watch_pods(api, [JOBSET], **options),
            nodes=kube.nodes(api, **options),
        )
        for watch in watches.named().values():
            watch.start()
            ending.callback(watch.stop)
        ending.callback(proxy.let_watches_flow)
        alone.wait(lambda: all(watch.records() for watch in watches.named().values()), "all caches are filled")
        proxy.hold_watches()
        now.advance(MAX_SILENCE_SECONDS)
        assert not_synced(watches) == ()
        (pod,) = alone.pods_of("quiet")
        for path in (
            object_path("jobsets", "quiet", namespace=alone.namespace, root=JOBSET.root),
            object_path("pods", pod["metadata"]["name"], namespace=alone.namespace),
            node,
        ):
            alone.api.patch(path, {"metadata": {"labels": {"example.com/stirred": "true"}}})
        silent = tuple(f"nothing was received about the {name} for 150 s" for name in ("jobsets", "pods", "nodes"))

        def all_are_silent() -> bool:
            # A word that was on its way when the watches fell silent is still heard; none comes after it.
            now.advance(MAX_SILENCE_SECONDS + 1)
            return not_synced(watches) == silent

        alone.wait(all_are_silent, "what has just happened was not heard of")
        proxy.let_watches_flow()
        alone.wait(lambda: not_synced(watches) == (), "they are heard of, and trusted again")


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
    alone.wait(lambda: logged(process, "node_pool.needed"), "the delete is tried, and not confirmed")
    assert "lives" in logged(process, "node_pool.needed")[0]["reason"]
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
