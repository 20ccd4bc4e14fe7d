"""Runs every command of docs/upgrade.md with realistic objects; a thread renews the Go provisioner's Lease."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.kube.errors import NotFound
from provisioner.kube.fields import format_micro_time
from provisioner.kube.protocol import LEASES_ROOT, collection_path, object_path
from provisioner.slices.demand import group_key
from provisioner.slices.hints import HintsStore
from rehearsal.demos import Rehearsal
from rehearsal.demos.world import CLUSTER, LOCATION, PROJECT, ZONE
from tests.deploy import mainjob, tools
from tests.deploy.kit import (
    DEPLOY,
    NAMESPACE,
    REPOSITORY,
    copy_of_deploy,
    disable_component,
    enable_component,
    kubeconfig_of_service_account,
    provisioner_as,
)
from tests.deploy.pages import read_blocks
from tests.deploy.pods import PlayedPod
from tests.e2e.kit import Ground, has_mutating_policies, logged

pytestmark = pytest.mark.e2e

_LEASE = object_path("leases", constants.ORIGINAL_LEASE_NAME, namespace=NAMESPACE, root=LEASES_ROOT)
_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_ORIGINAL = "tpu-provisioner-controller-manager"
#: Duration in seconds of the Go provisioner's Lease. client-go's default is 15 s; the test waits for its end.
_LEASE_SECONDS = 6
#: All keys that the Go provisioner's ConfigMap can contain, with typical values.
_ENVIRONMENT = {
    "PROVIDER": "gke",
    "GCP_PROJECT_ID": PROJECT,
    "GCP_CLUSTER_LOCATION": LOCATION,
    "GCP_ZONE": ZONE,
    "GCP_CLUSTER": CLUSTER,
    "GCP_NODE_SERVICE_ACCOUNT": "nodes@rehearsal-project.iam.gserviceaccount.com",
    "GCP_NODE_TAGS": "",
    "GCP_POD_TO_NODE_LABELS": "",
    "GCP_NODE_SECONDARY_DISK": "",
    "GCP_NODE_SECURE_BOOT": "true",
    "GCP_NODE_ADDITIONAL_NETWORKS": "",
    "GCP_NODE_DISK_TYPE": "",
    "GCP_NODE_CONFIDENTIAL_STORAGE": "false",
    "GCP_NODE_BOOT_DISK_KMS_KEY": "",
    "GCP_FORCE_ON_DEMAND": "false",
    "NODE_MIN_LIFESPAN": "0s",
    "NODEPOOL_DELETION_DELAY": "1s",
    "POD_RESOURCE_TYPE": "google.com/tpu",
    "CONCURRENCY": "3",
}


@contextmanager
def _the_original_leads(rehearsal: Rehearsal) -> Iterator[None]:
    """Hold and renew the Go provisioner's Lease; at the end, do not release it, as after a crash."""
    stopped = threading.Event()
    holder = "tpu-provisioner-controller-manager-5d9c-xyz_1f0e"

    def spec() -> dict[str, Any]:
        moment = format_micro_time(datetime.now(UTC))
        return {"holderIdentity": holder, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": moment}

    def renew() -> None:
        while not stopped.wait(1.0):
            rehearsal.api.patch(_LEASE, {"spec": spec()})

    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": constants.ORIGINAL_LEASE_NAME, "namespace": NAMESPACE},
        "spec": spec(),
    }
    rehearsal.api.post(collection_path("leases", namespace=NAMESPACE, root=LEASES_ROOT), body)
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _original_deployment() -> dict[str, Any]:
    labels = {"control-plane": "controller-manager"}
    container = {"name": "manager", "image": "controller:old", "args": ["--leader-elect"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _ORIGINAL, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": _ORIGINAL, "containers": [container]},
            },
        },
    }


def _original_pool(namespace: str, jobset: str, *, machine_type: str = "ct4p-hightpu-4t") -> dict[str, Any]:
    """Return the body with which the Go provisioner creates a pool, which has no labels of this provisioner."""
    job = f"{jobset}-w-0"
    labels = {
        constants.NODEPOOL_MANAGER: constants.MANAGER,
        constants.PARENT_KIND: "job",
        constants.PARENT_NAME: job,
        constants.PARENT_NAMESPACE: namespace,
        constants.POOL_JOBSET_NAME: jobset,
        constants.POOL_JOBSET_NAMESPACE: namespace,
        constants.NODEPOOL_HASH: "0123456789",
    }
    return {
        "name": f"{jobset[:34]}-{group_key(namespace, job)[:5]}",
        "initialNodeCount": 1,
        "locations": [ZONE],
        "config": {"machineType": machine_type, "labels": labels},
        "management": {"autoRepair": True, "autoUpgrade": False},
    }


