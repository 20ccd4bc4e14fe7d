"""Copies the CustomResourceDefinitions of node groups to deploy/nodegroups/crds and to the chart, and reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from provisioner.nodegroups.api.types import GROUP, Kind

_ROOT = Path(__file__).parents[1]
_SOURCE = _ROOT / "provisioner" / "nodegroups" / "api" / "crds"
FOLDER = _ROOT / "deploy" / "nodegroups" / "crds"
#: Folder of the copies for the chart, which can read only files in its own folder.
CHART_FOLDER = _ROOT / "deploy" / "charts" / "tpu-provisioner" / "nodegroups"
_HEAD = "# Copied from provisioner/nodegroups/api/crds by `make crds`; do not edit.\n"


def crd(kind: Kind) -> dict[str, Any]:
    """Return the definition of a kind."""
    definition: dict[str, Any] = yaml.safe_load(_text_of(kind))
    return definition


def schema_of(kind: Kind, part: str) -> dict[str, Any]:
    """Return the OpenAPI schema of a kind's `part`: spec or status."""
    schema: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    return schema


def files() -> dict[Path, str]:
    """Return the content of every copy."""
    return {folder / _name_of(kind): _HEAD + _text_of(kind) for folder in (FOLDER, CHART_FOLDER) for kind in Kind}


def _name_of(kind: Kind) -> str:
    return f"{GROUP}_{kind.plural}.yaml"


def _text_of(kind: Kind) -> str:
    return (_SOURCE / _name_of(kind)).read_text(encoding="utf-8")


def main() -> int:
    """Write the files."""
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
