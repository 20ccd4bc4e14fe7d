"""Where units need several resources, or others can take what was kept for them: everybody is served within a bound."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.model.workloads import Pod, Workload
from provisioner.slices.planning.launch.limits import Budget
from provisioner.slices.planning.plan import Create
from provisioner.slices.planning.turns import Turn
from tests.support.market import Market, Stream, add_mixed, gang, jobset_of
from tests.support.models import SPOT_TOLERATION, make_jobset, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure


def stocked(world: World, stock: dict[str, int]) -> None:
    """Let GKE have so many pools of a machine type's first letters, and no more."""

    def refuse(create: Create) -> Failure | None:
        for machine_type, most in stock.items():
            there = sum(pool.machine_type.startswith(machine_type) for pool in world.pools.values())
            if create.request.machine_type.startswith(machine_type) and there >= most:
                return failure(FailureKind.STOCKOUT)
        return None

    world.refuse_create = refuse


def queued() -> tuple[World, Workload, dict[str, int]]:
    """Return a world in which a gang of two got one slice, which is all that there was, and gave it back."""
    world, there = World(settings_=settings()), {"ct4p": 1}
    stocked(world, there)
    honest = gang("honest", "honest", 2)
    world.add(honest)
    world.live(60, seconds=30)
    assert world.memory.gangs[honest.uid].queues
    return world, honest, there


def test_a_long_run_does_not_keep_the_pools_of_short_jobs_open() -> None:
    """It has as many chips as are missing, and never ends."""
    market = Market(World(settings_=settings(max_chips=32, deletion_delay_seconds=60.0)))
    market.world.add(jobset_of("a-long-run", "2x2x4", namespace="long"))
    stream = Stream(market, most=6, minutes=8)
    stream.run(60)
    market.world.add(jobset_of("honest", "2x2x4", namespace="honest"))
    assert stream.served("honest", within_minutes=30)


def test_who_is_never_bound_does_not_open_its_pools_for_others() -> None:
    """The pools were made for its slices, and short jobs run there one after the other."""
    world = World(settings_=settings(max_chips=32, deletion_delay_seconds=60.0))
    market, original = Market(world), world._free_pool

    def free_pool(leader: Pod) -> list[Any]:
        return [] if leader.workload_name == "owner" else original(leader)

    world._free_pool = free_pool  # type: ignore[method-assign]
    world.add(jobset_of("owner", "2x2x1", namespace="stream", replicas=8))
    stream = Stream(market, most=10, minutes=8)
    stream.run(180)
    world.add(jobset_of("honest", "2x2x4", namespace="honest"))
    assert stream.served("honest", within_minutes=30)


def test_a_job_that_restarts_during_anothers_turn_keeps_the_pool_that_it_ran_on() -> None:
    """Though that was made for a job that has ended."""
    world = World(settings_=settings(max_chips=16, deletion_delay_seconds=600.0))
    first, second = (jobset_of(name, "2x2x2", namespace="honest") for name in ("first", "second"))
    world.add(first)
    world.live(3)
    world.finish(first)
    world.add(second)
    world.live(3)
    world.add(jobset_of("large", "2x2x4", namespace="other"))
    world.run(20, seconds=15)
    assert world.memory.turns
    world.end_pods(second)
    world.step(seconds=10)
    world.start_pods(second)
    world.live(3, seconds=5)
    assert world.bound(second) == 1


def test_a_turn_is_not_lost_while_capacity_is_missing_for_a_moment() -> None:
    """A stockout of the same shape, of another's making, must not end it."""
    world = World(settings_=settings(max_chips=16, deletion_delay_seconds=60.0))
    market = Market(world, seconds=5)
    world.add(*(jobset_of(f"small{number}", "2x2x1", namespace="other") for number in range(4)))
    market.run(10)
    world.add(jobset_of("large", "2x2x4", namespace="honest"), jobset_of("next", "2x2x1", namespace="other"))
    market.run(4, seconds=15)
    ((_, turn),) = world.memory.turns.items()
    assert turn.holder is not None
    assert turn.holder.namespace == "honest"
    world.refuse_create = lambda create: failure(FailureKind.STOCKOUT) if "large" in create.request.name else None
    for workload in list(world.workloads.values())[:4]:
        world.remove_jobset(workload)
    market.run(12, seconds=15)
    assert world.memory.turns.get("limit all pools together") == turn
    assert "next" not in market.ran_at


