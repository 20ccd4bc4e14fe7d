"""Creates files of a release for other tools: krew's manifest and plugin, an OpenVEX document, Artifact Hub's metadata.

Runs on a bare Python, from the top of the repository.

    python3 -m generators.artifacts krew IMAGE REPOSITORY WHEEL FOLDER   tpu.yaml, and the archive that it names
    python3 -m generators.artifacts vex IMAGE TIMESTAMP FILE             the statements of vex-statements.json, if any
    python3 -m generators.artifacts artifacthub ID FILE                  metadata that proves the publisher of the chart

IMAGE is NAME:TAG@sha256:DIGEST; REPOSITORY is the source's address; TIMESTAMP is the commit's time in ISO 8601; ID is
the repository's identifier on Artifact Hub.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from generators.release import ReleaseError, read_image

_REPOSITORY = Path(__file__).parents[1]
_PLUGIN = "tpu"
#: Script of the plugin, which runs a wheel: Python has no single-file programs for all platforms.
_SCRIPT = """#!/bin/sh
# Runs the commands of tpu-provisioner from the wheel next to this script: with uv, otherwise in a virtual environment.
set -eu
# krew starts the script by a link.
here=$(dirname "$(readlink -f "$0")")
wheel="$here/WHEEL"
if command -v uv > /dev/null 2>&1; then
  exec uv tool run --quiet --from "$wheel" kubectl-tpu "$@"
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
  echo "kubectl tpu needs uv, or Python 3.11 or newer as python3" >&2
  exit 1
fi
home="${XDG_CACHE_HOME:-$HOME/.cache}/tpu-provisioner/kubectl-tpu-TAG"
if [ ! -e "$home/complete" ]; then
  echo "kubectl tpu: installing TAG in $home" >&2
  rm -rf "$home"
  python3 -m venv "$home"
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
  touch "$home/complete"
fi
exec "$home/bin/kubectl-tpu" "$@"
"""
_MANIFEST = """apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: {plugin}
spec:
  version: {tag}
  homepage: {repository}
  shortDescription: Explain and plan TPU node pools on GKE
  description: |
    Commands of tpu-provisioner, which creates TPU node pools on GKE when pods need them.
    `kubectl tpu plan -f FILE` shows the node pools and the mistakes of manifests without
    a cluster; `status` and `explain` show what each slice waits for.
  caveats: |
    The plugin needs uv, or Python 3.11 or newer. `plan` and `topologies` work without
    the controller; the other commands ask it.
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [linux, darwin]}}
      uri: {repository}/releases/download/{tag}/{archive}
      sha256: {sha256}
      bin: kubectl-{plugin}
"""
#: Statements of the release, written after a scan of its image (docs/develop/releasing.md).
_STATEMENTS = Path(__file__).with_name("vex-statements.json")
_JUSTIFICATIONS = frozenset(
    {
        "component_not_present",
        "vulnerable_code_not_present",
        "vulnerable_code_not_in_execute_path",
        "vulnerable_code_cannot_be_controlled_by_adversary",
        "inline_mitigations_already_exist",
    }
)
_USAGE = "usage: artifacts krew IMAGE REPOSITORY WHEEL FOLDER, vex IMAGE TIMESTAMP FILE, artifacthub ID FILE\n"


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    try:
        match arguments:
            case ["krew", image, repository, wheel, folder]:
                make_plugin(image, repository, Path(wheel), Path(folder))
            case ["vex", image, timestamp, file]:
                if document := vex(image, timestamp, read_statements(_STATEMENTS)):
                    Path(file).write_text(document, encoding="utf-8")
            case ["artifacthub", identifier, file]:
                Path(file).write_text(publisher(identifier), encoding="utf-8")
            case _:
                sys.stderr.write(_USAGE)
                return 2
    except ReleaseError as error:
        sys.stderr.write(f"artifacts: {error}\n")
        return 1
    return 0


def make_plugin(image: str, repository: str, wheel: Path, folder: Path) -> None:
    """Write the archive of the plugin, and krew's manifest with the checksum. Equal inputs give equal bytes."""
    tag = read_image(image)["tag"]
    archive = folder / f"kubectl-{_PLUGIN}_{tag}.tar.gz"
    script = _SCRIPT.replace("WHEEL", wheel.name).replace("TAG", tag)
    files = {
        f"kubectl-{_PLUGIN}": (script.encode(), 0o755),
        wheel.name: (wheel.read_bytes(), 0o644),
        "LICENSE": ((_REPOSITORY / "LICENSE").read_bytes(), 0o644),
    }
    packed = io.BytesIO()
    # The archive has no times of files and of the compression, so that equal inputs give equal bytes.
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    manifest = _MANIFEST.format(
        plugin=_PLUGIN,
        tag=tag,
        repository=repository,
        archive=archive.name,
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
    )
    (folder / f"{_PLUGIN}.yaml").write_text(manifest, encoding="utf-8")


class Statement(NamedTuple):
    """A vulnerability that a scan of the image reported, and that does not affect the image."""

    vulnerability: str
    #: Debian package in the image.
    package: str
    #: Value of OpenVEX's `justification`.
    justification: str


def read_statements(file: Path) -> list[Statement]:
    """Return the statements in a JSON file. Raises ReleaseError if one is malformed."""
    statements = []
    for entry in json.loads(file.read_text(encoding="utf-8")):
        if entry.keys() != set(Statement._fields) or entry["justification"] not in _JUSTIFICATIONS:
            fields, values = ", ".join(Statement._fields), ", ".join(sorted(_JUSTIFICATIONS))
            raise ReleaseError(f"{file.name}: {entry} needs the fields {fields}; justification is one of {values}")
        statements.append(Statement(**entry))
    return statements


def vex(image: str, timestamp: str, statements: Sequence[Statement]) -> str | None:
    """Return an OpenVEX 0.2 document about the image; None without statements, because its schema requires one."""
    if not statements:
        return None
    found = read_image(image)
    name, digest = found["name"], found["digest"]
    short = name.rpartition("/")[2]
    product = f"pkg:oci/{short}@{quote(digest, safe='')}?repository_url={name}"
    document = {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"https://openvex.dev/docs/public/{short}-{digest.removeprefix('sha256:')}",
        "author": name.split("/")[1],
        "timestamp": timestamp,
        "version": 1,
        "statements": [
            {
                "vulnerability": {"name": statement.vulnerability},
                "products": [{"@id": product, "subcomponents": [{"@id": f"pkg:deb/debian/{statement.package}"}]}],
                "status": "not_affected",
                "justification": statement.justification,
            }
            for statement in statements
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def publisher(identifier: str) -> str:
    """Return artifacthub-repo.yml. Raises ReleaseError if the identifier is not a UUID."""
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", identifier) is None:
        raise ReleaseError(f"{identifier!r} is not the ID of a repository; copy it from Artifact Hub's control panel")
    return f"repositoryID: {identifier}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
