"""Tests of the chart of IPU partitions with the documented values of Graphcore's plugin, and of their effects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import provisioner
from generators import alerts
from tests.deploy import tools
from tests.deploy.kit import only

pytestmark = pytest.mark.timeout(120)

_ROOT = Path(__file__).parents[2]
_CHART = _ROOT / "deploy" / "charts" / "ipu-partitions"
#: Every documented key of the plugin with its default, or with an example if the key has no default.
_PLUGIN: dict[str, Any] = {
    "image": {"repository": "registry.example/ipu", "tag": "v9", "pullPolicy": "IfNotPresent"},
    "imagePullSecrets": [{"name": "pull"}],
    "nameOverride": "",
    "fullNameOverride": "",
    "serviceAccount": {"create": True, "annotations": {}, "name": ""},
    "rbac": {"create": True},
    "vipuServerAddr": "vipu.example.com",
    "vipuServerPort": 8191,
    "controllerPort": 8080,
    "podAnnotations": {},
    "podSecurityPolicyContext": {},
    "securityContext": {},
    "service": {"type": "clusterIP", "port": 80},
    "resources": {},
    "autoscaling": {"enabled": False},
    "admissionWebhooks": {
        "scope": "",
        "image": {"repository": "localhost:5000/gc-webhook", "tag": "v18", "pullPolicy": "IfNotPresent"},
        "failurePolicy": "Fail",
        "port": 8443,
        "service": {"annotations": {}, "servicePort": 443, "type": "clusterIP"},
        "patch": {
            "enabled": True,
            "image": {
                "repository": "docker.io/jettech/kube-webhook-certgen",
                "tag": "v1.3.0",
                "pullPolicy": "IfNotPresent",
            },
            "priorityClassName": "",
            "podAnnotations": {},
            "runAsUser": 2000,
        },
    },
}

Objects = dict[tuple[str, str], dict[str, Any]]


def render(**changes: Any) -> Objects:
    made = tools.template(_CHART, _merged(_PLUGIN, changes), release="ipu", namespace="ipus")
    return {(document["kind"], document["metadata"]["name"]): document for document in made}


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {
        **base,
        **{
            key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
            for key, value in changes.items()
        },
    }


def container(objects: Objects, name: str) -> dict[str, Any]:
    (found,) = objects["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return found


def variables(objects: Objects, name: str) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container(objects, name)["env"] if "value" in variable}


def test_unchanged_values_of_the_plugin_install_all_parts() -> None:
    objects = render()
    assert variables(objects, "ipu-ipu-partitions")["VIPU_SERVERS"] == "vipu.example.com:8191"
    assert objects["Service", "ipu-ipu-partitions"]["spec"]["type"] == "ClusterIP"
    assert objects["Service", "ipu-ipu-partitions"]["spec"]["ports"][0]["port"] == 80
    told = variables(objects, "ipu-ipu-partitions-webhook")
    assert told["IPU_INJECTION"] == "least-privilege"
    assert told["IPU_INIT_IMAGE"] == "registry.example/ipu:v9"
    assert told["IPU_API_URL"] == "http://ipu-ipu-partitions.ipus.svc:80"
    (hook,) = objects["MutatingWebhookConfiguration", "ipu-ipu-partitions-webhook"]["webhooks"]
    assert hook["failurePolicy"] == "Fail"
    assert hook["clientConfig"]["service"] == {
        "name": "ipu-ipu-partitions-webhook", "namespace": "ipus", "port": 443, "path": "/mutate/partitions",
    }  # fmt: skip


def test_null_in_place_of_an_optional_map_is_the_default() -> None:
    """A key with only comments below it is null in YAML, so users set null by mistake."""
    assert render(**dict.fromkeys(("podSecurityPolicyContext", "securityContext", "autoscaling"))) == render()


def test_certificate_adds_a_port_for_init_containers_with_tls() -> None:
    """Pods that already wait use the port without TLS, which remains unless it is disabled."""
    objects = render(tls={"secretName": "api-tls", "caConfigMap": "bundle"})
    name = "ipu-ipu-partitions"
    made = container(objects, name)
    assert {"--api-bind-address=:8080", "--tls-bind-address=:8443", "--tls-cert-file=/etc/tls/tls.crt"} <= {
        *made["args"]
    }
    assert {port["name"]: port["containerPort"] for port in made["ports"]}["api-tls"] == 8443
    assert {"name": "tls", "mountPath": "/etc/tls", "readOnly": True} in made["volumeMounts"]
    volumes = objects["Deployment", name]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "tls", "secret": {"secretName": "api-tls", "defaultMode": 0o440}} in volumes
    assert [port["port"] for port in objects["Service", name]["spec"]["ports"]] == [80, 443]
    told = variables(objects, f"{name}-webhook")
    assert told["IPU_API_URL"] == f"https://{name}.ipus.svc"
    assert told["IPU_API_CA_CONFIG_MAP"] == "bundle"

    objects = render(tls={"secretName": "api-tls", "plainHttp": False})
    assert "--api-bind-address=0" in container(objects, name)["args"]
    assert "api" not in {port["name"] for port in container(objects, name)["ports"]}
    assert [port["port"] for port in objects["Service", name]["spec"]["ports"]] == [443]
    assert "IPU_API_CA_CONFIG_MAP" not in variables(objects, f"{name}-webhook")


_CONTROLLER = ("Deployment", "ipu-ipu-partitions")
_WEBHOOK = ("Deployment", "ipu-ipu-partitions-webhook")
_HOOKS = ("MutatingWebhookConfiguration", "ipu-ipu-partitions-webhook")
_RUNNING = "spec.template.spec.containers.0"
_EFFECTS: dict[str, tuple[dict[str, Any], tuple[str, str], str, object]] = {
    "the old spelling of the name": ({"fullNameOverride": "other"}, ("Deployment", "other"), "kind", "Deployment"),
    "Helm's spelling of the name": ({"fullnameOverride": "new"}, ("Deployment", "new"), "kind", "Deployment"),
    "the port of the Service": (
        {"service": {"type": "NodePort", "port": 81}}, ("Service", "ipu-ipu-partitions"), "spec.ports.0.port", 81,
    ),
    "the port of the controller": (
        {"controllerPort": 9000}, _CONTROLLER, f"{_RUNNING}.args.2", "--api-bind-address=:9000",
    ),
    "the port of the webhook server": (
        {"admissionWebhooks": {"port": 9443}}, _WEBHOOK, f"{_RUNNING}.ports.0.containerPort", 9443,
    ),
    "namespaces": (
        {"admissionWebhooks": {"scope": "a, b"}},
        _HOOKS, "webhooks.0.namespaceSelector.matchExpressions.0.values", ["a", "b"],
    ),
    "what happens without a webhook server": (
        {"admissionWebhooks": {"failurePolicy": "Ignore"}}, _HOOKS, "webhooks.0.failurePolicy", "Ignore",
    ),
    "the pods' security context": (
        {"podSecurityPolicyContext": {"runAsUser": 7}}, _CONTROLLER, "spec.template.spec.securityContext.runAsUser", 7,
    ),
    "the containers' security context": (
        {"securityContext": {"readOnlyRootFilesystem": False}},
        _CONTROLLER, f"{_RUNNING}.securityContext.readOnlyRootFilesystem", False,
    ),
    "annotations of pods": (
        {"podAnnotations": {"a": "b"}}, _CONTROLLER, "spec.template.metadata.annotations.a", "b",
    ),
    "an account that is there": (
        {"serviceAccount": {"name": "mine", "create": False}},
        _CONTROLLER, "spec.template.spec.serviceAccountName", "mine",
    ),
    "resources": (
        {"resources": {"limits": {"memory": "1Gi"}}}, _CONTROLLER, f"{_RUNNING}.resources.limits.memory", "1Gi",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "where", "place", "want"), _EFFECTS.values(), ids=_EFFECTS)
def test_value_of_the_plugin_has_its_effect(
    changes: dict[str, Any], where: tuple[str, str], place: str, want: object
) -> None:
    """The effects are as documented for the plugin, or as evidently intended if its documentation is wrong."""
    found: Any = render(**changes)[where]
    for step in place.split("."):
        found = found[int(step)] if isinstance(found, list) else found[step]
    assert found == want


def test_settings_are_also_settings_of_the_webhook_server() -> None:
    """Otherwise, the server could reject pods that the controller serves, or gate pods that the controller ignores."""
    given = {"LARGEST_PARTITION": 128, "SERVED_NAMESPACES": "ml"}
    objects = render(settings=given, webhookSettings={"LOG_LEVEL": "debug"})
    wanted = {"LARGEST_PARTITION": "128", "SERVED_NAMESPACES": "ml"}
    assert wanted.items() <= variables(objects, "ipu-ipu-partitions").items()
    assert {**wanted, "LOG_LEVEL": "debug"}.items() <= variables(objects, "ipu-ipu-partitions-webhook").items()


def test_setting_that_a_value_sets_as_well_is_one_variable() -> None:
    """A server-side apply rejects two variables with one name, and an upgrade with Helm may remove both."""
    own = {"IPU_INJECTION": "compatible", "IPU_INIT_IMAGE": "mine", "SERVED_NAMESPACES": "b"}
    objects = render(
        settings={"SERVED_NAMESPACES": "a"}, webhookSettings=own, admissionWebhooks={"scope": "c"}, injection="off"
    )
    for name, wanted in (("ipu-ipu-partitions", {"SERVED_NAMESPACES": "a"}), ("ipu-ipu-partitions-webhook", own)):
        names = [variable["name"] for variable in container(objects, name)["env"]]
        assert len(names) == len(set(names))
        assert wanted.items() <= variables(objects, name).items()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"autoscaling": {"enabled": True}}, "one controller leads", id="autoscaling"),
        pytest.param({"vipuServerAddr": ""}, "vipuServerAddr is required", id="no server"),
        pytest.param({"image": {"repository": ""}}, "image.repository is required", id="no image"),
        pytest.param({"injektion": "compatible"}, "injektion", id="a misspelt value"),
        pytest.param({"settings": {"LARGEST_PARTITON": "8"}}, "LARGEST_PARTITON", id="a misspelt setting"),
        pytest.param({"tls": {"secretname": "a"}}, "secretname", id="a misspelt part of a value"),
        pytest.param({"injection": "privileged"}, "injection", id="no such injection"),
        pytest.param({"service": {"type": "ExternalName"}}, "none of ClusterIP", id="a type that cannot work"),
        pytest.param(
            {"service": {"port": 443}, "tls": {"secretName": "tls"}}, "service.port must not be 443", id="a port twice"
        ),
    ],
)
def test_values_that_cannot_work_are_rejected_with_advice(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        render(**changes)


@pytest.mark.parametrize("component", ["partitions", "webhook"])
def test_replicas_are_spread_over_nodes_as_in_the_manifests(component: str) -> None:
    folder = {"partitions": "partitions", "webhook": "components/webhook"}[component]
    want = _manifest(f"{folder}/deployment.yaml", "Deployment")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    name = {"partitions": _CONTROLLER, "webhook": _WEBHOOK}[component]
    deployment = render()[name]["spec"]
    made = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert made == [{**want[0], "labelSelector": deployment["selector"]}]


def test_disabled_rbac_creates_no_rights() -> None:
    """The administrator then grants the rights. The policy that limits "patch pods" is still created."""
    kinds = {kind for kind, _ in render(rbac={"create": False})}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert "ValidatingAdmissionPolicy" in kinds


def test_credentials_are_mounted_only_for_the_controller() -> None:
    """The webhook server does not call V-IPU servers."""
    objects = render(vipuCredentialsSecret="keys", vipuServers="a:1:x=y,b:2")
    told = variables(objects, "ipu-ipu-partitions")
    assert (told["VIPU_CREDENTIALS"], told["VIPU_SERVERS"]) == ("/etc/vipu", "a:1:x=y,b:2")
    assert "keys" in str(objects["Deployment", "ipu-ipu-partitions"])
    assert "keys" not in str(objects["Deployment", "ipu-ipu-partitions-webhook"])


def _manifest(file: str, kind: str) -> dict[str, Any]:
    """Return an object of the manifests, with the service account of the chart's release in it."""
    text = (_ROOT / "deploy" / file).read_text("utf-8")
    text = text.replace("tpu-provisioner-system:tpu-provisioner-partitions", "ipus:ipu-ipu-partitions")
    return only(yaml.safe_load_all(text), kind)


