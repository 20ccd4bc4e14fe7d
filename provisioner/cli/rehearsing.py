"""What the commands that rehearse have in common: interruptions, lines with their time, tables."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click

import provisioner
from provisioner.cli import tables

#: How often the world is looked at.
LOOK_SECONDS = 0.2
#: Nothing new for this long beyond the time that machines take is a failure.
STANDSTILL_SECONDS = 120.0
#: What a table has room for beside its numbers.
NAME_WIDTH = 20


class Narrator:
    """Prints lines with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def tell(self, text: str) -> None:
        """Print a line."""
        click.echo(f"{time.monotonic() - self._started:7.1f} s  {text}")


def on_interrupt() -> threading.Event:
    """Return what is set by SIGINT and SIGTERM; a second one raises KeyboardInterrupt."""
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    return interrupted


def is_kept(option: bool) -> bool:  # noqa: FBT001 - an option as it was given
    """Tell whether everything is to stay, by the option or by KEEP in the environment."""
    return option or os.environ.get("KEEP", "") not in ("", "0", "false")


def refuse(message: str) -> None:
    """Say why nothing is done."""
    click.secho(message, fg="red")


def missing(files: Iterable[Path]) -> str:
    """Name the files that do not exist, in a sentence; empty where all do."""
    names = ", ".join(str(file) for file in files if not file.exists())
    return f"no such file: {names}" if names else ""


def example(name: str) -> Path:
    """Return an example that comes along."""
    package = Path(provisioner.__file__).parent
    # In a checkout beside the package, in a wheel inside it.
    candidates = (package.parent / "examples" / name, package / "examples" / name)
    return next((path for path in candidates if path.exists()), candidates[0])


def calls_table(calls: Mapping[str, Mapping[Any, int]]) -> Iterator[str]:
    """Yield how often each method was called."""
    counts = {method: sum(by_status.values()) for method, by_status in calls.items()}
    rows = [("METHOD", "CALLS"), *((method, str(count)) for method, count in counts.items())]
    yield from tables.aligned([*rows, ("total", str(sum(counts.values())))], right=(1,))


def in_pieces(text: str) -> list[str]:
    """Cut a text that is too long for a table."""
    return [text[at : at + NAME_WIDTH] for at in range(0, len(text), NAME_WIDTH)]


def seconds(value: float | None) -> str:
    """Return a time for a table; empty where it is not known."""
    return "" if value is None else f"{value:.1f}"
