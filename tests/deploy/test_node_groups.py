"""Tests of installing the controller of node groups with kustomize or Helm, alone or with the provisioner."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import chart, crds
from provisioner.nodegroups import app, device_plugin
from provisioner.nodegroups.api.types import Kind
from provisioner.settings import read as read_options
from provisioner.settings.nodegroups import OPTIONS, NodeGroupSettings
from rehearsal.demos import Rehearsal, RehearsalError
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, REPOSITORY, bare, container_of, example, key_of, only
from tests.deploy.mainjob import uninstalled
from tests.deploy.pages import read_blocks

Json = dict[str, Any]

_FOLDER = DEPLOY / "nodegroups"
_NAME = app.LEASE_NAME
_VALUES = {"image": {"repository": "controller", "tag": "latest"}, "nodegroups": {"enabled": True}}


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    return tools.documents(tools.run("kustomize", "build", str(_FOLDER)))


def test_crds_are_not_part_of_an_installation(written: list[dict[str, Any]]) -> None:
    """Otherwise, deleting the installation with kustomize would delete all groups."""
    assert "CustomResourceDefinition" not in {document["kind"] for document in written}
    assert "Namespace" not in {document["kind"] for document in written}


def test_service_account_of_the_device_plugin_is_installed(written: list[dict[str, Any]]) -> None:
    """The pods of the DaemonSet that the controller creates use this ServiceAccount."""
    made = device_plugin.manifest("a")
    account = only(written, "ServiceAccount", made["spec"]["template"]["spec"]["serviceAccountName"])
    assert account["metadata"]["namespace"] == made["metadata"]["namespace"]
    (subject,) = only(written, "ClusterRoleBinding", "tpu-device-plugin")["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["metadata"]["name"], account["metadata"]["namespace"])


def test_controller_runs_only_on_the_control_plane(written: list[dict[str, Any]]) -> None:
    """The owner of a group is root on its machines, and could read the token of the controller's pod there."""
    affinity = only(written, "Deployment", _NAME)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}


# --- Overlay of a cluster without GKE ---


def _example(tmp_path: Path, *, options: str = "") -> list[dict[str, Any]]:
    folder = example(tmp_path, "self-managed-cluster", options=options)
    return tools.documents(tools.run("kustomize", "build", str(folder)))


