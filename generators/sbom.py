"""Writes the image's bill of materials in CycloneDX: the packages locked in requirements/run.txt, and the version.

Only Python packages are included; the bill that the image's build attaches has the packages of the base image.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import provisioner

_REPOSITORY = Path(__file__).parents[1]


def main(arguments: Sequence[str]) -> int:
    """Write the bill to the path that is the only argument; return the exit code."""
    (target,) = (Path(argument) for argument in arguments)
    # The command is in the folder of the interpreter, as all commands of an environment.
    command = Path(sys.executable).parent / "cyclonedx-py"
    done = subprocess.run(
        [
            command,
            "requirements",
            "--pyproject=pyproject.toml",
            "--mc-type=application",
            "--output-reproducible",
            "--spec-version=1.6",
            "--output-format=JSON",
            "requirements/run.txt",
        ],
        cwd=_REPOSITORY,
        # The suppressed warning says that the lock file has no dependencies between packages.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        check=True,
    )
    bill = json.loads(done.stdout)
    component = bill["metadata"]["component"]
    # The version is set here, because pyproject.toml takes it from the code.
    component["version"] = provisioner.__version__
    component["purl"] = f"pkg:pypi/tpu-provisioner@{provisioner.__version__}"
    # All packages become dependencies of the image, because the lock file has no dependencies between packages.
    bill["dependencies"] = [
        {"ref": component["bom-ref"], "dependsOn": sorted(part["bom-ref"] for part in bill["components"])},
        *(dependency for dependency in bill.get("dependencies", []) if dependency["ref"] != component["bom-ref"]),
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"created {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
