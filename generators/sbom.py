"""Write the bill of materials of the image: what requirements/run.txt locks, as CycloneDX, and our own version.

It tells of Python packages alone; what the base image brings is in the bill that the image's build attaches.
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
    """Write to the one path given; return the exit code."""
    (target,) = (Path(argument) for argument in arguments)
    # Beside the interpreter, where an environment's commands are.
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
        # It warns that the lock does not say who needs whom.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        check=True,
    )
    bill = json.loads(done.stdout)
    component = bill["metadata"]["component"]
    # pyproject.toml leaves the version to the code.
    component["version"] = provisioner.__version__
    component["purl"] = f"pkg:pypi/tpu-provisioner@{provisioner.__version__}"
    # The lock does not say who needs whom; all of it is in the image.
    bill["dependencies"] = [
        {"ref": component["bom-ref"], "dependsOn": sorted(part["bom-ref"] for part in bill["components"])},
        *(each for each in bill.get("dependencies", []) if each["ref"] != component["bom-ref"]),
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"created {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
