"""What machines join with, on a real API server: it takes our tokens, and says of itself what machines have to know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.nodegroups import writing
from provisioner.nodegroups.bootstrap import approval, cluster, metadata, tokens
from provisioner.nodegroups.bootstrap.script import startup_script
from rehearsal.demos import Rehearsal
from rehearsal.simulators.compute import ComputeSimulator
from tests.support.compute import GROUPS, INSTANCES, QUICK_JOINS, TEMPLATES, group, template
from tests.support.localcluster import Kube
from tests.support.simulator import Client
from tests.support.waiting import wait_for

pytestmark = pytest.mark.e2e

GROUP = {"cloud.google.com/tpu-node-group-namespace": "ns", "cloud.google.com/tpu-node-group-name": "g"}
_MACHINES = Path(__file__).parents[2] / "deploy" / "nodegroups" / "rbac" / "machines.yaml"
SECRETS = collection_path("secrets", namespace=tokens.NAMESPACE)


@pytest.fixture
def kube(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """Give the API server as its administrator sees it."""
    made = Kube(rehearsal.cluster.kubeconfig, tmp_path_factory.mktemp("credentials"))
    yield made
    made.close()


def make(kube: Kube, token: str, expires_at: datetime) -> str:
    """Make the Secret of a token; return its address."""
    secret = tokens.secret_of(token, group=GROUP, machine="g-mig-x1b2", machine_id="7", expires_at=expires_at)
    kube.create(SECRETS, secret)
    return object_path("secrets", secret["metadata"]["name"], namespace=tokens.NAMESPACE)


def who(kube: Kube, rehearsal: Rehearsal, token: str) -> requests.Response:
    """Ask the API server who a machine with this token is."""
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(
            f"{kube.url}/apis/authentication.k8s.io/v1/selfsubjectreviews",
            json={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
            headers={"Authorization": f"Bearer {token}"},
            verify=_authority(rehearsal),
            timeout=20,
        )
        # Read before the session ends, so that the connection is closed with it.
        assert answer.content
        return answer


def _authority(rehearsal: Rehearsal) -> str:
    path = rehearsal.cluster.kubeconfig.with_name("authority-of-tests.crt")
    path.write_bytes(rehearsal.cluster.ca_certificate_pem)
    return str(path)


def test_a_machine_with_our_token_is_one_that_may_join(kube: Kube, rehearsal: Rehearsal) -> None:
    token = writing.draw_token()
    now = datetime.now(UTC).replace(microsecond=0)
    path = make(kube, token, now + tokens.LIFE)

    answer = wait_for(lambda: (got := who(kube, rehearsal, token)).status_code == 201 and got, what="the token counts")

    user = answer.json()["status"]["userInfo"]
    assert user["username"] == f"system:bootstrap:{token[:6]}"
    # Of kubeadm's group, for which Kubernetes approves any certificate, it is not.
    assert sorted(user["groups"]) == ["system:authenticated", "system:bootstrappers", tokens.GROUP]
    found = tokens.parse_secret(kube.get(path))
    assert found is not None
    assert (found.value, found.expires_at, found.machine) == (token, now + tokens.LIFE, "g-mig-x1b2")
    kube.call("DELETE", path)
    wait_for(lambda: who(kube, rehearsal, token).status_code == 401, what="a token that is deleted counts no more")


def test_a_token_that_has_expired_lets_nobody_in(kube: Kube, rehearsal: Rehearsal) -> None:
    good, expired = writing.draw_token(), writing.draw_token()
    now = datetime.now(UTC)
    paths = [make(kube, expired, now - timedelta(seconds=1)), make(kube, good, now + tokens.LIFE)]

    wait_for(lambda: who(kube, rehearsal, good).status_code == 201, what="the other token counts")

    assert who(kube, rehearsal, expired).status_code == 401
    for path in paths:
        kube.call("DELETE", path)


def test_the_cluster_says_what_machines_have_to_know(kube: Kube, rehearsal: Rehearsal) -> None:
    namespace, name = cluster.ROOT_CA
    path = object_path("configmaps", name, namespace=namespace)
    root_ca = wait_for(lambda: (got := kube.call("GET", path)).status_code == 200 and got.json(), what="the authority")
    authority = x509.load_pem_x509_certificate(rehearsal.cluster.ca_certificate_pem)
    key = authority.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    assert cluster.ca_hash_of(root_ca) == f"sha256:{hashlib.sha256(key).hexdigest()}"
    version = kube.get("/version")
    assert version["gitVersion"].startswith(f"v{cluster.kubernetes_version_of(version)}.")


def test_the_address_comes_from_what_kubeadm_publishes(kube: Kube) -> None:
    """As `kubeadm init` does: a kubeconfig without a user."""
    namespace, name = cluster.CLUSTER_INFO
    path = object_path("configmaps", name, namespace=namespace)

    assert f"https://{cluster.api_server_of(kube.get(path))}" == kube.url


def test_a_simulated_machine_joins_with_what_we_write_and_nothing_else(kube: Kube, rehearsal: Rehearsal) -> None:
    """It is let in by the token, with the rights that the manifests give it, once its certificate is approved."""
    rehearsal.kubectl("apply", "--server-side", "-f", str(_MACHINES))
    root_ca = kube.get(object_path("configmaps", cluster.ROOT_CA[1], namespace=cluster.ROOT_CA[0]))
    token, expired = writing.draw_token(), writing.draw_token()
    now = datetime.now(UTC)
    paths = [make(kube, expired, now - timedelta(seconds=1)), make(kube, token, now + tokens.LIFE)]
    settings = replace(QUICK_JOINS, operation_seconds=0, device_plugin="")
    with ComputeSimulator(settings) as compute:
        engine = Client(compute.port)
        join = metadata.Join(
            token=expired,
            api_server=kube.url.removeprefix("https://"),
            ca_hash=cluster.ca_hash_of(root_ca),
            kubernetes_version="1.36",
        )
        written = metadata.changed_items(
            {"startup-script": startup_script()}, labels={"a.example/b": "c"}, join=join, joined=False
        )
        assert written is not None
        items = [{"key": key, "value": value} for key, value in written.items()]
        assert engine("POST", TEMPLATES, template(metadata={"items": items}))[0] == 200
        wait_for(lambda: engine("GET", f"{TEMPLATES}/template")[0] == 200, what="the template")
        assert engine("POST", GROUPS, group(size=1, mode="INDIVIDUAL", policy=None))[0] == 200
        (machine,) = wait_for(lambda: compute.machines, what="the machine")
        node = object_path("nodes", machine.name)
        wait_for(lambda: compute.machines[0].status == "RUNNING", what="the machine runs")

        _, known = engine("GET", f"{INSTANCES}/{machine.name}")
        items = [{**item, "value": token} if item["value"] == expired else item for item in known["metadata"]["items"]]
        assert kube.call("GET", node).status_code == 404
        changed = {"fingerprint": known["metadata"]["fingerprint"], "items": items}
        assert engine("POST", f"{INSTANCES}/{machine.name}/setMetadata", changed)[0] == 200

        wait_for(lambda: _approve(kube, machine.name), what="the certificate is asked for and approved")
        wait_for(lambda: _ready(kube, node) == "True", what="the node is ready")
        found = kube.get(node)
        assert found["spec"]["providerID"] == f"gce://proj/us-east5-a/{machine.name}"
        assert found["metadata"]["labels"]["a.example/b"] == "c"
        assert found["status"]["allocatable"][constants.TPU_RESOURCE] == "4"
        assert engine("DELETE", f"{GROUPS}/group")[0] == 200
        wait_for(lambda: _ready(kube, node) == "False", what="the node is not ready")
        engine.close()
    for path in [*paths, node]:
        kube.call("DELETE", path)
    rehearsal.kubectl("delete", "-f", str(_MACHINES))


def _approve(kube: Kube, node: str) -> bool:
    path = collection_path("certificatesigningrequests", root=approval.API_ROOT)
    for request in filter(None, map(approval.parse_request, kube.get(path)["items"])):
        if request.node == node:
            kube.merge(
                f"{path}/{request.name}/approval", approval.approval_patch(request.uid, request.resource_version)
            )
            return True
    return False


def _ready(kube: Kube, node: str) -> str:
    answer = kube.call("GET", node)
    conditions = answer.json().get("status", {}).get("conditions", []) if answer.status_code == 200 else []
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "")