def test_who_waits_for_a_wider_limit_with_a_turn_in_hand_goes_before_others_of_its_namespace() -> None:
    """Else it keeps its turn within the narrow limit for as long as these have turns within the wider."""
    chips = (("tpu-v4-podslice", 32), ("tpu-v5p-slice", 96))
    world = World(settings_=settings(max_chips=64, max_chips_per_accelerator=chips, deletion_delay_seconds=60.0))
    market = Market(world, seconds=5)

    def v5p(name: str, topology: str, hosts: int) -> Workload:
        template = make_requirements(accelerator="tpu-v5p-slice", topology=topology, tolerations=())
        return make_jobset(name, namespace="evil", parallelism=hosts, template=template)

    old = [jobset_of(f"old{number}", "2x2x1", namespace="honest") for number in range(7)]
    world.add(*old, v5p("long", "2x4x4", 8), v5p("long2", "2x2x1", 1))
    market.run(10, seconds=30)
    world.add(*(v5p(f"decoy{number}", "2x4x4", 8) for number in range(10)))
    market.step(seconds=30)
    world.add(jobset_of("keeper", "2x4x4", namespace="evil"))
    market.run(60, seconds=30)
    for workload in old:
        world.finish(workload)
    market.run(4, seconds=30)
    world.add(jobset_of("new", "2x2x1", namespace="honest"))
    market.run(75, seconds=60)
    assert "new" in market.ran_at


def test_a_turn_is_kept_until_one_within_a_wider_limit_has_been_had() -> None:
    """Else others of its namespace would use up the narrow limit before it may use the wider."""
    world = World(settings_=settings(max_chips=32, max_chips_per_namespace=(("honest", 16),)))
    world.add(*(jobset_of(name, "2x2x4", namespace="other") for name in "ab"))
    world.live(3)
    for namespace in ("other", "honest"):
        world.add(jobset_of("large", "2x2x4", namespace=namespace))
        world.live(1)
    [unit] = (each for each in world.memory.waits_for if each.namespace == "honest")
    turn = Turn(holder=unit, began_at=world.now)
    world.memory = replace(world.memory, turns={**world.memory.turns, "limit namespace honest": turn})
    world.live(40, seconds=60)
    assert {resource: turn.holder for resource, turn in world.memory.turns.items()} == dict.fromkeys(
        ("limit namespace honest", "limit all pools together"), unit
    )


def test_a_gang_is_asked_once_which_limit_keeps_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of its slices: each time all of them are looked at."""
    asked = []
    original = Budget.scope_to_reserve
    monkeypatch.setattr(
        Budget, "scope_to_reserve", lambda budget, slices: (asked.append(1), original(budget, slices))[1]
    )
    world = World(gang("large", "default", 20), settings_=settings(max_chips=100))
    world.step()
    assert len(asked) == 1


@pytest.mark.parametrize("method", ["allows_claim", "in_the_way"])
@pytest.mark.parametrize("topology", ["2x2x1", "2x2x2"])
def test_slices_that_a_limit_keeps_out_do_not_look_at_each_idle_pool_each(
    method: str, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that asks for much beyond its limit must not cost all others their time."""
    limits = (("evil", 8),)
    world = World(settings_=settings(max_chips_per_namespace=limits, deletion_delay_seconds=1e9))
    for number in range(30):
        idle = jobset_of(f"idle{number}", "2x2x1", namespace="honest")
        world.workloads[idle.uid] = idle
        world.put_pool(make_pool(idle))
        world.finish(idle)
    full = jobset_of("full", "2x2x2", namespace="evil")
    world.put_pool(make_pool(full))
    world.add(full)
    world.schedule()
    world.add(jobset_of("many", topology, namespace="evil", replicas=30))
    world.step()
    asked, original = [], getattr(Budget, method)
    monkeypatch.setattr(Budget, method, lambda *arguments, **named: (asked.append(1), original(*arguments, **named))[1])
    world.step()
    assert len(asked) <= 60


