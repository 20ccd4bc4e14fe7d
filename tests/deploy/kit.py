"""Helpers of the tests of the installation: they read rights and settings of manifests, and record used rights."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from provisioner import constants
from provisioner.kube.api import KubeApi
from provisioner.kube.events import EventRecorder
from provisioner.kube.protocol import object_path
from provisioner.model.workloads import ObjectRef
from provisioner.slices.preflight.in_kubernetes import ACCESS_REVIEWS, Right
from provisioner.workloads import KINDS
from rehearsal.demos import ProvisionerProcess, Rehearsal
from rehearsal.demos.world import CLUSTER, LOCATION, PROJECT, ZONE
from rehearsal.localcluster.ports import HOST

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
NAMESPACE = constants.DEFAULT_NAMESPACE
SERVICE_ACCOUNT = "tpu-provisioner-controller-manager"
DEPLOYMENT = "tpu-provisioner"
#: Values from which `make_overlay` creates the overlay of the rehearsed cluster.
VALUES = {
    "GCP_PROJECT_ID": PROJECT,
    "GCP_CLUSTER": CLUSTER,
    "GCP_CLUSTER_LOCATION": LOCATION,
    "GCP_ZONE": ZONE,
    "GCP_NODE_SERVICE_ACCOUNT": "",
}
#: Kinds of Prometheus and cert-manager. The tests define CRDs for them that allow any fields.
FOREIGN_KINDS = (
    ("podmonitors", "PodMonitor", "monitoring.coreos.com"),
    ("servicemonitors", "ServiceMonitor", "monitoring.coreos.com"),
    ("prometheusrules", "PrometheusRule", "monitoring.coreos.com"),
    ("podmonitorings", "PodMonitoring", "monitoring.googleapis.com"),
    ("issuers", "Issuer", "cert-manager.io"),
    ("certificates", "Certificate", "cert-manager.io"),
)
#: Kinds of workloads with pods whose CRD a cluster may lack. The tests define CRDs for them as well.
OPTIONAL_KINDS = [kind for kind in KINDS.values() if kind.kind.has_pods and kind.installation and kind.optional]
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[0-9a-z]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)
_BY_NAME = re.compile(r"metadata\.name=([^,]+)")
#: Paths that system:discovery, system:public-info-viewer and system:basic-user allow for every user.
_FOR_EVERYBODY = re.compile(rf"/version|{ACCESS_REVIEWS}|/apis/[^/]+(/v[0-9a-z]+)?")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def rights(documents: Iterable[dict[str, Any]]) -> set[Right]:
    return {
        Right(group, resource, verb, role["metadata"].get("namespace", ""), name)
        for role in documents
        if role["kind"] in ("ClusterRole", "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def bare(documents: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return objects by kind and name, without the settings and fields in which chart and manifests may differ."""
    found = {}
    for document in documents:
        copied: dict[str, Any] = json.loads(json.dumps(document))
        copied["metadata"] = {key: value for key, value in copied["metadata"].items() if value and key != "labels"}
        if copied["kind"] == "Deployment":
            template = copied["spec"]["template"]
            template["metadata"].pop("annotations", None)
            (container,) = template["spec"]["containers"]
            for key in ("image", "imagePullPolicy", "envFrom"):
                container.pop(key, None)
            container["env"] = [variable for variable in container["env"] if "value" not in variable]
        found[key_of(copied)] = copied
    return found


def key_of(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def copy_of_deploy(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(DEPLOY, folder / "deploy", ignore=ignored))


def example(folder: Path, name: str, *, options: str = "") -> Path:
    """Return a copy of an example overlay, in which comment lines that match `options` are enabled."""
    path = copy_of_deploy(folder) / "example-project" / name / "kustomization.yaml"
    if options:
        path.write_text(re.sub(rf"(?m)^# ({options})", r"\1", path.read_text("utf-8")), encoding="utf-8")
    return path.parent


def only(documents: Iterable[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [
        document for document in documents if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]
    return found


def rule_of_component(name: str) -> dict[str, Any]:
    text = (DEPLOY / "components" / name / "kustomization.yaml").read_text(encoding="utf-8")
    patch, *_ = yaml.safe_load(text)["patches"]
    (operation,) = yaml.safe_load(patch["patch"])
    rule: dict[str, Any] = operation["value"]
    return rule


def enable_component(overlay: Path, name: str) -> None:
    path = overlay / "components" / "kustomization.yaml"
    text, found = re.subn(rf"(?m)^# (- (?:\.\./)+components/{name})$", r"\1", path.read_text(encoding="utf-8"))
    assert found == 1, f"the template does not name the component {name}"
    path.write_text(text, encoding="utf-8")


def disable_component(overlay: Path, name: str) -> None:
    path = overlay / "components" / "kustomization.yaml"
    text, found = re.subn(rf"(?m)^(- (?:\.\./)+components/{name})$", r"# \1", path.read_text(encoding="utf-8"))
    assert found == 1, f"the template does not enable the component {name}"
    path.write_text(text, encoding="utf-8")


def environment_of(documents: list[dict[str, Any]], deployment: str = DEPLOYMENT) -> dict[str, str]:
    """Return the settings of a Deployment's container: its ConfigMaps, and its variables, which take precedence."""
    container = container_of(documents, deployment)
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= only(documents, "ConfigMap", source["configMapRef"]["name"])["data"]
    return found | {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


def flags_of(documents: list[dict[str, Any]]) -> list[str]:
    """Return the provisioner's arguments without addresses, because each process of the tests needs its own ports."""
    return [flag for flag in container_of(documents)["args"] if "-bind-address=" not in flag]


def container_of(documents: list[dict[str, Any]], deployment: str = DEPLOYMENT) -> dict[str, Any]:
    (container,) = only(documents, "Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return dict(container)


def kubeconfig_of_service_account(
    rehearsal: Rehearsal,
    path: Path,
    *,
    server: str = "",
    name: str = SERVICE_ACCOUNT,
    namespace: str = NAMESPACE,
    pod: dict[str, Any] | None = None,
) -> Path:
    """Write a kubeconfig with only a new ServiceAccount token, bound to a pod if `pod` has the metadata of one."""
    account = object_path("serviceaccounts", name, namespace=namespace)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]} if pod else None
    spec = {"boundObjectRef": bound} if bound else {}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token = rehearsal.api.post(f"{account}/token", asked)["status"]["token"]
    authority = base64.b64encode(rehearsal.cluster._credentials.authority_pem).decode()
    cluster = {"server": server or rehearsal.cluster.server_url, "certificate-authority-data": authority}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "controller", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "controller"}}],
        "current-context": "local",
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    path.chmod(0o600)
    return path


