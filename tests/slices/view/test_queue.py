"""The place of what waits for a limit is the order in which it is served, and who has what is allowed is named."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.slices.view.explain import explain
from provisioner.slices.view.types import QueueView, View
from tests.support.board import view_of
from tests.support.models import make_jobset
from tests.support.settings import settings
from tests.support.world import World

#: Of a slice that the builders make.
CHIPS = 8


def queue_of(view: View) -> Mapping[str, QueueView | None]:
    return {each.group: each.queue for each in view.slices}


def three_wait() -> World:
    """Let one JobSet have all that may be had, and three of two namespaces wait."""
    world = World(
        make_jobset("first"),
        settings_=settings(max_chips=CHIPS, deletion_delay_seconds=300.0),
    )
    world.live(3)
    for name, namespace in (("a", "default"), ("b", "default"), ("c", "other")):
        jobset = make_jobset(name, namespace=namespace)
        world.add(jobset)
        world.live(5)
    return world


def test_what_waits_for_a_limit_has_its_place_and_sees_who_uses_it() -> None:
    """The first of them is served when chips become free; then the second is the first."""
    world = three_wait()
    queue = queue_of(view_of(world))
    assert queue.pop("first-slice-0") is None
    places = {group: each.place for group, each in queue.items() if each is not None}
    assert sorted(places.values()) == [1, 2, 3]
    for group, each in queue.items():
        assert each is not None, group
        assert (each.limit, each.length) == ("all pools together", 3)
        assert each.users == ("JobSet/default/first: 8 chips",)
    first, second, _ = sorted(places, key=places.__getitem__)
    world.finish(next(each for each in world.workloads.values() if each.name == "first"))
    world.live(5)
    queue = queue_of(view_of(world))
    assert queue[first] is None
    after = queue[second]
    assert after is not None
    assert (after.place, after.length, after.users) == (1, 2, ("JobSet/default/a: 8 chips",))


def test_explain_says_the_place_who_is_next_and_what_would_free_it() -> None:
    view = view_of(three_wait())
    by_place = {each.queue.place: each for each in view.slices if each.queue is not None}
    (found,) = explain(view, view.at, (), (), by_place[3].group)
    facts = dict(found.facts)
    assert facts["place in the queue"] == f"3 of 3 for the limit of all pools together; next: {by_place[1].id}"
    assert facts["used by"] == "JobSet/default/first: 8 chips"
    assert facts["becomes free"] == "when one of these ends, or the administrator raises the limit"
    # The sentence of the headline is not said again.
    assert "MAX_CHIPS allows all pools together 8 chips" in found.headline
    assert found.notices == ()
