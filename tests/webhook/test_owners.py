"""Owners read for many at once: few calls, and never what was read before somebody asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from provisioner.environment import OwnerKey
from provisioner.environment.review import OwnerError
from provisioner.kube import errors
from provisioner.webhook.owners import Owners
from tests.support.kube import FakeKube
from tests.support.waiting import wait_for

KEY = OwnerKey("StatefulSet", "/apis/apps/v1", "statefulsets", "ml", "train", "u")
PATH = "/apis/apps/v1/namespaces/ml/statefulsets/train"


class Slow(FakeKube):
    """Answers when it is told to, with what was there when the call began."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[threading.Event] = []

    def get(self, path: str, query: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        found = super().get(path, query, **options)
        gate = threading.Event()
        self.gates.append(gate)
        gate.wait(10)
        return found


def put(kube: FakeKube, replicas: int) -> None:
    kube.put_object(PATH, {"metadata": {"name": "train"}, "spec": {"replicas": replicas}})


def test_who_asks_together_shares_a_read_and_who_comes_later_gets_a_later_one():
    kube = Slow()
    put(kube, 4)
    owners = Owners(kube)
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(owners.read, KEY)
        wait_for(lambda: len(kube.gates) == 1)
        put(kube, 8)
        later = [threads.submit(owners.read, KEY) for _ in range(12)]
        wait_for(lambda: KEY in owners._following)
        kube.gates[0].set()
        wait_for(lambda: len(kube.gates) == 2)
        kube.gates[1].set()
        found = first.result(10)
        assert found is not None
        assert found["spec"]["replicas"] == 4
        # All of them asked after the change.
        assert {each.result(10)["spec"]["replicas"] for each in later} == {8}  # type: ignore[index]
    assert len([each for each in kube.calls if each.method == "GET"]) <= 4
    assert not owners._running
    assert not owners._following


def test_an_owner_that_is_not_there():
    assert Owners(FakeKube()).read(KEY) is None


def test_an_api_server_that_is_away_is_told_to_all_who_wait():
    kube = FakeKube()
    owners = Owners(kube)
    kube.fail("GET", ".*", errors.Unavailable("away"), times=2)
    for _ in range(2):
        with pytest.raises(OwnerError, match="away"):
            owners.read(KEY)
    assert owners.read(KEY) is None


def test_a_name_that_is_none_is_told():
    with pytest.raises(OwnerError, match="is not the name of an object"):
        Owners(FakeKube()).read(KEY._replace(name=".."))
