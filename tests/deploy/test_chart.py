"""The Helm chart: made from the code, the same objects as the kustomize base, taken by a real API server."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import HealthCheck, strategies

import provisioner
from deploy import chart, chart_schema
from provisioner.nodegroups.metrics import Metrics as NodeGroupMetrics
from provisioner.partitions.metrics import Metrics as PartitionMetrics
from provisioner.settings import OPTIONS, Option, SettingsError, read_settings
from provisioner.settings.nodegroups import OPTIONS as NODE_GROUP_OPTIONS
from provisioner.slices.metrics import Metrics
from provisioner.slices.preflight.in_kubernetes import rights_used
from provisioner.webhook.app import Metrics as WebhookMetrics
from rehearsal.demos import Rehearsal
from tests.deploy import tools
from tests.deploy.kit import NAMESPACE, Recorder, only, rights, sources_of_scrapes
from tests.deploy.mainjob import do_the_main_job, uninstalled, used_rights
from tests.e2e.kit import Ground
from tests.support.settings import settings as make_settings

pytestmark = pytest.mark.e2e

_REQUIRED = {
    "GCP_PROJECT_ID": "rehearsal-project",
    "GCP_CLUSTER_LOCATION": "us-central2",
    "GCP_ZONE": "us-central2-b",
    "GCP_CLUSTER": "rehearsal",
}
#: Built without helm's own release flags, it takes a cluster to be an old one where it is not told.
_TEMPLATE = ("helm", "template", "test", str(chart.CHART), "--kube-version=1.30.0")
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
    "networkPolicy": {"extraEgress": [{"ports": [{"protocol": "TCP", "port": 3128}]}]},
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraArgs": ["--zap-log-level=debug"],
}


_NODE_GROUPS = {**_IMAGE, "nodegroups": {"enabled": True, "credentialsSecret": "credentials"}}
_SERVICE_MONITOR = {**_IMAGE, "replicas": 2, "serviceMonitor": {"enabled": True}}


def _template(values: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return tools.run(*_TEMPLATE, f"--namespace={NAMESPACE}", f"--values={path}")


def _documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def test_generated_files_are_current() -> None:
    """Chart.yaml and values.schema.json are what `make chart` would write now."""
    for path, content in chart.files().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name} is not current: make chart"


def test_every_option_is_offered() -> None:
    """The schema names every setting but the two that the Deployment sets itself."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    offered = set(schema["properties"]["settings"]["properties"])
    assert offered == {option.variable for option in OPTIONS} - chart.OF_THE_POD


def test_lint() -> None:
    """Helm's own linter finds nothing."""
    tools.run("helm", "lint", "--strict", str(chart.CHART))


def _bare(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what a packager may name as he likes."""
    copied: dict[str, Any] = json.loads(json.dumps(document))
    copied["metadata"] = {"name": copied["metadata"]["name"], "namespace": copied["metadata"].get("namespace")}
    if copied["kind"] == "Deployment":
        template = copied["spec"]["template"]
        template["metadata"]["annotations"] = None
        (container,) = template["spec"]["containers"]
        container["image"] = container["imagePullPolicy"] = container["envFrom"] = None
        # The chart's settings stand among these; here it has none.
        assert {each["name"] for each in container["env"]} == chart.OF_THE_POD
    return copied


def test_the_same_objects_as_the_base(installed: list[dict[str, Any]], tmp_path: Path) -> None:
    """With the default values the chart makes what the kustomize base makes, but the namespace and the labels."""
    by_kustomize = [_bare(each) for each in installed if each["kind"] not in ("Namespace", "ConfigMap")]
    by_helm = [_bare(each) for each in _documents(_template(_IMAGE, tmp_path)) if each["kind"] != "ConfigMap"]
    assert {each["kind"] for each in by_helm} == {each["kind"] for each in by_kustomize}
    for want in by_kustomize:
        assert _bare(only(by_helm, want["kind"])) == want


def test_hints_without_data(tmp_path: Path) -> None:
    """The ConfigMap of hints is made without data, so that an upgrade leaves what the provisioner remembers."""
    hints = only(_documents(_template(_IMAGE, tmp_path)), "ConfigMap", "tpu-provisioner-hints")
    assert "data" not in hints


@pytest.mark.parametrize(
    "values",
    [_IMAGE, {**_IMAGE, "settings": _REQUIRED}, _FULL, _SERVICE_MONITOR, _NODE_GROUPS],
    ids=["default", "settings", "full", "a ServiceMonitor", "node groups"],
)
def test_taken_by_an_api_server(values: dict[str, Any], rehearsal: Rehearsal, tmp_path: Path) -> None:
    """Server-side applied with strict validation; nothing unknown, nothing refused. What is there stays."""
    text = _template(values, tmp_path)
    rehearsal.kubectl(
        "apply", "--server-side", "--validate=strict", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=text
    )


def test_the_main_job(
    rehearsal: Rehearsal, installed: list[dict[str, Any]], cluster_overlay: Path, ground: Ground, tmp_path: Path
) -> None:
    """Applied where nothing else is installed, the chart's objects let the provisioner do the main job."""
    text = _template({**_IMAGE, "settings": _REQUIRED}, tmp_path)
    documents = _documents(text)
    with uninstalled(rehearsal, cluster_overlay):
        rehearsal.create_namespace(NAMESPACE, labels={"pod-security.kubernetes.io/enforce": "restricted"})
        rehearsal.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=text)
        with Recorder(rehearsal).recording() as recorder:
            do_the_main_job(rehearsal, ground, documents, recorder, tmp_path)
    resources = {right.resource for right in used_rights(recorder, documents)}
    assert resources == {right.resource for right in rights(documents)}