_PAGE = REPOSITORY / "docs" / "upgrade.md"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A user with a shell in a clone of the repository."""

    folder: Path
    environment: dict[str, str]

    def run(self, where: str, index: int = 0, **variables: str) -> str:
        """Run block `index` of the page's blocks marked `where`; return its output. Fails if the commands fail."""
        done = self.attempt(where, index, **variables)
        assert done.returncode == 0, f"{done.args[-1]}\n{done.stdout}"
        return done.stdout

    def attempt(self, where: str, index: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        block = [block for block in read_blocks(_PAGE) if block.where == where][index]
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture
def reader(rehearsal: Rehearsal, tmp_path: Path) -> Reader:
    folder, programs = tmp_path / "clone", tmp_path / "bin"
    copy_of_deploy(folder)
    for name in ("Makefile", "generators", "provisioner", "examples"):
        (folder / name).symlink_to(REPOSITORY / name)
    programs.mkdir()
    (programs / "kubectl").symlink_to(rehearsal.cluster.binaries["kubectl"])
    for name in ("helm", "kustomize"):
        (programs / name).symlink_to(tools.tool(name))
    environment = {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(rehearsal.cluster.kubeconfig),
        "MAKEFLAGS": f"PYTHON={sys.executable}",
        "PROJECT_ID": PROJECT,
        "CLUSTER_NAME": CLUSTER,
        "LOCATION": LOCATION,
        "ZONE": ZONE,
        "NODE_SERVICE_ACCOUNT": "",
        "IMG": "registry.example/controller:v0.1.0",
    }
    return Reader(folder=folder, environment=environment)


def test_every_command_block_of_the_upgrade_is_run() -> None:
    known = {"kustomize": 1, "takeover": 2, "privileged": 1, "over": 3, "back": 2, "taint": 1}
    found = [block.where for block in read_blocks(_PAGE)]
    assert Counter(found) == known
    # The block "over" creates the overlay that the block "privileged" changes.
    assert found.index("over") < found.index("privileged")


@pytest.mark.usefixtures("_clean")
def test_takeover_from_the_go_provisioner_and_back_keeps_pools_in_use(
    rehearsal: Rehearsal, reader: Reader, installed: list[dict[str, Any]], ground: Ground, tmp_path: Path
) -> None:
    """This provisioner waits for the Lease, takes it over, serves a JobSet, and then releases the Lease."""
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(_original_deployment()))
    kept = _original_pool(ground.namespace, "kept")
    # This pool has another machine type, because the next JobSet would otherwise rightly use it.
    left = _original_pool(ground.namespace, "left", machine_type="ct5lp-hightpu-8t")
    ground.apply("kept", run_for="600s")
    ground.wait(lambda: ground.unschedulable("kept"), "the JobSet waits for its pool")
    # The Go provisioner's pools disable auto-upgrade, which GKE accepts only without a release channel.
    ground.gke.set(release_channel=None)
    for body in (kept, left):
        ground.make_pool(body)
    ground.gke.set(release_channel="REGULAR")
    ground.wait(lambda: ground.runs("kept"), "the JobSet runs on the Go provisioner's pool")
    made_before, deleted_before = ground.accepted("nodePools.create"), ground.accepted("nodePools.delete")
    kubeconfig = kubeconfig_of_service_account(rehearsal, tmp_path / "kubeconfig")
    process = provisioner_as(
        rehearsal, kubeconfig, tmp_path / "ours.log", arguments=["--leader-elect"], environment=_ENVIRONMENT
    )
    ground.provisioners.append(process)

    # Both provisioners are installed, and the Go provisioner leads.
    with _the_original_leads(rehearsal):
        reader.run("over", 0)
        reader.run("over", 1)
        beside = rehearsal.api.get(f"{_DEPLOYMENTS}/{_ORIGINAL}")["spec"]
        assert beside["template"]["spec"]["containers"][0]["image"] == "controller:old"
        assert rehearsal.api.get(f"{_DEPLOYMENTS}/tpu-provisioner")
        process.launch()
        ground.wait(lambda: "is held by the Go provisioner" in process.tail(lines=50), "ours says whom it waits for")
        renewed = rehearsal.api.get(_LEASE)["spec"]["renewTime"]
        ground.apply("next", run_for="1s")
        ground.wait(
            lambda: rehearsal.api.get(_LEASE)["spec"]["renewTime"] > renewed and ground.unschedulable("next"),
            "the Go provisioner goes on leading, with work to do",
        )
        # While this provisioner waits, it changes no node pools.
        changes = ground.accepted("nodePools.create"), ground.accepted("nodePools.delete")
        assert changes == (made_before, deleted_before)
        assert not logged(process, "lease.acquired")

    # The Go provisioner has ended without releasing its Lease, so the Lease must expire first.
    reader.run("over", 2)
    assert rehearsal.api.get(f"{_DEPLOYMENTS}/{_ORIGINAL}")["spec"]["replicas"] == 0
    ground.wait(lambda: logged(process, "cluster.proven"), "ours leads", 40)
    ground.await_completed("next")
    ground.wait(lambda: not ground.pools("left-"), "the pool that nothing needs goes")
    ground.wait(lambda: not ground.pools("next-"), "the new pool goes after its JobSet")
    assert ground.runs("kept")
    assert [pool.name for pool in ground.pools()] == [kept["name"]]
    assert ground.accepted("nodePools.create") == made_before + 1
    assert ground.accepted("nodePools.delete") == deleted_before + 2
    leases = [rehearsal.api.get(path)["spec"]["holderIdentity"] for path in (_LEASE, _LEASE.replace(
        constants.ORIGINAL_LEASE_NAME, constants.LEASE_NAME))]  # fmt: skip
    assert leases[0] == leases[1] != ""

    # On the way back, a pool of this provisioner has the labels that the Go provisioner needs.
    ground.apply("ours", run_for="600s")
    ground.wait(lambda: ground.runs("ours"), "another JobSet runs, on a pool of ours")
    labels = next(body["config"]["labels"] for name, body in ground.sent().items() if name.startswith("ours-"))
    want = _original_pool(ground.namespace, "ours")["config"]["labels"]
    assert {key: labels.get(key) for key in want if key != constants.NODEPOOL_HASH} == {
        key: value for key, value in want.items() if key != constants.NODEPOOL_HASH
    }
    assert labels.get(constants.NODEPOOL_HASH)
    reader.run("back", 0)
    assert rehearsal.api.get(f"{_DEPLOYMENTS}/tpu-provisioner")["spec"]["replicas"] == 0
    assert process.stop() == 0
    assert rehearsal.api.get(_LEASE)["spec"]["holderIdentity"] == ""
    reader.run("back", 1)
    assert rehearsal.api.get(f"{_DEPLOYMENTS}/{_ORIGINAL}")["spec"]["replicas"] == 1
    assert ground.runs("ours")
    assert ground.runs("kept")
    assert [node for node in ground.nodes() if node["spec"].get("unschedulable")] == []


