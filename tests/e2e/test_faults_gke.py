"""GKE at its worst: what blocks, refuses, comes up without hosts, loses them, and never goes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.records import PoolStatus
from tests.e2e.kit import Ground, foreign_pod, logged, told

pytestmark = pytest.mark.e2e

#: Where the provisioner may take the longest of its first back-offs (30 s, spread) before it goes on.
BACKED_OFF_SECONDS = 150.0
#: How long a create that finds no capacity was seen to block, before GKE gave it up.
BLOCKED_SECONDS = 35 * 60.0
#: Within the time-out of a call, and long enough to do something meanwhile on a loaded machine.
HELD_SECONDS = 7.0
V5E: dict[str, Any] = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4", "chips": 8}


def test_pools_that_come_up_without_hosts(alone: Ground) -> None:
    """Pools that GKE calls up and that have no hosts, or hosts without chips, are replaced one after the other."""
    alone.gke.inject(Fault(kind=FaultKind.NODES_NEVER_REGISTER, pool="absent-.*", count=1))
    alone.gke.inject(Fault(kind=FaultKind.NODES_WITHOUT_CHIPS, pool="bare-.*", count=1))
    process = alone.provisioner(environment={"NODEPOOL_READY_TIMEOUT": "4s"})
    # Shapes of their own, or one's leader would rightly take another's pool.
    alone.apply("sound", run_for="1h")
    alone.apply("absent", run_for="1h", topology="2x2x2", parallelism=2)
    alone.apply("bare", run_for="1h", topology="2x2x4", parallelism=4)
    alone.wait(lambda: alone.runs("sound") and len(alone.pools()) == 3, "one runs, and the others have pools")
    useless = {pool.created for pool in alone.pools() if not pool.name.startswith("sound-")}
    most = 0

    def all_run() -> bool:
        nonlocal most
        most = max(most, sum(pool.status is PoolStatus.STOPPING for pool in alone.pools()))
        return alone.runs("absent", pods=2) and alone.runs("bare", pods=4)

    alone.wait(all_run, "each runs on another pool", BACKED_OFF_SECONDS)
    # Those with hosts are cordoned for a minute before they go, for a pod might have been on its way there.
    gone = "the useless pools are gone"
    alone.wait(lambda: useless.isdisjoint(pool.created for pool in alone.pools()), gone, BACKED_OFF_SECONDS)
    # 20 % of three pools is less than one, and one is the least.
    assert most == 1
    assert alone.runs("sound")
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (5, 2)
    assert {record["reason"] for record in logged(process, "node_pool.delete_accepted")} == {"no_ready_nodes"}
    for name in ("sound", "absent", "bare"):
        alone.delete(name)
    alone.await_gone()


def test_killed_in_the_middle_of_twenty_creates(alone: Ground) -> None:
    """Killed with creates answered, under way and unsent, the next process makes the rest, and none twice."""
    names = [f"flock-{index}" for index in range(20)]
    alone.gke.set(request_seconds=0.3)
    process = alone.provisioner(environment={"CONCURRENCY": "4"})
    for name in names:
        alone.apply(name, run_for="1h")
    alone.wait(lambda: alone.accepted("nodePools.create") >= 5, "some creates are taken")
    process.kill()
    assert alone.accepted("nodePools.create") < 20
    alone.provisioner()
    alone.wait(lambda: all(alone.runs(name) for name in names), "all run", 90)
    assert len(alone.pools()) == alone.accepted("nodePools.create") == 20
    alone.gke.set(request_seconds=0.0)
    for name in names:
        alone.delete(name)
    alone.await_gone(seconds=60)
    assert alone.accepted("nodePools.create") == 20


def test_a_failed_pool_that_never_goes(alone: Ground) -> None:
    """A slice whose failed pool stays in STOPPING gets a new pool under a new name, and does not wait for the old."""
    alone.gke.inject(Fault(kind=FaultKind.CREATE_ERROR, pool="phoenix-.*", count=1, after_seconds=0.5))
    stays = alone.gke.inject(Fault(kind=FaultKind.DELETE_NEVER_ENDS, pool="phoenix-.*", count=1))
    alone.provisioner()
    alone.apply("phoenix", run_for="2s")
    alone.wait(lambda: alone.pools("phoenix-"), "its first pool is in the making")
    (old,) = alone.pools("phoenix-")
    alone.await_completed("phoenix", seconds=BACKED_OFF_SECONDS)
    held = alone.gke.pool(old.name)
    assert held is not None
    assert held.status is PoolStatus.STOPPING
    alone.wait(lambda: [pool.name for pool in alone.pools("phoenix-")] == [old.name], "the second pool has gone")
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (2, 2)
    alone.gke.clear(stays)
    alone.await_gone("phoenix-")
    assert alone.accepted("nodePools.delete") == 2


@pytest.mark.parametrize(
    ("fault", "refused"),
    [
        pytest.param(
            Fault(
                kind=FaultKind.HTTP_ERROR,
                method="nodePools.create",
                code=400,
                status="FAILED_PRECONDITION",
                message="Cluster is running incompatible operation operation-1-2.",
            ),
            ("nodePools.create", "400", 3),
            id="another operation is in the way of every create",
        ),
        pytest.param(
            Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=500),
            ("nodePools.create", "500", 4),
            id="every create is answered with 500 and has no effect",
        ),
        pytest.param(
            Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=503, before_effect=False, count=3),
            ("nodePools.create", "503", 3),
            id="every create is answered with 503 and has taken effect",
        ),
        pytest.param(
            Fault(kind=FaultKind.HTTP_ERROR, code=503),
            ("nodePools.list", "503", 4),
            id="every call is answered with 503",
        ),
    ],
)
def test_refusals_for_a_while(alone: Ground, fault: Fault, refused: tuple[str, str, int]) -> None:
    """While GKE refuses, calls are few; after it each JobSet runs on one pool, and nothing is left in the end."""
    method, code, times = refused
    names = [f"storm-{index}" for index in range(3)]
    alone.provisioner()
    force = alone.gke.inject(fault)
    for name in names:
        alone.apply(name, run_for="1h")
    alone.wait(lambda: alone.gke.call_counts().get(method, {}).get(code, 0) >= times, "GKE refuses", 60)
    calls = sum(sum(by_code.values()) for by_code in alone.gke.call_counts().values())
    alone.gke.clear(force)
    # Every refusal may have cost a look at the list, and a read by name.
    assert calls <= 6 * times + 12
    alone.wait(lambda: all(alone.runs(name) for name in names), "all run", BACKED_OFF_SECONDS)
    assert len(alone.pools()) == 3
    for name in names:
        alone.delete(name)
    alone.await_gone()
    # A create that took effect before its answer was lost is not counted as taken.
    assert alone.accepted("nodePools.create") == (0 if not fault.before_effect else 3)
    assert alone.gke.count("nodePools.create") <= 3 + 6 * times


def test_a_stockout_that_blocks_for_long(alone: Ground) -> None:
    """While creates block, no second one is sent for their slices, and all else goes on as far as GKE lets it.

    Once they have failed their pools go, GKE's words are told, and the slice that still waits tries again after
    back-off.
    """
    alone.gke.inject(
        Fault(kind=FaultKind.STOCKOUT, pool="(patient|dropped)-.*", count=2, after_seconds=BLOCKED_SECONDS)
    )
    alone.provisioner()
    alone.gke.reset_calls()
    began = datetime.now(UTC)
    alone.apply("patient", run_for="1s", **V5E)
    alone.apply("dropped", run_for="1s", **V5E)
    alone.wait(lambda: alone.pools("patient-") and alone.pools("dropped-"), "both pools are in the making")
    blocked = {(pool.name, pool.created) for pool in alone.pools()}
    alone.delete("dropped")
    alone.apply("neighbour", run_for="1s")
    alone.await_completed("neighbour")
    alone.await_gone("neighbour-")
    alone.wait(lambda: alone.refused("nodePools.delete") >= 4, "GKE refuses to delete the blocked pool")
    assert alone.gke.count("nodePools.create") == 3
    # Listed every 2 s, and before each create and delete.
    assert _lists(alone) <= (datetime.now(UTC) - began).total_seconds() / 2 + _changes(alone) + 3
    # Now the blocked creates are all that GKE takes at a time.
    alone.gke.set(operations_quota=2)
    alone.apply("queued", run_for="1s", topology="2x2x2", parallelism=2)
    alone.wait(lambda: alone.refused("nodePools.create", "429") >= 3, "GKE takes no create")
    assert {(pool.name, pool.created) for pool in alone.pools()} == blocked
    assert {pool.status for pool in alone.pools()} == {PoolStatus.PROVISIONING}
    # Listed every second with creates that wait; retried after 1, 2, 4 ... seconds, and rejected once a second.
    seconds = (datetime.now(UTC) - began).total_seconds()
    assert _lists(alone) <= seconds + _changes(alone) + 3
    assert alone.refused("nodePools.delete") <= 8
    assert alone.refused("nodePools.create", "429") <= seconds + 3
    failed = alone.let_pass(BLOCKED_SECONDS)
    alone.wait(lambda: blocked.isdisjoint((pool.name, pool.created) for pool in alone.pools()), "both are gone")
    for kind, reason in (("Pod", constants.CREATION_FAILED), ("JobSet", constants.CREATION_WAITING)):
        alone.wait(lambda kind=kind, reason=reason: told(alone, reason, "patient", kind=kind), f"{reason} is told")
        for message in told(alone, reason, "patient", kind=kind):
            assert "does not have enough resources available to fulfill the request" in message
    assert re.search(r"stockout since .* next try ", message)
    alone.await_completed("queued")
    alone.await_completed("patient", seconds=BACKED_OFF_SECONDS)
    (*_, again) = (call.when for call in alone.calls("nodePools.create") if call.status == 200)
    # 30 s, less a fifth at most.
    assert again - failed >= timedelta(seconds=24)
    alone.await_gone()
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (5, 5)


def _lists(ground: Ground) -> int:
    return ground.gke.count("nodePools.list")


def _changes(ground: Ground) -> int:
    return ground.gke.count("nodePools.create") + ground.gke.count("nodePools.delete")


def test_nodes_preempted_one_by_one_and_all_at_once(alone: Ground) -> None:
    """A slice that loses nodes keeps its pool while GKE repairs it; where GKE does not, the pool is replaced."""
    alone.provisioner(environment={"NODEPOOL_READY_TIMEOUT": "10s"})
    alone.gke.set(repair_seconds=1.0)
    alone.apply("drip", run_for="1h", topology="2x2x2", parallelism=2, max_restarts=20)
    alone.apply("flood", run_for="1h", topology="2x2x4", parallelism=4, max_restarts=20)
    alone.wait(lambda: alone.runs("drip", pods=2) and alone.runs("flood", pods=4), "both run")
    (drip,), (flood,) = alone.pools("drip-"), alone.pools("flood-")
    for turn in range(2):
        lost = alone.gke.preempt(drip.name, hosts=1)
        assert len(lost) == 1
        _give_up_pods(alone, lost)
        _await_restarts(alone, "drip", turn + 1)
        alone.wait(lambda: alone.runs("drip", pods=2), "it runs on the repaired pool")
    assert [pool.name for pool in alone.pools("drip-")] == [drip.name]
    alone.gke.set(repair_seconds=None)
    _give_up_pods(alone, alone.gke.preempt(flood.name))
    # The old one has gone before back-off lets the new one come, so that it bears the same name.
    alone.wait(lambda: any(pool.created > flood.created for pool in alone.living("flood-")), "it is replaced", 90)
    alone.wait(lambda: alone.runs("flood", pods=4), "it runs on another pool")
    assert [pool.name for pool in alone.pools("drip-")] == [drip.name]
    assert alone.runs("drip", pods=2)
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (3, 1)
    alone.delete("drip")
    alone.delete("flood")
    alone.await_gone()


def _await_restarts(ground: Ground, name: str, least: int) -> None:
    ground.wait(lambda: ground.restarts(name) >= least, f"JobSet {name} has started again")


def _give_up_pods(ground: Ground, nodes: tuple[str, ...]) -> None:
    """Remove the pods of nodes that are gone, as the control plane does by itself after a minute."""
    for pod in ground.pods():
        if pod["spec"].get("nodeName") in nodes:
            ground.rehearsal.kubectl(
                "delete", "pod", pod["metadata"]["name"], "-n", ground.namespace, "--grace-period=0", "--force"
            )


def test_a_pod_between_the_last_look_and_the_delete(alone: Ground) -> None:
    """Once the pods were looked at the scheduler puts none there; a binding that is forced past it is not seen.

    That is all that is promised: the API server takes any binding, so whoever writes one by hand, on a node that is
    closed, loses the pod with the node.
    """
    process = alone.provisioner()
    held = alone.gke.inject(
        Fault(kind=FaultKind.HANG, method="nodePools.delete", pool="closing-.*", seconds=HELD_SECONDS, count=1)
    )
    alone.apply("closing", run_for="1s")
    alone.await_completed("closing")
    alone.wait(lambda: _has_struck(alone, held), "the delete has arrived at GKE")
    (pool,) = alone.pools("closing-")
    (node,) = alone.nodes()
    assert node["spec"]["unschedulable"]
    pods = collection_path("pods", namespace=alone.namespace)
    alone.api.post(pods, _pod_with_chips("polite", alone, pool.name))
    alone.wait(
        lambda: _refused_by_scheduler(alone, "polite"), "the scheduler finds no place, though its chips are free"
    )
    alone.api.post(pods, _pod_with_chips("forced", alone, pool.name))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "forced", "namespace": alone.namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]},
    }
    alone.api.post(f"{pods}/forced/binding", binding)
    assert _bound_to(alone) == {"polite": None, "forced": node["metadata"]["name"]}
    # All of this while GKE has the delete and has done nothing yet.
    assert alone.gke.count("nodePools.delete") == 0
    alone.await_gone("closing-")
    alone.wait(lambda: not alone.nodes(), "its node is gone")
    assert _bound_to(alone)["polite"] is None
    assert (alone.gke.count("nodePools.delete"), alone.accepted("nodePools.delete")) == (1, 1)
    assert not logged(process, "node_pool.delete_postponed")


def _has_struck(ground: Ground, fault_id: str) -> bool:
    return any(fault.fault_id == fault_id and fault.count == 0 for fault in ground.gke.world.faults.all())


def _bound_to(ground: Ground) -> dict[str, str | None]:
    """Return the nodes of the pods that no JobSet made."""
    return {
        pod["metadata"]["name"]: pod["spec"].get("nodeName")
        for pod in ground.pods()
        if "ownerReferences" not in pod["metadata"]
    }


def _refused_by_scheduler(ground: Ground, name: str) -> bool:
    return any(
        condition.get("reason") == "Unschedulable"
        for pod in ground.pods()
        if pod["metadata"]["name"] == name
        for condition in pod["status"].get("conditions", ())
    )


def _pod_with_chips(name: str, ground: Ground, pool: str) -> dict[str, object]:
    return foreign_pod(
        name,
        ground.namespace,
        chips=4,
        nodeSelector={constants.NODE_POOL: pool},
        tolerations=[{"key": constants.TPU_RESOURCE, "operator": "Exists"}],
    )
