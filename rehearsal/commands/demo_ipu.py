"""`tpu-rehearsal demo-ipu`: runs pods with IPUs on a local control plane, until their partitions are removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from provisioner.cli.frame import command_with
from provisioner.cli.output import ExitCode
from provisioner.runtime import logs
from rehearsal.commands.showing import Demo, example, left_behind, missing, refuse, steps_table
from rehearsal.demos.partitions import PartitionRehearsal, PartitionStory, PodTimes
from rehearsal.demos.world import ControllerProcess, RehearsalError
from rehearsal.simulators.http.settings import SettingsError
from rehearsal.simulators.vipu.settings import IPUS_OF_AGENT, VipuSettings

_EXAMPLES = ("partitions/job.yaml", "partitions/queue.yaml")
_STEPS = (("waited", "created", "opened"), ("ran", "opened", "ended"), ("released", "ended", "released"))


@command_with(
    "{prog} demo-ipu",
    "{prog} demo-ipu my-job.yaml --ipus=64 --create-seconds=20",
    "KEEP=1 {prog} demo-ipu      # look around afterwards",
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="[FILE]...")
@click.option("--ipus", type=int, default=16, show_default=True, help="IPUs of the simulated V-IPU server")
@click.option("--create-seconds", type=float, default=3.0, show_default=True, help="time until a partition is active")
@click.option("--keep", is_flag=True, help="keep everything running afterwards (also KEEP=1)")
def command(files: tuple[Path, ...], *, ipus: int, create_seconds: float, keep: bool) -> int:
    """Run pods with IPUs on a local control plane with a simulated V-IPU server.

    FILE is a manifest to apply (default: the example of a Job, and of Jobs that have to wait for one another). The
    first run builds the control plane, which takes about ten minutes. Exit code 0 when everything was created and
    deleted.
    """
    files = files or tuple(map(example, _EXAMPLES))
    if problem := missing(files):
        refuse(problem)
        return ExitCode.USAGE
    if ipus < 1 or ipus % IPUS_OF_AGENT:
        raise click.UsageError(f"--ipus={ipus} is not a multiple of {IPUS_OF_AGENT}, the IPUs of an IPU-Machine")
    try:
        simulated = VipuSettings(
            allocations={"alloc-1": {"cluster": "demo", "agents": ipus // IPUS_OF_AGENT}},
            create_seconds=create_seconds,
            remove_seconds=1.0,
        )
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    logs.configure("warning")
    demo = Demo(keep=keep)
    with demo, PartitionRehearsal(settings=simulated, progress=demo.tell) as rehearsal:
        rehearsal.webhook()
        demo.tell("the webhook server runs, and pods with IPUs are sent to it")
        process = rehearsal.controller()
        process.start()
        demo.tell(f"the controller of partitions runs; V-IPU is simulated, with {ipus} IPUs")
        for file in files:
            rehearsal.kubectl("apply", "--server-side", "-f", str(file))
        story = PartitionStory(rehearsal)
        picture = partial(_picture, rehearsal, story, process)
        demo.watch(rehearsal, story, ended=partial(_ended, rehearsal, story), picture=picture)
        click.echo("\n".join(summary(story.pods.values(), _left(rehearsal))))
        places = {
            "simulated V-IPU server": f"{rehearsal.vipu.url}  (state: {rehearsal.vipu.url}/simulator/v1/state)",
            "status page": process.page_url,
            "controller's metrics": process.metrics_url,
            "controller's log": str(process.log),
        }
        demo.stay(rehearsal, places)
    return demo.exit_code


def _ended(rehearsal: PartitionRehearsal, story: PartitionStory) -> str:
    """Return the final message, empty while a pod runs or a partition exists. Raises RehearsalError if a pod failed."""
    if story.failed:
        raise RehearsalError(f"pod {', '.join(story.failed)} failed; see it for the reason")
    if not story.pods or story.unfinished or _left(rehearsal):
        return ""
    return "nothing is left: no partition, no entry in the ledger"


def _picture(rehearsal: PartitionRehearsal, story: PartitionStory, process: ControllerProcess) -> str:
    return (
        f"pods that have not ended: {', '.join(story.unfinished) or 'none'}\n"
        f"left: {', '.join(_left(rehearsal)) or 'nothing'}\n"
        f"the end of the controller's log:\n{process.tail()}"
    )


def _left(rehearsal: PartitionRehearsal) -> list[str]:
    partitions = [f"partition {partition.id} ({partition.state})" for partition in rehearsal.vipu.partitions]
    return partitions + [f"entry {entry} in the ledger" for entry in rehearsal.ledger()]


def summary(pods: Iterable[PodTimes], left: Sequence[str]) -> Iterator[str]:
    """Yield the times of each pod, and the names of the partitions and ledger entries that are left."""
    pods = list(pods)
    yield from steps_table(("POD", "IPUS"), (((times.name,), times.ipus, times) for times in pods), _STEPS)
    yield ""
    if left:
        yield from left_behind("Left:", left)
        return
    yield f"{len(pods)} partition{'' if len(pods) == 1 else 's'}, created, used and removed."
