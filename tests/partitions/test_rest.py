"""The REST API over real sockets: answers to pods and users, and no information for other callers."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog

from provisioner.kube import errors
from provisioner.model.capacity import FailureKind
from provisioner.partitions import names
from provisioner.partitions.rest import api
from provisioner.partitions.rest.wire import ACCESS_REVIEWS, TOKEN_REVIEWS
from provisioner.partitions.vipu.records import PartitionState
from tests.support.partitions import FakeVipu
from tests.support.partitions_api import SERVER, Ground, id_of, jwt
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(30)

ROOT = names.ROOT


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setattr(api, "_MOST", 32)
    made = Ground().start()
    yield made
    made.end()


def test_pod_waits_until_its_partition_is_active_and_gets_its_configuration(ground: Ground) -> None:
    pod = ground.add_pod(gated=True)
    waiting = ground.ask(pod)
    assert (waiting.status, waiting.headers["Retry-After"]) == (202, "5")
    assert waiting.json == {
        "state": "waiting", "message": "the pod waits for IPUs",
        "namespace": "ml", "pod": "train", "uid": pod.uid, "size": 4,
    }  # fmt: skip

    ground.place(pod, state=None)
    # A pod with its gate gets no configuration, because it may still get another partition.
    assert (ground.ask(pod).status, ground.vipu.reads) == (202, 0)
    ground.change(pod, gated=False)
    creating = ground.ask(pod)
    assert (creating.status, creating.json["state"], creating.headers["Retry-After"]) == (202, "creating", "2")
    for state in (PartitionState.OTHER, PartitionState.ERROR):
        ground.vipu.put(id_of(pod), state)
        assert (ground.ask(pod).status, ground.ask(pod).json["message"]) == (202, f"the partition is {state.value}")

    ground.vipu.put(id_of(pod), PartitionState.ACTIVE)
    for _ in range(2):
        done = ground.ask(pod)
        assert done.status == 200
        assert done.json == {
            "id": id_of(pod), "state": "active", "message": "the partition is active",
            "namespace": "ml", "pod": "train", "uid": pod.uid, "size": 4,
            "server": SERVER, "allocation": "pod1", "reconfigurable": True,
            "config": {"partition": "the configuration"},
        }  # fmt: skip
        assert done.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("parts", "body", "status", "want"),
    [
        pytest.param({}, {"size": 8}, 409, "asks for 4 IPUs, and not for 8", id="another size than the annotation"),
        pytest.param({}, {"size": 3}, 422, "a power of two", id="no power of two"),
        pytest.param({}, {"size": "4"}, 422, "a power of two", id="a text for a size"),
        pytest.param({}, {"size": True}, 422, "a power of two", id="a truth value for a size"),
        pytest.param({}, {"size": None}, 422, "a power of two", id="no size"),
        pytest.param({}, {"reconfigurable": "no"}, 400, "reconfigurable", id="a text for a truth value"),
        pytest.param({}, {"reconfigurable": False}, 409, "is reconfigurable", id="another kind of partition"),
        pytest.param(
            {"problem": "It cannot be.", "size": 4}, {}, 422, "It cannot be.", id="a pod that cannot be served"
        ),
        pytest.param({"finished": True}, {}, 410, "has ended", id="a pod that has ended"),
        pytest.param({"released": True}, {}, 410, "was released", id="a partition that was given back"),
    ],
)
def test_request_that_can_never_succeed_is_rejected(
    ground: Ground, parts: dict[str, Any], body: dict[str, Any], status: int, want: str
) -> None:
    pod = ground.add_pod(**parts)
    if not pod.problem:
        ground.place(pod)
    answer = ground.ask(pod, **body)
    assert (answer.status, want in answer.json["error"]) == (status, True), answer.json


def test_body_that_is_not_valid_json_is_rejected(ground: Ground) -> None:
    token = ground.token(ground.add_pod())
    long = json.dumps({"namespace": "x" * 300}).encode()
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 3000, b'{"namespace":1}', long):
        assert ground.send("POST", ROOT, token, body).status == 400
    assert ground.send("POST", ROOT, token, b"{}", **{"Content-Type": "text/plain"}).status == 415


@pytest.mark.parametrize(
    ("spoil", "want"),
    [
        pytest.param(
            lambda ground: ground.problems.append("no list of pods yet"), "no list of pods yet", id="pods not listed"
        ),
        pytest.param(lambda ground: setattr(ground, "cluster_uid", ""), "the cluster's UID", id="cluster unknown"),
        pytest.param(
            lambda ground: ground.change(ground.pods["ml", "train"], uid="earlier"),
            "has not seen the pod yet",
            id="only an earlier pod of the same name known",
        ),
        pytest.param(lambda ground: ground.vipus.clear(), "do not name the V-IPU server", id="server unknown"),
        pytest.param(
            lambda ground: setattr(ground.vipu, "failing", FailureKind.UNAVAILABLE),
            "the V-IPU server cannot be read",
            id="server down",
        ),
    ],
)
def test_request_is_answered_503_while_the_state_is_unknown(
    ground: Ground, spoil: Callable[[Ground], object], want: str
) -> None:
    pod, _ = ground.placed()
    token = ground.token(pod)
    spoil(ground)
    answer = ground.ask(pod, token)
    assert (answer.status, want in answer.json["error"]) == (503, True), answer.json
    assert int(answer.headers["Retry-After"]) >= 1
    # Pods do not get the details of a server's failure.
    assert "it is down" not in answer.json["error"]


def test_partition_of_another_pod_cannot_be_requested(ground: Ground) -> None:
    pod, other = ground.add_pod(), ground.add_pod("other")
    elsewhere = ground.add_pod("train", "theirs")
    made = ground.place(pod)
    tokens = {
        "another pod": ground.token(other),
        "a pod of that name elsewhere": ground.token(elsewhere),
        "an earlier pod of that name": ground.kube.token_of_pod("ml", "train", "earlier"),
        "no pod": ground.kube.token_of_person("ada"),
    }
    for who, token in tokens.items():
        assert ground.ask(pod, token).status == 403, who
        for method, path in (("GET", made), ("GET", f"{made}/config"), ("DELETE", made)):
            answer = ground.send(method, f"{ROOT}/{path}", token)
            assert (answer.status, answer.json) == (
                404, {"error": f"there is no partition {made}, or you have no right to its pod"},
            ), who  # fmt: skip
    # A pod cannot claim the identity of another pod in the request body either.
    assert ground.ask(other, ground.token(other), uid=pod.uid).status == 403
    assert ground.ask(other, ground.token(other), namespace="theirs").status == 403
    assert not [call for call in ground.kube.calls if call.method == "PATCH"]


def test_unknown_id_gets_the_same_answer_as_a_forbidden_one(ground: Ground) -> None:
    token = ground.kube.token_of_person("ada")
    unknown = "tpup-00000000-0000000000000000"
    answer = ground.send("GET", f"{ROOT}/{unknown}", token)
    assert (answer.status, answer.json["error"]) == (
        404, f"there is no partition {unknown}, or you have no right to its pod",
    )  # fmt: skip
    for hostile in ("a" * 300, "%0d%0aX", "..", "UPPER"):
        assert ground.send("GET", f"{ROOT}/{hostile}", token).status == 404


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param("", id="nothing"),
        pytest.param("Basic YTpi", id="a password"),
        pytest.param("Bearer opaque", id="no token of a ServiceAccount"),
    ],
)
def test_invalid_authorization_is_rejected_without_a_review(ground: Ground, authorization: str) -> None:
    pod = ground.add_pod()
    headers = {"Authorization": authorization} if authorization else {}
    answer = ground.send("GET", f"{ROOT}/{id_of(pod)}", **headers)
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert ground.kube.reviews == []


def test_request_with_two_authorization_headers_is_rejected(ground: Ground) -> None:
    pod = ground.add_pod()
    good = ground.token(pod)
    with socket.create_connection(("127.0.0.1", ground.port), timeout=10) as client:
        lines = [
            f"GET {ROOT}/{id_of(pod)} HTTP/1.1", "Host: it", f"Authorization: Bearer {jwt()}",
            f"Authorization: Bearer {good}", "Connection: close", "", "",
        ]  # fmt: skip
        client.sendall("\r\n".join(lines).encode())
        assert client.recv(65536).split(b" ")[1] == b"401"


def test_rejected_token_is_reviewed_only_once(ground: Ground) -> None:
    pod, forged = ground.add_pod(), jwt(mark="forged")
    for _ in range(3):
        assert ground.ask(pod, forged).status == 401
    assert ground.kube.reviews == [TOKEN_REVIEWS]


def test_token_is_rejected_if_the_review_has_no_audiences(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = ground.add_pod()
    token = ground.token(pod)
    status = {"authenticated": True, "user": ground.kube.users[token]}
    monkeypatch.setattr(ground.kube, "post", lambda _path, body, **_: {**body, "status": status})
    assert ground.ask(pod, token).status == 401


class Away(errors.Unavailable):
    """An exception that only this test raises, so that it can be found in memory."""


def test_request_is_answered_503_if_the_api_server_does_not_respond(ground: Ground) -> None:
    token = ground.token(pod := ground.add_pod())
    assert ground.ask(ground.add_pod("other")).status == 202

    def away(path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        raise Away("it is away, at 10.0.0.1")

    ground.kube.post = away  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines:
        answers = [ground.ask(pod, token) for _ in range(3)]
    assert {answer.status for answer in answers} == {503}
    assert "10.0.0.1" not in answers[0].json["error"]
    assert [line["event"] for line in lines] == ["partitions_api.unavailable"]
    # The exception must not stay in memory, because it refers to the request with its token.
    wait_for(lambda: not any(type(object_) is Away for object_ in gc.get_objects()))


def test_user_with_the_right_to_get_the_pod_sees_its_partition(ground: Ground) -> None:
    _, made = ground.placed(gated=False)
    ada = ground.kube.token_of_person("ada")
    ground.kube.rights.add(("ada", "get", "ml"))
    seen = ground.send("GET", f"{ROOT}/{made}", ada)
    assert (seen.status, seen.json["state"], seen.json["pod"]) == (200, "active", "train")
    assert ground.send("HEAD", f"{ROOT}/{made}", ada).status == 200
    configuration = ground.send("GET", f"{ROOT}/{made}/config", ada)
    assert (configuration.status, configuration.json) == (200, {"partition": "the configuration"})
    # The right to get a pod is not the right to release its partition.
    assert ground.send("DELETE", f"{ROOT}/{made}", ada).status == 404
    assert ground.kube.reviews.count(ACCESS_REVIEWS) == 2


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        ({"gated": True}, "creating"),
        ({"gated": False}, "active"),
        ({"finished": True}, "releasing"),
        ({"released": True}, "releasing"),
        ({"uid": "another of its name"}, "releasing"),
    ],
)
def test_state_of_a_partition_follows_its_pod(ground: Ground, parts: dict[str, Any], want: str) -> None:
    pod, made = ground.placed()
    ground.change(pod, **parts)
    ground.kube.rights.add(("ada", "get", "ml"))
    assert ground.send("GET", f"{ROOT}/{made}", ground.kube.token_of_person("ada")).json["state"] == want


@pytest.mark.parametrize(
    ("state", "want"), [(None, "lost"), (PartitionState.ERROR, "broken"), (PartitionState.OTHER, "creating")]
)
def test_state_of_a_partition_whose_pod_has_no_gate_is_read_from_its_server(
    ground: Ground, state: PartitionState | None, want: str
) -> None:
    pod, made = ground.placed(state=state)
    seen = ground.send("GET", f"{ROOT}/{made}", ground.token(pod))
    assert (seen.status, seen.json["state"]) == (200, want)
    assert seen.json["message"] == ground.ask(pod).json["message"]


def test_pod_keeps_its_partition_after_a_change_of_the_settings(ground: Ground) -> None:
    """After LARGEST_PARTITION was lowered, the init container of a pod that has its partition must not fail."""
    pod, _ = ground.placed()
    ground.change(pod, size=0, problem="4 IPUs are too many")
    assert ground.ask(pod).status == 200


def test_pod_without_a_known_node_gets_no_configuration(ground: Ground) -> None:
    """If the API's cache is outdated, the partition may have been taken back before the pod got its node."""
    pod, _ = ground.placed(node="")
    assert (ground.ask(pod).status, ground.vipu.reads) == (202, 0)
    ground.change(pod, node="host-1")
    assert ground.ask(pod).status == 200


