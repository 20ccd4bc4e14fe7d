"""The parts that the simulation stands on: virtual time, the store, the planting of bugs."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.kube import errors
from tests.simulation.agenda import Agenda
from tests.simulation.store import Store


def test_what_is_due_during_a_wait_happens_in_it() -> None:
    """Callbacks run in the order of their times, nested waits included, and time never goes back."""
    agenda, seen = Agenda(), []

    def slow() -> None:
        seen.append(("slow begins", agenda.now))
        agenda.wait(5.0)
        seen.append(("slow ends", agenda.now))

    agenda.after(1.0, slow)
    agenda.after(3.0, lambda: seen.append(("quick", agenda.now)))
    agenda.wait(2.0)
    assert seen == [("slow begins", 1.0), ("quick", 3.0), ("slow ends", 6.0)]
    assert agenda.now == 6.0


def test_what_was_due_in_the_past_happens_now() -> None:
    agenda, seen = Agenda(), []
    agenda.wait(10.0)
    agenda.at(3.0, lambda: seen.append(agenda.now))
    agenda.wait(0.0)
    assert seen == [10.0]


@pytest.mark.parametrize(
    ("query", "want"),
    [
        pytest.param({}, ["a", "b"], id="no selector leaves all"),
        pytest.param({"labelSelector": "size"}, ["a", "b"], id="a label that both have"),
        pytest.param({"labelSelector": "size=2"}, ["b"], id="a label's value"),
        pytest.param({"fieldSelector": "spec.nodeName=n,status.phase!=Failed"}, ["a"], id="two fields"),
    ],
)
def test_selectors_leave_what_they_should(query: dict[str, str], want: list[str]) -> None:
    """Labels by presence and value, fields by value and its absence."""
    store = Store()
    for name, size, phase in (("a", "1", "Running"), ("b", "2", "Failed")):
        store.put(
            f"/api/v1/namespaces/x/pods/{name}",
            {
                "metadata": {"name": name, "labels": {"size": size}},
                "spec": {"nodeName": "n"},
                "status": {"phase": phase},
            },
        )
    assert [raw["metadata"]["name"] for raw in store.select("/api/v1/pods", query)] == want


def test_objects_are_replaced_and_never_changed_in_place() -> None:
    """Who has read an object keeps what was read."""
    store = Store()
    first = store.put("/api/v1/nodes/n", {"metadata": {"name": "n"}, "spec": {}})
    second = store.put("/api/v1/nodes/n", {"metadata": {"name": "n"}, "spec": {"unschedulable": True}})
    assert first["spec"] == {}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    store.remove("/api/v1/nodes/n")
    with pytest.raises(errors.NotFound):
        store.get("/api/v1/nodes/n")


def _node(number: int, **labels: str) -> tuple[str, dict[str, Any]]:
    return f"/api/v1/nodes/n{number}", {"metadata": {"name": f"n{number}", "labels": labels}}


def test_pages_show_the_moment_of_the_first() -> None:
    """What changes between two pages is told by the watch from the list's version, not by the second page."""
    store = Store()
    for number in range(3):
        store.put(*_node(number))
    first = store.page("/api/v1/nodes", {}, limit=2, continue_token="")
    store.put(*_node(2, late="yes"))
    second = store.page("/api/v1/nodes", {}, limit=2, continue_token=first.continue_token)
    assert [raw["metadata"]["name"] for raw in first.items + second.items] == ["n0", "n1", "n2"]
    assert second.items[0]["metadata"]["labels"] == {}
    assert (first.resource_version, second.resource_version, second.continue_token) == ("3", "3", "")
    (missed,) = store.changes_since("nodes", int(second.resource_version))
    assert (missed.version, missed.after) == (4, store.get("/api/v1/nodes/n2"))


def test_what_was_compacted_is_gone() -> None:
    """Neither the second page of a list nor the changes since it are to be had."""
    store = Store()
    for number in range(3):
        store.put(*_node(number))
    page = store.page("/api/v1/nodes", {}, limit=2, continue_token="")
    store.put(*_node(3))
    store.compact()
    with pytest.raises(errors.Gone):
        store.page("/api/v1/nodes", {}, limit=2, continue_token=page.continue_token)
    with pytest.raises(errors.Gone):
        store.changes_since("nodes", 3)
    store.remove("/api/v1/nodes/n3")
    (change,) = store.changes_since("nodes", 4)
    assert (change.version, change.after) == (5, None)
