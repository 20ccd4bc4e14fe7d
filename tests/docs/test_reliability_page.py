"""Tests that reality.md names a test for each assumption, and reliability.md each end-to-end test of a fault."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
_REALITY = (_ROOT / "docs" / "develop" / "reality.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(test_\w+)`")
_NAMED = sorted(set(_TEST.findall(_PAGE)))
#: Modules of end-to-end tests about faults of GKE, of Kubernetes and of the provisioner.
_OF_FAULTS = ("crashes", "guards", "leaders")


def _tests_in(*files: Path) -> set[str]:
    definition = re.compile(r"^(?:    )?def (test_\w+)\(", re.MULTILINE)
    return {name for file in files for name in definition.findall(file.read_text("utf-8"))}


def test_every_assumption_names_a_test() -> None:
    """test_names.py checks that the named test exists."""
    items = [line for line in _REALITY.splitlines() if line.startswith("- ")]
    assert items
    for item in items:
        assert re.search(r"`test_\w+`$", item), item


def test_page_names_every_end_to_end_test_of_a_fault() -> None:
    written = _tests_in(*(_ROOT / "tests" / "e2e" / f"test_{name}.py" for name in _OF_FAULTS))

    assert written
    assert written - set(_NAMED) == set()
