"""Tests of the installed webhook server: its rights, the objects that are sent to it, and its patches."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import chart
from provisioner import constants
from provisioner.cli import webhook as webhook_command
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.workloads import WorkloadKind
from provisioner.settings.webhook import OPTIONS, WebhookSettings, read_webhook_settings
from provisioner.slices import admission
from provisioner.slices.preflight.in_kubernetes import Right
from provisioner.webhook.app import Addresses, make_hooks
from provisioner.workloads import JOBSET, RAY_CLUSTER
from rehearsal.demos import Rehearsal, RehearsalError
from rehearsal.demos.world import wait_for
from rehearsal.localcluster.ports import HOST, free_ports
from rehearsal.localcluster.processes import Process
from tests.deploy import tools
from tests.deploy.kit import (
    DEPLOY,
    NAMESPACE,
    Recorder,
    bare,
    container_of,
    environment_of,
    key_of,
    kubeconfig_of_service_account,
    only,
    rights,
)
from tests.deploy.mainjob import used_rights
from tests.e2e.kit import PATIENCE_SECONDS, Ground
from tests.support.kube import FakeKube
from tests.support.objects import pod_spec, raw_job, raw_jobset, raw_raycluster

pytestmark = pytest.mark.e2e

_NAME = "tpu-provisioner-webhook"
_CERTIFICATES = f"{_NAME}-certificates"
_CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{_NAME}"
_SECRET = object_path("secrets", _CERTIFICATES, namespace=NAMESPACE)
_ACCOUNT = f"--as=system:serviceaccount:{NAMESPACE}:{_NAME}"
_PLACEMENT_PATHS = ("/mutate/placement", "/mutate/placement/assign", "/mutate/placement/off")
_ASKING = {"gke-tpu-env-injector.aaronbatilo.dev/inject": "enabled"}

Json = dict[str, Any]
_Documents = list[Json]


def _configurations(documents: _Documents) -> _Documents:
    return [only(documents, f"{kind}WebhookConfiguration") for kind in ("Mutating", "Validating")]


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> _Documents:
    return tools.built(tmp_path_factory.mktemp("webhook"), "webhook")


@pytest.fixture(scope="module")
def with_cert_manager(tmp_path_factory: pytest.TempPathFactory) -> _Documents:
    return tools.built(tmp_path_factory.mktemp("cert-manager"), "webhook", "webhook-cert-manager")


@pytest.fixture(scope="module")
def with_partitions(tmp_path_factory: pytest.TempPathFactory) -> _Documents:
    return tools.built(tmp_path_factory.mktemp("partitions"), "webhook", "webhook-partitions")


# --- the manifests ----------------------------------------------------------------------------------------------------


def test_names_ports_and_paths_of_the_component_are_those_of_the_server(component: _Documents) -> None:
    settings, addresses = WebhookSettings(), Addresses()
    service, container = only(component, "Service"), container_of(component, _NAME)
    assert {"name": "webhooks", "containerPort": int(addresses.webhooks.removeprefix(":"))} in container["ports"]
    assert service["metadata"]["name"] == settings.service
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(443, "webhooks")]
    assert only(component, "Secret")["metadata"]["name"] == f"{settings.service}-certificates"
    paths = {hook.path for hook in make_hooks(settings, FakeKube(), {})}
    asked = set()
    for configuration in _configurations(component):
        assert configuration["metadata"]["name"] == settings.configuration
        for hook in configuration["webhooks"]:
            service = hook["clientConfig"]["service"]
            asked.add(service["path"])
            assert (service["name"], service["namespace"]) == (settings.service, NAMESPACE)
            assert hook["failurePolicy"] == "Ignore"
    # Separate components register the other paths.
    assert asked == paths - {"/mutate/partitions", *_PLACEMENT_PATHS}


def test_validation_covers_the_kinds_of_the_code_and_each_namespace_once(component: _Documents) -> None:
    """The webhook /validate covers namespaces without the label of the validation mode, or with an unknown value."""
    configuration = only(component, "ValidatingWebhookConfiguration")
    named = {}
    for hook in configuration["webhooks"]:
        resources = {name for rule in hook["rules"] for name in rule["resources"]}
        reviewed = {*(f"{kind.lower()}s" for kind in admission.REVIEWED_KINDS), "statefulsets/scale"}
        assert resources == reviewed, "write rules for these into both validating-webhook-configuration.yaml"
        (label,) = [entry for entry in hook["namespaceSelector"]["matchExpressions"] if "tpu" in entry["key"]]
        named[hook["clientConfig"]["service"]["path"]] = (label["operator"], label["values"])
    assert named == {
        "/validate": ("NotIn", [mode.value for mode in admission.Mode]),
        "/validate/warn": ("In", ["warn"]),
        "/validate/deny": ("In", ["deny"]),
    }


def test_validation_leaves_out_objects_whose_owner_is_reviewed(component: _Documents) -> None:
    """The API group matters: a Job of another group may own StatefulSets and pods, but was not reviewed."""
    requests = {kind.value for kind in WorkloadKind if not kind.has_pods}
    reviewed = {f"{group}/{kind}" for group, kind in admission.REVIEWED_OWNERS if kind not in requests}
    for hook in only(component, "ValidatingWebhookConfiguration")["webhooks"]:
        (condition,) = [entry["expression"] for entry in hook["matchConditions"] if entry["name"] == "is-nobodys"]
        assert 'owner.apiVersion.split("/")[0] + "/" + owner.kind in' in condition
        named = set(json.loads(condition[condition.rindex("[") : condition.rindex("]") + 1]))
        # Owners that are pods count as reviewed: a leader pod of a LeaderWorkerSet owns its workers' StatefulSet.
        assert "v1/Pod" in named
        assert named == reviewed, "write these owners into both validating-webhook-configuration.yaml"


def test_cert_manager_replaces_own_certificates_and_their_rights(with_cert_manager: _Documents) -> None:
    assert {(right.resource, right.verb) for right in rights(with_cert_manager)} == {
        ("statefulsets", "get"),
        ("jobs", "get"),
        ("jobsets", "get"),
        ("rayclusters", "get"),
        ("machineconfigs", "list"),
        ("machineconfigs", "watch"),
        ("events", "create"),
        ("events", "patch"),
    }
    assert "Secret" not in {document["kind"] for document in with_cert_manager}
    (mount,) = container_of(with_cert_manager, _NAME)["volumeMounts"]
    (volume,) = only(with_cert_manager, "Deployment")["spec"]["template"]["spec"]["volumes"]
    certificate = only(with_cert_manager, "Certificate", _NAME)
    options = {parameter.name: parameter.default for parameter in webhook_command.command.params}
    assert options["tls_cert_file"] == f"{mount['mountPath']}/tls.crt"
    assert options["tls_key_file"] == f"{mount['mountPath']}/tls.key"
    assert (volume["name"], volume["secret"]["secretName"]) == (mount["name"], certificate["spec"]["secretName"])
    assert f"{_NAME}.{NAMESPACE}.svc" in certificate["spec"]["dnsNames"]
    for configuration in _configurations(with_cert_manager):
        annotations = configuration["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{certificate['metadata']['name']}"}
    issuers = {issuer["metadata"]["name"]: issuer["spec"] for issuer in with_cert_manager if issuer["kind"] == "Issuer"}
    authority = only(with_cert_manager, "Certificate", f"{_NAME}-authority")["spec"]
    assert issuers[certificate["spec"]["issuerRef"]["name"]] == {"ca": {"secretName": authority["secretName"]}}
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}


# --- the chart --------------------------------------------------------------------------------------------------------


#: Default limits of the chart; test_chart.py tests that the example overlay has equal limits.
_LIMITS = {
    "MAX_CHIPS": "256",
    **dict.fromkeys(
        ("ALLOWED_RESERVATIONS", "ALLOWED_SERVICE_ACCOUNTS", "ALLOWED_NETWORKS", "ALLOWED_LABEL_KEYS"), "none"
    ),
}


def _rendered(
    *, apis: tuple[str, ...] = (tools.MUTATING_POLICIES,), placement: Json | None = None, **values: Any
) -> _Documents:
    made = {
        "image": {"repository": "registry.example/controller"},
        "settings": {"MAX_CHIPS": 256, "LOG_LEVEL": "error"},
        "webhook": {"enabled": True, **values},
        "placement": placement or {},
    }
    documents = tools.template(chart.CHART, made, namespace=NAMESPACE, apis=apis)
    return [document for document in documents if document["metadata"]["name"].startswith(_NAME)]


@pytest.mark.parametrize("managed", [False, True], ids=["own certificates", "cert-manager"])
def test_chart_with_the_webhook_creates_the_objects_of_the_component(
    managed: bool, component: _Documents, with_cert_manager: _Documents
) -> None:
    made = _rendered(certManager={"enabled": managed})
    assert bare(made) == bare(with_cert_manager if managed else component)


def test_pods_with_ipus_are_registered_by_a_component_or_a_value(with_partitions: _Documents) -> None:
    """The failurePolicy is Fail, because a pod that was not reviewed would run without IPUs."""
    made = _rendered(partitions={"enabled": True})
    assert _by_name(only(made, "MutatingWebhookConfiguration")) == _by_name(
        only(with_partitions, "MutatingWebhookConfiguration")
    )
    hook = _by_name(only(made, "MutatingWebhookConfiguration"))["partitions.tpu-provisioner.cloud.google.com"]
    assert (hook["failurePolicy"], hook["clientConfig"]["service"]["path"]) == ("Fail", "/mutate/partitions")
    environment = environment_of(made, _NAME)
    image = container_of(made, _NAME)["image"]
    assert (environment["IPU_INJECTION"], environment["IPU_INIT_IMAGE"]) == ("least-privilege", image)
    own = {"IPU_INJECTION": "least-privilege", "IPU_INIT_IMAGE": "mine"}
    made = _rendered(partitions={"enabled": True}, settings=own)
    assert own.items() <= environment_of(made, _NAME).items()


def test_placement_is_registered_by_a_component_or_on_clusters_without_the_policy(tmp_path: Path) -> None:
    """Exactly one webhook reviews a pod, for any label of its namespace; policy and webhook match the same pods."""
    documents = tools.built(tmp_path, "webhook", "webhook-placement", "placement")
    by_component = _by_name(only(documents, "MutatingWebhookConfiguration"))
    assert _by_name(only(_rendered(apis=()), "MutatingWebhookConfiguration")) == by_component
    policy = only(documents, "MutatingAdmissionPolicy")["spec"]
    chips = next(variable["expression"] for variable in policy["variables"] if variable["name"] == "chips")
    conditions = {
        "NotIn": policy["matchConditions"],
        # In namespaces with admin access, neither the policy nor the webhook changes pods without chips.
        "In": [{"name": "requests-chips", "expression": chips}],
    }
    selected = []
    for name, hook in by_component.items():
        if name.startswith("placement"):
            chosen, monitoring = hook["namespaceSelector"]["matchExpressions"]
            assert (monitoring["key"], monitoring["values"]) == ("resource.kubernetes.io/admin-access", ["true"])
            assert hook["matchConditions"] == conditions[monitoring["operator"]]
            assert hook["failurePolicy"] == "Fail"
            path = hook["clientConfig"]["service"]["path"]
            selected.append((path, chosen["operator"], chosen["values"], monitoring["operator"]))
    assert sorted(selected) == sorted(
        (path, *chosen, operator)
        for path, chosen in zip(
            _PLACEMENT_PATHS, [("NotIn", ["assign", "off"]), ("In", ["assign"]), ("In", ["off"])], strict=True
        )
        for operator in conditions
    )


def test_chart_registers_placement_only_if_enabled_and_the_policy_is_missing() -> None:
    with_policy = _by_name(only(_rendered(), "MutatingWebhookConfiguration"))
    disabled = _by_name(only(_rendered(apis=(), placement={"enabled": False}), "MutatingWebhookConfiguration"))
    assert not [name for name in (*with_policy, *disabled) if name.startswith("placement")]
    everywhere = _rendered(apis=(), placement={"namespaces": "all", "failurePolicy": "Ignore"})
    assert environment_of(everywhere, _NAME)["PLACEMENT_NAMESPACES"] == "all"
    assert {webhook["failurePolicy"] for webhook in only(everywhere, "MutatingWebhookConfiguration")["webhooks"]} == {
        "Ignore"
    }


def _by_name(configuration: Json) -> dict[str, Json]:
    return {webhook["name"]: webhook for webhook in configuration["webhooks"]}


def test_values_of_the_webhook_are_in_their_fields() -> None:
    values: Json = {
        "replicas": 3,
        "failurePolicy": "Fail",
        "settings": {"INJECT": "all", "INJECT_TOPOLOGY": True, "LOG_LEVEL": "debug"},
        "extraArgs": ["--verbose"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    }
    documents = _rendered(**values)
    assert only(documents, "Deployment")["spec"]["replicas"] == 3
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    assert {key: pod[key] for key in ("nodeSelector", "tolerations", "affinity")}.items() <= values.items()
    assert container_of(documents, _NAME)["resources"] == values["resources"]
    assert container_of(documents, _NAME)["args"] == ["webhook", "--verbose"]
    # The webhook server gets the controller's settings, unless its own values override them.
    assert environment_of(documents, _NAME) == {
        "INJECT": "all",
        "INJECT_TOPOLOGY": "true",
        "LOG_LEVEL": "debug",
        **_LIMITS,
    }
    assert only(documents, "MutatingWebhookConfiguration")["webhooks"][0]["failurePolicy"] == "Fail"
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    offered = set(schema["properties"]["webhook"]["properties"]["settings"]["properties"])
    assert offered == {option.variable for option in OPTIONS} - chart.OF_THE_POD - chart.OF_THE_CHART
    assert _rendered(enabled=False) == []


# --- the webhook alone ------------------------------------------------------------------------------------------------


def _alone(**values: Any) -> _Documents:
    made = {"image": {"repository": "registry.example/controller"}, "webhook": {"only": True}, **values}
    return tools.template(chart.CHART, made, namespace=NAMESPACE)


def test_overlay_installs_only_the_webhook_server(component: _Documents) -> None:
    folder = DEPLOY / "example-project" / "webhook-cluster"
    documents = tools.documents(tools.run("kustomize", "build", str(folder)))
    assert {key_of(document) for document in documents if document["kind"] not in ("Namespace", "ConfigMap")} == {
        key_of(document) for document in component
    }
    assert rights(documents) == rights(component)
    assert read_webhook_settings(environment_of(documents, _NAME)).validation == "off"
    assert container_of(documents, _NAME)["image"] == _image_of(folder)


def _image_of(folder: Path) -> str:
    (image,) = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    return f"{image['newName']}:{image['newTag']}"


def test_value_of_the_chart_installs_only_the_webhook_server(component: _Documents) -> None:
    """Validation is off by default, because its warnings are about node pools, which are not created here."""
    assert bare(_alone()) == bare(component)
    assert environment_of(_alone(), _NAME) == {"VALIDATION": "off", **_LIMITS}
    documents = _alone(webhook={"only": True, "settings": {"VALIDATION": "warn"}})
    assert environment_of(documents, _NAME) == {"VALIDATION": "warn", **_LIMITS}


#: Output of `helm show values` for gke-tpu-env-injector's chart 0.3.1, without the image's name.
_DEFAULTS_OF_OLD: Json = {
    "replicaCount": 1,
    "image": {"repository": "registry.example/controller", "pullPolicy": "IfNotPresent", "tag": ""},
    "imagePullSecrets": [],
    "nameOverride": "",
    "fullnameOverride": "",
    "serviceAccount": {"create": True, "annotations": {}, "name": ""},
    "podAnnotations": {},
    "podSecurityContext": {},
    "securityContext": {},
    "additionalArguments": [],
    "volumes": [],
    "additionalVolumeMounts": None,
    "service": {"type": "ClusterIP", "port": 443},
    "ingress": {"enabled": False, "className": "", "annotations": {}, "hosts": [], "tls": []},
    "resources": {},
    "autoscaling": {"enabled": False, "minReplicas": 1, "maxReplicas": 100, "targetCPUUtilizationPercentage": 80},
    "nodeSelector": {},
    "tolerations": [],
    "affinity": {},
    "cert-manager": {"enabled": False},
}


def test_values_of_env_injector_are_accepted(component: _Documents, with_cert_manager: _Documents) -> None:
    made, want = bare(_alone(**_DEFAULTS_OF_OLD)), bare(component)
    want["Deployment", _NAME]["spec"]["replicas"] = 1
    assert made == want
    changed: Json = {
        "replicaCount": 3,
        "additionalArguments": ["--verbose"],
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "cert-manager": {"enabled": True},
    }
    documents = _alone(**_DEFAULTS_OF_OLD | changed)
    assert {key_of(document) for document in documents} == {key_of(document) for document in with_cert_manager}
    deployment = only(documents, "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 3
    assert deployment["template"]["metadata"]["annotations"] == changed["podAnnotations"]
    assert pod["containers"][0]["args"] == ["webhook", "--verbose"]
    assert {key: pod[key] for key in ("nodeSelector", "tolerations", "affinity")}.items() <= changed.items()


_WITHOUT_COUNTERPART: dict[str, tuple[Json, str]] = {
    "an autoscaler": ({"autoscaling": {"enabled": True}}, r"autoscaling\.enabled.*webhook\.replicas"),
    "a name": ({"fullnameOverride": "a"}, r"fullnameOverride.*fixed"),
    "a part of the name": ({"nameOverride": "a"}, r"nameOverride.*fixed"),
    "an account": ({"serviceAccount": {"name": "a"}}, r"serviceAccount\.name.*tpu-provisioner-webhook"),
    "a Service": ({"service": {"type": "NodePort"}}, r"service,.*ClusterIP"),
    "rights of the pod": ({"podSecurityContext": {"fsGroup": 1}}, r"podSecurityContext.*restricted"),
    "rights of the container": ({"securityContext": {"runAsUser": 1}}, r"securityContext.*restricted"),
    "volumes": ({"volumes": [{"name": "tls"}]}, r"volumes.*webhook\.certManager\.enabled"),
    "their mounts": ({"additionalVolumeMounts": [{"name": "tls"}]}, r"additionalVolumeMounts.*volumes"),
    "resources": ({"resources": {"limits": {"cpu": "1"}}}, r"webhook\.resources"),
    "the image": ({"image": {"repository": "ghcr.io/abatilo/gke-tpu-env-injector"}}, r"image\.repository"),
    "beside the provisioner": ({"replicaCount": 2, "webhook": {"enabled": True}}, r"webhook\.replicas.*webhook\.only"),
}


@pytest.mark.parametrize(("values", "message"), _WITHOUT_COUNTERPART.values(), ids=_WITHOUT_COUNTERPART)
def test_value_of_env_injector_without_counterpart_is_rejected_with_advice(values: Json, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _alone(**values)


# --- the server, called by a real API server --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The installed webhook, and a server process with only the rights and settings of the manifests."""

    documents: _Documents
    recorder: Recorder
    metrics_url: str

    def reviews(self, hook: str = "") -> int:
        """Return the number of answered reviews of the webhooks whose name begins with `hook`."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        counter = f'webhook_reviews_total{{hook="{hook}'
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if counter in line)


@pytest.fixture(scope="module")
def served(
    rehearsal: Rehearsal, installed: _Documents, component: _Documents, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Install the component, and run the process of its Deployment.

    No kube-proxy runs, so the Service has the type ExternalName: the API server connects to localhost, and verifies the
    certificate for the name of the Service.
    """
    directory = tmp_path_factory.mktemp("served")
    webhooks, metrics, probes = free_ports(3)
    documents: _Documents = json.loads(json.dumps(component))
    only(documents, "Service")["spec"] = {"type": "ExternalName", "externalName": "localhost"}
    for configuration in _configurations(documents):
        for hook in configuration["webhooks"]:
            hook["clientConfig"]["service"]["port"] = webhooks
    text = yaml.safe_dump_all(documents)
    rehearsal.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=text)
    try:
        _await_rights(rehearsal)
        with Recorder(rehearsal).recording() as recorder:
            kubeconfig = kubeconfig_of_service_account(
                rehearsal, directory / "kubeconfig", server=recorder.url, name=_NAME
            )
            container = container_of(documents, _NAME)
            process = Process(
                "webhook",
                [
                    *(sys.executable, "-m", "provisioner", *container["args"], f"--kubeconfig={kubeconfig}"),
                    f"--bind-address={HOST}:{webhooks}",
                    f"--metrics-bind-address={HOST}:{metrics}",
                    f"--health-probe-bind-address={HOST}:{probes}",
                ],
                log=directory / "webhook.log",
                environment=environment_of(installed)
                | {"POD_NAMESPACE": NAMESPACE, "HOME": str(directory), "PYTHONPATH": str(DEPLOY.parent)},
            )
            process.start()
            try:
                wait_for(
                    lambda: _caller_trusts(rehearsal) or not process.running,
                    "the API server is told whom to trust",
                    PATIENCE_SECONDS,
                    lambda: "\n".join(process.last_lines(20)),
                )
                yield Served(documents=documents, recorder=recorder, metrics_url=f"http://{HOST}:{metrics}/metrics")
            finally:
                process.kill()
    finally:
        rehearsal.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