def test_waiting_pod_sees_its_state_and_no_configuration(ground: Ground) -> None:
    pod = ground.add_pod()
    token = ground.token(pod)
    assert ground.send("GET", f"{ROOT}/{id_of(pod)}", token).json["state"] == "waiting"
    answer = ground.send("GET", f"{ROOT}/{id_of(pod)}/config", token)
    assert (answer.status, answer.headers["Retry-After"]) == (409, "5")
    ground.place(pod, state=PartitionState.OTHER)
    assert ground.send("GET", f"{ROOT}/{id_of(pod)}/config", token).status == 409


@pytest.mark.parametrize("who", ["the pod", "a person", "a pod that the cache has lost"])
def test_partition_is_released_by_its_pod_or_an_authorized_user(ground: Ground, who: str) -> None:
    """If the cache has lost the pod, the ledger still has the owner of the partition."""
    pod, made = ground.placed()
    ground.kube.rights.add(("ada", "delete", "ml"))
    token = ground.kube.token_of_person("ada") if who == "a person" else ground.token(pod)
    if who == "a pod that the cache has lost":
        ground.pods.clear()
    for _ in range(2):
        answer = ground.send("DELETE", f"{ROOT}/{made}", token)
        assert (answer.status, answer.json["state"]) == (202, "releasing")
        ground.change(pod, released=True)
    (written,) = [call.body for call in ground.kube.calls if call.method == "PATCH"]
    assert written == {"metadata": {"uid": pod.uid, "annotations": {names.RELEASE: "true"}}}


