"""Pages, filters and parts of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rehearsal.simulators.compute import api
from rehearsal.simulators.compute.errors import ApiError
from tests.support.compute import GROUPS, Compute, group


@dataclass(frozen=True)
class Thing:
    """Something with a name."""

    name: str
    day: int

    def body(self) -> dict[str, Any]:
        """Return it as it is shown."""
        shown = {"creationTimestamp": f"2026-01-0{self.day}", "size": self.day, "status": {"isStable": self.day == 2}}
        return {"name": self.name, **shown}


THINGS = [Thing(name, day) for day, name in enumerate(("c", "a", "b"), start=1)]


def page_of(**query: str) -> dict[str, Any]:
    """Return a page of the things."""
    return api.page_of(THINGS, query, Thing.body)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "abc"),
        ("name = a", "a"),
        ('name="a"', "a"),
        ("name != a", "bc"),
        ("(name != a) (name != b)", "c"),
        ("(name != a) AND (name != b)", "c"),
        ("name != a AND size = 1", "c"),
        ("name eq 'a|b'", "ab"),
        ("name ne a.*", "bc"),
        ("status.isStable = true", "a"),
        ("status.isStable:*", "abc"),
        ("status.other:*", ""),
        ("name:b*", "b"),
        ("other = x", ""),
        ("other != x", "abc"),
    ],
)
def test_filters(text: str, names: str) -> None:
    """Values are compared as texts, nested fields with dots, expressions all together."""
    page = page_of(filter=text)

    assert "".join(item["name"] for item in page.get("items", [])) == names


@pytest.mark.parametrize(
    "query",
    [{"filter": "name"}, {"filter": "name > a"}, {"orderBy": "size"}, {"maxResults": "501"}, {"pageToken": "!"}],
)
def test_queries_that_are_refused(query: dict[str, str]) -> None:
    """What is not understood is refused and not ignored."""
    with pytest.raises(ApiError, match="400 invalid"):
        page_of(**query)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", {"items": [{"name": "a", "x": {"y": 1, "z": 2}}], "kind": "k"}),
        ("kind", {"kind": "k"}),
        ("items/name", {"items": [{"name": "a"}]}),
        ("items(name,x/y),kind", {"items": [{"name": "a", "x": {"y": 1}}], "kind": "k"}),
        ("items(x(z))", {"items": [{"x": {"z": 2}}]}),
        ("items/*", {"items": [{"name": "a", "x": {"y": 1, "z": 2}}]}),
        ("other", {}),
    ],
)
def test_parts_of_answers(fields: str, expected: dict[str, Any]) -> None:
    """Only what `fields` names is answered."""
    body = {"items": [{"name": "a", "x": {"y": 1, "z": 2}}], "kind": "k"}

    assert api.partial(body, fields) == expected


@pytest.mark.parametrize("fields", ["a)", "a;b"])
def test_parts_that_are_refused(fields: str) -> None:
    """A selection that is not understood is refused."""
    with pytest.raises(ApiError, match="Invalid field selection"):
        api.partial({}, fields)


def test_managed_instances_come_in_pages_only_where_the_group_says_so(compute: Compute) -> None:
    """Without PAGINATED the whole list is answered, whatever is asked for."""
    compute.slice()
    compute.do("POST", GROUPS, group("paged", listManagedInstancesResults="PAGINATED"))
    _, whole = compute("POST", f"{GROUPS}/group/listManagedInstances?maxResults=1")
    assert (len(whole["managedInstances"]), "nextPageToken" in whole) == (4, False)
    _, page = compute("POST", f"{GROUPS}/paged/listManagedInstances?maxResults=3")
    assert (len(page["managedInstances"]), "nextPageToken" in page) == (3, True)
    _, rest = compute("POST", f"{GROUPS}/paged/listManagedInstances?maxResults=3&pageToken={page['nextPageToken']}")
    assert len(rest["managedInstances"]) == 1
    compute.pass_seconds(10)
    _, chosen = compute("POST", f"{GROUPS}/group/listManagedInstances?filter=instanceStatus+%3D+STAGING")
    assert chosen == {}
    assert compute("POST", f"{GROUPS}/group/listManagedInstances?orderBy=name")[0] == 400
