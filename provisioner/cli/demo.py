"""`tpu-provisioner demo`: a JobSet from creation to nothing left, before your eyes, without a cloud."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.table import Table

import provisioner
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import Command, complete_files
from provisioner.localcluster import LocalClusterError
from provisioner.rehearsal.story import PoolTimes, Story
from provisioner.rehearsal.world import CLUSTER, LOCATION, PROJECT, ProvisionerProcess, Rehearsal, RehearsalError
from provisioner.simulators.gke.settings import SimulatorSettings

_LOOK_SECONDS = 0.2
#: Nothing new for this long beyond the time that a pool takes is a failure.
_STANDSTILL_SECONDS = 120.0
_EXAMPLE = "jobset.yaml"
_STEPS = (
    ("decided", "wanted", "creating"),
    ("created", "creating", "ready"),
    ("bound", "ready", "in_use"),
    ("used", "in_use", "idle"),
    ("kept", "idle", "deleting"),
    ("deleted", "deleting", "gone"),
)


@click.command(
    cls=Command,
    examples=(
        "{prog} demo",
        "{prog} demo my-jobset.yaml --create-seconds=60",
        "KEEP=1 {prog} demo              # and look around afterwards",
    ),
)
@click.argument("files", nargs=-1, type=Path, metavar="[FILE]...", shell_complete=complete_files)
@click.option(
    "--create-seconds", type=float, default=12.0, show_default=True, help="time that GKE takes to create a pool"
)
@click.option(
    "--delete-seconds", type=float, default=4.0, show_default=True, help="time that GKE takes to delete a pool"
)
@click.option(
    "--operations-quota", type=int, help="maximum number of concurrent node pool operations (default: no limit)"
)
@click.option("--keep", is_flag=True, help="keep everything running afterwards (also KEEP=1)")
def command(
    files: tuple[Path, ...],
    *,
    create_seconds: float,
    delete_seconds: float,
    operations_quota: int | None,
    keep: bool,
) -> int:
    """Run a JobSet on a local control plane with a simulated GKE, and show what happens.

    FILE is a manifest to apply (default: the example JobSet). The first run builds the control plane, which takes about
    ten minutes. Exit code 0 when everything came and went as it should.
    """
    keep = keep or os.environ.get("KEEP", "") not in ("", "0", "false")
    console = Console(highlight=False)
    files = files or (_example(),)
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        console.print(f"no such file: {', '.join(missing)}", style="red")
        return ExitCode.USAGE
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    settings = SimulatorSettings(
        project=PROJECT,
        location=LOCATION,
        cluster=CLUSTER,
        create_seconds=create_seconds,
        delete_seconds=delete_seconds,
        operations_quota=operations_quota,
    )
    narrator = _Narrator(console)
    try:
        with Rehearsal(settings=settings, progress=narrator.tell) as rehearsal:
            delay = os.environ.get("NODEPOOL_DELETION_DELAY", "5s")
            process = rehearsal.provisioner(environment={"NODEPOOL_DELETION_DELAY": delay})
            process.start()
            narrator.tell(f"the provisioner runs; GKE is simulated at {rehearsal.gke.url}")
            for file in files:
                rehearsal.kubectl("apply", "--server-side", "-f", str(file))
            story = Story(rehearsal, process)
            _watch(rehearsal, process, story, narrator, create_seconds, interrupted)
            _summarise(console, story, rehearsal)
            if keep and not interrupted.is_set():
                _stay(console, rehearsal, process, interrupted)
    except (RehearsalError, LocalClusterError) as error:
        console.print(f"\nThe demo failed: {error}", style="red", markup=False)
        return ExitCode.ERROR
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.INTERRUPTED if interrupted.is_set() and not keep else ExitCode.OK


class _Narrator:
    """Prints lines with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def tell(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._started:7.1f} s  {text}", markup=False, soft_wrap=True)


