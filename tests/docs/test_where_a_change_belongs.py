"""Tests that the table "Where a change belongs" names existing files, and all files with cases by kind or setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from provisioner.model.workloads import WorkloadKind
from provisioner.settings import forms
from tests.docs.shell import ROOT

(_PAGE,) = (ROOT / "docs").rglob("architecture.md")
_SECTION = _PAGE.read_text(encoding="utf-8").partition("## Where a change belongs")[2].partition("\n## ")[0]
#: Cell with the files of a change, by the name of the change.
_ROWS = {
    change: files for change, files in re.findall(r"^\| (.+?) \| (.+) \|$", _SECTION, re.MULTILINE) if "`" in files
}
_PATH = re.compile(r"`([\w.*/-]+(?:/|\.(?:py|md|js|html|yaml|tf))|deploy/[\w/-]+)`")
#: Names of kinds with pods in code, such as JOBSET or PLAIN_JOB.
_KINDS = re.compile(rf"\b(?:PLAIN_)?({'|'.join(kind.name for kind in WorkloadKind if kind.has_pods)})\b(?!_)")


def _files_of(row: str) -> list[Path]:
    """Return the files and folders of a row. A name without a folder is a file next to the previous file of the row."""
    found: list[Path] = []
    for name in _PATH.findall(row):
        places = [ROOT / "provisioner", ROOT, *([found[-1].parent, *found[-1].parents[1:2]] if found else [])]
        matches = next((paths for place in places if (paths := sorted(place.glob(name.rstrip("/"))))), None)
        assert matches is not None, f"{_PAGE.name} names {name}, which does not exist"
        found += matches
    return found


def _lacking(row: str, folders: Iterable[str], concerns: Callable[[str], bool]) -> list[str]:
    """Return the Python files in `folders` that a row of the page does not list, although `concerns` holds for them."""
    listed = _files_of(_ROWS[row])
    return [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if concerns(path.read_text(encoding="utf-8")) and not any(path.is_relative_to(place) for place in listed)
    ]


@pytest.mark.parametrize("row", _ROWS)
def test_every_file_of_a_row_exists(row: str) -> None:
    assert _files_of(_ROWS[row])


def test_row_of_kinds_names_every_file_that_names_several_kinds() -> None:
    def tells_apart(text: str) -> bool:
        return len(set(_KINDS.findall(text))) > 1

    assert _lacking("workload kind", ["provisioner"], tells_apart) == []


def test_row_of_kinds_names_every_fake_with_most_kinds() -> None:
    def has_most(text: str) -> bool:
        return len(set(_KINDS.findall(text))) > 2

    lacking = _lacking("workload kind", ["tests/support", "tests/simulation", "tests/e2e"], has_most)
    assert [path for path in lacking if not Path(path).name.startswith("test_")] == []


def test_row_of_settings_names_every_file_that_depends_on_forms() -> None:
    named = [name for name in vars(forms) if not name.startswith("_")]

    def depends_on_forms(text: str) -> bool:
        return sum(f"forms.{name}" in text for name in named) > 2

    assert _lacking("setting", ["generators"], depends_on_forms) == []


def test_row_of_settings_names_every_file_of_a_setting_of_nodes() -> None:
    """GCP_NODE_SECURE_BOOT is an example of a setting of nodes."""
    folders = ["provisioner/model", "provisioner/settings", "provisioner/slices"]
    assert _lacking("setting", folders, lambda text: "secure_boot" in text) == []
