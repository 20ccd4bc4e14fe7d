"""Tests that only one module imports Google's client library, whose gRPC takes 20 MiB and 0.1 s."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import provisioner

_ROOT = Path(provisioner.__file__).parent
_LIBRARY = ("google.cloud", "google.api_core", "google.protobuf", "grpc", "proto")


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_module_imports_the_library() -> None:
    found = {
        str(file.relative_to(_ROOT))
        for file in _ROOT.rglob("*.py")
        if any(
            name.startswith(tuple(f"{package}." for package in _LIBRARY)) or name in _LIBRARY
            for name in _imported(file)
        )
    }
    assert found == {"slices/suppliers/gke/client.py"}


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param("nodegroups.app, provisioner.cli.nodegroups", id="node groups"),
        pytest.param("partitions.app, provisioner.cli.partitions", id="partitions"),
        pytest.param("webhook.app, provisioner.cli.webhook", id="the webhook server"),
        pytest.param("slices.suppliers.gke.rules, provisioner.slices.suppliers.gke.translate", id="rules and requests"),
    ],
)
def test_other_products_import_no_grpc(modules: str) -> None:
    script = (
        f"import sys, provisioner.{modules}; "
        "sys.exit(', '.join({'grpc', 'google.cloud', 'google.api_core', 'google.protobuf'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