def _watch(
    rehearsal: Rehearsal,
    process: ProvisionerProcess,
    story: Story,
    narrator: _Narrator,
    create_seconds: float,
    interrupted: threading.Event,
) -> None:
    """Tell the story until all JobSets have ended and nothing is left."""
    last_news = time.monotonic()
    begun = False
    while not interrupted.is_set():
        process.check()
        rehearsal.cluster.check()
        for line in story.advance():
            narrator.tell(line)
            last_news, begun = time.monotonic(), True
        if story.invalid:
            raise RehearsalError("no pool can be created:\n" + "\n".join(story.invalid))
        if story.failed:
            raise RehearsalError(f"JobSet {', '.join(story.failed)} failed; see its pods for the reason")
        nodes = rehearsal.objects("/api/v1/nodes")
        if begun and not story.unfinished and not rehearsal.gke.pools and not nodes and _all_gone(story):
            narrator.tell("nothing is left: no node pool, no node")
            return
        if time.monotonic() - last_news > _STANDSTILL_SECONDS + create_seconds:
            raise RehearsalError(
                f"nothing has happened for {time.monotonic() - last_news:.0f} s.\n"
                f"JobSets that have not ended: {', '.join(story.unfinished) or 'none'}\n"
                f"node pools: {', '.join(pool.name for pool in rehearsal.gke.pools) or 'none'}\n"
                f"the end of the provisioner's log:\n{process.tail()}"
            )
        interrupted.wait(_LOOK_SECONDS)


def _all_gone(story: Story) -> bool:
    return all("gone" in times.entered for times in story.pools.values())


def _summarise(console: Console, story: Story, rehearsal: Rehearsal) -> None:
    table = Table(title="Time in each step, in seconds")
    table.add_column("slice", overflow="fold")
    table.add_column("node pool", overflow="fold")
    table.add_column("chips", justify="right", no_wrap=True)
    for title, _, _ in _STEPS:
        table.add_column(title, justify="right", no_wrap=True)
    made = [times for times in story.pools.values() if "creating" in times.entered]
    for times in made:
        table.add_row(", ".join(times.jobs), times.name, str(times.chips), *_row(times))
    console.print(table)
    calls = Table(title="Calls to GKE")
    calls.add_column("method")
    calls.add_column("calls", justify="right")
    counts = rehearsal.gke.call_counts()
    for method, by_status in counts.items():
        calls.add_row(method, str(sum(by_status.values())))
    total = sum(sum(by_status.values()) for by_status in counts.values())
    calls.add_row("total", str(total), style="bold")
    console.print(calls)
    console.print(f"{sum(times.chips for times in made)} chips in {len(made)} node pools, created and deleted.")


def _row(times: PoolTimes) -> list[str]:
    values = (times.seconds(start, end) for _, start, end in _STEPS)
    return ["" if value is None else f"{value:.1f}" for value in values]


def _stay(console: Console, rehearsal: Rehearsal, process: ProvisionerProcess, interrupted: threading.Event) -> None:
    console.print(
        f"\nEverything keeps running until Ctrl-C:\n"
        f"  export KUBECONFIG={rehearsal.cluster.kubeconfig}\n"
        f"  kubectl                  {rehearsal.cluster.binaries['kubectl']}\n"
        f"  simulated GKE            {rehearsal.gke.url}  (state: {rehearsal.gke.url}/simulator/v1/state)\n"
        f"  provisioner's metrics    {process.metrics_url}\n"
        f"  provisioner's readiness  {process.ready_url}\n"
        f"  provisioner's log        {process.log}\n",
        markup=False,
        soft_wrap=True,
    )
    sys.stdout.flush()
    while not interrupted.wait(1.0):
        process.check()
        rehearsal.cluster.check()


def _example() -> Path:
    package = Path(provisioner.__file__).parent
    # In a checkout beside the package, in a wheel inside it.
    candidates = (package.parent / "examples" / _EXAMPLE, package / "examples" / _EXAMPLE)
    return next((path for path in candidates if path.exists()), candidates[0])
