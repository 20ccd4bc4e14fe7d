"""Tests that the volumes of pods decide which pools are created and used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Volumes
from provisioner.slices.messages.notices import EventReason
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.models import make_jobset, make_requirements
from tests.support.objects import raw_request
from tests.support.settings import settings
from tests.support.world import World

HERE, THERE = "us-central2-b", "us-central2-c"


def world_of(volumes: Volumes, *, accelerator: str = "tpu-v4-podslice", topology: str = "2x2x2") -> World:
    template = make_requirements(accelerator=accelerator, topology=topology, volumes=volumes, tolerations=())
    return World(make_jobset(template=template), settings_=settings(zones=(HERE, THERE)))


def test_pool_is_created_in_the_zone_of_the_volumes() -> None:
    world = world_of(Volumes(zones=(THERE,)))
    world.live(3)
    assert [world.pools[name].zones for name in world.created] == [(THERE,)]


@pytest.mark.parametrize(
    ("volumes", "reason", "words"),
    [
        pytest.param(
            Volumes(zones=("us-central2-a",)),
            EventReason.INVALID_REQUEST,
            "the pod's volumes are in zone us-central2-a, the node is in us-central2-b",
            id="volume outside of the zones (09)",
        ),
        pytest.param(
            Volumes(zones=()), EventReason.INVALID_REQUEST, "volumes have no zone in common", id="volumes in two zones"
        ),
        pytest.param(
            Volumes(disks=("hyperdisk-ml", "pd-balanced")),
            EventReason.INVALID_REQUEST,
            "a volume of the pod is a disk of type pd-balanced, which ct6e-standard-4t cannot attach",
            id="Persistent Disk on v6e",
        ),
        pytest.param(
            Volumes(problem="PersistentVolumeClaim default/x does not exist; create it"),
            EventReason.CREATION_WAITING,
            "waits: PersistentVolumeClaim default/x does not exist; create it.",
            id="missing claim",
        ),
    ],
)
def test_no_pool_is_created_for_volumes_that_its_nodes_cannot_attach(volumes: Volumes, reason: str, words: str) -> None:
    world = world_of(volumes, accelerator="tpu-v6e-slice", topology="2x4")
    world.live(130)
    assert world.created == []
    (message,) = {notice.message for notice in world.told(reason)}
    assert words in message


def test_pool_is_created_for_a_disk_type_that_its_machines_can_attach() -> None:
    world = world_of(Volumes(disks=("pd-balanced",)))
    world.live(3)
    assert len(world.created) == 1


def test_free_pool_in_another_zone_is_not_taken() -> None:
    first = make_jobset("first")
    world = World(first, settings_=settings(zones=(HERE, THERE)))
    world.live(3)
    world.finish(first)
    template = make_requirements(volumes=Volumes(zones=(THERE,)), tolerations=())
    second = make_jobset("second", template=template)
    world.add(second)
    world.live(3)
    assert [world.pools[name].zones for name in world.created] == [(HERE,), (THERE,)]
    assert world.bound(second) == 1


def test_request_waits_for_a_missing_claim_and_does_not_fail() -> None:
    """The condition Failed is final: Kueue would give up on a request whose claim is created only a little later."""
    world = Asking(raw_request("req", 2))
    key = next(iter(world.templates))
    asked = world.templates[key]
    problem = Volumes(claims=("x",), problem="PersistentVolumeClaim default/x does not exist; create it")
    changes: dict[str, Any] = {"volumes": problem}
    world.templates[key] = replace(asked, **changes)
    world.live(5)
    assert world.created == []
    assert constants.FAILED not in world.conditions("req")
    world.templates[key] = asked
    world.live(3)
    assert len(world.created) == 1