def _await_rights(rehearsal: Rehearsal) -> None:
    def may(verb: str, what: str) -> bool:
        try:
            rehearsal.kubectl("auth", "can-i", verb, what, f"--namespace={NAMESPACE}", _ACCOUNT)
        except RehearsalError:
            return False
        return True

    for verb, what in (
        ("update", f"secrets/{_CERTIFICATES}"),
        ("patch", f"mutatingwebhookconfigurations/{_NAME}"),
        ("patch", f"validatingwebhookconfigurations/{_NAME}"),
        ("get", "jobsets.jobset.x-k8s.io"),
    ):
        wait_for(partial(may, verb, what), f"the server may {verb} {what}", PATIENCE_SECONDS)


def _caller_trusts(rehearsal: Rehearsal) -> bool:
    found = (rehearsal.api.get(_CONFIGURATION), rehearsal.api.get(_CONFIGURATION.replace("mutating", "validating")))
    return all(hook["clientConfig"].get("caBundle") for configuration in found for hook in configuration["webhooks"])


_TPUS = {"google.com/tpu": "4"}
_BOTH = {"limits": _TPUS, "requests": _TPUS}


def _container(name: str, resources: Json | None = None) -> Json:
    return {"name": name, "image": "none", **({"resources": resources} if resources is not None else {})}