def _pod_template(rehearsal: Rehearsal) -> dict[str, Any]:
    return dict(rehearsal.api.get(f"{_DEPLOYMENTS}/tpu-provisioner")["spec"]["template"])


@pytest.fixture
def pod(rehearsal: Rehearsal, tmp_path: Path) -> Iterator[PlayedPod]:
    """The controller's pod with a node and a process, without which rollouts would not end."""
    with PlayedPod(rehearsal, rehearsal.gke.url, tmp_path).playing() as pod:
        yield pod


def test_upgrade_of_the_image_rolls_the_pods_once(
    rehearsal: Rehearsal, reader: Reader, installed: list[dict[str, Any]], pod: PlayedPod
) -> None:
    reader.run("over", 0)
    assert "successfully rolled out" in reader.run("kustomize", NEW_TAG="v0.2.0")
    template = _pod_template(rehearsal)
    assert template["spec"]["containers"][0]["image"] == "registry.example/controller:v0.2.0"
    reader.run("kustomize", NEW_TAG="v0.2.0")
    assert _pod_template(rehearsal) == template


def test_privileged_overlay_and_back_is_applied_without_conflicts(
    rehearsal: Rehearsal, reader: Reader, installed: list[dict[str, Any]]
) -> None:
    """The overlay raises the enforced pod security level of the namespace to privileged."""
    enforced = "pod-security.kubernetes.io/enforce"
    namespace = object_path("namespaces", NAMESPACE)
    reader.run("over", 0)
    written = reader.folder / "deploy" / PROJECT / CLUSTER / "kustomization.yaml"
    before = written.read_text(encoding="utf-8")
    reader.run("privileged")
    for _ in range(2):
        reader.run("over", 1)
        assert rehearsal.api.get(namespace)["metadata"]["labels"][enforced] == "privileged"
    written.write_text(before, encoding="utf-8")
    reader.run("over", 1)
    assert rehearsal.api.get(namespace)["metadata"]["labels"][enforced] == "restricted"


