"""Tests of pools of TPU generations that only MachineConfigs define, from create to delete, also on Arm hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioner import constants, tpu
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.capacity import NodePool, PoolName
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads.parse_pod import parse_pod
from tests.support.controller import NAMESPACE, FakeWatch, World, jobset_path, node_of
from tests.support.machineconfigs import machine_config_path, raw_machine, raw_machine_config
from tests.support.objects import pod_spec, raw_jobset, raw_leader, raw_plain_pod, reference, toleration

pytestmark = pytest.mark.usefixtures("catalogue")


def _spec(accelerator: str, topology: str, **selector: str) -> dict[str, Any]:
    spec = pod_spec(accelerator=accelerator, topology=topology, tolerations=[toleration()])
    return {**spec, "nodeSelector": {**spec["nodeSelector"], **selector}}


def _put(world: World, spec: dict[str, Any], *, hosts: int, node: str = "") -> None:
    """Put a JobSet of one slice with its leader pod: running on the node, or unschedulable if `node` is empty."""
    jobset = raw_jobset("train", namespace=NAMESPACE, uid="u", job="workers", parallelism=hosts, pod=spec)
    world.kube.put_object(jobset_path("train"), jobset)
    leader = raw_leader("train", namespace=NAMESPACE, uid="u", job="workers", node=node, spec=spec)
    world.kube.put_object(object_path("pods", "train-workers-0-0", namespace=NAMESPACE), leader)


def _register(world: World, pool_name: PoolName, **labels: str) -> list[str]:
    world.gke.finish_create(pool_name)
    pool = world.gke.pools[pool_name]
    names = [f"gke-test-{pool_name}-{index}" for index in range(pool.hosts)]
    for name in names:
        raw = node_of(pool, name, world.clock)
        raw["metadata"]["labels"].update({constants.TPU_TOPOLOGY: "4x4", **labels})
        world.kube.put_object(object_path("nodes", name), raw)
    return names


@pytest.mark.parametrize(("arch", "selected"), [("amd64", False), ("arm64", False), ("arm64", True)])
def test_generation_known_only_from_machine_configs_gets_a_pool(arch: str, selected: bool) -> None:
    """Until a MachineConfig lists the generation, its pods count as invalid. Pods may select any architecture."""
    world = World()
    spec = _spec("tpu9x", "4x4", **({constants.ARCH: arch} if selected else {}))
    _put(world, spec, hosts=4)
    world.round()
    world.round(after_seconds=10)
    assert (world.gke.pools, world.recorder.reasons("JobSet")) == ({}, [EventReason.INVALID_REQUEST])
    world.kube.put_object(machine_config_path(), raw_machine_config())
    world.rounds(2, every_seconds=5)
    (pool,) = world.gke.pools.values()
    assert (pool.machine_type, pool.hosts) == ("tpu9x-standard-4t", 4)
    # Pools of several hosts have a workload policy, like pools of tpu7 and tpu7x.
    assert pool.policy_name == "tpu-provisioner-4x4"
    world.round(after_seconds=60)
    nodes = _register(world, pool.name, **{constants.TPU_ACCELERATOR: "tpu9x", constants.ARCH: arch})
    world.round(after_seconds=3)
    _put(world, spec, hosts=4, node=nodes[0])
    world.rounds(50, every_seconds=15)
    assert [*world.gke.pools] == [pool.name]
    # An Event reports the selector, because the catalogue does not predict the label; the nodes have it anyway.
    told = [event.message for event in world.recorder.told if event.reason == EventReason.UNKNOWN_SELECTOR]
    assert any(f"{constants.ARCH}=arm64" in message for message in told) is selected
    world.complete()
    world.rounds(4, every_seconds=15)
    assert world.gke.names_of("delete_node_pool") == [pool.name]


def _put_stateful_set(world: World) -> None:
    for index in range(4):
        pod = raw_plain_pod(f"serve-{index}", reference("StatefulSet", "serve"), spec=_spec("tpu9x", "4x4"))
        world.kube.put_object(object_path("pods", f"serve-{index}", namespace="default"), pod)


def _put_jobset_of_two_jobs(world: World) -> None:
    """Put a JobSet whose two child Jobs of two pods each are one slice, with their first pods."""
    names: dict[str, Any] = {"namespace": NAMESPACE, "uid": "u", "job": "workers"}
    jobset = raw_jobset("train", **names, replicas=2, parallelism=2, pod=_spec("tpu9x", "4x4"))
    jobset["metadata"]["annotations"] = {}
    world.kube.put_object(jobset_path("train"), jobset)
    for number in range(2):
        pod = raw_leader("train", **names, number=number, spec=_spec("tpu9x", "4x4"))
        world.kube.put_object(object_path("pods", f"train-workers-{number}-0", namespace=NAMESPACE), pod)


@pytest.mark.parametrize(
    "put",
    [pytest.param(_put_stateful_set, id="StatefulSet"), pytest.param(_put_jobset_of_two_jobs, id="JobSet of two jobs")],
)
def test_no_decision_uses_records_that_were_parsed_before_the_catalogue_was_complete(
    put: Callable[[World], None],
) -> None:
    """In the past, each child Job or pod counted as a slice after a restart: pools were created and deleted."""
    world = World()
    world.kube.put_object(machine_config_path(), raw_machine_config())
    world.pods = FakeWatch(lambda: world._read(collection_path("pods"), parse_pod))
    world.watches = replace(world.watches, pods=world.pods, serve_pods="all")
    world.start()
    put(world)
    world.rounds(4, every_seconds=5)
    (pool,) = world.gke.pools
    # The process restarts, and its watches parse pods and workloads before a round extends the catalogue.
    tpu.extend(())
    world.kube.remove_object(machine_config_path())
    world.pods.keep()
    world.jobsets.keep()
    world.pods.synced, world.slow_lists = False, True
    world.start()
    world.round()
    world.kube.put_object(machine_config_path(), raw_machine_config())
    world.rounds(20, every_seconds=5)
    assert world.loop.problems() == ("the jobsets are not listed yet", "the pods are not listed yet")
    world.list_again()
    world.rounds(20, every_seconds=5)
    assert world.loop.problems() == ()
    assert (world.gke.names_of("create_node_pool"), world.gke.names_of("delete_node_pool")) == ([pool], [])
    assert not {EventReason.INVALID_REQUEST, EventReason.UNDERUSED} & {event.reason for event in world.recorder.told}


@pytest.mark.parametrize("list_seconds", [1, 70])
def test_catalogue_that_changes_every_second_causes_few_lists_and_allows_decisions(list_seconds: int) -> None:
    world, began = World(), 0
    world.slow_lists = True
    for second in range(300):
        machine = raw_machine("tpu9x-standard-4t", "tpu9x")
        machine["resources"]["cpus"] += second
        world.kube.put_object(machine_config_path(), raw_machine_config(machines=[machine]))
        if second == 150:
            world.put_jobset()
        lists = world.pods.invalidations
        world.round(after_seconds=1)
        began = second if world.pods.invalidations > lists else began
        if second - began >= list_seconds:
            world.list_again()
    assert len(world.gke.pools) == 1
    assert 2 <= world.pods.invalidations <= 5


def test_pods_of_a_generation_that_the_catalogue_still_lacks_do_not_count_as_invalid() -> None:
    """A MachineConfig that follows another within 60 s is added later, and its pods get their pool then."""
    world = World()
    world.kube.put_object(machine_config_path("tpu8y"), raw_machine_config("tpu8y"))
    world.rounds(2, every_seconds=5)
    world.kube.put_object(machine_config_path(), raw_machine_config())
    _put(world, _spec("tpu9x", "4x4"), hosts=4)
    world.rounds(6, every_seconds=5)
    assert (world.gke.pools, world.recorder.reasons("Pod")) == ({}, [EventReason.CREATION_WAITING])
    world.rounds(8, every_seconds=5)
    assert [pool.machine_type for pool in world.gke.pools.values()] == ["tpu9x-standard-4t"]


def _running(world: World) -> PoolName:
    """Let the JobSet `train` run on a pool of the generation tpu9x; return the name of the pool."""
    world.kube.put_object(machine_config_path(), raw_machine_config())
    world.round()
    _put(world, _spec("tpu9x", "4x4"), hosts=4)
    world.rounds(2, every_seconds=2)
    (pool,) = world.gke.pools
    nodes = _register(world, pool, **{constants.TPU_ACCELERATOR: "tpu9x"})
    world.round(after_seconds=60)
    _put(world, _spec("tpu9x", "4x4"), hosts=4, node=nodes[0])
    world.rounds(3, every_seconds=5)
    return pool


def _restart_without_the_right(world: World) -> None:
    tpu.extend(())
    watch: FakeWatch[Any] = FakeWatch(dict)
    watch.synced, watch.problem = False, "RBAC does not allow the provisioner to list machineconfigs"
    world.watches = replace(world.watches, machine_configs=watch)
    world.start()


def _delete_machine_config(world: World) -> None:
    world.kube.remove_object(machine_config_path())


_LOSSES = pytest.mark.parametrize(
    "lose",
    [
        pytest.param(_restart_without_the_right, id="right missing at a restart"),
        pytest.param(_delete_machine_config, id="MachineConfig deleted"),
    ],
)


@_LOSSES
@pytest.mark.parametrize("created", [False, True], ids=["pool in creation", "JobSet restarts"])
def test_pool_is_kept_for_its_workload_when_the_catalogue_loses_its_machine_type(
    lose: Callable[[World], None], *, created: bool
) -> None:
    """In the past, a pod of an unknown accelerator had no slice, so its pool was deleted as not needed."""
    world = World()
    if created:
        _running(world)
    else:
        world.kube.put_object(machine_config_path(), raw_machine_config())
        world.round()
    _put(world, _spec("tpu9x", "4x4"), hosts=4)
    world.rounds(2, every_seconds=2)
    (pool,) = world.gke.pools
    lose(world)
    world.rounds(50, every_seconds=4)
    assert world.gke.names_of("delete_node_pool") == []
    assert EventReason.INVALID_REQUEST not in world.recorder.reasons("JobSet")
    world.vanish()
    world.rounds(30, every_seconds=15)
    assert world.gke.names_of("delete_node_pool") == [pool]


@_LOSSES
@pytest.mark.parametrize("with_nodes", [True, False], ids=["with nodes", "without nodes"])
def test_pool_of_a_lost_machine_type_counts_with_its_chips(lose: Callable[[World], None], *, with_nodes: bool) -> None:
    """In the past, the pool counted as 0 chips, and MAX_CHIPS=16 allowed a second pool of 16 chips."""
    world = World(max_chips=16)
    pool = _running(world)
    if not with_nodes:
        world.remove_nodes(pool)
    lose(world)
    world.put_jobset("more")
    world.rounds(3, every_seconds=5)
    assert [*world.gke.pools] == [pool]
    assert EventReason.LIMIT_REACHED in world.recorder.reasons("JobSet")


def test_no_decision_lacks_machine_configs_that_are_listed_in_the_same_round() -> None:
    """The watch becomes synced after the round has read its records, which were still empty."""
    world = World(max_chips=16)
    pool = _running(world)
    world.put_jobset("more")
    world.rounds(3, every_seconds=5)
    tpu.extend(())
    real = world.watches.machine_configs
    assert real is not None
    late: FakeWatch[Any] = FakeWatch(lambda: real.records() if late.synced else {})
    late.synced = False
    world.watches = replace(world.watches, machine_configs=late)
    world.start()
    list_node_pools = world.gke.list_node_pools

    def list_slowly() -> tuple[NodePool, ...]:
        late.synced = True
        return list_node_pools()

    world.gke.list_node_pools = list_slowly  # type: ignore[method-assign]
    world.rounds(4, every_seconds=5)
    assert [*world.gke.pools] == [pool]


def test_pods_with_claims_are_resolved_by_the_catalogue_that_was_extended_after_them() -> None:
    """After each restart, the watches read pods before the first round extends the catalogue."""
    world = World()
    spec = _spec("tpu9x", "4x4")
    spec["containers"][0]["resources"] = {"claims": [{"name": "tpus"}]}
    spec["resourceClaims"] = [{"name": "tpus", "resourceClaimTemplateName": "tpus"}]
    _put(world, spec, hosts=4)
    jobsets, pods = world.jobsets.records(), world.pods.records()
    world.jobsets._read, world.pods._read = lambda: jobsets, lambda: pods
    world.kube.put_object(machine_config_path(), raw_machine_config())
    world.rounds(3, every_seconds=5)
    assert [(pool.machine_type, pool.hosts) for pool in world.gke.pools.values()] == [("tpu9x-standard-4t", 4)]


def test_contradicting_machine_config_is_logged_once_and_ignored() -> None:
    world = World()
    wrong = raw_machine_config(
        "tpu-v4-podslice", machines=[raw_machine("ct4p-hightpu-4t", "tpu-v4-podslice", 1, "1x1")]
    )
    world.kube.put_object(machine_config_path("v4"), wrong)
    with capture_logs() as logs:
        world.rounds(3, every_seconds=15)
    assert len([log for log in logs if log["event"] == "machineconfigs.contradiction"]) == 1
    pool = world.run_to_use()
    assert world.gke.pools[pool].machine_type == "ct4p-hightpu-4t"
