"""Tests that the Helm chart is current, is equal to the kustomize base, and is accepted by a real API server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import HealthCheck, strategies

import provisioner
from generators import chart, chart_schema
from provisioner.settings import OPTIONS, Option, SettingsError, read_settings
from provisioner.settings.nodegroups import OPTIONS as NODE_GROUP_OPTIONS
from provisioner.settings.partitions import OPTIONS as PARTITION_OPTIONS
from provisioner.slices.preflight.in_kubernetes import rights_used
from rehearsal.demos import Rehearsal
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, bare, container_of, environment_of, only, rights
from tests.support.settings import settings as make_settings

pytestmark = pytest.mark.e2e

_REQUIRED = {
    "GCP_PROJECT_ID": "rehearsal-project",
    "GCP_CLUSTER_LOCATION": "us-central2",
    "GCP_ZONE": "us-central2-b",
    "GCP_CLUSTER": "rehearsal",
}
_OFFERED = tuple(option for option in OPTIONS if option.variable not in chart.OF_THE_POD)
_ALL_OFFERED = (*_OFFERED, *(option for option in NODE_GROUP_OPTIONS if option.variable not in chart.OF_THE_POD))
_DIGEST = f"sha256:{'0' * 64}"
_IMAGE = {"image": {"repository": "registry.example/controller"}}
_FULL: dict[str, Any] = {
    "settings": {
        **_REQUIRED,
        "GCP_NODE_SERVICE_ACCOUNT": "nodes@rehearsal-project.iam.gserviceaccount.com",
        "GCP_NODE_TAGS": "a, b",
        "GCP_NODE_SECURE_BOOT": True,
        "NODEPOOL_DELETION_DELAY": "1m30s",
        "CONCURRENCY": 8,
        "OPT_IN_LABEL": "tpu=yes",
        "SERVE_JOBS": True,
    },
    "image": {"repository": "registry.example/controller", "digest": _DIGEST, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "replicas": 2,
    "serviceAccount": {
        "annotations": {"iam.gke.io/gcp-service-account": "tpu@rehearsal-project.iam.gserviceaccount.com"}
    },
    "commonLabels": {"team": "ml"},
    "podLabels": {"sidecar.istio.io/inject": "false"},
    "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "envFrom": [{"configMapRef": {"name": "proxy"}}],
    "extraVolumes": [{"name": "authority", "configMap": {"name": "authority"}}],
    "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}],
    "priorityClassName": "platform",
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "example/rack",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "tpu-provisioner"}},
        }
    ],
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
    "podMonitoring": {"enabled": True, "interval": "1m"},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "namespace": "default", "annotations": {"grafana_folder": "TPU"}},
    "networkPolicy": {
        "extraIngress": [{"from": [{"ipBlock": {"cidr": "10.0.0.2/32"}}], "ports": [{"port": "probes"}]}],
        "extraEgress": [{"ports": [{"protocol": "TCP", "port": 3128}]}],
    },
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraArgs": ["--zap-log-level=debug"],
}


_NODE_GROUPS = {**_IMAGE, "nodegroups": {"enabled": True, "credentialsSecret": "credentials"}}
_SERVICE_MONITOR = {**_IMAGE, "replicas": 2, "serviceMonitor": {"enabled": True}}


def _template(values: dict[str, Any]) -> list[dict[str, Any]]:
    return tools.template(chart.CHART, values, namespace=NAMESPACE)


def test_generated_files_of_the_chart_are_current() -> None:
    for path, content in chart.files().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name} is not current: make chart"


def test_chart_has_no_findings_of_helm_lint() -> None:
    tools.run("helm", "lint", "--strict", str(chart.CHART))


def test_chart_with_default_values_creates_the_objects_of_the_base(
    installed: list[dict[str, Any]], tmp_path: Path
) -> None:
    by_kustomize = bare(document for document in installed if document["kind"] not in ("Namespace", "ConfigMap"))
    by_helm = _template(_IMAGE)
    assert bare(document for document in by_helm if document["kind"] != "ConfigMap") == by_kustomize
    # Instead of a ConfigMap, the chart sets the settings as variables of the container.
    limits = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))["settings"]
    assert {variable["name"] for variable in container_of(by_helm)["env"]} == chart.OF_THE_POD | limits.keys()


@pytest.mark.parametrize(
    "values",
    [_FULL, _SERVICE_MONITOR, _NODE_GROUPS, {**_IMAGE, "webhook": {"only": True}}],
    ids=["full", "a ServiceMonitor", "node groups", "the webhook alone"],
)
def test_objects_of_the_chart_are_accepted_by_a_real_api_server(
    values: dict[str, Any], rehearsal: Rehearsal, tmp_path: Path
) -> None:
    text = yaml.safe_dump_all(_template(values))
    rehearsal.kubectl(
        "apply", "--server-side", "--validate=strict", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=text
    )


def test_chart_grants_provider_gce_its_rights_in_the_namespace_of_node_groups(tmp_path: Path) -> None:
    """With PROVIDER=gce, the network policy also allows port 6443 of API servers that kubeadm installed."""
    images = {"NODE_GROUP_IMAGES": "*=projects/p/global/images/i"}
    found = {}
    for namespace in ("", "slices"):
        settings = {**_REQUIRED, **images, "PROVIDER": "gce", "NODE_GROUP_NAMESPACE": namespace}
        documents = _template({**_IMAGE, "settings": settings})
        wanted = rights_used(make_settings(own_namespace=NAMESPACE, provider="gce", node_group_namespace=namespace))
        assert rights(documents) == set(wanted)
        assert only(documents, "RoleBinding", "tpu-provisioner-node-groups")
        found[namespace] = only(documents, "NetworkPolicy")["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]} in found["slices"]


#: Settings that describe the cluster of an installation. All other settings of the examples are limits.
_OF_CLUSTERS = frozenset(
    {
        "ALLOWED_PROJECTS", "API_SERVER_ADDRESS", "GCP_CLUSTER", "GCP_CLUSTER_LOCATION", "GCP_NODE_SERVICE_ACCOUNT",
        "GCP_PROJECT_ID", "GCP_ZONE", "IPU_INJECTION", "POD_NAME", "POD_NAMESPACE", "SERVED_NAMESPACES", "VIPU_SERVERS",
    }
)  # fmt: skip
_EXAMPLES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "slices": ("example-cluster", "tpu-provisioner", {}, "tpu-provisioner"),
    "slices beside node groups": (
        "example-cluster", "tpu-provisioner", {"nodegroups": {"enabled": True}}, "tpu-provisioner",
    ),
    "partitions": ("ipu-cluster", "ipu-partitions", {"vipuServerAddr": "vipu.example"}, "test-ipu-partitions"),
}  # fmt: skip


@pytest.mark.parametrize(("example", "name", "values", "deployment"), _EXAMPLES.values(), ids=_EXAMPLES)
def test_chart_and_example_start_with_the_same_limits(
    example: str, name: str, values: dict[str, Any], deployment: str
) -> None:
    lines = (DEPLOY / "example-project" / example / "settings.env").read_text(encoding="utf-8").splitlines()
    written = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    documents = tools.template(DEPLOY / "charts" / name, {**_IMAGE, **values}, namespace=NAMESPACE)
    # The chart ipu-partitions leaves out a limit that is equal to the default of its setting.
    defaults = {option.variable: option.default for option in PARTITION_OPTIONS if name == "ipu-partitions"}
    limits = {key: value for key, value in written.items() if key not in _OF_CLUSTERS and defaults.get(key) != value}
    assert limits
    rendered = environment_of(documents, deployment)
    assert {key: value for key, value in rendered.items() if key not in _OF_CLUSTERS} == limits


def test_an_empty_setting_removes_a_limit_of_the_chart() -> None:
    documents = _template({**_IMAGE, "settings": {**_REQUIRED, "MAX_CHIPS": "", "ALLOWED_NETWORKS": ""}})
    read = read_settings(environment_of(documents))
    assert (read.max_chips, read.allowed_networks, read.allowed_reservations) == (None, None, ())


def test_each_value_of_the_chart_is_in_its_field(installed: list[dict[str, Any]], tmp_path: Path) -> None:
    documents = _template(_FULL)
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"registry.example/controller@{_DIGEST}"
    assert container["imagePullPolicy"] == "Always"
    assert container["args"][-1] == "--zap-log-level=debug"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == _FULL["nodeSelector"]
    assert pod["tolerations"] == _FULL["tolerations"]
    assert pod["topologySpreadConstraints"] == _FULL["topologySpreadConstraints"]
    assert pod["priorityClassName"] == "platform"
    assert pod["volumes"] == _FULL["extraVolumes"]
    assert container["volumeMounts"] == _FULL["extraVolumeMounts"]
    assert container["envFrom"] == _FULL["envFrom"]
    assert _FULL["extraEnv"][0] in container["env"]
    metadata = only(documents, "Deployment")["spec"]["template"]["metadata"]
    assert (_FULL["podLabels"] | _FULL["commonLabels"]).items() <= metadata["labels"].items()
    assert _FULL["podAnnotations"].items() <= metadata["annotations"].items()
    assert not [document for document in documents if document["kind"] == "PriorityClass"]
    assert [document["kind"] for document in documents if document["metadata"]["labels"].get("team") != "ml"] == []
    # The selector of a Deployment is immutable, so it must not contain labels that a user may change later.
    assert "team" not in only(documents, "Deployment")["spec"]["selector"]["matchLabels"]
    assert only(documents, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"
    assert only(documents, "PodMonitoring")["spec"]["endpoints"][0]["interval"] == "1m"
    policy = only(documents, "NetworkPolicy")["spec"]
    assert [policy[way][-1:] for way in ("ingress", "egress")] == list(_FULL["networkPolicy"].values())
    assert only(documents, "Deployment")["spec"]["replicas"] == 2
    assert only(documents, "ServiceAccount")["metadata"]["annotations"] == _FULL["serviceAccount"]["annotations"]
    assert only(documents, "PodMonitor")["metadata"]["labels"]["release"] == "prometheus"
    environment = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    assert environment["CONCURRENCY"] == "8"
    read = read_settings(environment)
    assert (read.concurrency, read.node_secure_boot, read.deletion_delay_seconds) == (8, True, 90.0)
    more = {right.resource for right in rights(documents) - rights(installed)}
    assert more == {"namespaces", "jobs"}


@pytest.mark.parametrize("product", ["webhook", "nodegroups"])
@pytest.mark.parametrize("value", ["enabled", "only"])
def test_service_monitor_with_products_that_it_does_not_scrape_is_rejected(product: str, value: str) -> None:
    """Without metrics of the webhook server or of node groups, the alerts about them would never fire."""
    with pytest.raises(ValueError, match=r"use podMonitor\.enabled"):
        _template({**_IMAGE, "serviceMonitor": {"enabled": True}, product: {value: True}})


@pytest.mark.parametrize(
    "values",
    [{"settings": None}, {"webhook": {"settings": None}}, {"nodegroups": {"settings": None}}, {"podMonitor": None}],
    ids=["settings", "of the webhook", "of node groups", "a part of the chart"],
)
def test_null_value_is_rejected_by_its_name(values: dict[str, Any]) -> None:
    """A key with only comments below it is null in YAML, so users set null by mistake."""
    with pytest.raises(ValueError, match=f"missing property '({'|'.join([*values, 'settings'])})'"):
        _template({**_IMAGE, **values})


def test_failure_policy_that_is_null_is_the_default() -> None:
    """The chart's default is Ignore. Kubernetes' default, Fail, would reject pods while no webhook server responds."""
    documents = _template({**_IMAGE, "webhook": {"enabled": True, "failurePolicy": None}})
    assert {hook["failurePolicy"] for hook in only(documents, "MutatingWebhookConfiguration")["webhooks"]} == {"Ignore"}


@pytest.mark.parametrize(
    "values",
    [{"replicas": 2}, {"nodeSelector": {"a": "b"}}, {"resources": {"limits": {"memory": "2Gi"}}}],
    ids=lambda values: next(iter(values)),
)
def test_value_of_the_provisioner_is_rejected_if_only_node_groups_are_installed(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"set nodegroups\.{next(iter(values))}"):
        _template({**_IMAGE, "nodegroups": {"only": True}, **values})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"image": {**_IMAGE["image"], "tag": "v9", "digest": _DIGEST}}, r"image\.tag v9 has no effect"),
        ({"webhook": {"partitions": {"enabled": True}}}, r"webhook\.partitions\.enabled has no effect"),
        ({"webhook": {"certManager": {"enabled": True}}}, r"webhook\.certManager\.enabled has no effect"),
    ],
    ids=["tag and digest", "partitions without webhook", "cert-manager without webhook"],
)
def test_value_without_effect_is_rejected(values: dict[str, Any], problem: str) -> None:
    """For example, a released chart sets the digest, so that a tag of the user would be ignored."""
    with pytest.raises(ValueError, match=problem):
        _template({**_IMAGE, **values})


def test_extra_env_and_env_from_apply_to_every_deployment() -> None:
    """The webhook server reads settings of the controller, which may be in a ConfigMap of `envFrom`."""
    documents = _template({**_FULL, "webhook": {"enabled": True}, "nodegroups": {"enabled": True}})
    deployments = [document["metadata"]["name"] for document in documents if document["kind"] == "Deployment"]
    assert len(deployments) == 3
    for name in deployments:
        assert container_of(documents, name)["envFrom"] == _FULL["envFrom"], name
        assert _FULL["extraEnv"][0] in container_of(documents, name)["env"], name


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "MAX_CHIPS"),
        ({}, "POD_NAME"),
        ({}, "HTTPS_PROXY"),
        ({"webhook": {"only": True, "settings": {"INJECT": "all"}}}, "INJECT"),
        ({"webhook": {"only": True, "partitions": {"enabled": True}}}, "IPU_INIT_IMAGE"),
        ({"nodegroups": {"only": True, "credentialsSecret": "key"}}, "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_extra_variable_with_the_name_of_another_variable_is_rejected(values: dict[str, Any], name: str) -> None:
    """Helm merges variables by name: if the user removed the second MAX_CHIPS, an upgrade would remove both."""
    extra = [{"name": "HTTPS_PROXY", "value": "proxy:1"}, {"name": name, "value": "3"}]
    with pytest.raises(ValueError, match=f"extraEnv sets {name}"):
        _template({**_IMAGE, **values, "extraEnv": extra})


@pytest.mark.parametrize(
    ("values", "apis", "ineffective"),
    [
        ({}, (), True),
        ({"webhook": {"enabled": True}}, (), False),
        ({"placement": {"enabled": False}}, (), False),
        ({"webhook": {"only": True}}, (), False),
        ({"nodegroups": {"only": True}}, (), False),
        ({}, (tools.MUTATING_POLICIES,), False),
    ],
    ids=["neither policy nor webhook", "webhook", "placement disabled", "webhook only", "node groups only", "policy"],
)
def test_notes_warn_if_placement_has_no_effect_on_the_cluster(
    values: dict[str, Any], apis: tuple[str, ...], ineffective: bool, tmp_path: Path
) -> None:
    notes = tools.notes(chart.CHART, {**_IMAGE, **values}, tmp_path, apis=apis)
    expected = "placement.enabled has no effect on this cluster: set webhook.enabled=true"
    assert (expected in notes.splitlines()) is ineffective


_POLICIES = {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}


def test_placement_follows_the_values_and_the_apis_of_the_cluster(tmp_path: Path) -> None:
    """The placement policy needs its API. By default, the guards are on each cluster, as in the kustomize base."""

    def names(values: dict[str, Any], **options: Any) -> set[str]:
        documents = tools.template(chart.CHART, {**_IMAGE, **values}, namespace=NAMESPACE, **options)
        return {document["metadata"]["name"] for document in documents if document["kind"] in _POLICIES}

    of_guards = ("assignment-guard", "node-guard", "placement-guard", "pod-guard", "priority")
    guards = {f"tpu-provisioner-{name}" for name in of_guards}
    assert names({}) == {*guards, "tpu-provisioner-placement"}
    assert names({}, apis=()) == guards
    assert names({"placement": {"enabled": False}}) == guards
    assert names({"nodeGuard": {"enabled": False}}, apis=()) == {
        f"tpu-provisioner-{name}" for name in ("placement-guard", "pod-guard", "priority")
    }
    assert names({"webhook": {"only": True}}) == {"tpu-provisioner-webhook-priority"}
    assert not {name for name in names({"nodegroups": {"only": True}}) if "placement" in name}


def test_chart_value_assigns_all_namespaces_like_the_component(tmp_path: Path) -> None:
    by_helm = _template({**_IMAGE, "placement": {"namespaces": "all"}})
    by_kustomize = tools.built(tmp_path, "placement", "placement-all-namespaces", resources=["base"])
    for kind, name in (
        ("MutatingAdmissionPolicy", "tpu-provisioner-placement"),
        ("ValidatingAdmissionPolicy", "tpu-provisioner-placement-guard"),
    ):
        specs = [only(documents, kind, name)["spec"] for documents in (by_helm, by_kustomize)]
        assert specs[0] == specs[1]
        assert specs[0]["variables"][0]["expression"].endswith('!= "off"')


#: An invalid setting for each form of values, by description.
_REFUSED = {
    "a misspelt setting": {"GCP_PROJECT": "a"},
    "a duration without a unit": {"NODEPOOL_DELETION_DELAY": "30"},
    "a run longer than Google's longest": {"MAX_RUN_DURATION": "169h"},
    "a choice that is not served": {"CAPACITY": "spot, queued"},
    "a zone that is a region": {"ZONES": "us-central2"},
    "a network without a subnetwork": {"GCP_NODE_ADDITIONAL_NETWORKS": "vpc1"},
    "a label without a value": {"OPT_IN_LABEL": "tpu"},
    "an endpoint in clear": {"GKE_ENDPOINT": "http://gke.example"},
    "a share beyond": {"NODEPOOL_REPLACED_SHARE": 101},
    "neither true nor false": {"GCP_FORCE_ON_DEMAND": "yes"},
    "a list with a bad item": {"SERVED_NAMESPACES": "a, B"},
    "an amount without a number": {"MAX_CHIPS_PER_NAMESPACE": "team-a"},
    "a price with a currency": {"CHIP_HOUR_PRICES": "tpu-v6e-slice=$3"},
    "what no name looks like allowed": {"ALLOWED_NETWORKS": "a b"},
    "no level": {"LOG_LEVEL": "loud"},
}


@pytest.mark.parametrize("change", _REFUSED.values(), ids=_REFUSED)
def test_value_that_the_schema_rejects_is_rejected_by_the_controller(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=name):
        _template({**_IMAGE, "settings": _REQUIRED | change})
    # Only the schema rejects a misspelt name, because the controller ignores unknown variables.
    if name in {option.variable for option in OPTIONS}:
        with pytest.raises(SettingsError):
            read_settings(_REQUIRED | {key: str(value) for key, value in change.items()})


#: Number of examples for each pattern of a value: a quarter of the usual number, because there are about 60 patterns.
_EXAMPLES = hypothesis.settings.default.max_examples // 4


@pytest.mark.parametrize(
    "option", _ALL_OFFERED, ids=[f"{option.group.name}: {option.variable}" for option in _ALL_OFFERED]
)
def test_value_that_the_schema_accepts_is_accepted_by_the_controller(option: Option) -> None:
    """The schema accepts a list with a repeated item, because a pattern cannot detect it."""
    schema = chart_schema.property_of(option)
    for value in schema.get("enum", []):
        if value != "":
            option.read(str(value).lower() if isinstance(value, bool) else value)
    also = [part["pattern"] for part in schema.get("allOf", [])]
    for pattern in [part["pattern"] for part in [schema, *schema.get("anyOf", [])] if "pattern" in part]:

        @hypothesis.settings(database=None, max_examples=_EXAMPLES, suppress_health_check=list(HealthCheck))
        @hypothesis.given(strategies.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
        def accepts(text: str) -> None:
            # The controller strips blanks at both ends of a value, and treats an empty value as not set.
            stripped = text.strip()
            if not stripped or not all(re.search(other, text, re.ASCII) for other in also):
                return
            try:
                option.read(stripped)
            except ValueError as error:
                assert " twice" in str(error), (text, error)  # noqa: PT017 - the other side of an exception

        accepts()


def test_image_must_be_named_and_has_the_tag_of_the_release_by_default() -> None:
    """The chart has no default repository, because there is no public image."""
    with pytest.raises(ValueError, match=r"image\.repository is required"):
        _template({})
    (container,) = only(_template(_IMAGE), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/controller:v{provisioner.__version__}"