@pytest.mark.e2e
def test_example_without_gke_contains_only_this_controller(tmp_path: Path) -> None:
    documents = _example(tmp_path)
    assert [document["metadata"]["name"] for document in documents if document["kind"] == "Deployment"] == [_NAME]
    enforced = only(documents, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"
    settings = only(documents, "ConfigMap")
    container = container_of(documents, _NAME)
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert container["image"] == "us-docker.pkg.dev/example-project/tpu-provisioner/controller:latest"
    read = read_options(NodeGroupSettings, settings["data"])
    assert (read.project_id, read.projects, read.own_namespace) == ("example-project", ("example-project",), NAMESPACE)
    assert settings["data"].keys() <= {option.variable for option in OPTIONS}
    base = tools.documents((DEPLOY / "base" / "namespace.yaml").read_text(encoding="utf-8"))
    assert only(documents, "Namespace") == only(base, "Namespace")


def _mounts(documents: list[dict[str, Any]]) -> tuple[Any, ...]:
    pod = only(documents, "Deployment", _NAME)["spec"]["template"]["spec"]
    container = container_of(documents, _NAME)
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    path = environment["GOOGLE_APPLICATION_CREDENTIALS"]
    by_name = sorted(pod["volumes"], key=lambda volume: str(volume["name"]))
    mounts = sorted(container["volumeMounts"], key=lambda mount: str(mount["name"]))
    return path, by_name, mounts, pod["securityContext"]["fsGroup"]


@pytest.mark.e2e
def test_component_and_chart_mount_the_same_credentials(tmp_path: Path) -> None:
    documents = _example(tmp_path, options=r"components:|- \.\./\.\./components/")
    path, volumes, mounts, _ = _mounts(documents)
    assert path == "/etc/gcp/key.json"
    assert [list(volume.keys() - {"name"}) for volume in volumes] == [["projected"], ["secret"]]
    assert all(mount["readOnly"] for mount in mounts)
    values = {**_VALUES["nodegroups"], "credentialsSecret": "tpu-node-group-credentials"}
    assert _mounts(_template({**_VALUES, "nodegroups": values})) == _mounts(documents)
    assert {"PodMonitor", "PrometheusRule"} <= {document["kind"] for document in documents}


# --- Chart ---


def _template(values: dict[str, Any]) -> list[dict[str, Any]]:
    return tools.template(chart.CHART, values, namespace=NAMESPACE)


@pytest.mark.e2e
def test_chart_with_node_groups_creates_the_objects_of_kustomize_and_the_crds(written: list[dict[str, Any]]) -> None:
    """The compared objects are those that the chart creates only if node groups are enabled."""
    without = {key_of(document) for document in _template({**_VALUES, "nodegroups": {}})}
    more = {key_of(document): document for document in _template(_VALUES) if key_of(document) not in without}
    definitions = {key: more.pop(key) for key in list(more) if key[0] == "CustomResourceDefinition"}
    assert bare(more.values()) == bare(written)
    for document in more.values():
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "test"
    kept = {
        "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
        "kustomize.toolkit.fluxcd.io/prune": "disabled",
    }
    for document in tools.documents(tools.run("kustomize", "build", str(DEPLOY / "nodegroups" / "crds"))):
        assert document["metadata"]["annotations"] == kept, "a GitOps controller must not delete all groups"
    # Argo CD ignores the annotation of Helm, so the CRDs of the chart have the annotations of Argo CD and Flux as well.
    for definition in definitions.values():
        assert definition["metadata"]["annotations"] == {**kept, "helm.sh/resource-policy": "keep"}
    made = [crds.crd(kind) for kind in Kind]
    assert {key_of(crd): crd["spec"] for crd in made} == {key: crd["spec"] for key, crd in definitions.items()}


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
def test_chart_can_be_installed_in_two_ways_if_the_crds_exist(
    rehearsal: Rehearsal, cluster_overlay: Path, tmp_path: Path
) -> None:
    """Helm rejects CRDs that another client has applied, unless it takes ownership or leaves them out."""
    blocks = read_blocks(REPOSITORY / "docs" / "node-groups" / "install.md")
    (text,) = [block.text.rstrip() for block in blocks if block.text.startswith("helm ")]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(rehearsal.cluster.kubeconfig),
        "IMG": "registry.example/controller:v0.1.0",
        "PROJECT_ID": "project-1",
    }

    def install(flag: str = "") -> str:
        script = f"{text.replace('helm', str(tools.tool('helm')), 1)} --dry-run=server {flag}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    with uninstalled(rehearsal, cluster_overlay):
        rehearsal.kubectl("apply", "--server-side", "-k", str(DEPLOY / "nodegroups" / "crds"))
        rehearsal.create_namespace(NAMESPACE)
        assert "exists and cannot be imported into the current release" in install()
        assert install("--take-ownership") == install("--set=nodegroups.crds=false") == ""


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
def test_upgrade_that_removes_a_running_controller_is_rejected(
    rehearsal: Rehearsal, cluster_overlay: Path, tmp_path: Path
) -> None:
    """Without the controller, nothing deletes node pools or machines, and they cost money."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECONFIG": str(rehearsal.cluster.kubeconfig)}

    def helm(*arguments: str) -> str:
        command = [tools.tool("helm"), *arguments, f"--namespace={NAMESPACE}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return done.stderr if done.returncode else ""

    upgrade = ("upgrade", "--install", "test", str(chart.CHART), "--set=image.repository=registry.example/controller")
    with uninstalled(rehearsal, cluster_overlay):
        rehearsal.create_namespace(NAMESPACE)
        assert helm(*upgrade, "--set=nodegroups.enabled=true,nodegroups.crds=false") == ""
        for name in ("tpu-provisioner", "tpu-provisioner-nodegroups"):
            assert f"these values delete Deployment {name}," in helm(*upgrade, "--set=webhook.only=true")
            rehearsal.kubectl("scale", f"deployment/{name}", "--replicas=0", f"--namespace={NAMESPACE}")
        assert helm(*upgrade, "--set=webhook.only=true") == ""
        assert helm("uninstall", "test") == ""


@pytest.mark.e2e
def test_command_for_node_groups_waits_until_the_controller_has_released_them(rehearsal: Rehearsal) -> None:
    """The command of docs/uninstall.md waits for finalizers: a group with a finalizer may still have machines."""
    (block,) = [block for block in read_blocks(REPOSITORY / "docs" / "uninstall.md") if block.where == "nodegroups"]
    command, listing = (shlex.split(line)[1:] for line in block.text.splitlines())
    definitions = str(DEPLOY / "nodegroups" / "crds")
    rehearsal.kubectl("apply", "--server-side", "-k", definitions)
    rehearsal.kubectl("wait", "--for=condition=Established", "crd", "tpunodegroups.tpu.google.com")
    group = yaml.safe_load((REPOSITORY / "examples" / "nodegroups" / "slice.yaml").read_text(encoding="utf-8"))
    group["metadata"] = {"name": "group", "namespace": "default", "finalizers": ["example.com/machines"]}
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(group))
    with pytest.raises(RehearsalError, match="timed out"):
        rehearsal.kubectl(*(word.replace("30m", "2s") for word in command))
    assert "/group" in rehearsal.kubectl(*listing, "-oname")
    rehearsal.kubectl("patch", "tpunodegroup", "group", "--type=merge", '-p={"metadata": {"finalizers": null}}')
    rehearsal.kubectl(*command)
    assert rehearsal.kubectl(*listing, "-oname") == ""


#: Fake kubectl and helm, which print deletes. The delete of groups prints nothing and has the exit code ${STATUS}.
_STAND_INS = """kubectl() {
  case "$1 $2" in
    "delete tpunodegroups") return "${STATUS}" ;;
    "delete --ignore-not-found") echo "deleted $4" ;;
    get*) echo "${LEFT_OBJECTS}" ;;
  esac
}
helm() { echo "deleted $2"; }
"""


@pytest.mark.parametrize(
    ("block", "controller"),
    [(0, "deploy/example-project/self-managed-cluster"), (1, "tpu-provisioner")],
    ids=["kustomize", "Helm"],
)
@pytest.mark.parametrize(("status", "left"), [("0", ""), ("1", ""), ("0", "managedinstancegroup/slice")])
def test_uninstall_keeps_the_controller_while_objects_of_groups_are_left(
    status: str, left: str, block: int, controller: str
) -> None:
    """A shell runs pasted lines even after a failed line; without the controller, nothing would delete the machines."""
    blocks = read_blocks(REPOSITORY / "docs" / "node-groups" / "install.md")
    texts = [candidate.text for candidate in blocks if candidate.heading == "Uninstall"]
    environment = {"PATH": "/usr/bin:/bin", "STATUS": status, "LEFT_OBJECTS": left}
    script = _STAND_INS + texts[block]
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    deleted = [line for line in done.stdout.splitlines() if line.startswith("deleted ")]
    crds_last = [f"deleted {controller}", "deleted deploy/nodegroups/crds"]
    assert deleted == (crds_last if status == "0" and not left else [])
    assert left in done.stdout


_PRODUCTS: dict[str, tuple[Json, set[str]]] = {
    "both": ({"nodegroups": {"enabled": True}}, {"slices", "nodegroups"}),
    "node groups": ({"nodegroups": {"only": True}}, {"nodegroups"}),
    "node groups and webhook": (
        {"nodegroups": {"only": True}, "webhook": {"enabled": True}}, {"nodegroups", "webhook"},
    ),
    "node groups and webhook by two switches": (
        {"nodegroups": {"only": True}, "webhook": {"only": True}}, {"nodegroups", "webhook"},
    ),
    "webhook": ({"webhook": {"only": True}}, {"webhook"}),
}  # fmt: skip
_OF_PRODUCTS = {"slices": "tpu-provisioner", "nodegroups": _NAME, "webhook": "tpu-provisioner-webhook"}


@pytest.mark.e2e
@pytest.mark.parametrize(("values", "products"), _PRODUCTS.values(), ids=_PRODUCTS)
def test_chart_creates_only_the_objects_of_the_selected_products(
    values: Json, products: set[str], written: list[dict[str, Any]], installed: list[dict[str, Any]], tmp_path: Path
) -> None:
    made = {key_of(document) for document in _template({**_VALUES, "nodegroups": {}, **values})}
    deployments = {name for kind, name in made if kind == "Deployment"}
    assert deployments == {_OF_PRODUCTS[product] for product in products}
    of_slices = {key_of(document) for document in installed if document["kind"] not in ("Namespace", "ConfigMap")}
    for product, objects in (("slices", of_slices), ("nodegroups", {key_of(document) for document in written})):
        assert made & objects == (objects if product in products else set())
    notes = tools.notes(chart.CHART, {**_VALUES, "nodegroups": {}, **values}, tmp_path)
    assert set(re.findall(r"deployment/([-a-z]+)", notes)) == deployments
    assert ("drain" in notes) is ("slices" in products)


@pytest.mark.e2e
def test_notes_start_the_provisioner_before_they_drain_it(tmp_path: Path) -> None:
    """With replicas=0, there is no pod in which a user could run `drain`."""
    notes = tools.notes(chart.CHART, {**_VALUES, "replicas": 0}, tmp_path)
    assert "Wait until it has proven" not in notes
    assert notes.index("scale deployment/tpu-provisioner --replicas=1") < notes.index("tpu-provisioner drain")
    # Helm does not delete the ConfigMap that pauses creates, so the next installation would create no node pools.
    assert notes.index("helm uninstall") < notes.index("delete configmap tpu-provisioner-pause")


@pytest.mark.e2e
def test_values_of_node_groups_are_in_their_fields() -> None:
    """Only settings that both controllers read in the same way are taken over from the provisioner."""
    values = {
        "crds": False,
        "replicas": 2,
        "only": True,
        "settings": {"ALLOWED_PROJECTS": "project-a, project-b", "GCE_CALLS_PER_SECOND": 5, "LOG_LEVEL": "debug"},
        "nodeSelector": {"a": "b"},
        "tolerations": [],
        # Helm merges maps with the defaults, so an empty map would keep the default affinity; None removes it.
        "affinity": None,
    }
    settings = {"GCP_PROJECT_ID": "project-a", "MAX_CHIPS": 8, "LOG_LEVEL": "info", "SERVED_NAMESPACES": "x"}
    documents = _template(
        {**_VALUES, "nodegroups": values, "settings": settings, "priorityClassName": "platform"},
    )
    assert "CustomResourceDefinition" not in {document["kind"] for document in documents}
    assert not [document for document in documents if document["kind"] == "PriorityClass"]
    deployment = only(documents, "Deployment", _NAME)["spec"]
    assert deployment["replicas"] == 2
    pod = deployment["template"]["spec"]
    assert (pod["priorityClassName"], pod["nodeSelector"]) == ("platform", {"a": "b"})
    assert not {"tolerations", "affinity", "volumes"} & pod.keys()
    environment = {entry["name"]: entry["value"] for entry in container_of(documents, _NAME)["env"] if "value" in entry}
    assert environment == {
        "GCP_PROJECT_ID": "project-a",
        "LOG_LEVEL": "debug",
        "SERVED_NAMESPACES": "x",
        "ALLOWED_PROJECTS": "project-a, project-b",
        "GCE_CALLS_PER_SECOND": "5",
    }
    read = read_options(NodeGroupSettings, environment)
    assert (read.projects, read.machines_per_namespace) == (("project-a", "project-b"), 64)
