"""Settings of the controller of node groups: valid and invalid values."""

from __future__ import annotations

import pytest

from provisioner.settings import SettingsError
from provisioner.settings import read as read_options
from provisioner.settings.nodegroups import NodeGroupSettings

PROJECT = {"GCP_PROJECT_ID": "research-project"}


@pytest.mark.parametrize(
    ("variable", "text", "field", "want"),
    [
        ("ALLOWED_PROJECTS", "one-project, two-project", "projects", ("one-project", "two-project")),
        ("API_SERVER_ADDRESS", "10.128.0.2", "api_server", "10.128.0.2:6443"),
        ("API_SERVER_ADDRESS", "api.example.com:443", "api_server", "api.example.com:443"),
        ("KUBERNETES_VERSION", "1.31", "kubernetes_version", "1.31"),
        ("KUBERNETES_PACKAGES", "https://mirror.example.com/k8s", "packages", "https://mirror.example.com/k8s"),
        ("DEVICE_PLUGIN_IMAGE", "none", "device_plugin_image", ""),
    ],
)
def test_valid_setting_is_read(variable: str, text: str, field: str, want: object) -> None:
    assert getattr(read_options(NodeGroupSettings, {**PROJECT, variable: text}), field) == want


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ALLOWED_PROJECTS", "one-project,?"),
        ("REPAIR_AFTER", "30s"),
        ("JOIN_TIMEOUT", "4m59s"),
        ("API_SERVER_ADDRESS", "https://10.128.0.2"),
        ("API_SERVER_ADDRESS", "10.128.0.2:0"),
        ("API_SERVER_ADDRESS", "10.128.0.2:70000"),
        ("API_SERVER_ADDRESS", "fd00::1"),
        ("API_SERVER_ADDRESS", "[fd00::1]"),
        ("KUBERNETES_VERSION", "1.31.4"),
        ("KUBERNETES_PACKAGES", "pkgs.k8s.io"),
        ("DEVICE_PLUGIN_IMAGE", "an image"),
        ("GCE_CALLS_PER_SECOND", "0"),
    ],
)
def test_invalid_setting_is_reported_with_its_variable(variable: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}="):
        read_options(NodeGroupSettings, {**PROJECT, variable: text})
