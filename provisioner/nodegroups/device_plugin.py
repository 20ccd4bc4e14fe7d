"""The DaemonSet of the device plugin (device_plugin.yaml), which reports the chips of TPU nodes to the kubelet.

Its version is a hash of the whole manifest, so that it is applied again when a release or a setting changes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

NAMESPACE = "kube-system"
NAME = "tpu-device-plugin"
#: Annotation of the DaemonSet: version of the manifest that it was applied from.
VERSION = "tpu-provisioner.cloud.google.com/device-plugin-version"
_HASH_DIGITS = 16


def manifest(plugin: str, *, agent: str = "", log: str = "") -> dict[str, Any]:
    """Return the DaemonSet with these images; an annotation has its version.

    The optional agent controls the links between chips. The optional log image (shell, `tail`) prints the driver's log.
    """
    images = {NAME: plugin, "sidecar-log-collector": log, "vbar-control-agent": agent}
    text = resources.files(__package__).joinpath("device_plugin.yaml").read_text(encoding="utf-8")
    made: dict[str, Any] = yaml.safe_load(text)
    pod = made["spec"]["template"]["spec"]
    pod["containers"] = [each | {"image": image} for each in pod["containers"] if (image := images[each["name"]])]
    text = json.dumps(made, sort_keys=True, separators=(",", ":"))
    made["metadata"]["annotations"] = {VERSION: hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}
    return made


def version_of(daemon_set: Mapping[str, Any]) -> str:
    """Return the version of a manifest."""
    return str(daemon_set["metadata"]["annotations"][VERSION])
