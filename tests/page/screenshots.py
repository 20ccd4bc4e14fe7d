"""Pictures of the status page for the documentation: every view, light and dark, of the demo's simulated world.

python -m tests.page.screenshots                    # writes docs/pictures/*.webp
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from selenium import webdriver

from provisioner.slices.board import Board
from provisioner.slices.view.types import State
from tests.simulation.demo_page import Demo
from tests.simulation.run import told_to
from tests.support.page import (
    HandMadeBoard,
    a_browser,
    a_large_view,
    open_page,
    picture,
    prefer,
    resize,
    served,
    until,
    why_no_browser,
)

_FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
#: Duration of the demo, in minutes, before the pictures.
_MINUTES = 40
_SLICES = 160
_WIDTH, _HEIGHT = 1200, 760
_PHONE = 360
MAX_BYTES = 150_000
LARGE = "board-2000-light"
#: Name, query of the address, width, and theme of each picture.
PICTURES = [
    *(
        (f"{name}-{theme}", query, _WIDTH, theme)
        for name, query in (
            ("board", ""),
            ("details", "?view=detail&id={waiting}"),
            ("timeline", "?view=timeline"),
            ("capacity", "?view=capacity"),
            ("activity", "?view=activity"),
        )
        for theme in ("light", "dark")
    ),
    ("phone-light", "", _PHONE, "light"),
    ("phone-dark", "?view=timeline", _PHONE, "dark"),
]


def world() -> Board:
    """Return the board of a demo _MINUTES after its start; each call gives the same board."""
    demo = Demo(slices=_SLICES)
    board = demo.begin()
    with told_to(demo.stage):
        for _ in range(_MINUTES * 60):
            demo.stage.agenda.wait(1.0)
    # The clock stands still, so that slow pictures do not make the controller look stalled.
    stopped = time.monotonic()
    board.monotonic = lambda: stopped
    return board


def shoot(browser: webdriver.Chrome, url: str, folder: Path, waiting: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, query, width, theme in PICTURES:
        shoot_one(browser, url + query.format(waiting=waiting), folder / f"{name}.webp", width, theme)


def shoot_one(browser: webdriver.Chrome, address: str, path: Path, width: int = _WIDTH, theme: str = "light") -> None:
    resize(browser, width, _HEIGHT)
    prefer(browser, theme)
    open_page(browser, address)
    until(browser, "return document.querySelector('main > :not([hidden])').innerText.length > 100")
    picture(browser, path)
    size = path.stat().st_size
    sys.stdout.write(f"{path}: {size} bytes\n")
    if size > MAX_BYTES:
        raise SystemExit(f"{path} is larger than {MAX_BYTES} bytes; show less in it")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.page.screenshots", description="Write docs/pictures/*.webp")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="where they are written (%(default)s)")
    given = parser.parse_args()
    if missing := why_no_browser():
        sys.stderr.write(f"screenshots: {missing}\n")
        return 1
    board = world()
    with served(board) as url, a_browser() as browser:
        view = board.document().view
        waiting = next(slice_.id for slice_ in view.slices if slice_.state is State.WAITING) if view is not None else ""
        shoot(browser, url, given.folder, waiting)
        browser.get("about:blank")
    large = HandMadeBoard()
    large.show(view=a_large_view(2000))
    with served(large) as url, a_browser() as browser:
        shoot_one(browser, url, given.folder / f"{LARGE}.webp")
        browser.get("about:blank")
    return 0


if __name__ == "__main__":
    sys.exit(main())
