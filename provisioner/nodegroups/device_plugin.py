"""Builds the DaemonSet of the device plugin (device_plugin.yaml), which reports TPU chips to the kubelet."""

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

NAMESPACE = "kube-system"
NAME = "tpu-device-plugin"
#: Annotation of the DaemonSet with the hash of the applied manifest. A manifest with another hash is applied.
VERSION = "tpu-provisioner.cloud.google.com/device-plugin-version"
_HASH_DIGITS = 16


def manifest(plugin: str, *, agent: str = "", log: str = "") -> dict[str, Any]:
    """Return the DaemonSet with these images and its version as an annotation. A container without image is omitted."""
    images = {NAME: plugin, "sidecar-log-collector": log, "vbar-control-agent": agent}
    text = resources.files(__package__).joinpath("device_plugin.yaml").read_text(encoding="utf-8")
    made: dict[str, Any] = yaml.safe_load(text)
    pod = made["spec"]["template"]["spec"]
    pod["containers"] = [
        container | {"image": image} for container in pod["containers"] if (image := images[container["name"]])
    ]
    text = json.dumps(made, sort_keys=True, separators=(",", ":"))
    made["metadata"]["annotations"] = {VERSION: hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}
    return made


def version_of(daemon_set: Mapping[str, Any]) -> str:
    """Return the version in the annotation of a manifest."""
    return str(daemon_set["metadata"]["annotations"][VERSION])
