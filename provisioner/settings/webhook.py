"""Every option of the webhook server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from provisioner.settings import forms, partitions
from provisioner.settings.option import Group, log_level, option, options_of, pod_namespace, read, served_namespaces

_option = partial(option, Group.WEBHOOK)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """The effective settings of the webhook server."""

    injection: str = _option(
        "INJECT",
        forms.choice("off", "opt-in", "all"),
        "opt-in",
        "Which pods that request chips get TPU variables: opt-in: those that have the label or annotation "
        "tpu-provisioner.cloud.google.com/inject: enabled, or gke-tpu-env-injector.aaronbatilo.dev/inject: enabled, "
        "and those of StatefulSets that have it; all: also those that select an accelerator and a topology, but for "
        'those that have it as "disabled"; off: none.',
    )
    topology: bool = _option(
        "INJECT_TOPOLOGY",
        forms.go_bool,
        "false",
        "Also set the variables that GKE's device plugin sets, such as TPU_ACCELERATOR_TYPE and TPU_HOST_BOUNDS. For "
        "clusters without it.",
    )
    wrong: str = _option(
        "INJECT_PROBLEMS",
        forms.choice("warn", "deny"),
        "warn",
        "What is done about a pod whose variables cannot be told: warn: it is created without them, and whoever "
        "creates it is warned; deny: it is rejected.",
    )
    validation: str = _option(
        "VALIDATION",
        forms.choice("off", "warn", "deny"),
        "warn",
        "What is done about workloads that can get no TPU slice as they are: warn: whoever creates or changes them is "
        "warned; deny: they are rejected where Google sells no such slice or they contradict themselves; off: "
        "nothing. A namespace says otherwise by the label tpu-provisioner.cloud.google.com/validation. The settings "
        "of the provisioner, such as MAX_CHIPS and ALLOWED_RESERVATIONS, count where they are set for the webhook "
        "server too.",
    )
    job_key_selector: bool = _option(
        "JOB_KEY_SELECTOR",
        forms.go_bool,
        "false",
        "Child Jobs of JobSets that get node pools get the nodeSelector job-key, whose value no other job has.",
    )
    location_hint: str = _option(
        "RESERVATION_LOCATION_HINT",
        forms.matching(forms.LABEL_VALUE, "the value of a label"),
        "",
        "Jobs that get node pools get the nodeSelector cloud.google.com/gke-location-hint with this value. Empty: "
        "none.",
    )
    force_on_demand: bool = _option(
        "FORCE_ON_DEMAND",
        forms.go_bool,
        "false",
        "The nodeSelectors of capacity other than on-demand are removed from Jobs that get node pools.",
    )
    always_hint_time: str = _option("ALWAYS_HINT_TIME", str, "", "Accepted, but without effect.")
    ipu_injection: str = _option(
        "IPU_INJECTION",
        forms.choice("off", "compatible", "least-privilege"),
        "off",
        "What pods with the annotation graphcore.ai/ipus get: compatible: an init container that waits for their "
        "partition and hands over its configuration, the node's network and all privileges, as from Graphcore's "
        "plugin; least-privilege: variables that name the partition, and IPU_RDMA_RESOURCE; off: nothing. See "
        "partitions.md.",
    )
    ipu_namespaces: tuple[str, ...] = served_namespaces(
        Group.WEBHOOK,
        "Namespaces whose pods get partitions of IPUs, separated by commas. Empty: all. As for the controller of "
        "partitions.",
    )
    ipu_largest_partition: int = _option(
        "LARGEST_PARTITION",
        forms.power_of_two(partitions.LARGEST_SIZE),
        "64",
        "Pods that ask for more IPUs are rejected. A power of two. As for the controller of partitions.",
    )
    ipu_init_image: str = _option(
        "IPU_INIT_IMAGE",
        forms.matching(forms.IMAGE, "the name of an image"),
        "",
        "The image of the init container: this program's. Required where IPU_INJECTION is not off.",
    )
    ipu_api_url: str = _option(
        "IPU_API_URL",
        forms.matching(forms.HTTP_URL, "an http or https URL without a path"),
        "",
        "Where the init container reaches the REST API of the controller of partitions. Empty: its Service "
        "tpu-provisioner-partitions in the namespace POD_NAMESPACE.",
    )
    ipu_api_ca_config_map: str = _option(
        "IPU_API_CA_CONFIG_MAP",
        forms.matching(forms.OBJECT_NAME, "the name of a ConfigMap"),
        "",
        "The ConfigMap, in each namespace with pods that ask for IPUs, whose key ca.crt has the authorities that sign "
        "the certificate of an https IPU_API_URL. Empty: those that the image of the init container has. See "
        "partitions.md.",
    )
    ipu_rdma_resource: str = _option(
        "IPU_RDMA_RESOURCE",
        forms.matching(forms.RESOURCE, "the name of an extended resource"),
        "",
        "In the mode least-privilege each container requests one of this resource, by which a device plugin gives it "
        "RDMA devices, such as rdma/hca, and gets the capability IPC_LOCK. Empty: neither, so that Pod Security "
        "admits pods at the level baseline.",
    )
    ipu_vipu_timeout_seconds: int = _option(
        "IPU_VIPU_TIMEOUT_SECONDS",
        forms.whole_number(1, 86_400),
        "120",
        "In the mode least-privilege: IPUOF_VIPU_API_TIMEOUT, how long programs wait for their partition.",
    )
    ipu_controller_account: str = _option(
        "IPU_CONTROLLER_ACCOUNT",
        forms.matching(forms.NAMESPACE, "the name of a ServiceAccount"),
        "tpu-provisioner-partitions",
        "The ServiceAccount, in the namespace POD_NAMESPACE, of the controller of partitions: nobody else may change "
        "what it writes into pods.",
    )
    service: str = _option(
        "WEBHOOK_SERVICE",
        forms.matching(forms.NAMESPACE, "the name of a Service"),
        "tpu-provisioner-webhook",
        "The Service by which API servers reach the webhook server: its own certificates are made for it.",
    )
    configuration: str = _option(
        "WEBHOOK_CONFIGURATION",
        forms.matching(forms.NAMESPACE, "the name of an object"),
        "tpu-provisioner-webhook",
        "The name of the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration that are told to trust "
        "these certificates.",
    )
    own_namespace: str = pod_namespace(
        Group.WEBHOOK, "The namespace of that Service, and of the Secret with the certificates."
    )
    log_level: str = log_level(Group.WEBHOOK)


OPTIONS = options_of(WebhookSettings)


def read_webhook_settings(environment: Mapping[str, str]) -> WebhookSettings:
    """Read all options, as `read` does."""
    return read(WebhookSettings, environment, contradictions=_contradictions)


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    if values.get("ipu_injection", "off") != "off" and not values.get("ipu_init_image"):
        yield "IPU_INIT_IMAGE is not set, and IPU_INJECTION is on; set it to the image of this program."
    if values.get("ipu_api_ca_config_map") and not values.get("ipu_api_url", "").startswith("https://"):
        yield "IPU_API_CA_CONFIG_MAP is set, and IPU_API_URL is no https URL; set both, or neither."