def test_a_pod_on_a_foreign_node_is_no_beginning() -> None:
    """Anyone can bind one there, and would go before those that queue."""
    (world, honest, stock), count = queued(), 0
    stock["ct4p"], began = 2, world.now
    while world.bound(honest) < 2 and world.now - began < timedelta(hours=2):
        there = [each for each in world.workloads.values() if each.namespace == "evil"]
        for each in there:
            known = world.memory.gangs.get(each.uid)
            if known is not None and known.queues:
                world.remove_jobset(each)
        if not any(each.namespace == "evil" for each in world.workloads.values()):
            evil = gang(f"evil{count}", "evil", 4)
            count += 1
            world.add(evil)
            world.put(make_pod(evil, job=3, index=1, node="somebodys-node"))
        world.live(1, seconds=30)
    assert world.bound(honest) == 2


def test_creates_within_an_hour_are_kept_for_who_needs_several_at_once() -> None:
    """Single slices would take each that becomes free."""
    market = Market(World(settings_=settings(max_creates_per_hour=4, deletion_delay_seconds=30.0)), seconds=5)
    stream = Stream(market, most=3, minutes=0)
    stream.run(120, seconds=30)
    market.world.add(gang("gang", "honest", 4))
    assert stream.served("gang", within_minutes=150)


@pytest.mark.parametrize("apart_minutes", [1, 8, 20])
def test_a_gang_of_two_accelerators_has_its_turns_at_the_same_time(apart_minutes: int) -> None:
    """On each accelerator it competes with another gang, and their turns are out of step."""
    world = World(settings_=settings(partial_hold_seconds=1200.0))
    stock = {"ct4p": 1, "ct5p": 1}
    stocked(world, stock)
    for number, accelerator in enumerate(("tpu-v4-podslice", "tpu-v5p-slice")):
        template = make_requirements(
            accelerator=accelerator, tolerations=(), selector={constants.LEGACY_POOL_ID: f"evil{number}"}
        )
        world.add(gang(f"evil{number}", "evil", 2, template=template))
        world.live(2 * apart_minutes, seconds=30)
    world.live(240, seconds=30)
    honest = add_mixed(world, "honest", "2x2x2")
    stock["ct5p"] = 0
    world.live(240, seconds=30)
    assert world.memory.gangs[honest.uid].queues
    stock["ct5p"] = 1
    world.live(240, seconds=30)
    assert world.bound(honest) == 2


@pytest.mark.parametrize("apart_minutes", [0, 10, 25])
def test_a_gang_keeps_its_turn_until_it_has_had_one_within_the_limit(apart_minutes: int) -> None:
    """Its turn for stock and its turn within MAX_CHIPS would be out of step for ever."""
    world = World(settings_=settings(max_chips=56, deletion_delay_seconds=30.0))
    market = Market(world, seconds=20)
    stream, most = Stream(market, most=14, minutes=12), {"honest": 1, "evil": 1}

    def refuse(create: Create) -> Failure | None:
        name = create.workload.namespace
        there = sum(name in pool for pool in world.pools)
        return failure(FailureKind.STOCKOUT) if there >= most.get(name, 100) else None

    world.refuse_create = refuse
    honest = gang("honest", "honest", 3)
    world.add(honest)
    world.live(60, seconds=30)
    assert world.memory.gangs[honest.uid].queues
    del most["honest"]
    world.add(gang("evil", "evil", 2))
    stream.run(2 * apart_minutes, seconds=30)
    world.add(jobset_of("large", "2x4x4", namespace="large"))
    assert stream.served("honest", within_minutes=180)


def test_the_delete_that_somebody_waits_for_goes_before_those_of_another_namespace() -> None:
    """GKE runs three operations at once, and thirty pools of the other namespace are due, too."""
    limits = (("honest", 8),)
    world = World(settings_=settings(max_chips_per_namespace=limits, deletion_delay_seconds=60.0))
    many = [jobset_of(f"a{number:03}", "2x2x4", namespace="evil") for number in range(30)]
    first = jobset_of("first", "2x2x2", namespace="honest")
    world.add(*many, first)
    world.live(6, seconds=5)
    quota = Market(world, seconds=120, delete_seconds=120, most_operations=3)
    for workload in many:
        world.finish(workload)
    quota.run(30, seconds=5)
    world.finish(first)
    after_it = jobset_of("next", "2x2x1", namespace="honest")
    world.add(after_it)
    quota.run(120, seconds=5)
    assert world.bound(after_it) == 1


