"""What a release checks and says: the tag is the version in the code, and CHANGELOG.md has a section for it.

Runs on a bare Python, before anything is installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

_REPOSITORY = Path(__file__).parents[1]


class ReleaseError(ValueError):
    """The tag cannot be released; the message says why and what to do."""


def main(arguments: Sequence[str]) -> int:
    """`check TAG` or `notes TAG`; return the exit code."""
    if len(arguments) != 2 or arguments[0] not in ("check", "notes"):
        sys.stderr.write("usage: release.py check|notes vX.Y.Z\n")
        return 2
    command, tag = arguments
    try:
        notes = check(_REPOSITORY, tag)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    if command == "notes":
        sys.stdout.write(notes)
    return 0


def check(repository: Path, tag: str) -> str:
    """Return the notes of the tag's release. Raises ReleaseError."""
    code = (repository / "provisioner" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'(?m)^__version__ = "([^"]+)"$', code)
    if match is None:
        raise ReleaseError("provisioner/__init__.py has no __version__")
    version = match.group(1)
    if tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag} and the code says {version}; tag v{version}, or change __version__")
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^## \[?{re.escape(version)}\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if section is None or not section.group(1).strip():
        raise ReleaseError(f"CHANGELOG.md has no section {version}; rename Unreleased to {version} and its date")
    return section.group(1).strip() + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