def test_release_succeeds_if_another_pod_has_the_name(ground: Ground) -> None:
    pod, made = ground.placed()
    ground.kube.fail("PATCH", "/pods/train", errors.Conflict("another UID"))
    assert ground.send("DELETE", f"{ROOT}/{made}", ground.token(pod)).status == 202


def test_slow_v_ipu_server_does_not_delay_requests_for_other_servers(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_READ_PATIENCE_SECONDS", 0.2)
    other = ground.vipus["fast.example:8090"] = FakeVipu()
    ground.vipu.answers.clear()
    slow = [ground.placed(name=f"slow-{number}")[0] for number in range(20)]
    fast = ground.add_pod("fast")
    ground.place(fast, "fast.example:8090")
    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(ground.ask, pod) for pod in slow]
        assert ground.ask(fast).status == 200
        assert {answer.result().status for answer in asked} == {503}
    # At most two reads run at the same time, and repeated requests for a partition share one read.
    assert ground.ask(slow[0]).status == 503
    assert ground.vipu.reads == 2
    ground.vipu.answers.set()
    monkeypatch.setattr(api, "_READ_PATIENCE_SECONDS", 10.0)
    assert ground.ask(slow[0]).status == 200
    assert other.reads == 1


def test_reads_of_a_server_beyond_the_maximum_are_rejected_immediately(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MAX_READS", 1)
    ground.vipu.answers.clear()
    (first, _), (second, _) = ground.placed(name="first"), ground.placed(name="second")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ground.ask, first)
        wait_for(lambda: ground.vipu.reads == 1)
        assert ground.ask(second).status == 503
        ground.vipu.answers.set()
        assert asked.result().status == 200


