"""`tpu-provisioner demo-ipu`: pods with IPUs from waiting to released, on a local control plane, without IPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from provisioner.cli import tables
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import Command, complete_files
from provisioner.cli.rehearsing import (
    LOOK_SECONDS,
    STANDSTILL_SECONDS,
    Narrator,
    example,
    in_pieces,
    is_kept,
    missing,
    on_interrupt,
    refuse,
    seconds,
)
from provisioner.localcluster import LocalClusterError
from provisioner.rehearsal.partition_story import PartitionStory, PodTimes
from provisioner.rehearsal.partitions import PartitionRehearsal
from provisioner.rehearsal.world import ControllerProcess, RehearsalError
from provisioner.runtime import logs
from provisioner.simulators.http.settings import SettingsError
from provisioner.simulators.vipu.settings import IPUS_OF_AGENT, VipuSettings

_EXAMPLES = ("partitions/job.yaml", "partitions/queue.yaml")
_STEPS = (("waited", "created", "opened"), ("ran", "opened", "ended"), ("released", "ended", "released"))


@click.command(
    cls=Command,
    examples=(
        "{prog} demo-ipu",
        "{prog} demo-ipu my-job.yaml --ipus=64 --create-seconds=20",
        "KEEP=1 {prog} demo-ipu      # look around afterwards",
    ),
)
@click.argument("files", nargs=-1, type=Path, metavar="[FILE]...", shell_complete=complete_files)
@click.option("--ipus", type=int, default=16, show_default=True, help="IPUs of the simulated V-IPU server")
@click.option("--create-seconds", type=float, default=3.0, show_default=True, help="time until a partition is active")
@click.option("--keep", is_flag=True, help="keep everything running afterwards (also KEEP=1)")
def command(files: tuple[Path, ...], *, ipus: int, create_seconds: float, keep: bool) -> int:
    """Run pods with IPUs on a local control plane with a simulated V-IPU server.

    FILE is a manifest to apply (default: the example of a Job, and of Jobs that have to wait for one another). The
    first run builds the control plane, which takes about ten minutes. Exit code 0 when everything came and went
    as it should.
    """
    files = files or tuple(map(example, _EXAMPLES))
    if problem := missing(files):
        refuse(problem)
        return ExitCode.USAGE
    if ipus < 1 or ipus % IPUS_OF_AGENT:
        raise click.UsageError(f"--ipus={ipus} is not a multiple of {IPUS_OF_AGENT}: an IPU-Machine has so many")
    try:
        simulated = VipuSettings(
            allocations={"alloc-1": {"cluster": "demo", "agents": ipus // IPUS_OF_AGENT}},
            create_seconds=create_seconds,
            remove_seconds=1.0,
        )
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    logs.configure("warning")
    interrupted = on_interrupt()
    narrator = Narrator()
    keep = is_kept(keep)
    try:
        with PartitionRehearsal(settings=simulated, progress=narrator.tell) as rehearsal:
            rehearsal.webhook()
            narrator.tell("the webhook server runs, and pods with IPUs are sent to it")
            process = rehearsal.controller()
            process.start()
            narrator.tell(f"the controller of partitions runs; V-IPU is simulated, with {ipus} IPUs")
            for file in files:
                rehearsal.kubectl("apply", "--server-side", "-f", str(file))
            story = PartitionStory(rehearsal)
            _watch(rehearsal, process, story, narrator, interrupted)
            click.echo("\n".join(summary(story.pods.values(), _left(rehearsal))))
            if keep and not interrupted.is_set():
                _stay(rehearsal, process, interrupted)
    except (RehearsalError, LocalClusterError) as error:
        refuse(f"\nThe demo failed: {error}")
        return ExitCode.ERROR
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.INTERRUPTED if interrupted.is_set() and not keep else ExitCode.OK


def _watch(
    rehearsal: PartitionRehearsal,
    process: ControllerProcess,
    story: PartitionStory,
    narrator: Narrator,
    interrupted: threading.Event,
) -> None:
    """Tell the story until all pods have ended and nothing is left."""
    last_news = time.monotonic()
    while not interrupted.is_set():
        process.check()
        rehearsal.cluster.check()
        for line in story.advance():
            narrator.tell(line)
            last_news = time.monotonic()
        if story.failed:
            raise RehearsalError(f"pod {', '.join(story.failed)} failed; see it for the reason")
        if story.pods and not story.unfinished and not _left(rehearsal):
            narrator.tell("nothing is left: no partition, no entry in the ledger")
            return
        if time.monotonic() - last_news > STANDSTILL_SECONDS:
            raise RehearsalError(
                f"nothing has happened for {time.monotonic() - last_news:.0f} s.\n"
                f"pods that have not ended: {', '.join(story.unfinished) or 'none'}\n"
                f"left: {', '.join(_left(rehearsal)) or 'nothing'}\n"
                f"the end of the controller's log:\n{process.tail()}"
            )
        interrupted.wait(LOOK_SECONDS)


def _left(rehearsal: PartitionRehearsal) -> list[str]:
    partitions = [f"partition {each.id} ({each.state})" for each in rehearsal.vipu.partitions]
    return partitions + [f"entry {each} in the ledger" for each in rehearsal.ledger()]


def summary(pods: Iterable[PodTimes], left: Sequence[str]) -> Iterator[str]:
    """Yield the times of each pod, and what is left."""
    pods = list(pods)
    yield click.style("\nTime in each step, in seconds", bold=True)
    rows: list[tuple[str, ...]] = [("POD", "IPUS", *(title.upper() for title, _, _ in _STEPS))]
    for times in pods:
        pieces = in_pieces(times.name)
        rows.append((pieces[0], times.ipus, *(seconds(times.seconds(start, end)) for _, start, end in _STEPS)))
        rows += [(f"  {piece}", *[""] * (len(_STEPS) + 1)) for piece in pieces[1:]]
    yield from tables.aligned(rows, right=range(1, len(_STEPS) + 2))
    yield ""
    if not left:
        yield f"{len(pods)} partition{'' if len(pods) == 1 else 's'}, created, used and removed."
        return
    yield "Left:"
    yield from (f"  {name}" for name in left)
    yield "They were simulated, and end with the local cluster and this program."


def _stay(rehearsal: PartitionRehearsal, process: ControllerProcess, interrupted: threading.Event) -> None:
    url = rehearsal.vipu.url
    click.echo(
        f"\nEverything keeps running until Ctrl-C:\n"
        f"  export KUBECONFIG={rehearsal.cluster.kubeconfig}\n"
        f"  kubectl                  {rehearsal.cluster.binaries['kubectl']}\n"
        f"  simulated V-IPU server   {url}  (state: {url}/simulator/v1/state)\n"
        f"  status page              {process.page_url}\n"
        f"  controller's metrics     {process.metrics_url}\n"
        f"  controller's log         {process.log}\n"
    )
    while not interrupted.wait(1.0):
        process.check()
        rehearsal.cluster.check()