def _pod(namespace: str, **spec: Any) -> Json:
    metadata = {"generateName": "asked-", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


_PLAIN = _container("plain", {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}})
_TPU = _container("tpu", {"limits": _TPUS})
_PODS: dict[str, tuple[str, Json, bool]] = {
    "no chips": ("default", {"containers": [_PLAIN]}, False),
    "no resources at all": ("default", {"containers": [_container("bare")]}, False),
    "empty resources": ("default", {"containers": [_container("empty", {})], "initContainers": [_PLAIN]}, False),
    "chips in limits and requests": ("default", {"containers": [_container("tpu", _BOTH)]}, True),
    "chips in limits only": ("default", {"containers": [_TPU]}, True),
    "chips in the second container": ("default", {"containers": [_PLAIN, _TPU]}, True),
    "chips in an init container only": ("default", {"containers": [_PLAIN], "initContainers": [_TPU]}, True),
    "chips in requests only": ("default", {"containers": [_container("tpu", {"requests": _TPUS})]}, True),
    "in the system's namespace": ("kube-system", {"containers": [_TPU]}, False),
    "in the server's own": (NAMESPACE, {"containers": [_TPU]}, False),
}


def _controller(kind: str, owner: tuple[str, str] | None = None, resources: Json = _BOTH, group: str = "apps") -> Json:
    """Return a controller of pods with `resources`; `owner` is the API version and kind of the controller's owner."""
    template = {
        "metadata": {"labels": {"app": "serve"}},
        "spec": {
            "containers": [_container("main", resources)],
            "restartPolicy": "Always" if group == "apps" else "Never",
        },
    }
    spec: Json = {"template": template}
    if group == "apps":
        spec["selector"] = {"matchLabels": {"app": "serve"}}
    if kind == "CronJob":
        spec = {"schedule": "0 1 * * *", "jobTemplate": {"spec": spec}}
    references = [
        {"apiVersion": version, "kind": name, "name": "maker", "uid": "u", "controller": True}
        for version, name in filter(None, [owner])
    ]
    metadata = {"generateName": "asked-", "namespace": "default", "ownerReferences": references}
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "spec": spec}


