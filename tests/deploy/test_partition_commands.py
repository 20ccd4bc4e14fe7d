"""What the manifests of partitions start: commands that there are, with options and settings that these read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from provisioner.cli.main import make_frame
from provisioner.settings import OPTIONS
from provisioner.settings.partitions import OPTIONS as OF_PARTITIONS
from provisioner.settings.webhook import OPTIONS as OF_WEBHOOK
from tests.deploy import tools
from tests.deploy.kit import DEPLOY

_KNOWN = {each.variable for each in (*OPTIONS, *OF_PARTITIONS, *OF_WEBHOOK)}
_VALUES = (
    "image.repository=registry.example/it",
    "vipuServerAddr=vipu.example",
    "admissionWebhooks.scope=ml",
    "vipuCredentialsSecret=vipu",
)


def _containers() -> Iterator[tuple[str, dict[str, Any]]]:
    chart = tools.run(
        *("helm", "template", "ipu", str(DEPLOY / "charts" / "ipu-partitions"), "--kube-version=1.30.0"),
        *(f"--set={each}" for each in _VALUES),
    )
    manifests = tools.run("kustomize", "build", str(DEPLOY / "partitions"))
    for where, text in (("chart", chart), ("manifests", manifests)):
        for document in yaml.safe_load_all(text):
            if document and document["kind"] == "Deployment":
                for container in document["spec"]["template"]["spec"]["containers"]:
                    yield f"{where} {document['metadata']['name']}", container


def test_each_container_starts_a_command_with_options_that_it_has() -> None:
    found = list(_containers())
    assert len(found) == 3
    for where, container in found:
        assert container["command"] == ["tpu-provisioner"], where
        frame = make_frame()
        with frame.make_context("tpu-provisioner", list(container["args"])) as context:
            name, command, rest = frame.resolve_command(context, list(container["args"]))
            assert command is not None, where
            try:
                command.make_context(name, rest, parent=context).close()
            except click.UsageError as error:
                pytest.fail(f"{where}: {error.format_message()}")


def test_each_variable_is_a_setting() -> None:
    for where, container in _containers():
        assert {each["name"] for each in container["env"]} <= _KNOWN, where