def test_flood_of_tokens_from_one_client_does_not_block_other_clients(ground: Ground) -> None:
    pod = ground.add_pod()
    token = ground.token(pod)
    ground.kube.answers.clear()
    with ThreadPoolExecutor(41) as threads:
        flood = [
            threads.submit(ground.send, "GET", f"{ROOT}/x", jwt(mark=str(number)), source="127.0.0.2")
            for number in range(40)
        ]
        # The requests of the flood beyond the maximum are rejected immediately.
        wait_for(lambda: sum(request.done() for request in flood) == 40 - api._MOST)
        assert len(ground.kube.reviews) == api._AT_ONCE
        mine = threads.submit(ground.ask, pod, token)
        # The request of the other client replaces a waiting request of the flood.
        wait_for(lambda: sum(request.done() for request in flood) == 41 - api._MOST)
        ground.kube.answers.set()
        assert mine.result().status == 202
        statuses = [request.result().status for request in flood]
    assert sorted(set(statuses)) == [401, 503]


def test_concurrent_requests_with_one_token_share_one_review(ground: Ground) -> None:
    pod = ground.add_pod()
    token = ground.token(pod)
    ground.kube.answers.clear()
    with ThreadPoolExecutor(10) as threads:
        asked = [threads.submit(ground.ask, pod, token) for _ in range(10)]
        wait_for(lambda: ground.kube.reviews)
        ground.kube.answers.set()
        assert {answer.result().status for answer in asked} == {202}
    assert ground.kube.reviews == [TOKEN_REVIEWS]


def test_health_is_served_without_authentication(ground: Ground) -> None:
    assert (ground.send("GET", "/health").status, ground.send("GET", "/health").json["status"]) == (200, "ok")
    ground.problems.append("no list of pods yet")
    answer = ground.send("GET", "/health")
    assert (answer.status, answer.json) == (503, {"status": "not ready", "problems": ["no list of pods yet"]})
