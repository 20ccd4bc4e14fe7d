"""Common parts of the demo commands: main loop, handling of signals and errors, lines with the time, and tables."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import click

import provisioner
from provisioner.cli import output
from provisioner.cli.output import ExitCode
from rehearsal.commands.progress import ProgressLine
from rehearsal.demos.world import RehearsalError, RehearsedCluster, Times
from rehearsal.localcluster import LocalClusterError

_LOOK_SECONDS = 0.2
#: Time in seconds without a change after which a demo fails. The demo of GKE adds the duration of a create.
STANDSTILL_SECONDS = 120.0
#: Width of a table, and minimum width of its first column, in characters.
_TABLE_WIDTH = 80
_NAME_WIDTH = 20
#: Indentation of the continuation lines of a name, and gap between columns.
_GAP = "  "


class Story(Protocol):
    """Source of the lines that a demo shows."""

    def advance(self) -> Iterator[str]:
        """Check for changes; yield a line for each."""


class Demo:
    """Context manager of a demo that handles signals and errors. `exit_code` is valid after the exit."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep or os.environ.get("KEEP", "") not in ("", "0", "false")
        self._started = time.monotonic()
        # The flag is no threading.Event, because a signal handler can interrupt code that holds the Event's lock.
        self._interrupted = False
        self._line = ProgressLine(sys.stdout)
        self.exit_code = ExitCode.OK

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        return self

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._interrupted:
            # A second signal interrupts any step of the demo, including its shutdown.
            raise KeyboardInterrupt
        self._interrupted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._line.close()
        if isinstance(error, RehearsalError | LocalClusterError):
            refuse(f"\nThe demo failed: {error}")
            self.exit_code = ExitCode.ERROR
        elif isinstance(error, KeyboardInterrupt) or (self._interrupted and not self._keep):
            self.exit_code = ExitCode.INTERRUPTED
        return isinstance(error, RehearsalError | LocalClusterError | KeyboardInterrupt)

    def tell(self, text: str) -> None:
        """Print a line with the time since the start."""
        self._line.show(text, prefix=f"{time.monotonic() - self._started:7.1f} s  ")

    def watch(
        self,
        rehearsal: RehearsedCluster,
        story: Story,
        *,
        ended: Callable[[], str],
        picture: Callable[[], str],
        patience_seconds: float = STANDSTILL_SECONDS,
    ) -> bool:
        """Print each change until `ended` returns a text, and print this text. Return False if interrupted before.

        Raises RehearsalError with the text of `picture` if nothing has changed for `patience_seconds`.
        """
        last_news = time.monotonic()
        while not self._interrupted:
            rehearsal.check()
            for line in story.advance():
                self.tell(line)
                last_news = time.monotonic()
            if words := ended():
                self.tell(words)
                return True
            silent_seconds = time.monotonic() - last_news
            if silent_seconds > patience_seconds:
                raise RehearsalError(f"nothing has happened for {silent_seconds:.0f} s.\n{picture()}")
            time.sleep(_LOOK_SECONDS)
        return False

    def stay(self, rehearsal: RehearsedCluster, places: Mapping[str, str]) -> None:
        """With --keep, print the addresses of the services, and keep everything running until an interruption."""
        if not self._keep or self._interrupted:
            return
        rows = [("kubectl", str(rehearsal.cluster.binaries["kubectl"])), *places.items()]
        lines = [f"export KUBECONFIG={rehearsal.cluster.kubeconfig}", *output.aligned(rows)]
        click.echo("\nEverything keeps running until Ctrl-C:\n" + "".join(f"  {line}\n" for line in lines))
        while not self._interrupted:
            rehearsal.check()
            time.sleep(_LOOK_SECONDS)


def refuse(message: str) -> None:
    """Print an error message in red."""
    click.secho(message, fg="red")


def missing(files: Iterable[Path]) -> str:
    """Return a sentence that names the files that do not exist, empty if all exist."""
    names = ", ".join(str(file) for file in files if not file.exists())
    return f"no such file: {names}" if names else ""


def example(name: str) -> Path:
    """Return the path of an example manifest."""
    package = Path(provisioner.__file__).parent
    # The folder is next to the package in a checkout, and inside it in a wheel.
    candidates = (package.parent / "examples" / name, package / "examples" / name)
    return next((path for path in candidates if path.exists()), candidates[0])


def calls_table(service: str, calls: Mapping[str, Mapping[Any, int]]) -> Iterator[str]:
    """Yield a table of the number of calls of each method of a service."""
    yield click.style(f"\nCalls to {service}", bold=True)
    counts = {method: sum(by_status.values()) for method, by_status in calls.items()}
    rows = [("METHOD", "CALLS"), *((method, str(count)) for method, count in counts.items())]
    yield from output.aligned([*rows, ("total", str(sum(counts.values())))], right=(1,))


def steps_table(
    head: tuple[str, str], rows: Iterable[tuple[Iterable[str], str, Times]], steps: Sequence[tuple[str, str, str]]
) -> Iterator[str]:
    """Yield a table of the seconds that each resource spent in each step. Long names continue on further lines.

    A row has the names of a resource, its count and its times. A step has a title, and the names of its begin and end.
    """
    yield click.style("\nTime in each step, in seconds", bold=True)
    heads = [head[1], *(title.upper() for title, _, _ in steps)]
    found = [(list(names), [count, *_taken(times, steps)]) for names, count, times in rows]
    numbers = [heads, *(cells for _, cells in found)]
    taken = sum(len(_GAP) + max(map(len, column)) for column in zip(*numbers, strict=True))
    room = max(_NAME_WIDTH, _TABLE_WIDTH - taken - len(_GAP))
    table = [[head[0], *heads]]
    for names, cells in found:
        pieces = [name[at : at + room] for name in names for at in range(0, len(name), room)]
        table.append([pieces[0], *cells])
        table += [[_GAP + piece, *[""] * len(cells)] for piece in pieces[1:]]
    yield from output.aligned(table, right=range(1, len(heads) + 1))


def _taken(times: Times, steps: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for _, start, end in steps:
        seconds = times.seconds(start, end)
        yield "" if seconds is None else f"{seconds:.1f}"


def left_behind(title: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of the resources that are left at the end."""
    yield title
    yield from (f"  {name}" for name in names)
    yield "They were simulated, and end with the local cluster and this program."
