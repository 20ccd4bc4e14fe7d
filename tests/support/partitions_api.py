"""Environment of the REST API of partitions: an API server with tokens and rights, pods, a ledger, V-IPU servers."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from dataclasses import dataclass, field, replace
from email.message import Message
from typing import Any

from provisioner.kube.protocol import JsonObject
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.rest.api import Sources, make_rest_server
from provisioner.partitions.rest.wire import ACCESS_REVIEWS, TOKEN_REVIEWS
from provisioner.partitions.vipu.records import PartitionState
from provisioner.runtime.http import Address
from tests.support.clock import NOW
from tests.support.kube import FakeKube
from tests.support.partitions import FakeVipu

CLUSTER = "0f7c6f3e-cluster"
SERVER = "vipu.example:8090"


def jwt(mark: str = "") -> str:
    """Return a text in the form of a token, with an invalid signature."""
    parts = ({"alg": "RS256"}, {"mark": mark})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join((*encoded, "c2lnbmVk"))


class ReviewingKube(FakeKube):
    """API server that accepts only tokens created by this class, and grants the rights in `rights`."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, JsonObject] = {}
        #: Granted rights: user, verb and namespace.
        self.rights: set[tuple[str, str, str]] = set()
        self.reviews: list[str] = []
        #: Reviews wait until the event is set.
        self.answers = threading.Event()
        self.answers.set()

    def token_of_pod(self, namespace: str, pod: str, uid: str, *, account: str = "default") -> str:
        """Create a token that is bound to a pod, like the tokens that kubelets request."""
        token = jwt(mark=f"{namespace}/{pod}/{uid}/{account}")
        self.users[token] = {
            "username": f"system:serviceaccount:{namespace}:{account}",
            "uid": f"account-{account}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/pod-name": [pod],
                "authentication.kubernetes.io/pod-uid": [uid],
            },
        }
        return token

    def token_of_person(self, name: str) -> str:
        token = jwt(mark=name)
        self.users[token] = {"username": name, "groups": ["system:authenticated"]}
        return token

    def post(self, path: str, body: JsonObject, **options: Any) -> JsonObject:
        if path not in (TOKEN_REVIEWS, ACCESS_REVIEWS):
            return super().post(path, body, **options)
        self.reviews.append(path)
        assert self.answers.wait(20)
        spec = body["spec"]
        if path == TOKEN_REVIEWS:
            assert spec["audiences"] == [names.AUDIENCE]
            user = self.users.get(spec["token"])
            status = {"authenticated": True, "user": user, "audiences": spec["audiences"]}
            return {**body, "status": status if user is not None else {"error": "invalid bearer token"}}
        attributes = spec["resourceAttributes"]
        assert (attributes["group"], attributes["resource"]) == ("", "pods")
        return {
            **body,
            "status": {"allowed": (spec["user"], attributes["verb"], attributes["namespace"]) in self.rights},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Response of the REST API."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(kw_only=True)
class Ground:
    """REST API on a real socket, and its environment."""

    kube: ReviewingKube = field(default_factory=ReviewingKube)
    vipus: dict[str, FakeVipu] = field(default_factory=lambda: {SERVER: FakeVipu()})
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    problems: list[str] = field(default_factory=list)
    cluster_uid: str = CLUSTER

    def sources(self) -> Sources:
        return Sources(
            cluster_uid=lambda: self.cluster_uid,
            pod=lambda namespace, name: self.pods.get((namespace, name)),
            ledger=lambda: self.ledger,
            vipu=self.vipus.get,
            problems=lambda: self.problems,
        )

    def start(self) -> Ground:
        self.server = make_rest_server(Address("127.0.0.1", 0), self.kube, self.sources())
        self.server.start()
        [self.port] = self.server.ports
        return self

    def end(self) -> None:
        self.kube.answers.set()
        for server in self.vipus.values():
            server.answers.set()
        self.server.stop()

    @property
    def vipu(self) -> FakeVipu:
        return self.vipus[SERVER]

    def add_pod(self, name: str = "train", namespace: str = "ml", **parts: Any) -> Pod:
        """Add a pod to the watch of the REST API and to the API server."""
        made: dict[str, Any] = {
            "uid": f"uid-{namespace}-{name}", "resource_version": "1", "created_at": NOW, "size": 4, "injected": True,
            "gated": False, "node": "host-1", **parts,
        }  # fmt: skip
        pod = Pod(namespace=namespace, name=name, **made)
        self.pods[namespace, name] = pod
        metadata = {"name": name, "namespace": namespace, "uid": pod.uid}
        self.kube.put_object(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": metadata})
        return pod

    def change(self, pod: Pod, **parts: Any) -> Pod:
        """Change a pod in the watch of the REST API, but not in the API server."""
        changed = self.pods[pod.namespace, pod.name] = replace(pod, **parts)
        return changed

    def place(self, pod: Pod, server: str = SERVER, *, state: PartitionState | None = PartitionState.ACTIVE) -> str:
        """Add an entry to the ledger and, if `state` is given, a partition to the V-IPU server; return its id."""
        made = id_of(pod)
        entry = Entry(
            id=made, namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid, size=pod.size, server=server,
            allocation="pod1", recorded_at=NOW,
        )  # fmt: skip
        self.ledger = replace(self.ledger, entries=(*self.ledger.entries, entry))
        if state is not None:
            self.vipus[server].put(made, state)
        return made

    def placed(self, *, state: PartitionState | None = PartitionState.ACTIVE, **parts: Any) -> tuple[Pod, str]:
        """Add a pod and place it; return the pod and the id of its partition."""
        pod = self.add_pod(**parts)
        return pod, self.place(pod, state=state)

    def token(self, pod: Pod) -> str:
        return self.kube.token_of_pod(pod.namespace, pod.name, pod.uid)

    def ask(self, pod: Pod, token: str | None = None, **parts: Any) -> Answer:
        """Request a pod's partition, as its init container does."""
        body = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "size": pod.size, **parts}
        return self.send("POST", names.ROOT, self.token(pod) if token is None else token, json.dumps(body).encode())

    def send(
        self,
        method: str,
        path: str,
        token: str = "",
        body: bytes | None = None,
        *,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=(source, 0))
        given = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            given["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, {**given, **headers})
            answer = connection.getresponse()
            return Answer(status=answer.status, headers=answer.headers, body=answer.read())
        finally:
            connection.close()


def id_of(pod: Pod) -> str:
    return names.partition_id(CLUSTER, pod.uid, SERVER)
