"""Options of the webhook server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.settings import forms, partitions
from provisioner.settings.option import Group, options_of, read

_option = Group.WEBHOOK.option
_of_ipus = Group.PODS_WITH_IPUS.option


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Effective settings of the webhook server."""

    # fmt: off
    injection: str = _option(
        "INJECT", forms.choice("off", "opt-in", "all"), "opt-in",
        "Which pods that request chips get TPU variables. opt-in: those with the label or annotation "
        "tpu-provisioner.cloud.google.com/inject: enabled; all: also those that select an accelerator and a "
        "topology; off: none.")
    topology: bool = _option(
        "INJECT_TOPOLOGY", forms.go_bool, "false",
        "Also set the variables that GKE's device plugin sets, such as TPU_HOST_BOUNDS. For clusters without it.")
    wrong: str = _option(
        "INJECT_PROBLEMS", forms.choice("warn", "deny"), "warn",
        "A pod whose variables cannot be determined is created without them, with a warning (warn), or rejected "
        "(deny).")
    validation: str = _option(
        "VALIDATION", forms.choice("off", "warn", "deny"), "warn",
        "A workload that can get no TPU slice causes a warning (warn), or is rejected if no cluster could serve it "
        "(deny), or neither (off). The label tpu-provisioner.cloud.google.com/validation of a namespace takes "
        "precedence.")
    job_key_selector: bool = _option(
        "JOB_KEY_SELECTOR", forms.go_bool, "false",
        "Child Jobs of JobSets that get node pools get the nodeSelector job-key, unique for each job.")
    location_hint: str = _option(
        "RESERVATION_LOCATION_HINT", forms.matching(forms.LABEL_VALUE, "the value of a label"), "",
        "Jobs that get node pools get the nodeSelector cloud.google.com/gke-location-hint with this value. Empty: "
        "none.")
    force_on_demand: bool = _option(
        "FORCE_ON_DEMAND", forms.go_bool, "false",
        "Remove nodeSelectors of capacity other than on-demand from Jobs that get node pools.")
    placement_namespaces: str = _option(
        "PLACEMENT_NAMESPACES", forms.choice("labelled", "all"), "labelled",
        "With the component webhook-placement: namespaces whose slices get assigned node pools. labelled: those "
        "with the label tpu-provisioner/placement=assign; all: also those without the label.")
    always_hint_time: str = _option("ALWAYS_HINT_TIME", str, "", "Accepted, but without effect.")
    ipu_injection: str = _of_ipus(
        "IPU_INJECTION", forms.choice("off", "compatible", "least-privilege"), "off",
        "What pods with the annotation graphcore.ai/ipus get. compatible: privileges, network and configuration as "
        "from Graphcore's plugin; least-privilege: variables that name the partition; off: nothing.")
    ipu_namespaces: tuple[str, ...] = Group.PODS_WITH_IPUS.served_namespaces(
        "Comma-separated namespaces whose pods get partitions of IPUs. Empty: all. As for the controller of "
        "partitions.")
    ipu_largest_partition: int = _of_ipus(
        "LARGEST_PARTITION", forms.power_of_two(partitions.LARGEST_SIZE), "64",
        "Pods that ask for more IPUs are rejected. A power of two. As for the controller of partitions.")
    ipu_init_image: str = _of_ipus(
        "IPU_INIT_IMAGE", forms.matching(forms.IMAGE, "the name of an image"), "",
        "The image of the init container: this program's. Required unless IPU_INJECTION is off.")
    ipu_api_url: str = _of_ipus(
        "IPU_API_URL", forms.matching(forms.HTTP_URL, "an http or https URL without a path"), "",
        "Where the init container reaches the REST API of the controller of partitions. Empty: its Service "
        "tpu-provisioner-partitions in POD_NAMESPACE.")
    ipu_api_ca_config_map: str = _of_ipus(
        "IPU_API_CA_CONFIG_MAP", forms.matching(forms.OBJECT_NAME, "the name of a ConfigMap"), "",
        "The ConfigMap, in each namespace with such pods, whose key ca.crt verifies an https IPU_API_URL. Empty: the "
        "authorities of the init container's image.")
    ipu_rdma_resource: str = _of_ipus(
        "IPU_RDMA_RESOURCE", forms.matching(forms.RESOURCE, "the name of an extended resource"), "",
        "With least-privilege: the resource of a device plugin, such as rdma/hca, that each container requests, with "
        "the capability IPC_LOCK. Empty: neither.")
    ipu_vipu_timeout_seconds: int = _of_ipus(
        "IPU_VIPU_TIMEOUT_SECONDS", forms.whole_number(1, 86_400), "120",
        "With least-privilege: how long programs wait for their partition (IPUOF_VIPU_API_TIMEOUT).")
    ipu_controller_account: str = _of_ipus(
        "IPU_CONTROLLER_ACCOUNT", forms.matching(forms.NAMESPACE, "the name of a ServiceAccount"),
        "tpu-provisioner-partitions",
        "The ServiceAccount, in POD_NAMESPACE, of the controller of partitions, which alone may change its fields.")
    service: str = _option(
        "WEBHOOK_SERVICE", forms.matching(forms.NAMESPACE, "the name of a Service"), "tpu-provisioner-webhook",
        "The Service by which API servers reach the webhook server.")
    configuration: str = _option(
        "WEBHOOK_CONFIGURATION", forms.matching(forms.NAMESPACE, "the name of an object"), "tpu-provisioner-webhook",
        "The name of its MutatingWebhookConfiguration and ValidatingWebhookConfiguration.")
    own_namespace: str = Group.WEBHOOK.pod_namespace(
        "The namespace of that Service, and of the Secret with the certificates.")
    log_level: str = Group.WEBHOOK.log_level()
    # fmt: on


OPTIONS = options_of(WebhookSettings)


def read_webhook_settings(environment: Mapping[str, str]) -> WebhookSettings:
    """Read the settings of the webhook server. Raises SettingsError with all problems."""
    return read(WebhookSettings, environment, contradictions=_contradictions)


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    if values.get("ipu_injection", "off") != "off" and not values.get("ipu_init_image"):
        yield "IPU_INIT_IMAGE is not set, and IPU_INJECTION is on; set it to the image of this program."
    if values.get("ipu_api_ca_config_map") and not values.get("ipu_api_url", "").startswith("https://"):
        yield "IPU_API_CA_CONFIG_MAP is set, but IPU_API_URL is not an https URL; set both, or neither."
