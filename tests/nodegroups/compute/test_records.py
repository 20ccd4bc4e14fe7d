"""What URLs of Compute Engine point to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.nodegroups.compute.records import Link, Scope, address_problem, parse_link, same_resource

GLOBAL, REGION, ZONE = Scope(project="p"), Scope(project="p", region="r1"), Scope(project="p", zone="r1-a")


@pytest.mark.parametrize(
    ("url", "want"),
    [
        pytest.param(
            "projects/p/global/instanceTemplates/t",
            Link(scope=GLOBAL, collection="instanceTemplates", name="t"),
            id="a path",
        ),
        pytest.param(
            "https://www.googleapis.com/compute/v1/projects/p/regions/r1/instanceTemplates/t",
            Link(scope=REGION, collection="instanceTemplates", name="t"),
            id="a regional template's URL",
        ),
        pytest.param(
            "https://compute.googleapis.com/compute/beta/projects/p/zones/r1-a/instanceGroupManagers/m",
            Link(scope=ZONE, collection="instanceGroupManagers", name="m"),
            id="a zonal resource's URL of another version",
        ),
        pytest.param(
            "projects/p/locations/us-central1/instanceTemplates/t",
            Link(scope=Scope(project="p", region="us-central1"), collection="instanceTemplates", name="t"),
            id="a location that is a region",
        ),
        pytest.param(
            "projects/p/locations/us-central1-a/instances/t",
            Link(scope=Scope(project="p", zone="us-central1-a"), collection="instances", name="t"),
            id="a location that is a zone",
        ),
        pytest.param("projects/p/instanceTemplates/t", None, id="no scope"),
        pytest.param("myprojects/p/global/instanceTemplates/t", None, id="a path that only ends so"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_a_url_is_read(url: str, want: Link | None) -> None:
    assert parse_link(url) == want


def test_urls_of_one_resource_are_known_for_it() -> None:
    path = "projects/p/global/instanceTemplates/t"

    assert same_resource(path, f"https://www.googleapis.com/compute/v1/{path}")
    assert not same_resource(path, "projects/p/regions/r1/instanceTemplates/t")
    assert not same_resource("", path)


@given(st.text() | st.from_regex(r"projects/[^/]*/(global|zones/[^/]*)/[A-Za-z]*/[^/]*"))
def test_whatever_is_read_has_the_path_that_it_was_read_from(url: str) -> None:
    link = parse_link(url)

    assert link is None or parse_link(f"{link.scope.path}/{link.collection}/{link.name}") == link


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        pytest.param(ZONE, "a.b", id="a name with a dot, as objects of Kubernetes have"),
        pytest.param(ZONE, "1a", id="a name that begins with a digit"),
        pytest.param(ZONE, "a" * 64, id="a name that is too long"),
        pytest.param(ZONE, "a-", id="a name that ends with a hyphen"),
        pytest.param(ZONE, "", id="no name"),
        pytest.param(ZONE, "..", id="a step up"),
        pytest.param(Scope(project="p", zone=".."), "a", id="a zone that is a step up"),
        pytest.param(Scope(project="p", region="../../q/regions/r1"), "a", id="a region that leads elsewhere"),
        pytest.param(Scope(project="p/zones/z", zone="r1-a"), "a", id="a project that leads elsewhere"),
        pytest.param(Scope(project="", zone="r1-a"), "a", id="no project"),
    ],
)
def test_what_can_be_no_address_is_known_without_asking(scope: Scope, name: str) -> None:
    assert address_problem(scope, name)


@pytest.mark.parametrize("project", ["p", "example.com:my-project-1", "123456789012"])
def test_what_can_be_an_address_is_asked_for(project: str) -> None:
    scope = Scope(project=project, zone="us-central1-a")

    assert not address_problem(scope, "a-mig-0123abcd")
    assert not address_problem(scope, "operation-1700000000000-60a1b2c3-0a1b_2c3d", operation=True)
    assert address_problem(scope, "../instances/a", operation=True)