_CONTROLLERS: dict[str, tuple[Json, bool]] = {
    "a StatefulSet of a Job of Kubernetes": (_controller("StatefulSet", ("batch/v1", "Job")), False),
    "a StatefulSet of a Job of another group": (_controller("StatefulSet", ("example.com/v1", "Job")), True),
    "a Deployment": (_controller("Deployment"), True),
    "a Deployment without chips": (_controller("Deployment", resources={}), False),
    "a ReplicaSet": (_controller("ReplicaSet"), True),
    "a ReplicaSet of a Deployment": (_controller("ReplicaSet", ("apps/v1", "Deployment")), False),
    "a CronJob": (_controller("CronJob", group="batch"), True),
    "a CronJob without chips": (_controller("CronJob", resources={}, group="batch"), False),
    "a Job": (_controller("Job", group="batch"), True),
    "a Job of a CronJob": (_controller("Job", ("batch/v1", "CronJob"), group="batch"), False),
}


@pytest.mark.parametrize(("namespace", "spec", "want_asked"), _PODS.values(), ids=_PODS)
def test_only_pods_that_request_chips_are_sent_to_the_webhook(
    namespace: str, spec: Json, want_asked: bool, rehearsal: Rehearsal, served: Served
) -> None:
    """A real API server evaluates the match conditions of the registration."""
    before = served.reviews()
    _create_for_trial(rehearsal, _pod(namespace, **spec))
    assert (served.reviews() > before) == want_asked