def test_what_is_missing_in_a_network_of_ones_own_costs_nobody_an_unbound_pool() -> None:
    """The addresses of a tenant's own subnetwork are no stock."""
    world = World(make_jobset("honest", namespace="honest"))
    world.step()
    world.finish_creates()
    annotations = {constants.ADDITIONAL_NODE_NETWORKS: "vpc:tiny"}
    template = make_requirements(tolerations=(), topology="2x2x1", annotations=annotations)
    world.add(make_jobset("evil", namespace="evil", template=template, parallelism=1))
    for pod in list(world.pods.values()):
        if pod.namespace == "evil":
            world.put(replace(pod, requirements=replace(pod.requirements, annotations=annotations)))
    world.refuse_create = lambda create: failure(FailureKind.QUOTA) if create.workload.namespace == "evil" else None
    for _ in range(240):
        world.step(seconds=60)
        world.finish_creates()
        world.finish_deletes()
    assert not world.deleted


def served_within(world: World, workload: Workload, *, minutes: float) -> bool:
    """Go on until both slices of a gang run, or the time is up."""
    until = world.now + timedelta(minutes=minutes)
    while world.bound(workload) < 2 and world.now < until:
        world.live(1, seconds=30)
    return world.bound(workload) == 2


@pytest.mark.parametrize("node", ["static-{}-{}", ""], ids=["runs on foreign nodes", "has pods that do not wait"])
def test_a_gang_that_wants_nothing_has_no_turn(node: str) -> None:
    """It never was in the queue, so each turn would be its."""
    world, honest, stock = queued()
    other = gang("other", "other", 2)
    world.workloads[other.uid] = other
    world.put(
        *(
            make_pod(other, job=job, index=index, node=node.format(job, index), unschedulable=False)
            for job in range(2)
            for index in range(2)
        )
    )
    stock["ct4p"] = 2
    assert served_within(world, honest, minutes=45)


@pytest.mark.parametrize(("minutes", "boot_seconds"), [(16, 0), (16, 30), (30, 30)])
def test_a_gang_that_is_complete_when_its_turn_ends_keeps_all(minutes: float, boot_seconds: float) -> None:
    """Its last pool comes up after that, because creates take longer than a turn. Another gang waits all the time."""
    world, stock = World(settings_=settings()), {"ct4p": 1}
    market = Market(world, seconds=60, boot_seconds=boot_seconds)
    stocked(world, stock)
    honest = gang("honest", "honest", 2)
    world.add(honest, gang("greedy", "greedy", 4))
    until = world.now + timedelta(hours=6)
    while world.bound(honest) < 2 and world.now < until:
        market.step(seconds=30)
        if stock["ct4p"] == 1 and sum(each.queues for each in world.memory.gangs.values()) == 2:
            stock["ct4p"], market.seconds = 2, 60 * minutes
            until = world.now + timedelta(hours=4)
    assert world.bound(honest) == 2


def test_newcomers_hold_nothing_while_another_gang_has_its_turn() -> None:
    """Each asks for more than there is, comes shortly before a pause ends, and gives up in the next."""
    world, honest, stock = queued()
    stock["ct4p"] = 2
    newcomer, born, count, until = None, world.now, 0, world.now + timedelta(hours=2)
    while world.bound(honest) < 2 and world.now < until:
        turn = world.memory.turns.get("together tpu-v4-podslice")
        if turn is not None and turn.holder is None:
            if newcomer is not None and turn.began_at >= born:
                world.remove_jobset(newcomer)
                newcomer = None
            if newcomer is None and turn.until - world.now <= timedelta(seconds=45):
                newcomer, born, count = gang(f"new-{count}", "other", 4), world.now, count + 1
                world.add(newcomer)
        world.live(1, seconds=30)
    assert world.bound(honest) == 2


