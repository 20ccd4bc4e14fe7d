"""Every option of the webhook server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioner import constants
from provisioner.settings import forms, partitions
from provisioner.settings.option import Group, Option, log_level, pod_namespace, served_namespaces
from provisioner.settings.reading import SettingsError, read_options

OPTIONS: tuple[Option, ...] = (
    Option(
        variable="INJECT",
        field="injection",
        group=Group.WEBHOOK,
        read=forms.choice("off", "opt-in", "all"),
        default="opt-in",
        description="Which pods that request chips get TPU variables: opt-in: those that have the label or annotation "
        "tpu-provisioner.cloud.google.com/inject: enabled, or gke-tpu-env-injector.aaronbatilo.dev/inject: enabled, "
        'and those of StatefulSets that have it; all: all but those that have it as "disabled"; off: none.',
    ),
    Option(
        variable="INJECT_TOPOLOGY",
        field="topology",
        group=Group.WEBHOOK,
        read=forms.go_bool,
        default="false",
        description="Also set the variables that GKE's device plugin sets, such as TPU_ACCELERATOR_TYPE and "
        "TPU_HOST_BOUNDS. For clusters without it.",
    ),
    Option(
        variable="INJECT_PROBLEMS",
        field="wrong",
        group=Group.WEBHOOK,
        read=forms.choice("warn", "deny"),
        default="warn",
        description="What is done about a pod whose variables cannot be told: warn: it is created without them, and "
        "whoever creates it is warned; deny: it is rejected.",
    ),
    Option(
        variable="VALIDATION",
        field="validation",
        group=Group.WEBHOOK,
        read=forms.choice("off", "warn", "deny"),
        default="warn",
        description="What is done about workloads that can get no TPU slice as they are: warn: whoever creates or "
        "changes them is warned; deny: they are rejected where Google sells no such slice or they contradict "
        "themselves; off: nothing. A namespace says otherwise by the label "
        "tpu-provisioner.cloud.google.com/validation. The settings of the provisioner, such as MAX_CHIPS and "
        "ALLOWED_RESERVATIONS, count where they are set for the webhook server too.",
    ),
    Option(
        variable="JOB_KEY_SELECTOR",
        field="job_key_selector",
        group=Group.WEBHOOK,
        read=forms.go_bool,
        default="false",
        description="Child Jobs of JobSets that get node pools get the nodeSelector job-key, whose value no other job "
        "has.",
    ),
    Option(
        variable="RESERVATION_LOCATION_HINT",
        field="location_hint",
        group=Group.WEBHOOK,
        read=forms.matching(forms.LABEL_VALUE, "the value of a label"),
        default="",
        description="Jobs that get node pools get the nodeSelector cloud.google.com/gke-location-hint with this value. "
        "Empty: none.",
    ),
    Option(
        variable="FORCE_ON_DEMAND",
        field="force_on_demand",
        group=Group.WEBHOOK,
        read=forms.go_bool,
        default="false",
        description="The nodeSelectors of reservations and of spot capacity are removed from Jobs that get node pools.",
    ),
    Option(
        variable="ALWAYS_HINT_TIME",
        field="",
        group=Group.WEBHOOK,
        read=str,
        default="",
        description="Accepted, but without effect.",
    ),
    Option(
        variable="IPU_INJECTION",
        field="ipu_injection",
        group=Group.WEBHOOK,
        read=forms.choice("off", "compatible", "least-privilege"),
        default="off",
        description="What pods with the annotation graphcore.ai/ipus get: compatible: an init container that waits for "
        "their partition and hands over its configuration, the node's network and all privileges, as from Graphcore's "
        "plugin; least-privilege: variables that name the partition, and IPU_RDMA_RESOURCE; off: nothing. See "
        "partitions.md.",
    ),
    served_namespaces(
        Group.WEBHOOK,
        "Namespaces whose pods get partitions of IPUs, separated by commas. Empty: all. As for the "
        "controller of partitions.",
        field="ipu_namespaces",
    ),
    Option(
        variable="LARGEST_PARTITION",
        field="ipu_largest_partition",
        group=Group.WEBHOOK,
        read=forms.power_of_two(partitions.LARGEST_SIZE),
        default="64",
        description="Pods that ask for more IPUs are rejected. A power of two. As for the controller of partitions.",
    ),
    Option(
        variable="IPU_INIT_IMAGE",
        field="ipu_init_image",
        group=Group.WEBHOOK,
        read=forms.matching(forms.IMAGE, "the name of an image"),
        default="",
        description="The image of the init container: this program's. Required where IPU_INJECTION is not off.",
    ),
    Option(
        variable="IPU_API_URL",
        field="ipu_api_url",
        group=Group.WEBHOOK,
        read=forms.matching(forms.HTTP_URL, "an http or https URL without a path"),
        default="",
        description="Where the init container reaches the REST API of the controller of partitions. Empty: its Service "
        "tpu-provisioner-partitions in the namespace POD_NAMESPACE.",
    ),
    Option(
        variable="IPU_API_CA_CONFIG_MAP",
        field="ipu_api_ca_config_map",
        group=Group.WEBHOOK,
        read=forms.matching(forms.OBJECT_NAME, "the name of a ConfigMap"),
        default="",
        description="The ConfigMap, in each namespace with pods that ask for IPUs, whose key ca.crt has the "
        "authorities that sign the certificate of an https IPU_API_URL. Empty: those that the image of the init "
        "container has. See partitions.md.",
    ),
    Option(
        variable="IPU_RDMA_RESOURCE",
        field="ipu_rdma_resource",
        group=Group.WEBHOOK,
        read=forms.matching(forms.RESOURCE, "the name of an extended resource"),
        default="",
        description="In the mode least-privilege each container requests one of this resource, by which a device "
        "plugin gives it RDMA devices, such as rdma/hca, and gets the capability IPC_LOCK. Empty: neither, so that Pod "
        "Security admits pods at the level baseline.",
    ),
    Option(
        variable="IPU_VIPU_TIMEOUT_SECONDS",
        field="ipu_vipu_timeout_seconds",
        group=Group.WEBHOOK,
        read=forms.whole_number(1, 86_400),
        default="120",
        description="In the mode least-privilege: IPUOF_VIPU_API_TIMEOUT, how long programs wait for their partition.",
    ),
    Option(
        variable="IPU_CONTROLLER_ACCOUNT",
        field="ipu_controller_account",
        group=Group.WEBHOOK,
        read=forms.matching(forms.NAMESPACE, "the name of a ServiceAccount"),
        default="tpu-provisioner-partitions",
        description="The ServiceAccount, in the namespace POD_NAMESPACE, of the controller of partitions: nobody else "
        "may change what it writes into pods.",
    ),
    Option(
        variable="WEBHOOK_SERVICE",
        field="service",
        group=Group.WEBHOOK,
        read=forms.matching(forms.NAMESPACE, "the name of a Service"),
        default="tpu-provisioner-webhook",
        description="The Service by which API servers reach the webhook server: its own certificates are made for it.",
    ),
    Option(
        variable="WEBHOOK_CONFIGURATION",
        field="configuration",
        group=Group.WEBHOOK,
        read=forms.matching(forms.NAMESPACE, "the name of an object"),
        default="tpu-provisioner-webhook",
        description="The name of the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration that are told "
        "to trust these certificates.",
    ),
    pod_namespace(Group.WEBHOOK, "The namespace of that Service, and of the Secret with the certificates."),
    log_level(Group.WEBHOOK),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """The effective settings of the webhook server."""

    injection: str = "opt-in"
    topology: bool = False
    wrong: str = "warn"
    validation: str = "warn"
    job_key_selector: bool = False
    location_hint: str = ""
    force_on_demand: bool = False
    ipu_injection: str = "off"
    ipu_namespaces: tuple[str, ...] = ()
    ipu_largest_partition: int = 64
    ipu_init_image: str = ""
    ipu_api_url: str = ""
    ipu_api_ca_config_map: str = ""
    ipu_rdma_resource: str = ""
    ipu_vipu_timeout_seconds: int = 120
    ipu_controller_account: str = "tpu-provisioner-partitions"
    service: str = "tpu-provisioner-webhook"
    configuration: str = "tpu-provisioner-webhook"
    own_namespace: str = constants.DEFAULT_NAMESPACE
    log_level: str = "info"


def read_webhook_settings(environment: Mapping[str, str]) -> WebhookSettings:
    """Read all options; raise SettingsError with every problem at once."""
    values, problems = read_options(OPTIONS, environment)
    if values.get("ipu_injection", "off") != "off" and not values.get("ipu_init_image"):
        problems.append("IPU_INIT_IMAGE is not set, and IPU_INJECTION is on; set it to the image of this program.")
    if values.get("ipu_api_ca_config_map") and not values.get("ipu_api_url", "").startswith("https://"):
        problems.append("IPU_API_CA_CONFIG_MAP is set, and IPU_API_URL is no https URL; set both, or neither.")
    if problems:
        raise SettingsError(problems)
    return WebhookSettings(**values)