@pytest.mark.parametrize(("body", "want_asked"), _CONTROLLERS.values(), ids=_CONTROLLERS)
def test_controller_of_pods_with_chips_is_validated_unless_its_owner_was_reviewed(
    body: Json, want_asked: bool, rehearsal: Rehearsal, served: Served
) -> None:
    path = collection_path(f"{body['kind'].lower()}s", namespace="default", root=f"/apis/{body['apiVersion']}")
    before = served.reviews("validation")
    rehearsal.api.post(f"{path}?dryRun=All", body)
    assert (served.reviews("validation") > before) == want_asked


def _create_for_trial(rehearsal: Rehearsal, pod: Json) -> None:
    """Send a pod as a dry run; ignore errors that the API server finds only after it has called the webhooks."""
    try:
        rehearsal.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    except RehearsalError as error:
        # Some pods request chips without a limit, which is invalid, or violate the restricted standard of the
        # namespace.
        if "Limit must be set" not in str(error) and "violates PodSecurity" not in str(error):
            raise


def test_pods_of_four_kinds_of_owners_get_their_variables(rehearsal: Rehearsal, served: Served, ground: Ground) -> None:
    """The server uses all rights of its manifests except two, and no other rights."""
    namespace = ground.namespace
    template = {
        "metadata": {"labels": {"app": "serve"}},
        "spec": pod_spec(accelerator="tpu-v5-lite-podslice", topology="4x4", subdomain="serve"),
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "serve", "namespace": namespace, "labels": _ASKING},
        "spec": {
            "replicas": 4,
            "serviceName": "serve",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "serve"}},
            "template": template,
        },
    }
    job = raw_job(
        "job", namespace=namespace, uid="", parallelism=4,
        pod=template["spec"], pod_metadata={"labels": _ASKING},
    )  # fmt: skip
    jobset = raw_jobset(
        "set", namespace=namespace, uid="", job="w", replicas=2, parallelism=4,
        pod=template["spec"], pod_metadata={"labels": _ASKING},
        # With exclusive placement, followers would be created only after their leader is scheduled.
        metadata={"annotations": None},
    )  # fmt: skip
    path = {
        "StatefulSet": collection_path("statefulsets", namespace=namespace, root="/apis/apps/v1"),
        "Job": collection_path("jobs", namespace=namespace, root="/apis/batch/v1"),
        "JobSet": collection_path("jobsets", namespace=namespace, root=JOBSET.root),
    }
    ray = raw_raycluster()
    ray["metadata"] = {"name": "ray", "namespace": namespace}
    events = collection_path("events", namespace=namespace)
    # The pods of this Job have no index, so the server writes an Event.
    lost = raw_job("lost", namespace=namespace, uid="", parallelism=1, pod=template["spec"],
                   pod_metadata={"labels": _ASKING}, spec={"completionMode": "NonIndexed"})  # fmt: skip
    try:
        for body in (stateful_set, job, jobset):
            rehearsal.api.post(path[body["kind"]], body)
        ground.wait(lambda: len(ground.pods()) == 16, "all pods are created")
        ray = rehearsal.api.post(collection_path("rayclusters", namespace=namespace, root=RAY_CLUSTER.root), ray)
        of_ray = rehearsal.kubectl(
            "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(_worker(ray))
        )
        got = sorted(tuple(_variables(pod).values()) for pod in (*ground.pods(), json.loads(of_ray)))
        rehearsal.api.post(path["Job"], lost)
        selector = "reason=IncompleteTPUEnvironment,involvedObject.name=lost"
        ground.wait(lambda: bool(rehearsal.objects(events, fieldSelector=selector)), "the Job is told")
    finally:
        rehearsal.kubectl("delete", "namespace", namespace, "--wait")
    hosts = {name: ",".join(f"{name}-{index}.{domain}" for index in range(4)) for name, domain in (
        ("serve", "serve"), ("job", "serve"), ("set-w-0", "set"), ("set-w-1", "set"))}  # fmt: skip
    together = ("2", "set-w-0-0.set")
    assert got == sorted(
        [("1", "tpus-0-0.ray-headless,tpus-0-1.ray-headless")]
        + [(str(index), hosts[name]) for name in ("serve", "job") for index in range(4)]
        + [(str(index), hosts[f"set-w-{part}"], *together, str(part)) for part in range(2) for index in range(4)]
    )
    # Unused here: Events are patched only after minutes (test_rights.py), and the CRD of MachineConfigs is missing.
    used = used_rights(served.recorder, served.documents)
    used |= {Right("", "events", "patch"), Right("cloud.google.com", "machineconfigs", "watch")}
    assert used == rights(served.documents)


