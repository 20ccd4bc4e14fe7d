"""Tests of the allow-lists of the administrator: names that pods and JobSets may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import Network
from provisioner.model.choices import parse_choices
from provisioner.settings import Settings, read_settings
from provisioner.slices.demand import allowlists
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.supplier import UnmeetableError
from tests.support.models import make_jobset, pool_request, slice_of
from tests.support.settings import REQUIRED, settings
from tests.support.world import World


def written(environment: Mapping[str, str]) -> Settings:
    return read_settings(REQUIRED | environment)


def reservation(path: str, settings_: Settings) -> tuple[str, ...]:
    return allowlists.reservation_problem(path, settings_)


def network(text: str, settings_: Settings) -> tuple[str, ...]:
    vpc, _, subnet = text.partition(":")
    return allowlists.network_problem([Network(network=vpc, subnetwork=subnet)], settings_)


def label(key: str, settings_: Settings) -> tuple[str, ...]:
    return allowlists.label_problem([key], settings_)


#: Path of the reservations of another project.
SHARED = "projects/p-project/reservations"
CHECKS: dict[str, Any] = {
    "ALLOWED_NAMESPACES": (allowlists.namespace_problem, "team-a"),
    "ALLOWED_RESERVATIONS": (reservation, "research"),
    "ALLOWED_SERVICE_ACCOUNTS": (allowlists.service_account_problem, "nodes@p.iam.gserviceaccount.com"),
    "ALLOWED_NETWORKS": (network, "vpc:subnet"),
    "ALLOWED_LABEL_KEYS": (label, "example.com/team"),
}


@pytest.mark.parametrize("variable", CHECKS)
@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        pytest.param(None, True, id="unset allows all"),
        pytest.param("none", False, id="none allows nothing"),
        pytest.param("{}", True, id="its name"),
        pytest.param("other, {}", True, id="its name among others"),
        pytest.param("other", False, id="another name"),
        pytest.param("{start}*", True, id="its beginning and a star"),
        pytest.param("{start}", False, id="its beginning without a star"),
        pytest.param("x{start}*", False, id="another beginning"),
        pytest.param("*", True, id="only a star"),
    ],
)
def test_rejected_name_is_reported_with_the_name_of_the_setting(
    *, variable: str, pattern: str | None, allowed: bool
) -> None:
    check, name = CHECKS[variable]
    environment = {} if pattern is None else {variable: pattern.format(name, start=name[:2])}
    problem = check(name, written(environment))
    assert (problem == ()) is allowed
    if not allowed:
        assert variable in problem[0]
        assert name in problem[0]


@pytest.mark.parametrize(
    ("path", "pattern", "allowed"),
    [
        pytest.param("r1/reservationBlocks/b1", "r1", True, id="a block goes with its reservation"),
        pytest.param(f"{SHARED}/r1", "p-project/r1", True, id="a shared reservation"),
        pytest.param(
            f"{SHARED}/r1/reservationBlocks/b1/reservationSubBlocks/s1", "p-project/r1", True, id="a shared sub-block"
        ),
        pytest.param(f"{SHARED}/r1", "r1", False, id="one of another project is not ours of that name"),
        pytest.param(f"{SHARED}/r1", "p-project/*", True, id="all of a project"),
        pytest.param("r1", "p-project/r1", False, id="ours is not another project's of that name"),
        pytest.param(
            "projects/project-1/reservations/r1/reservationBlocks/b1", "r1", True, id="ours in full by its name"
        ),
        pytest.param("r1", "project-1/r1", True, id="ours may be allowed with its project"),
        pytest.param("r1", "project-1/*", True, id="all of ours may be"),
        pytest.param("r1", "a-*", False, id="the beginning of a name does not mean the project"),
    ],
)
def test_reservations_of_one_name_are_distinguished_by_project(*, path: str, pattern: str, allowed: bool) -> None:
    assert (reservation(path, settings(allowed_reservations=(pattern,))) == ()) is allowed


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [(("vpc",), True), (("vpc:subnet",), True), (("vpc:other",), False), (("subnet",), False), (("vpc:s*",), True)],
)
def test_a_network_is_allowed_as_a_whole_or_by_its_subnet(*, patterns: tuple[str, ...], allowed: bool) -> None:
    assert (network("vpc:subnet", settings(allowed_networks=patterns)) == ()) is allowed


def test_each_of_several_networks_has_to_be_allowed() -> None:
    networks = [Network(network="good", subnetwork="s"), Network(network="bad", subnetwork="s")]
    problem = allowlists.network_problem(networks, settings(allowed_networks=("good",)))
    assert "bad:s" in problem[0]
    assert "good" not in problem[0]


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        pytest.param(
            {"annotations": {constants.NODE_SERVICE_ACCOUNT: "admin@p.iam.gserviceaccount.com"}},
            {"allowed_service_accounts": ()},
            "service account admin@p.iam.gserviceaccount.com is not among ALLOWED_SERVICE_ACCOUNTS",
            id="a service account",
        ),
        pytest.param(
            {"annotations": {constants.ADDITIONAL_NODE_NETWORKS: "vpc:secret"}},
            {"allowed_networks": ("vpc:open",)},
            "network vpc:secret is not among ALLOWED_NETWORKS",
            id="a network",
        ),
        pytest.param(
            {"selector": {"team": "ml"}},
            {"allowed_label_keys": ()},
            "node label team is not among ALLOWED_LABEL_KEYS",
            id="a label that the pod selects",
        ),
        pytest.param(
            {"labels": {"cost": "7"}, "annotations": {constants.COPY_LABELS: "cost"}},
            {"allowed_label_keys": ("team",)},
            "node label cost is not among ALLOWED_LABEL_KEYS",
            id="a label that the pod asks to copy",
        ),
        pytest.param(
            {"selector": {constants.RESERVATION_NAME: "r1"}},
            {"allowed_reservations": ("r2",)},
            "reservation r1 is not among ALLOWED_RESERVATIONS",
            id="a reservation that the pod selects",
        ),
    ],
)
def test_request_with_a_forbidden_name_raises_an_error(
    asked: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnmeetableError, match="ask the administrator to add it") as caught:
        pool_request(slice_of(**asked), settings(**changes), 0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        pytest.param(
            {"annotations": {constants.NODE_SERVICE_ACCOUNT: "nodes@p.iam"}},
            {"node_service_account": "nodes@p.iam"},
            id="the service account of the settings",
        ),
        pytest.param({}, {"node_service_account": "nodes@p.iam"}, id="a pod without a service account"),
        pytest.param(
            {}, {"node_additional_networks": (Network(network="v", subnetwork="s"),)}, id="networks of the settings"
        ),
        pytest.param(
            {"labels": {"cost": "7"}, "annotations": {constants.COPY_LABELS: "cost"}},
            {"pod_to_node_labels": ("cost",)},
            id="a label that the settings copy",
        ),
        pytest.param(
            {"selector": {"cost": "7"}, "labels": {"cost": "7"}},
            {"pod_to_node_labels": ("cost",)},
            id="a selected label that the settings copy",
        ),
        pytest.param({"annotations": {constants.COPY_LABELS: "missing"}}, {}, id="a label that the pod does not have"),
        pytest.param(
            {"selector": {constants.ICI_RESILIENCY: "false", constants.LOCATION_HINT: "here"}},
            {},
            id="ICI resiliency and location hint",
        ),
        pytest.param({"selector": {constants.OS: "linux"}}, {}, id="a label of the system"),
        pytest.param({}, {"capacity": parse_choices("reservation/r1")}, id="a choice of CAPACITY"),
        pytest.param(
            {"selector": {constants.RESERVATION_NAME: "r1"}},
            {"capacity": parse_choices("on-demand, reservation/r1")},
            id="a reservation that CAPACITY names",
        ),
        pytest.param(
            {"selector": {constants.RESERVATION_NAME: "r1", constants.RESERVATION_BLOCK: "b1"}},
            {"capacity": parse_choices("reservation/r1")},
            id="a block of a reservation that CAPACITY names",
        ),
    ],
)
def test_request_that_needs_no_entry_is_accepted_with_empty_allow_lists(
    asked: dict[str, Any], changes: dict[str, Any]
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("allowed_reservations", "allowed_service_accounts", "allowed_networks", "allowed_label_keys"), ()
    )
    assert pool_request(slice_of(**asked), settings(**nothing | changes), 0).hosts == 2


def test_forbidden_namespace_is_reported_and_others_are_served() -> None:
    world = World(
        make_jobset(namespace="team-a"),
        make_jobset(namespace="other"),
        settings_=settings(allowed_namespaces=("team-*",)),
    )
    plan = world.look()
    assert [create.workload.namespace for create in plan.creates] == ["team-a"]
    (notice,) = plan.notices
    assert notice.reason == EventReason.INVALID_REQUEST
    assert "namespace other is not among ALLOWED_NAMESPACES" in notice.message