def test_a_namespace_that_opens_one_gated_pod_after_the_other_is_no_newcomer_each_time() -> None:
    """Each asks for its turn in the pause, and fails for a reason of its own."""
    world = World(settings_=settings(max_chips=64, deletion_delay_seconds=60.0))
    market = Market(world, seconds=20)
    world.refuse_create = lambda create: failure(FailureKind.QUOTA) if create.workload.namespace == "gates" else None
    own = {constants.ADDITIONAL_NODE_NETWORKS: "own:tiny"}
    template = make_requirements(tolerations=(), annotations=own)
    gated = [make_jobset(f"gated-{number:02}", namespace="gates", template=template) for number in range(20)]
    born = world.now
    for each in gated:
        world.workloads[each.uid] = each
        world.put(make_pod(each, unschedulable=False))
    stream = Stream(market, most=20, minutes=12)
    stream.run(40, seconds=30)
    world.add(jobset_of("honest", "2x4x4", namespace="honest"))
    current, seen, until = gated.pop(0), None, world.now + timedelta(hours=2)
    world.put(make_pod(current, unschedulable_since=born))
    while "honest" not in market.ran_at and world.now < until:
        turn = world.memory.turns.get("limit all pools together")
        if turn is not None and turn.holder is None and turn.began_at != seen:
            seen = turn.began_at
            world.remove_jobset(current)
            current = gated.pop(0)
            world.put(make_pod(current, unschedulable_since=born))
        stream.step(seconds=60)
    assert "honest" in market.ran_at


def test_a_turn_for_stock_is_not_prolonged_by_the_queue_of_its_own_namespace() -> None:
    """The gang that has it waits within a limit behind twenty slices of its namespace, and goes before them."""
    world = World(settings_=settings(max_chips_per_namespace=(("busy", 16),), deletion_delay_seconds=30.0))
    stock = {"ct4p": 2}
    stocked(world, stock)
    world.add(jobset_of("server", "2x2x1", namespace="busy"))
    world.live(4, seconds=30)
    world.add(*(jobset_of(f"single-{number:02}", "2x2x4", namespace="busy") for number in range(20)))
    world.live(4, seconds=30)
    honest = gang("honest", "honest", 2)
    world.add(honest)
    world.live(60, seconds=30)
    world.add(gang("keeper", "busy", 2))
    world.live(30, seconds=60)
    stock["ct4p"] = 3
    assert served_within(world, honest, minutes=90)


def test_a_gang_whose_choices_are_tried_in_vain_one_after_the_other_gives_back() -> None:
    """One of them is nearly always being created."""
    world = World(settings_=settings(partial_hold_seconds=1200.0))
    annotations = {constants.ALL_OR_NOTHING: "true", constants.CAPACITY: "on-demand, spot"}
    template = make_requirements(tolerations=(SPOT_TOLERATION,), selector={constants.LEGACY_POOL_ID: "greedy"})
    world.add(gang("greedy", "greedy", 4, annotations=annotations, template=template))
    market = Market(world, seconds=1800)
    market.fails = lambda _: failure(FailureKind.STOCKOUT)
    market.step(seconds=30)
    first = world.pools[world.created[0]]
    world.put_pool(replace(first, status=PoolStatus.RUNNING), created_at=world.now)
    until = world.now + timedelta(hours=4)
    while not any(each.queues for each in world.memory.gangs.values()) and world.now < until:
        market.step(seconds=30)
    assert world.now < until


def test_a_pool_that_a_gang_gave_back_serves_no_single_slice_beside_it() -> None:
    """Its taint would come off, and the scheduler put the gang's own pod there: it would run in part."""
    world, honest, _ = queued()
    single = jobset_of("single", "2x2x2", namespace="other")
    world.add(single)
    world.live(240, seconds=60)
    assert (world.bound(honest), world.bound(single)) == (0, 1)