def _worker(ray: Json) -> Json:
    labels = {
        constants.RAY_GROUP: "tpus",
        constants.RAY_REPLICA_INDEX: "0",
        constants.RAY_REPLICA_NAME: "tpus-abcde",
        constants.RAY_HOST_INDEX: "1",
    }
    made = _pod(ray["metadata"]["namespace"], **pod_spec())
    owner = {key: ray[key] for key in ("apiVersion", "kind")} | {key: ray["metadata"][key] for key in ("name", "uid")}
    made["metadata"] |= {"labels": labels | _ASKING, "ownerReferences": [{**owner, "controller": True}]}
    return made


def _kubectl(rehearsal: Rehearsal, *arguments: str, stdin: Json | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [str(rehearsal.cluster.binaries["kubectl"]), f"--kubeconfig={rehearsal.cluster.kubeconfig}", *arguments],
        input=json.dumps(stdin) if stdin is not None else None,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_kubectl_shows_a_warning_or_a_rejection_by_the_label_of_the_namespace(
    rehearsal: Rehearsal, served: Served, ground: Ground
) -> None:
    """Invalid objects that exist already can still be changed and deleted."""
    namespace = ground.namespace

    def apply(name: str, **parts: Any) -> tuple[int, str]:
        raw = raw_jobset(name, namespace=namespace, uid="", **parts)
        return _kubectl(rehearsal, "apply", "-f", "-", stdin=raw)

    def label(value: str) -> None:
        key = "tpu-provisioner.cloud.google.com/validation"
        rehearsal.kubectl("label", "--overwrite", "namespace", namespace, f"{key}={value}")

    def asked(name: str, words: str) -> bool:
        code, said = apply(name, parallelism=3, spec={"suspend": True})
        return (code, words in said) == (1 if "denied" in words else 0, True)

    try:
        code, said = apply("old", parallelism=3)
        assert (code, "Warning: spec.replicatedJobs[0].template.spec.parallelism: JobSet" in said) == (0, True), said
        assert "set parallelism to 2 or choose a larger topology" in said
        label("deny")
        # The wait is needed because the API server uses the new label after a delay.
        wait_for(lambda: asked("new", "denied the request: spec.replicated"), "it is rejected", PATIENCE_SECONDS)
        assert apply("good", parallelism=2) == (0, "")
        for change in (["label", "jobset/old", "team=a"], ["delete", "jobset/old", "--cascade=foreground"]):
            code, said = _kubectl(rehearsal, *change, f"--namespace={namespace}")
            assert code == 0, said
        label("off")
        wait_for(lambda: apply("new", parallelism=3) == (0, ""), "nothing is said", PATIENCE_SECONDS)
    finally:
        rehearsal.kubectl("delete", "namespace", namespace, "--wait")


_SHOWN = (
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_SLICE_ID",
)


def _variables(pod: Json) -> dict[str, str]:
    given = {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][0].get("env", ())}
    return {name: given[name] for name in _SHOWN if name in given}


def test_second_apply_keeps_keys_and_ca_bundles_of_the_webhook(rehearsal: Rehearsal, served: Served) -> None:
    text = yaml.safe_dump_all(served.documents)
    before = (rehearsal.api.get(_SECRET)["data"], rehearsal.api.get(_CONFIGURATION)["webhooks"])
    assert before[0]["tls.key"]
    # Client-side apply is repeated, because only the second one compares with the annotation of the first.
    for way in (["--server-side"], [], [], ["--server-side"]):
        rehearsal.kubectl("apply", *way, "-f", "-", stdin=text)
        assert (rehearsal.api.get(_SECRET)["data"], rehearsal.api.get(_CONFIGURATION)["webhooks"]) == before
