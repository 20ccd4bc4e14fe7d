"""Tests that generated pages and pictures are up to date. `make docs` generates them."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

#: Long time-out, because tests start Python processes.
pytestmark = pytest.mark.timeout(60)

_ROOT = Path(__file__).parents[2]
_DIAGRAM = runpy.run_path(str(_ROOT / "docs" / "diagram.py"))
_SOURCES: tuple[Path, ...] = _DIAGRAM["SOURCES"]
_EVENTS = runpy.run_path(str(_ROOT / "docs" / "events_table.py"))


@pytest.mark.parametrize(
    ("maker", "page"),
    [
        ("api_table.py", "api.md"),
        ("metrics_table.py", "metrics.md"),
        ("node_group_table.py", "node-groups/fields.md"),
        ("settings_table.py slices", "settings.md"),
        ("settings_table.py nodegroups", "node-groups/settings.md"),
        ("settings_table.py partitions", "partitions/settings.md"),
    ],
)
def test_generated_page_is_up_to_date(maker: str, page: str) -> None:
    made = subprocess.run(
        [sys.executable, *maker.split(" ")],
        # With this path, the generator imports the code of this checkout, not of an installed package.
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        cwd=_ROOT / "docs",
        check=True,
        capture_output=True,
        text=True,
    )
    is_current = made.stdout == (_ROOT / "docs" / page).read_text(encoding="utf-8")
    assert is_current, f"docs/{page} is not current: make docs"


@pytest.mark.parametrize("page", _EVENTS["SOURCES"])
def test_causes_of_events_are_up_to_date(page: str) -> None:
    is_current = _EVENTS["page_of"](page) == (_ROOT / "docs" / page).read_text(encoding="utf-8")
    assert is_current, f"docs/{page} is not current: correct the comments of the reasons, and run make docs"


@pytest.mark.parametrize("source", _SOURCES, ids=lambda source: source.name)
def test_picture_is_up_to_date_and_on_a_page(source: Path) -> None:
    made = _DIAGRAM["draw"](source.read_text(encoding="utf-8"))
    is_current = made == source.with_suffix(".svg").read_text(encoding="utf-8")
    assert is_current, f"{source.with_suffix('.svg').name} is not current: make docs"
    pages = (page.read_text("utf-8") for page in (_ROOT / "docs").rglob("*.md"))
    assert any(f"]({source.with_suffix('.svg').name})" in page for page in pages)
