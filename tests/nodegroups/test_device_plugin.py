"""The device plugin's DaemonSet, and its version, which differs for each manifest."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.nodegroups import device_plugin
from provisioner.nodegroups.device_plugin import manifest, version_of

ALL = {"plugin": "registry/plugin:1", "agent": "registry/agent:1", "log": "registry/bash:1"}


def containers(made: dict[str, Any]) -> dict[str, Any]:
    return {container["name"]: container for container in made["spec"]["template"]["spec"]["containers"]}


def test_daemon_set_has_the_name_that_tpu_operator_uses() -> None:
    """The DaemonSet replaces tpu-operator's, and uses the same ServiceAccount."""
    made = manifest(**ALL)
    pod = made["spec"]["template"]["spec"]
    assert (made["metadata"]["namespace"], made["metadata"]["name"]) == ("kube-system", "tpu-device-plugin")
    assert pod["serviceAccountName"] == "tpu-device-plugin-sa"
    assert made["spec"]["selector"]["matchLabels"] == made["spec"]["template"]["metadata"]["labels"]


def test_containers_have_the_given_images_and_are_left_out_without_one() -> None:
    images = {name: container["image"] for name, container in containers(manifest(**ALL)).items()}
    assert images == {
        "tpu-device-plugin": "registry/plugin:1",
        "sidecar-log-collector": "registry/bash:1",
        "vbar-control-agent": "registry/agent:1",
    }
    # The container of the plugin suffices to report chips.
    assert list(containers(manifest("p"))) == ["tpu-device-plugin"]


def test_every_mounted_volume_is_defined() -> None:
    """Otherwise the API server would reject the DaemonSet."""
    pod = manifest(**ALL)["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == volumes


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"plugin": "registry/plugin:2"}, id="another plugin"),
        pytest.param({"agent": "registry/agent:2"}, id="another agent"),
        pytest.param({"log": ""}, id="no log"),
    ],
)
def test_version_differs_if_the_manifest_does(change: dict[str, str]) -> None:
    assert version_of(manifest(**ALL)) == version_of(manifest(**ALL))
    assert version_of(manifest(**ALL)) != version_of(manifest(**{**ALL, **change}))
    assert manifest(**ALL)["metadata"]["annotations"] == {device_plugin.VERSION: version_of(manifest(**ALL))}