@pytest.mark.parametrize("what", ["its own slices", "a namespace without a limit left", "one that GKE rejects"])
def test_a_ready_pool_without_pods_goes_only_for_who_would_use_its_stock(what: str) -> None:
    """Pods may be bound late: all at once, by another scheduler, or when a volume is there."""
    limits = (("other", 0),) if what == "a namespace without a limit left" else ()
    world = World(settings_=settings(max_chips_per_namespace=limits))
    world._free_pool = lambda leader: []  # type: ignore[method-assign]

    def refuse(create: Create) -> Failure | None:
        if what == "one that GKE rejects" and create.workload.namespace == "other":
            return failure(FailureKind.PERMISSION)
        return failure(FailureKind.STOCKOUT) if len(world.pools) >= 2 else None

    world.refuse_create = refuse
    own = what == "its own slices"
    world.add(jobset_of("honest", "2x2x2", namespace="honest", replicas=3 if own else 2))
    world.live(4, seconds=30)
    if not own:
        # Somebody met the stockout, and gave up.
        third = jobset_of("third", "2x2x2", namespace="third")
        world.add(third)
        world.live(4, seconds=30)
        world.remove_jobset(third)
        world.add(jobset_of("other", "2x2x2", namespace="other"))
    for _ in range(240):
        world.live(1, seconds=30)
    assert world.deleted == []


def test_who_waits_now_and_then_does_not_close_the_pools_of_others_each_time() -> None:
    """Its annotation is switched off and on every ten seconds."""
    world = World(settings_=settings(max_chips=44, deletion_delay_seconds=60.0))
    world.add(jobset_of("honest", "2x2x1", namespace="honest", replicas=10))
    for _ in range(6):
        world.step(seconds=10)
        world.finish_creates()
        world.schedule()
    other, changes = jobset_of("other", "2x2x2", namespace="other"), 0
    world.add(other)
    for number in range(360):
        annotations = {constants.DISABLE: "true"} if number // 2 % 2 else {}
        world.workloads[other.uid] = replace(other, annotations=annotations)
        plan = world.step(seconds=5)
        changes += len(plan.cordons) + len(plan.uncordons)
    assert changes <= 2 * 10 * 2


def test_nobody_tries_capacity_that_is_out_of_stock_while_a_pool_of_it_is_being_deleted() -> None:
    """A turn would be lost, again and again where others take what is free by then."""
    world = World(settings_=settings())
    stocked(world, {"ct4p": 1})
    first, second = (gang(name, name, 1, annotations={}) for name in ("first", "second"))
    world.add(first)
    world.live(4, seconds=10)
    world.add(second)
    world.step()
    world.finish(first)
    world.run(5, seconds=10)
    assert [pool.status for pool in world.pools.values()] == [PoolStatus.STOPPING]
    sent = len([create for plan in world.plans for create in plan.creates])
    world.run(30, seconds=20)
    assert len([create for plan in world.plans for create in plan.creates]) == sent
    world.finish_deletes()
    world.run(2, seconds=10)
    assert len(world.pools) == 1


def test_a_slice_of_another_shape_takes_turns_with_gangs_that_want_the_same_stock() -> None:
    """Otherwise each of its rare tries may find a part of the stock held by a gang that never gets all."""
    world = World(settings_=settings(partial_hold_seconds=22.0))

    def refuse(create: Create) -> Failure | None:
        wanted = 8 if create.request.topology == "2x2x2" else 4
        used = sum(4 * pool.hosts for pool in world.pools.values())
        return failure(FailureKind.STOCKOUT) if used + wanted > 8 else None

    world.refuse_create = refuse
    small = make_requirements(topology="2x2x1", tolerations=())
    world.add(*(gang(f"g{number}", "greedy", 3, template=small, parallelism=1) for number in range(2)))
    world.live(232, seconds=7)
    honest = make_jobset("honest", namespace="honest", replicas=1)
    world.add(honest)
    world.live(60, seconds=7)
    assert world.bound(honest) == 1


def test_a_slice_that_never_finds_stock_takes_no_more_than_its_turns_from_gangs() -> None:
    """Its shape is never there, and it waits beside a gang whose stock comes back."""
    world, honest, stock = queued()
    refuse = world.refuse_create
    world.refuse_create = lambda create: (
        failure(FailureKind.STOCKOUT) if create.request.topology == "4x4x4" else refuse(create)
    )
    world.add(jobset_of("hopeless", "4x4x4", namespace="other"))
    world.live(80, seconds=30)
    [turn] = world.memory.turns.values()
    assert turn.holder is not None
    assert turn.holder.namespace == "other"
    stock["ct4p"] = 2
    assert served_within(world, honest, minutes=60)