def test_a_cluster_without_gke_gets_the_rights_on_node_groups(tmp_path: Path) -> None:
    """In the namespace that the settings name, and the way to an API server as kubeadm sets it up."""
    images = {"NODE_GROUP_IMAGES": "*=projects/p/global/images/i"}
    found = {}
    for namespace in ("", "slices"):
        settings = {**_REQUIRED, **images, "PROVIDER": "gce", "NODE_GROUP_NAMESPACE": namespace}
        documents = _documents(_template({**_IMAGE, "settings": settings}, tmp_path))
        wanted = rights_used(make_settings(own_namespace=NAMESPACE, provider="gce", node_group_namespace=namespace))
        assert rights(documents) == set(wanted)
        assert only(documents, "RoleBinding", "tpu-provisioner-node-groups")
        found[namespace] = only(documents, "NetworkPolicy")["spec"]["egress"]
    ports = [port["port"] for rule in found["slices"] for port in rule["ports"]]
    assert (6443 in ports, len(ports)) == (True, 6)


def test_full_values(installed: list[dict[str, Any]], tmp_path: Path) -> None:
    """Every value gets where it belongs."""
    documents = _documents(_template(_FULL, tmp_path))
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
    assert not [each for each in documents if each["kind"] == "PriorityClass"]
    assert [each["kind"] for each in documents if each["metadata"]["labels"].get("team") != "ml"] == []
    # A selector is never changed: what is chosen later must not be in it.
    assert "team" not in only(documents, "Deployment")["spec"]["selector"]["matchLabels"]
    assert only(documents, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"
    assert only(documents, "PodMonitoring")["spec"]["endpoints"][0]["interval"] == "1m"
    assert only(documents, "NetworkPolicy")["spec"]["egress"][-1] == _FULL["networkPolicy"]["extraEgress"][0]
    assert only(documents, "Deployment")["spec"]["replicas"] == 2
    assert only(documents, "ServiceAccount")["metadata"]["annotations"] == _FULL["serviceAccount"]["annotations"]
    assert only(documents, "PodMonitor")["metadata"]["labels"]["release"] == "prometheus"
    assert sources_of_scrapes(documents) == [{"metrics": "enabled"}, ["gmp-system", "gke-gmp-system"]]
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert environment["CONCURRENCY"] == "8"
    read = read_settings(environment)
    assert (read.concurrency, read.node_secure_boot, read.deletion_delay_seconds) == (8, True, 90.0)
    more = {right.resource for right in rights(documents) - rights(installed)}
    assert more == {"namespaces", "jobs"}


_VALUES = (
    ("a misspelt setting", {"GCP_PROJECT": "a"}, False),
    ("a duration", {"NODEPOOL_DELETION_DELAY": "1m30s"}, True),
    ("a duration without a unit", {"NODEPOOL_DELETION_DELAY": "30"}, False),
    ("a duration that is a number", {"NODEPOOL_DELETION_DELAY": 5}, False),
    ("no duration at all", {"NODEPOOL_DELETION_DELAY": 0}, True),
    ("a run longer than Google's longest", {"MAX_RUN_DURATION": "169h"}, False),
    ("choices of capacity", {"CAPACITY": "reservation/r1@us-central2-b, on-demand, spot"}, True),
    ("a misspelt choice", {"CAPACITY": "on-demnd"}, False),
    ("a choice that is not served", {"CAPACITY": "spot, queued"}, False),
    ("zones", {"ZONES": "us-central2-b, us-central2-c"}, True),
    ("a zone that is a region", {"ZONES": "us-central2"}, False),
    ("networks", {"GCP_NODE_ADDITIONAL_NETWORKS": "vpc1:subnet1"}, True),
    ("a network without a subnetwork", {"GCP_NODE_ADDITIONAL_NETWORKS": "vpc1"}, False),
    ("a label", {"OPT_IN_LABEL": "tpu=yes"}, True),
    ("a label without a value", {"OPT_IN_LABEL": "tpu"}, False),
    ("the mock provider", {"PROVIDER": "mock"}, False),
    ("an endpoint in clear", {"GKE_ENDPOINT": "http://gke.example"}, False),
    ("a share beyond, as text", {"NODEPOOL_REPLACED_SHARE": "101"}, False),
    ("a number", {"CONCURRENCY": 64}, True),
    ("a number as text", {"CONCURRENCY": "64"}, True),
    ("a share beyond", {"NODEPOOL_REPLACED_SHARE": 101}, False),
    ("a number that is none", {"CONCURRENCY": "many"}, False),
    ("a truth value", {"GCP_FORCE_ON_DEMAND": True}, True),
    ("a truth value as text", {"GCP_FORCE_ON_DEMAND": "t"}, True),
    ("neither true nor false", {"GCP_FORCE_ON_DEMAND": "yes"}, False),
    ("a project", {"GCP_PROJECT_ID": "example.com:a-project"}, True),
    ("no project", {"GCP_PROJECT_ID": "A_Project"}, False),
    ("a list", {"SERVED_NAMESPACES": "a, b,"}, True),
    ("a list with a bad item", {"SERVED_NAMESPACES": "a, B"}, False),
    ("amounts", {"MAX_CHIPS_PER_NAMESPACE": "team-a=512, *=16"}, True),
    ("an amount without a number", {"MAX_CHIPS_PER_NAMESPACE": "team-a"}, False),
    ("prices", {"CHIP_HOUR_PRICES": "tpu-v6e-slice/spot=1.35, *=3"}, True),
    ("an accelerator that does not exist", {"MAX_CHIPS_PER_ACCELERATOR": "tpu-v7=8"}, False),
    ("a price of an accelerator that does not exist", {"CHIP_HOUR_PRICES": "tpu-v6e=3"}, False),
    ("a price with a currency", {"CHIP_HOUR_PRICES": "tpu-v6e-slice=$3"}, False),
    ("a list of what is allowed", {"ALLOWED_NETWORKS": "vpc1:subnet1, vpc2*"}, True),
    ("nothing allowed", {"ALLOWED_NETWORKS": "none"}, True),
    ("what no name looks like allowed", {"ALLOWED_NETWORKS": "a b"}, False),
    ("an empty value", {"SERVED_NAMESPACES": ""}, True),
    ("a level", {"LOG_LEVEL": "warning"}, True),
    ("no level", {"LOG_LEVEL": "loud"}, False),
)


@pytest.mark.parametrize(("name", "change", "want_accepted"), _VALUES, ids=[case[0] for case in _VALUES])
def test_the_schema_agrees_with_the_controller(
    name: str,
    change: dict[str, Any],
    want_accepted: bool,
    tmp_path: Path,
) -> None:
    """What the chart refuses the controller would refuse too, in the same cases."""
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({**_IMAGE, "settings": _REQUIRED | change}), encoding="utf-8")
    done = subprocess.run(
        [tools.tool("helm"), *_TEMPLATE[1:], f"--values={path}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode == 0) == want_accepted, done.stderr
    if not want_accepted:
        assert next(iter(change)) in done.stderr
        if name == "a misspelt setting":
            # The environment holds much that is not the controller's: it cannot know.
            return
    try:
        read_settings(_REQUIRED | {key: str(value) for key, value in change.items()})
    except SettingsError:
        assert not want_accepted
    else:
        assert want_accepted


@pytest.mark.parametrize(
    "option", _ALL_OFFERED, ids=[f"{option.group.name}: {option.variable}" for option in _ALL_OFFERED]
)
def test_what_the_schema_accepts_the_controller_accepts(option: Option) -> None:
    """Whatever matches a setting's pattern is read, unless it names something twice, which no pattern can tell."""
    schema = chart_schema.property_of(option)
    for value in schema.get("enum", []):
        if value != "":
            option.read(str(value).lower() if isinstance(value, bool) else value)
    also = [each["pattern"] for each in schema.get("allOf", [])]
    for pattern in [each["pattern"] for each in [schema, *schema.get("anyOf", [])] if "pattern" in each]:

        @hypothesis.settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @hypothesis.given(strategies.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
        def accepts(text: str) -> None:
            # The controller takes blanks at the ends away, and takes what is left empty for not set.
            stripped = text.strip()
            if not stripped or not all(re.search(each, text, re.ASCII) for each in also):
                return
            try:
                option.read(stripped)
            except ValueError as error:
                assert " twice" in str(error), (text, error)  # noqa: PT017 - the other side of an exception

        accepts()


def test_a_form_that_is_not_known() -> None:
    """A new form of setting cannot be left out of the schema by mistake."""
    option = replace(OPTIONS[0], read=int)
    with pytest.raises(LookupError, match="GCP_PROJECT_ID is read by int"):
        chart_schema.property_of(option)


_RANGES = ((0, 9), (1, 64), (8, 256), (600, 604800), (0, 59), (1, 65535), (7, 7))


@pytest.mark.parametrize(("least", "most"), _RANGES)
def test_a_pattern_of_whole_numbers(least: int, most: int) -> None:
    """It matches the numbers within the bounds and no other."""
    pattern = re.compile(chart_schema.whole(least, most))
    near = {edge + step for edge in (least, most) for step in range(-20, 21)} | set(range(1200))
    assert {number for number in near if pattern.fullmatch(str(number))} == {
        number for number in near if least <= number <= most
    }


def test_without_an_image(tmp_path: Path) -> None:
    """There is no image that everybody can pull: the chart says so instead of installing one that nobody can."""
    done = subprocess.run([tools.tool("helm"), *_TEMPLATE[1:]], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "image.repository is required" in done.stderr


def test_the_image_of_a_release(tmp_path: Path) -> None:
    """Without tag and digest it is the release's tag."""
    documents = _documents(_template(_IMAGE, tmp_path))
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/controller:v{provisioner.__version__}"


def test_the_alerts_are_about_metrics_that_are_there(tmp_path: Path) -> None:
    """Every metric in a rule is one that a controller or the webhook serves, and every rule says what it means."""
    rule = only(_documents(_template(_FULL, tmp_path)), "PrometheusRule")
    kinds = (Metrics, WebhookMetrics, NodeGroupMetrics, PartitionMetrics)
    registries = [kind(version="test").registry for kind in kinds]
    served = {each.name for registry in registries for each in registry.described}
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    assert len({each["alert"] for each in rules}) == len(rules) >= 11
    for each in rules:
        assert {name.removesuffix("_bucket") for name in re.findall(r"tpu_provisioner_\w+", each["expr"])} <= served
        assert each["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_patterns_are_plain() -> None:
    """The schema's patterns are regular expressions of every dialect: no look-around, no named groups."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    settings = schema["properties"]["settings"]["properties"].values()
    patterns = [
        part["pattern"]
        for setting in settings
        for part in [setting, *setting.get("anyOf", []), *setting.get("allOf", [])]
        if "pattern" in part
    ]
    assert patterns
    assert [pattern for pattern in patterns if re.search(r"\(\?[^:]", pattern)] == []