def test_rights_policy_and_registration_are_those_of_the_manifests() -> None:
    objects = render()
    for file, kind, part in (
        ("cluster-role", "ClusterRole", "rules"),
        ("role", "Role", "rules"),
        ("pod-guard", "ValidatingAdmissionPolicy", "spec"),
    ):
        assert objects[kind, "ipu-ipu-partitions"][part] == _manifest(f"partitions/{file}.yaml", kind)[part]
    binding = _manifest("partitions/pod-guard.yaml", "ValidatingAdmissionPolicyBinding")["spec"]
    bound = objects["ValidatingAdmissionPolicyBinding", "ipu-ipu-partitions"]["spec"]
    assert bound == {**binding, "policyName": "ipu-ipu-partitions"}
    (ours,) = objects[_HOOKS]["webhooks"]
    (theirs,) = _manifest("components/webhook-partitions/mutating-webhook-configuration.yaml", _HOOKS[0])["webhooks"]
    assert (ours["rules"], ours["matchConditions"]) == (theirs["rules"], theirs["matchConditions"])


def test_network_policy_allows_the_ports_of_the_configured_servers() -> None:
    objects = render(vipuServers="a:8191, [fd00::1]:9000:x=y,b")
    rules = objects["NetworkPolicy", "ipu-ipu-partitions"]["spec"]["egress"]
    assert {8090, 8191, 9000} <= {port["port"] for rule in rules for port in rule["ports"]}
    assert not [kind for kind, _ in render(networkPolicy={"enabled": False}) if kind == "NetworkPolicy"]


def test_alerts_are_those_of_the_installed_parts() -> None:
    changes = {"enabled": True, "runbooks": "https://wiki.example/ipu", "labels": {"release": "prometheus"}}
    made = render(prometheusRule=changes)["PrometheusRule", "ipu-ipu-partitions"]
    assert made["metadata"]["labels"]["release"] == "prometheus"
    (group,) = made["spec"]["groups"]
    assert group["rules"] == [rule.json("https://wiki.example/ipu") for rule in alerts.OF_PARTITIONS]
    names = {rule["alert"] for rule in group["rules"]}
    assert {"IPUPartitionsAbsent", "TPUProvisionerWebhookAbsent"} <= names
    assert not names & {"TPUProvisionerAbsent", "TPUNodeGroupsAbsent"}


def test_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (provisioner.__version__, f"v{provisioner.__version__}")