def provisioner_as(
    rehearsal: Rehearsal, kubeconfig: Path, log: Path, *, arguments: Iterable[str], environment: dict[str, str]
) -> ProvisionerProcess:
    """Return a provisioner that is not started yet, and whose only credentials are in `kubeconfig`."""
    return ProvisionerProcess(
        kubeconfig=kubeconfig,
        gke_endpoint=rehearsal.gke.url,
        log=log,
        environment={"KUBECONFIG": str(kubeconfig), "HOME": str(log.parent), **environment},
        arguments=arguments,
    )


def try_events(api: KubeApi) -> None:
    """Write an Event, repeat it with a clock 400 s later, and fail if one of the two was dropped."""
    seconds = 0.0
    recorder = EventRecorder(api, instance="trial", clock=lambda: seconds)
    recorder.start()
    unique = f"trial at {time.monotonic_ns()}"
    about = ObjectRef(api_version="v1", kind="Pod", namespace="default", name="trial", uid=unique)
    for _ in range(2):
        recorder.emit(about, "Trial", unique)
        assert recorder.flush(timeout_seconds=10.0)
        seconds += 400.0
    recorder.stop()
    assert not recorder.dropped_total


class Recorder:
    """A proxy of the API server that records the required right and the status of each request."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        trust = rehearsal.cluster._credentials
        self.answers: list[tuple[Right, int]] = []
        recorder = self
        upstream = urlsplit(rehearsal.cluster.server_url)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                connection = http.client.HTTPSConnection(
                    upstream.hostname or "", upstream.port, context=trust.tls_context()
                )
                headers = {key: value for key, value in self.headers.items() if key.lower() not in _HOP_BY_HOP}
                try:
                    connection.request(self.command, self.path, body=self.rfile.read(size) or None, headers=headers)
                    answer = connection.getresponse()
                    right = right_of(self.command, self.path)
                    if right is not None:
                        recorder.answers.append((right, answer.status))
                        if right.verb == "patch" and answer.status == HTTPStatus.CREATED:
                            # An apply that created the object needed the right to create it as well.
                            recorder.answers.append((replace(right, verb="create"), answer.status))
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    # The client has closed the connection of its watch.
                    self.close_connection = True
                finally:
                    connection.close()

            def log_message(self, *arguments: object) -> None:
                pass

        for method in ("GET", *_VERBS):
            setattr(Handler, f"do_{method}", Handler._forward)
        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(trust.directory / "server.crt", trust.directory / "server.key")
        # Without this option, the handshake of one connection would block the accept of all others.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://{HOST}:{self._server.server_address[1]}"

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


_HOP_BY_HOP = ("host", "connection", "accept-encoding", "content-length")


def right_of(method: str, target: str) -> Right | None:
    """Return the right that a request needs; None for paths that every authenticated user may use."""
    url = urlsplit(target)
    if _FOR_EVERYBODY.fullmatch(url.path):
        return None
    match = _PATH.fullmatch(url.path)
    assert match is not None, target
    verb, name = _VERBS.get(method), match["name"] or ""
    if verb is None:
        query = parse_qs(url.query)
        watches = query.get("watch", ["false"])[0] in ("true", "1")
        verb = "get" if name else "watch" if watches else "list"
        # A list or watch that selects one name needs only the right on the object with that name.
        selected = _BY_NAME.fullmatch(query.get("fieldSelector", [""])[0])
        name = selected[1] if selected and not name else name
    resource = match["resource"] + (f"/{match['part']}" if match["part"] else "")
    return Right(match["group"] or "", resource, verb, match["namespace"] or "", name)


def granted_by(granted: set[Right], needed: Right) -> Right | None:
    for right in granted:
        if (
            (right.group, right.resource, right.verb) == (needed.group, needed.resource, needed.verb)
            and right.namespace in ("", needed.namespace)
            and right.name in ("", needed.name)
        ):
            return right
    return None
