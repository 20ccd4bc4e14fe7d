"""Owners read for many at once: few calls, and never what was read before somebody asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from provisioner.admission.review import Judgement, Request
from provisioner.environment import Injection, OwnerKey, Settings
from provisioner.environment.review import OwnerError, Rest, judge_pod
from provisioner.kube import errors
from provisioner.kube.protocol import Timeouts
from provisioner.kube.reader import Read
from provisioner.webhook import owners as module
from provisioner.webhook.owners import Owners

KEY = OwnerKey("StatefulSet", "/apis/apps/v1", "statefulsets", "ml", "train", "u")
OTHER = KEY._replace(name="other")


class World:
    """Answers reads when it is told to, with what was there when they began."""

    def __init__(self) -> None:
        self.replicas = 0
        #: Reads under way, in their order.
        self.reads: list[tuple[str, asyncio.Future[Read]]] = []
        self.owners = Owners(self)

    async def read(self, path: str, timeouts: Timeouts) -> Read:
        raw = {"replicas": self.replicas}
        found = Read(load=lambda: raw)
        future: asyncio.Future[Read] = asyncio.get_running_loop().create_future()
        self.reads.append((path, future))
        await future
        return found

    def close(self) -> None:
        """Nothing is held."""

    def answer(self, number: int = 0, error: Exception | None = None) -> None:
        """End a read."""
        future = self.reads[number][1]
        if error is None:
            future.set_result(Read(load=dict))
        else:
            future.set_exception(error)

    def ask(self, key: OwnerKey = KEY) -> asyncio.Task[Read | None]:
        return asyncio.ensure_future(self.owners.read(key))


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def play(scene: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await scene(world)
        await settle()
        assert not world.owners._running
        assert not world.owners._following

    asyncio.run(run())


def replicas(read: Read | None) -> int:
    assert read is not None
    return int(read.load()["replicas"])


def test_who_asks_together_shares_a_read_and_who_comes_later_gets_a_later_one():
    async def scene(world: World) -> None:
        world.replicas = 4
        first = world.ask()
        await settle()
        world.replicas = 8
        later = [world.ask() for _ in range(12)]
        await settle()
        # One under way, and one next.
        assert len(world.reads) == 1
        world.answer()
        await settle()
        assert len(world.reads) == 2
        world.replicas = 16
        last = world.ask()
        await settle()
        world.answer(1)
        await settle()
        world.answer(2)
        assert replicas(await first) == 4
        assert [replicas(each) for each in await asyncio.gather(*later)] == [8] * 12
        assert replicas(await last) == 16
        assert len(world.reads) == 3

    play(scene)


def test_nobody_is_given_a_read_that_began_before_whatever_the_order():
    """Askers, changes and answers in a thousand orders: each sees at least what was there when it asked."""

    async def scene(world: World) -> None:
        asked: list[tuple[int, asyncio.Task[Read | None]]] = []
        state, answered = 7, 0
        for _ in range(1000):
            # Any sequence that does not repeat for long.
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            action = (state >> 16) % 4
            if action == 0:
                world.replicas += 1
            elif action == 1:
                asked.append((world.replicas, world.ask()))
            elif action == 2 and answered < len(world.reads):
                world.answer(answered)
                answered += 1
            elif action == 3:
                await asyncio.sleep(0)
            assert len(world.reads) - answered <= 1
        while not all(each.done() for _, each in asked):
            await settle()
            if answered < len(world.reads):
                world.answer(answered)
                answered += 1
        assert len(asked) > 100
        assert len(world.reads) < len(asked)
        for before, each in asked:
            assert replicas(each.result()) >= before

    play(scene)


def test_owners_do_not_wait_for_each_other():
    async def scene(world: World) -> None:
        hanging, other = world.ask(), world.ask(OTHER)
        await settle()
        world.answer(1)
        assert await other is not None
        assert not hanging.done()
        world.answer()
        await hanging

    play(scene)


def test_a_failure_is_told_to_all_who_waited_for_it_and_to_nobody_else():
    async def scene(world: World) -> None:
        first = world.ask()
        await settle()
        later = [world.ask(), world.ask()]
        await settle()
        world.answer(error=errors.Unavailable("away"))
        await settle()
        world.answer(1, errors.Forbidden("no right"))
        await settle()
        told: list[Any] = await asyncio.gather(first, *later, return_exceptions=True)
        assert [str(each) for each in told] == ["away", "no right", "no right"]
        assert all(type(each) is OwnerError for each in told)
        assert len(set(map(id, told))) == 3
        after = world.ask()
        await settle()
        world.answer(2)
        assert await after is not None

    play(scene)


def test_a_mistake_of_ours_is_raised_as_it_is():
    async def scene(world: World) -> None:
        asked = world.ask()
        await settle()
        world.answer(error=KeyError("x"))
        with pytest.raises(KeyError):
            await asked

    play(scene)


def test_an_owner_that_is_not_there():
    async def scene(world: World) -> None:
        asked = world.ask()
        await settle()
        world.answer(error=errors.NotFound("gone"))
        assert await asked is None

    play(scene)


def test_who_waits_for_too_long_is_told_so_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    async def scene(world: World) -> None:
        monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.02)
        hasty, next_ = world.ask(), world.ask()
        # A task looks at the time when it begins.
        await settle()
        monkeypatch.setattr(module, "_PATIENCE_SECONDS", 30)
        patient = world.ask()
        for each in (hasty, next_):
            with pytest.raises(OwnerError, match="does not answer in time"):
                await each
        # Nobody waits for the first read any more, and the next has begun without it.
        assert world.reads[0][1].cancelled()
        world.answer(1)
        assert replicas(await patient) == 0

    play(scene)


def test_who_leaves_takes_nobody_along():
    async def scene(world: World) -> None:
        first, second = world.ask(), world.ask()
        await settle()
        third = world.ask()
        await settle()
        first.cancel()
        second.cancel()
        await settle()
        # Nobody waits for the first read any more.
        assert world.reads[0][1].cancelled()
        world.answer(1)
        assert await third is not None

    play(scene)


POD: dict[str, Any] = {
    "metadata": {
        "name": "train-3",
        "labels": {"tpu-provisioner.cloud.google.com/inject": "enabled"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
        ],
    },
    "spec": {"containers": [{"resources": {"limits": {"google.com/tpu": "4"}}}]},
}


def judgement(read: Read) -> Judgement:
    """Return what there is to do for a pod once its owner was read."""

    class Known:
        async def read(self, path: str, timeouts: Timeouts) -> Read:
            return read

        def close(self) -> None:
            """Nothing is held."""

    request = Request(operation="CREATE", kind="Pod", namespace="ml", object=POD)
    rest = judge_pod(request, Settings(injection=Injection.ALL))
    assert isinstance(rest, Rest)
    return asyncio.run(Owners(Known()).finish(rest))


def owner_of(replicas: int) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "spec": {"replicas": replicas, "serviceName": "s"}}


@pytest.mark.parametrize(
    ("replicas", "large_bytes", "quick"),
    [
        pytest.param(8, 0, True, id="a small owner of few pods"),
        pytest.param(2000, 0, False, id="a small owner of many pods"),
        pytest.param(8, 100_000, False, id="a large owner"),
    ],
)
def test_what_takes_time_or_memory_is_said(replicas: int, large_bytes: int, *, quick: bool):
    found = judgement(Read(load=lambda: owner_of(replicas), large_bytes=large_bytes))
    assert (found.quick, found.large_bytes) == (quick, large_bytes)
    assert found.judge().patch


def test_a_large_owner_that_cannot_be_read_is_told():
    def load() -> dict[str, Any]:
        raise errors.Malformed("it is not JSON")

    (told,) = judgement(Read(load=load, large_bytes=100_000)).judge().warnings
    assert "StatefulSet ml/train could not be read (it is not JSON)" in told


def test_a_name_that_is_none_is_told():
    async def scene(world: World) -> None:
        with pytest.raises(OwnerError, match="is not the name of an object"):
            await world.owners.read(KEY._replace(name=".."))

    play(scene)
