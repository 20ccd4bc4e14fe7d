"""Tests of rules that all manifests and the chart for IPUs must follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from provisioner.cli.main import make_frame
from provisioner.settings import OPTIONS, nodegroups, partitions, webhook
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, container_of

_Documents = list[dict[str, Any]]
_RESOURCES = ("base", "nodegroups", "partitions")
_COMPONENTS = ("webhook", "webhook-partitions", "pod-monitor", "pod-monitoring")
_SETTINGS = {option.variable for module in (nodegroups, partitions, webhook) for option in module.OPTIONS} | {
    option.variable for option in OPTIONS
}
#: Value in `_NETWORKS` for a rule without `to`, which allows all addresses.
_ANYWHERE = {"any"}
#: For each Deployment: ports of its pods that clients may reach, and addresses that the pods may reach, by port.
_NETWORKS: dict[str, tuple[list[str], dict[int, set[str]]]] = {
    # The metadata server uses the ports 80 and 988.
    "tpu-provisioner": (
        ["metrics", "probes", "metrics"],
        {
            53: _ANYWHERE,
            443: {"0.0.0.0/0", "::/0"},
            80: {"169.254.169.254/32"},
            988: {"169.254.169.252/32"},
        },
    ),
    # API servers use port 443 on GKE, and port 6443 if kubeadm installed them.
    "tpu-provisioner-nodegroups": (
        ["metrics"],
        {53: _ANYWHERE, 443: _ANYWHERE, 6443: _ANYWHERE, 80: {"169.254.169.254/32"}},
    ),
    "tpu-provisioner-partitions": (
        ["api", "metrics", "probes"],
        {53: _ANYWHERE, 443: _ANYWHERE, 6443: _ANYWHERE, 8090: _ANYWHERE},
    ),
    "tpu-provisioner-webhook": (["webhooks", "metrics"], {443: _ANYWHERE, 6443: _ANYWHERE}),
}


@pytest.fixture(scope="module", params=["manifests", "chart of IPUs"])
def documents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Documents:
    """The objects of the manifests or of the chart for IPUs. The chart for TPUs has equal objects (test_chart.py)."""
    if request.param == "manifests":
        return tools.built(tmp_path_factory.mktemp("policies"), *_COMPONENTS, resources=_RESOURCES)
    values = {
        "image": {"repository": "registry.example/it"},
        "vipuServerAddr": "vipu.example",
        "podMonitor": {"enabled": True},
        "podMonitoring": {"enabled": True},
    }
    return tools.template(DEPLOY / "charts" / "ipu-partitions", values, release="ipu", namespace=NAMESPACE)


def _of(documents: _Documents, *kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] in kinds]


def _containers(documents: _Documents) -> Iterator[tuple[str, dict[str, Any]]]:
    for deployment in _of(documents, "Deployment"):
        name = deployment["metadata"]["name"]
        yield name, container_of(documents, name)


def test_pods_satisfy_the_restricted_standard(documents: _Documents) -> None:
    for deployment in _of(documents, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 65532)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["enableServiceLinks"] is False
        assert container["resources"]["limits"].keys() == {"memory"}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_container_starts_a_command_with_valid_flags(documents: _Documents) -> None:
    for name, container in _containers(documents):
        # Without a command in the manifest, the entry point of the image starts `run`.
        program, command, *flags = (*container.get("command", ("tpu-provisioner", "run")), *container["args"])
        ports = {port["name"]: f":{port['containerPort']}" for port in container["ports"]}
        assert program == "tpu-provisioner"
        found = _flags(name, command, flags)
        assert found == {"probes": ports["probes"], "metrics": ports["metrics"], "leader_elect": found["leader_elect"]}
        # All replicas of the webhook server serve requests, so they elect no leader.
        assert bool(found["leader_elect"]) is (command != "webhook")
        for probe, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
            assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "probes"}


def _flags(name: str, command: str, flags: list[str]) -> dict[str, Any]:
    frame = make_frame()
    with frame.make_context("tpu-provisioner", [command, *flags]) as context:
        _, found, rest = frame.resolve_command(context, [command, *flags])
        assert found is not None, name
        try:
            read = found.make_context(command, rest, parent=context).params
        except click.UsageError as error:
            pytest.fail(f"{name}: {error.format_message()}")
    return {
        "probes": read["health_probe_bind_address"],
        "metrics": read["metrics_bind_address"],
        "leader_elect": read.get("leader_elect"),
    }


def test_each_variable_of_a_container_is_a_setting(documents: _Documents) -> None:
    for name, container in _containers(documents):
        assert {variable["name"] for variable in container["env"]} <= _SETTINGS, name


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(expression["operator"] == "In" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def test_selectors_match_exactly_the_pods_of_their_deployment(documents: _Documents) -> None:
    deployments = {deployment["metadata"]["name"]: deployment["spec"] for deployment in _of(documents, "Deployment")}
    pods = {name: spec["template"]["metadata"]["labels"] for name, spec in deployments.items()}

    def selected(selector: dict[str, Any]) -> list[str]:
        return [name for name, labels in pods.items() if _selects(selector, labels)]

    for name, spec in deployments.items():
        assert selected(spec["selector"]) == [name]
        for spread in spec["template"]["spec"].get("topologySpreadConstraints", ()):
            assert selected(spread["labelSelector"]) == [name]
    services = [selected({"matchLabels": service["spec"]["selector"]}) for service in _of(documents, "Service")]
    budgets = [selected(budget["spec"]["selector"]) for budget in _of(documents, "PodDisruptionBudget")]
    networks = [selected(policy["spec"]["podSelector"]) for policy in _of(documents, "NetworkPolicy")]
    assert {len(found) for found in (*services, *budgets, *networks)} == {1}
    assert sorted(networks) == sorted([name] for name in pods)
    for monitor in _of(documents, "PodMonitor", "PodMonitoring"):
        assert selected(monitor["spec"]["selector"]) == list(pods)
        (endpoint,) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
        assert endpoint["port"] == "metrics"


def test_referenced_accounts_priority_classes_and_roles_exist(documents: _Documents) -> None:
    there = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for deployment in _of(documents, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert ("ServiceAccount", pod["serviceAccountName"]) in there
        assert "priorityClassName" not in pod or ("PriorityClass", pod["priorityClassName"]) in there
    for binding in _of(documents, "RoleBinding", "ClusterRoleBinding"):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in there
        for subject in binding["subjects"]:
            assert subject["kind"] == "Group" or (subject["kind"], subject["name"]) in there


def test_network_policies_allow_only_the_needed_connections(documents: _Documents) -> None:
    for policy in _of(documents, "NetworkPolicy"):
        spec = policy["spec"]
        assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
        name = policy["metadata"]["name"].replace("ipu-ipu-partitions-", "tpu-provisioner-")
        ports, reached = _NETWORKS[name.replace("ipu-ipu-", "tpu-provisioner-")]
        assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == ports
        # Ports for init containers and API servers are open to all addresses: these clients have no fixed addresses.
        anyone = [port["port"] for rule in spec["ingress"] if not rule.get("from") for port in rule["ports"]]
        assert anyone == [port for port in ports if port in ("api", "webhooks")]
        agents = [agent for rule in spec["ingress"] if rule["ports"][0]["port"] == "probes" for agent in rule["from"]]
        # Agents are selected by namespace and label together: a tenant can set the label of an agent on its own pods.
        assert all(agent.keys() == {"namespaceSelector", "podSelector"} for agent in agents)
        assert {
            port["port"]: {peer["ipBlock"]["cidr"] for peer in rule["to"]} if "to" in rule else _ANYWHERE
            for rule in spec["egress"]
            for port in rule["ports"]
        } == reached
        scraping = [rule for rule in spec["ingress"] if rule["ports"][0]["port"] == "metrics"]
        assert any("gmp-system" in str(rule["from"]) for rule in scraping)
        assert any("'metrics': 'enabled'" in str(rule["from"]) for rule in scraping)


def test_pods_of_self_managed_clusters_reach_api_servers_on_nodes(tmp_path: Path) -> None:
    """By default, Cilium matches no node against an ipBlock, so these rules have no `to`."""
    for policy in _of(tools.built(tmp_path, "webhook", "provider-gce", resources=_RESOURCES), "NetworkPolicy"):
        rules = [rule for rule in policy["spec"]["egress"] if "to" not in rule]
        assert {443, 6443} <= {port["port"] for rule in rules for port in rule["ports"]}, policy["metadata"]["name"]


@pytest.mark.parametrize("folder", [*_RESOURCES, "nodegroups/crds"])
def test_every_manifest_is_used_by_a_kustomization(folder: str) -> None:

    def named(kustomization: Path) -> Iterator[Path]:
        yield kustomization
        for name in yaml.safe_load(kustomization.read_text(encoding="utf-8"))["resources"]:
            path = kustomization.parent / name
            yield from named(path / "kustomization.yaml") if path.is_dir() else [path]

    there = {path for path in (DEPLOY / folder).rglob("*") if path.is_file()}
    # The kustomization of node groups leaves out the CRDs, which are installed separately.
    apart = {path for path in there if folder == "nodegroups" and path.parent.name == "crds"}
    assert set(named(DEPLOY / folder / "kustomization.yaml")) == there - apart
