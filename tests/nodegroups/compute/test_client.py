"""ComputeClient against a server on a real socket: requests, results and errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from google.auth.exceptions import DefaultCredentialsError
from google.oauth2.credentials import Credentials

from provisioner.model import bounds
from provisioner.model.capacity import FailureKind, Operation, OperationName
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute import client as module
from provisioner.nodegroups.compute import resources
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.compute.records import ComputeError, Scope
from tests.support.counting import measured
from tests.support.nodegroup_world import a_child
from tests.support.recording_server import Answer, Recorded, RecordingServer, google_error

K = FailureKind
GLOBAL = Scope(project="example.com:p")
REGION = Scope(project="p", region="us-central1")
ZONE = Scope(project="p", zone="us-central1-a")
REQUEST_ID = "6ba7b810-9dad-51d1-80b4-00c04fd430c8"

#: Kind, scope and path, by resource type.
SORTS = {
    "policy": (Kind.WORKLOAD_POLICY, REGION, f"{REGION.path}/resourcePolicies"),
    "template": (Kind.INSTANCE_TEMPLATE, GLOBAL, f"{GLOBAL.path}/instanceTemplates"),
    "manager": (Kind.MANAGED_INSTANCE_GROUP, ZONE, f"{ZONE.path}/instanceGroupManagers"),
}


def of_sort(name: str) -> dict[str, Any]:
    """Return the get, insert and delete calls of a resource type. A call uses the scope at the time of the call."""
    kind, scope, path = SORTS[name]
    child = a_child(kind, "a")
    place, one = {REGION: "REGION", GLOBAL: "GLOBAL", ZONE: "ZONE"}[scope], f"{path}/a"
    return {
        f"get_{name}": (lambda it: it.get(kind, globals()[place], "a"), "GET", one, None),
        f"insert_{name}": (
            lambda it: it.insert(globals()[place], child, "mark", request_id=REQUEST_ID),
            "POST",
            path,
            resources.insert_body(child, "mark"),
        ),
        f"delete_{name}": (
            lambda it: it.delete(kind, globals()[place], "a", request_id=REQUEST_ID),
            "DELETE",
            one,
            None,
        ),
    }


_IN_ZONE = "projects/p/zones/us-central1-a"
#: Call of the client, and HTTP method, path and body of the expected request, by name of the call.
CALLS: dict[str, tuple[Callable[[ComputeClient], object], str, str, object]] = {
    **of_sort("policy"),
    **of_sort("template"),
    **of_sort("manager"),
    "list_managers": (lambda it: it.list_managers(REGION), "GET", "projects/p/aggregated/instanceGroupManagers", None),
    "list_managed_instances": (
        lambda it: it.list_managed_instances(ZONE, "a"),
        "POST",
        f"{_IN_ZONE}/instanceGroupManagers/a/listManagedInstances",
        None,
    ),
    "list_instances": (lambda it: it.list_instances(ZONE, ["a"]), "GET", f"{_IN_ZONE}/instances", None),
    "set_metadata": (
        lambda it: it.set_metadata(ZONE, "a", {"b": "", "a": "1"}, fingerprint="f", request_id=REQUEST_ID),
        "POST",
        f"{_IN_ZONE}/instances/a/setMetadata",
        {"fingerprint": "f", "items": [{"key": "a", "value": "1"}, {"key": "b", "value": ""}]},
    ),
    "get_operation": (lambda it: it.get_operation(ZONE, OperationName("a")), "GET", f"{_IN_ZONE}/operations/a", None),
}
CHANGING = [name for name in CALLS if name.partition("_")[0] in ("insert", "delete", "set")]
READING = [name for name in CALLS if name not in CHANGING]


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as running:
        running.answer = Answer(body={"name": "a", "status": "RUNNING"})
        yield running


@pytest.fixture
def client(server: RecordingServer) -> Iterator[ComputeClient]:
    made = ComputeClient(endpoint=server.url)
    yield made
    made.close()


def call(client: ComputeClient, name: str) -> object:
    return CALLS[name][0](client)


def failure_of(client: ComputeClient, name: str) -> ComputeError:
    with pytest.raises(ComputeError) as caught:
        call(client, name)
    return caught.value


def test_all_methods_of_the_client_are_tested() -> None:
    tried = {name.partition("_")[0] if name.rpartition("_")[2] in SORTS else name for name in CALLS}
    assert tried == {name for name in vars(ComputeClient) if not name.startswith("_")} - {"close"}


@pytest.mark.parametrize("name", CALLS)
def test_method_sends_its_request(server: RecordingServer, client: ComputeClient, name: str) -> None:
    _, method, path, body = CALLS[name]
    call(client, name)
    (sent,) = server.requests
    address = urlsplit(sent.path)
    assert (sent.method, address.path) == (method, f"/compute/v1/{path}")
    assert (sent.json if sent.body else None) == body
    assert sent.headers["user-agent"].startswith("tpu-provisioner/")
    asked = dict(parse_qsl(address.query))
    assert asked["fields"]
    assert asked.get("requestId") == (REQUEST_ID if name in CHANGING else None)


@pytest.mark.parametrize("name", CHANGING)
def test_change_returns_its_operation(server: RecordingServer, client: ComputeClient, name: str) -> None:
    server.answer = Answer(body={"name": "operation-1", "status": "PENDING"})
    assert call(client, name) == Operation(name=OperationName("operation-1"), done=False)


def test_entries_of_pages_are_unique_and_sorted_by_name(server: RecordingServer, client: ComputeClient) -> None:
    pages = {
        "": {"managedInstances": [{"name": "b"}], "nextPageToken": "t1"},
        "t1": {"nextPageToken": "t2"},
        "t2": {"managedInstances": [{"name": "a", "instanceStatus": "RUNNING"}, {"name": "b"}]},
    }

    def answer(request: Recorded) -> Answer:
        return Answer(body=pages[dict(parse_qsl(urlsplit(request.path).query)).get("pageToken", "")])

    server.answer = answer
    found = client.list_managed_instances(ZONE, "a")
    assert [(machine.name, machine.has_machine) for machine in found] == [("a", True), ("b", False)]
    assert len(server.requests) == 3


def test_list_with_too_many_pages_is_an_error(
    server: RecordingServer, client: ComputeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.nodegroups.compute.client._MAX_PAGES", 3)
    server.answer = Answer(body={"nextPageToken": "again"})
    for name in ("list_managed_instances", "list_instances", "list_managers"):
        assert failure_of(client, name).failure.kind is K.UNAVAILABLE
    assert len(server.requests) == 9


def test_managed_instance_groups_of_all_zones_are_listed(server: RecordingServer, client: ComputeClient) -> None:
    zones = {"zones/a": {"instanceGroupManagers": [{"name": "one"}, 7]}, "zones/b": {"warning": {}}, "zones/c": 7}
    answers = [
        Answer(body={"items": zones, "nextPageToken": "t"}),
        Answer(body={"items": {"zones/b": {"instanceGroupManagers": [{"name": "two", "description": "mark"}]}}}),
    ]
    server.answer = lambda _: answers.pop(0)
    assert [(manager.name, manager.description) for manager in client.list_managers(REGION)] == [
        ("one", ""),
        ("two", "mark"),
    ]
    assert [request.query["filter"] for request in server.requests] == ['description eq "tpu-provisioner: .*"'] * 2


def test_machines_with_much_metadata_take_little_memory(server: RecordingServer, client: ComputeClient) -> None:
    """Each value has the maximum size, and one emoji makes Python store each of its characters in four bytes."""
    value = "\N{GRINNING FACE}".ljust(bounds.METADATA_VALUE, "x")
    machine = {"name": "m", "id": "7", "metadata": {"items": [{"key": "a", "value": value}]}}
    entry = json.dumps(machine, ensure_ascii=False).encode()

    def answer(request: Recorded) -> Answer:
        start = int(request.query.get("pageToken", "0"))
        end = min(32, start + int(request.query["maxResults"]))
        token = b"" if end == 32 else b"%d" % end
        items = b",".join([entry] * (end - start))
        return Answer(body=b'{"items":[%s],"nextPageToken":"%s"}' % (items, token))

    server.answer = answer
    found, peak, kept = measured(lambda: client.list_instances(ZONE, ["m"]))
    assert found[0].items == {"a": value}
    assert peak < 40 * 1024**2
    assert kept < 3 * 1024**2


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(["g-mig-1"], "g-mig-1.*", id="one"),
        pytest.param(["g-mig-1", "g-mig-12"], "g-mig-1.*", id="a name that another begins with"),
        pytest.param(["g-mig-b2", "g-mig-a1", "g-mig-c3"], "g-mig-.*", id="those of a group"),
        pytest.param(["a", "b"], ".*", id="nothing in common"),
        pytest.param(["g-mig-1", 'x" or "', "..", "A"], "g-mig-1.*", id="names that nothing can have"),
    ],
)
def test_machines_are_requested_by_the_common_prefix_of_their_names(
    server: RecordingServer, client: ComputeClient, names: list[str], want: str
) -> None:
    server.answer = Answer(body={"items": [{"name": name, "id": "7"} for name in ("g-mig-1", "g-mig-13", "a")]})
    found = client.list_instances(ZONE, names)
    assert {machine.name for machine in found} == {"g-mig-1", "a"} & set(names)
    (sent,) = server.requests
    assert dict(parse_qsl(urlsplit(sent.path).query))["filter"] == f'name eq "{want}"'


def test_list_fails_if_a_page_fails(server: RecordingServer, client: ComputeClient) -> None:
    answers = [Answer(body={"managedInstances": [{"name": "b"}], "nextPageToken": "t1"}), Answer(status=503)]
    server.answer = lambda _: answers.pop(0)
    assert failure_of(client, "list_managed_instances").failure.kind is K.UNAVAILABLE


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(status=500, body=b"<html>sorry</html>"), id="a proxy's page for an outage"),
        pytest.param(Answer(status=502, body={"error": "x"}), id="an error of another form"),
        pytest.param(Answer(status=503, body={"error": {"message": None, "errors": [7]}}), id="an error of odd parts"),
        pytest.param(Answer(hang_up=True), id="no answer"),
        pytest.param(Answer(body=b"not JSON"), id="no JSON"),
        pytest.param(Answer(body=b"[" * 200_000), id="nothing but brackets"),
        pytest.param(Answer(body=[]), id="a list"),
        pytest.param(Answer(body=b""), id="nothing"),
    ],
)
def test_change_without_a_valid_response_has_an_unknown_outcome(
    server: RecordingServer, client: ComputeClient, name: str, answer: Answer
) -> None:
    server.answer = answer
    found = failure_of(client, name)
    assert found.failure.kind is (K.UNKNOWN_OUTCOME if name in CHANGING else K.UNAVAILABLE)
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", [call_name for call_name in READING if call_name.startswith("get")])
@pytest.mark.parametrize("body", [{}, {"name": "b"}, {"name": 7}])
def test_response_about_another_resource_is_an_error(
    server: RecordingServer, client: ComputeClient, name: str, body: dict[str, Any]
) -> None:
    server.answer = Answer(body=body)
    assert failure_of(client, name).failure.kind is K.UNAVAILABLE


@pytest.mark.parametrize("name", CHANGING)
def test_change_whose_response_is_no_operation_has_an_unknown_outcome(
    server: RecordingServer, client: ComputeClient, name: str
) -> None:
    server.answer = Answer(body={})
    assert failure_of(client, name).failure.kind is K.UNKNOWN_OUTCOME


@pytest.mark.parametrize("name", CALLS)
def test_missing_resource_is_not_found_except_for_an_insert(
    server: RecordingServer, client: ComputeClient, name: str
) -> None:
    server.answer = google_error(404, "", "The resource 'projects/p/x' was not found", reason="notFound")
    found = failure_of(client, name)
    assert found.failure.kind is (K.INVALID if name.startswith("insert") else K.NOT_FOUND)
    assert found.code == 404
    assert ("'p'" if name == "list_managers" else "'a'") in str(found)


def test_retry_after_of_a_response_is_in_the_error(server: RecordingServer, client: ComputeClient) -> None:
    server.answer = Answer(status=429, headers={"Retry-After": "7"}, body={"error": {"code": 429, "message": "m"}})
    found = failure_of(client, "get_manager")
    assert (found.failure.kind, found.retry_after_seconds) == (K.UNAVAILABLE, 7.0)


@pytest.mark.parametrize("name", CALLS)
def test_invalid_address_is_rejected_without_a_request(
    server: RecordingServer, client: ComputeClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for scope in ("GLOBAL", "REGION", "ZONE"):
        monkeypatch.setitem(globals(), scope, Scope(project="p", region="../../q"))
    found = failure_of(client, name).failure
    assert found.kind is (K.INVALID if name.startswith("insert") else K.NOT_FOUND)
    assert "nothing was sent" in found.message
    assert not server.requests


@pytest.mark.parametrize("name", ["insert_manager", "delete_policy", "set_metadata"])
def test_change_ends_with_its_time_out(server: RecordingServer, name: str) -> None:
    done = threading.Event()
    server.answer = Answer(body={"name": "operation-1"}, wait_for=done)
    client = ComputeClient(endpoint=server.url, change_seconds=0.1)
    try:
        assert failure_of(client, name).failure.kind is K.UNKNOWN_OUTCOME
    finally:
        done.set()
        client.close()


def test_invalid_endpoint_is_reported_with_the_setting() -> None:
    client = ComputeClient(endpoint="nonsense")
    found = failure_of(client, "get_manager").failure
    assert found.kind is K.INVALID
    assert "GCE_ENDPOINT" in found.message
    client.close()


def test_missing_credentials_name_the_secret_to_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters without GKE have no Workload Identity to which a service account could be bound."""

    def find() -> None:
        raise DefaultCredentialsError("none found")

    monkeypatch.setattr(module, "find_credentials", find)
    with pytest.raises(ComputeError, match=r"in a cluster mount the Secret tpu-node-group-credentials"):
        ComputeClient()


def test_requests_contain_the_token_of_the_credentials(server: RecordingServer) -> None:
    client = ComputeClient(endpoint=server.url, credentials=Credentials(token="t-1"))
    client.get(Kind.MANAGED_INSTANCE_GROUP, ZONE, "a")
    assert server.requests[0].headers["authorization"] == "Bearer t-1"
    client.close()
