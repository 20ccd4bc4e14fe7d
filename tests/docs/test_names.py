"""Tests that settings, keys, tests and files that pages name in backticks exist."""

from __future__ import annotations

import re

from provisioner import constants
from provisioner.nodegroups.api import names
from tests.docs.shell import PAGES, ROOT

_TEXTS = {str(page): page.read_text("utf-8") for page in PAGES if page.name != "CHANGELOG.md"}
_CODE = "".join(
    path.read_text("utf-8")
    for folder in ("provisioner", "rehearsal", "generators", "deploy", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".yaml", ".mk", ".sh")
)
#: Names that are not in the code: variables of Google, of the release workflow, and of commands on pages.
_FOREIGN = {
    "ARTIFACTHUB_REPOSITORY_ID",
    "PS_ACTIVE",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_DEVICE_PLUGIN_ADDR",
    "TPU_DEVICE_PLUGIN_HOST_IP",
    "TPU_TOPOLOGY_ALT",
    "TPU_TOPOLOGY_WRAP",
    "NEW_TAG",
}
_SLICES = ROOT / "provisioner" / "slices"
_FOLDERS = (ROOT, ROOT / "provisioner", _SLICES)
_PATH = re.compile(r"`((?:[a-z_]+/)+[\w.-]*)`")


def _named(pattern: str) -> set[tuple[str, str]]:
    return {(page, word) for page, text in _TEXTS.items() for word in re.findall(pattern, text)}


def test_every_name_in_capitals_is_in_the_code() -> None:
    """A name in capitals with an underscore is a setting, a variable or a value."""
    named = _named(r"`([A-Z]+(?:_[A-Z]+)+)(?:=[a-z]+)?`")
    assert len(named) > 50
    assert [reference for reference in named if reference[1] not in _FOREIGN and reference[1] not in _CODE] == []


def test_every_key_is_in_the_code() -> None:
    known = {value for module in (names, constants) for value in vars(module).values() if isinstance(value, str)}
    named = _named(r"`((?:[a-z-]+\.)+(?:google\.com|kubernetes\.io)/[a-z-]+[a-z])")
    assert len(named) > 20
    assert [(page, key) for page, key in named if key not in known and f"/{key.rpartition('/')[2]}" not in _CODE] == []


def test_every_test_exists() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    there = set(re.findall(r"(?m)^(?:    )?def (test_\w+)\(", sources))
    named = _named(r"`(test_\w+)`")
    assert len(named) > 40
    assert [reference for reference in named if reference[1] not in there] == []


def test_every_path_on_a_page_exists() -> None:
    """A path is relative to the repository, to `provisioner` or to its package `slices`; other texts are ignored."""
    named = {pair for pair in _named(_PATH.pattern) if any((top / pair[1].split("/")[0]).is_dir() for top in _FOLDERS)}
    assert len(named) > 50
    assert [reference for reference in named if not any((top / reference[1]).exists() for top in _FOLDERS)] == []