def _deployments(rehearsal: Rehearsal) -> dict[str, dict[str, Any]]:
    return {deployment["metadata"]["name"]: deployment for deployment in rehearsal.api.get(_DEPLOYMENTS)["items"]}


def test_helm_takes_over_an_installation_of_kustomize(
    rehearsal: Rehearsal, cluster_overlay: Path, reader: Reader, installed: list[dict[str, Any]], pod: PlayedPod
) -> None:
    """A Deployment that kept its reference to a deleted ConfigMap could not start new pods."""
    names = {f"tpu-provisioner{suffix}" for suffix in ("", "-webhook", "-nodegroups")}
    other = "tpu-provisioner-partitions"
    hints = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=NAMESPACE)
    try:
        store = HintsStore(rehearsal.api, NAMESPACE)
        store.load()
        assert store.save({"kept": "yes"})
        # The overlay has settings, which the takeover converts to values of the chart.
        reader.run("over", 0)
        overlay = reader.folder / "deploy" / PROJECT / CLUSTER
        enable_component(overlay, "webhook")
        enable_component(overlay, "nodegroups")
        if not has_mutating_policies():
            disable_component(overlay, "placement")
        written = overlay / "settings.env"
        text = written.read_text(encoding="utf-8").replace("MAX_CHIPS=256", "MAX_CHIPS=512")
        written.write_text(
            f"{text}CHIP_HOUR_PRICES=tpu-v6e-slice=3, *=1\nALLOWED_PROJECTS=my-project\n", encoding="utf-8"
        )
        rehearsal.kubectl("apply", "--server-side", "-k", str(overlay))
        rehearsal.kubectl("apply", "--server-side", "-k", str(DEPLOY / "partitions"))
        before = _deployments(rehearsal)
        assert before.keys() == {*names, other}
        assert all("envFrom" in workload["spec"]["template"]["spec"]["containers"][0] for workload in before.values())

        # The takeover is rejected, and deletes nothing, until the user has moved ALLOWED_PROJECTS to node groups.
        reader.run("takeover", 0)
        refused = reader.attempt("takeover", 1)
        assert refused.returncode
        assert "ALLOWED_PROJECTS" in refused.stdout
        after = _deployments(rehearsal)
        assert {name: deployment["metadata"]["uid"] for name, deployment in after.items()} == {
            name: deployment["metadata"]["uid"] for name, deployment in before.items()
        }

        values = yaml.safe_load((reader.folder / "values.yaml").read_text(encoding="utf-8"))
        projects = values["settings"].pop("ALLOWED_PROJECTS")
        values |= {
            "webhook": {"enabled": True},
            # The CRDs are left out: Helm would keep them with its labels, and other tests need them without labels.
            "nodegroups": {"enabled": True, "crds": False, "settings": {"ALLOWED_PROJECTS": projects}},
        }
        (reader.folder / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        assert reader.run("takeover", 1).count("successfully rolled out") == len(names)
        after = _deployments(rehearsal)
        # The chart does not contain the Deployment of partitions, so Helm must not change it.
        assert after.pop(other)["metadata"]["uid"] == before[other]["metadata"]["uid"]
        assert after.keys() == names
        for deployment in after.values():
            container = deployment["spec"]["template"]["spec"]["containers"][0]
            assert container["image"] == reader.environment["IMG"]
            assert "envFrom" not in container
        assert "/tpu-provisioner-settings-" not in rehearsal.kubectl("get", "configmaps", "-oname", "-n", NAMESPACE)
        container = after["tpu-provisioner"]["spec"]["template"]["spec"]["containers"][0]
        settings = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert {
            "GCP_PROJECT_ID": PROJECT,
            "MAX_CHIPS": "512",
            "ALLOWED_NETWORKS": "none",
            "CHIP_HOUR_PRICES": "tpu-v6e-slice=3, *=1",
        }.items() <= settings.items()
        # A save of hints, as by the running controller, must keep the labels and annotations of Helm.
        assert store.save({"kept": "still"})
        metadata = rehearsal.api.get(hints)["metadata"]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert metadata["annotations"]["meta.helm.sh/release-name"] == "tpu-provisioner"
        assert rehearsal.api.get(hints)["data"]["kept"] == "still"
        rehearsal.kubectl("delete", "-k", str(DEPLOY / "partitions"))
        helm = ["helm", "uninstall", "tpu-provisioner", f"--namespace={NAMESPACE}"]
        subprocess.run(helm, env=reader.environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
        kinds = "deployments,services,configmaps,roles,rolebindings,networkpolicies,poddisruptionbudgets"
        left = rehearsal.kubectl("get", kinds, f"--namespace={NAMESPACE}")
        assert "tpu-provisioner" not in left
    finally:
        mainjob.install(rehearsal, cluster_overlay)


#: Program that records its calls, and prints output of helm 4 or kubectl for a cluster with two Deployments.
_STAND_IN = """#!/bin/sh
echo "${0##*/} $*" >> calls
case "$*" in
  version*) echo v4.3.1 ;;
  upgrade*) printf '  name: %s\\n' ${RENDERED_NAMES} ;;
  "get deployments"*) printf 'deployment.apps/%s\\n' tpu-provisioner tpu-provisioner-nodegroups ;;
esac
"""


@pytest.mark.parametrize("is_complete", [True, False])
def test_takeover_deletes_no_deployment_that_the_values_leave_out(is_complete: bool, tmp_path: Path) -> None:
    """Without the controller of node groups, nothing would delete its machines."""
    for name in ("helm", "kubectl"):
        (tmp_path / name).write_text(_STAND_IN, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    names = "tpu-provisioner tpu-provisioner-nodegroups" if is_complete else "tpu-provisioner"
    environment = {"PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin", "IMG": "a:b", "RENDERED_NAMES": names}
    done = Reader(folder=tmp_path, environment=environment).attempt("takeover", 1)
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    upgrades = [call for call in calls if call.startswith("helm upgrade")]
    assert all("--server-side=false" in call for call in upgrades)
    assert len(upgrades) == (2 if is_complete else 1)
    assert any(call.startswith("kubectl delete deployments") for call in calls) == is_complete
    assert is_complete or "name: tpu-provisioner-nodegroups" in done.stdout


def test_command_removes_the_taint_only_from_nodes_of_the_provisioner(rehearsal: Rehearsal, reader: Reader) -> None:
    ours = {constants.NODEPOOL_MANAGER: constants.MANAGER}
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("kept.example", constants.HELD_LATE)]
    for name, labels in (("held", ours), ("foreign", {})):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        rehearsal.api.post(collection_path("nodes"), {**body, "spec": {"taints": taints}})

    def left(name: str) -> set[str]:
        found = rehearsal.api.get(object_path("nodes", name))["spec"]["taints"]
        return {taint["key"] for taint in found} & {taint["key"] for taint in taints}

    try:
        reader.run("taint")
        assert left("held") == {"kept.example"}
        assert left("foreign") == {"kept.example", constants.HELD_LATE}
    finally:
        for name in ("held", "foreign"):
            rehearsal.api.delete(object_path("nodes", name))


@pytest.fixture
def _clean(rehearsal: Rehearsal, ground: Ground) -> Iterator[None]:
    yield
    for path in (_LEASE, f"{_DEPLOYMENTS}/{_ORIGINAL}"):
        try:
            rehearsal.api.delete(path)
        except NotFound:
            continue
    for name in ("kept", "next", "ours"):
        try:
            ground.delete(name)
        except NotFound:
            continue
    for pool in ground.pools():
        ground.drop_pool(pool.name)
    ground.await_gone()
    rehearsal.kubectl("-n", NAMESPACE, "scale", "deployment/tpu-provisioner", "--replicas=1")
