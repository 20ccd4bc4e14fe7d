"""The documentation's site is built without a complaint: each link and anchor leads somewhere, each page is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
#: As `make site` does.
_BUILD = (sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c")
_PAGES = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md"), *(_ROOT / "deploy" / "charts").rglob("*.md")])


def _build(source: Path, target: Path, builder: str) -> subprocess.CompletedProcess[str]:
    # Warnings of Sphinx go to its standard error.
    return subprocess.run(
        [*_BUILD, str(source / "docs"), "-b", builder, "-d", str(target / "cache"), str(source), str(target / "site")],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(60)  # Starts Sphinx, which takes three seconds on a machine that does nothing else.
def test_the_pages_make_a_site(tmp_path: Path) -> None:
    """Each link and anchor leads somewhere, and the navigation to each page. As `make site`, but nothing is drawn."""
    made = _build(_ROOT, tmp_path, "dummy")

    assert made.stderr == ""
    assert made.returncode == 0
    cached = {page.relative_to(tmp_path / "cache").as_posix() for page in (tmp_path / "cache").rglob("*.doctree")}
    assert cached == {page.relative_to(_ROOT).with_suffix(".doctree").as_posix() for page in _PAGES}
