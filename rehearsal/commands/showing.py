"""What the commands that rehearse have in common: how they go on and end, lines with their time, tables."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import click

import provisioner
from provisioner.cli import output
from provisioner.cli.output import ExitCode
from rehearsal.demos.world import RehearsalError, RehearsedCluster, Times
from rehearsal.localcluster import LocalClusterError

#: How often the world is looked at.
_LOOK_SECONDS = 0.2
#: Nothing new for this long beyond the time that machines take is a failure.
STANDSTILL_SECONDS = 120.0
#: What a table is wide, and what it has room for at least beside its numbers.
_TABLE_WIDTH = 80
_NAME_WIDTH = 20
#: Of lines that go on with a name, and between columns.
_GAP = "  "


class Story(Protocol):
    """What changes in a rehearsal."""

    def advance(self) -> Iterator[str]:
        """Look again; yield a line for each thing that has changed."""


class Demo:
    """A demo while it is shown: use it as a context, then return its exit code."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep or os.environ.get("KEEP", "") not in ("", "0", "false")
        self._started = time.monotonic()
        # No threading.Event: a signal that comes while the same thread holds its lock would wait for itself.
        self._interrupted = False
        self.exit_code = ExitCode.OK

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        return self

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._interrupted:
            # Nobody asks twice who can wait until all has ended in good order.
            raise KeyboardInterrupt
        self._interrupted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, RehearsalError | LocalClusterError):
            refuse(f"\nThe demo failed: {error}")
            self.exit_code = ExitCode.ERROR
        elif isinstance(error, KeyboardInterrupt) or (self._interrupted and not self._keep):
            self.exit_code = ExitCode.INTERRUPTED
        return isinstance(error, RehearsalError | LocalClusterError | KeyboardInterrupt)

    def tell(self, text: str) -> None:
        """Print a line with the time since the start."""
        click.echo(f"{time.monotonic() - self._started:7.1f} s  {text}")

    def watch(
        self,
        rehearsal: RehearsedCluster,
        story: Story,
        *,
        ended: Callable[[], str],
        picture: Callable[[], str],
        patience_seconds: float = STANDSTILL_SECONDS,
    ) -> bool:
        """Tell the story until `ended` returns words, which are told too; return False where it was interrupted first.

        Raises RehearsalError, with a picture of what there is, where nothing has changed for so long.
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
        """Where everything is to stay, say where it is, and keep it running until an interruption."""
        if not self._keep or self._interrupted:
            return
        rows = [("kubectl", str(rehearsal.cluster.binaries["kubectl"])), *places.items()]
        lines = [f"export KUBECONFIG={rehearsal.cluster.kubeconfig}", *output.aligned(rows)]
        click.echo("\nEverything keeps running until Ctrl-C:\n" + "".join(f"  {line}\n" for line in lines))
        while not self._interrupted:
            rehearsal.check()
            time.sleep(_LOOK_SECONDS)


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


def calls_table(service: str, calls: Mapping[str, Mapping[Any, int]]) -> Iterator[str]:
    """Yield how often each method of a service was called."""
    yield click.style(f"\nCalls to {service}", bold=True)
    counts = {method: sum(by_status.values()) for method, by_status in calls.items()}
    rows = [("METHOD", "CALLS"), *((method, str(count)) for method, count in counts.items())]
    yield from output.aligned([*rows, ("total", str(sum(counts.values())))], right=(1,))


def steps_table(
    head: tuple[str, str], rows: Iterable[tuple[Iterable[str], str, Times]], steps: Sequence[tuple[str, str, str]]
) -> Iterator[str]:
    """Yield the seconds of each thing in each step, on 80 columns whatever the names are.

    A row has the names of a thing, each on lines of its own, its count and its times; a step its title, begin and end.
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
    """Yield what is left at the end."""
    yield title
    yield from (f"  {name}" for name in names)
    yield "They were simulated, and end with the local cluster and this program."
