"""`tpu-provisioner demo`: a JobSet from creation to nothing left, before your eyes, without a cloud."""

from __future__ import annotations

import os
import threading
import time
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from provisioner import settings
from provisioner.cli import output, tables
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import Command, complete_files
from provisioner.cli.manifests import Manifests, read_manifests
from provisioner.cli.rehearsing import (
    LOOK_SECONDS,
    STANDSTILL_SECONDS,
    Narrator,
    calls_table,
    example,
    in_pieces,
    is_kept,
    missing,
    on_interrupt,
    refuse,
    seconds,
)
from provisioner.cli.simulated import simulated_gke
from provisioner.constants import TPU_RESOURCE
from provisioner.localcluster import LocalClusterError
from provisioner.rehearsal.story import PoolTimes, Story
from provisioner.rehearsal.world import (
    CLUSTER,
    LOCATION,
    PROJECT,
    ZONE,
    ProvisionerProcess,
    Rehearsal,
    RehearsalError,
)
from provisioner.simulators.gke.settings import SimulatorSettings
from provisioner.slices.offline.documents import Document
from provisioner.slices.offline.forecast import forecast
from provisioner.slices.suppliers.gke.rules import GKE_RULES

_EXAMPLE = "jobset.yaml"
_KIND = "JobSet"
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
        "KEEP=1 {prog} demo --watch      # open the page, and look around",
    ),
)
@click.argument("files", nargs=-1, type=Path, metavar="[FILE]...", shell_complete=complete_files)
@simulated_gke(create_seconds=12.0, delete_seconds=4.0)
@click.option("--watch", is_flag=True, help="open the status page in a browser")
@click.option("--keep", is_flag=True, help="keep everything running afterwards (also KEEP=1)")
def command(
    files: tuple[Path, ...],
    *,
    gke: SimulatorSettings,
    watch: bool,
    keep: bool,
) -> int:
    """Run a JobSet on a local control plane with a simulated GKE, and show what happens.

    FILE is a manifest to apply (default: the example JobSet). The first run builds the control plane, which takes about
    ten minutes. Exit code 0 when everything came and went as it should.
    """
    keep = is_kept(keep)
    files = files or (example(_EXAMPLE),)
    if problem := missing(files):
        refuse(problem)
        return ExitCode.USAGE
    problem = problem_with(read_manifests(map(str, files)), os.environ)
    if problem:
        refuse(problem)
        return ExitCode.ERROR
    interrupted = on_interrupt()
    gke = replace(gke, project=PROJECT, location=LOCATION, cluster=CLUSTER)
    narrator = Narrator()
    try:
        with Rehearsal(settings=gke, progress=narrator.tell) as rehearsal:
            delay = os.environ.get("NODEPOOL_DELETION_DELAY", "5s")
            process = rehearsal.provisioner(environment={"NODEPOOL_DELETION_DELAY": delay})
            process.start()
            narrator.tell(f"the provisioner runs; GKE is simulated at {rehearsal.gke.url}")
            narrator.tell(f"the status page is at {process.page_url}")
            if watch and not webbrowser.open(process.page_url):
                narrator.tell("no browser could be started here; open that address yourself")
            for file in files:
                rehearsal.kubectl("apply", "--server-side", "-f", str(file))
            story = Story(rehearsal, process)
            _watch(rehearsal, process, story, narrator, gke.create_seconds, interrupted)
            click.echo("\n".join(summary(story.pools.values(), rehearsal.gke.call_counts())))
            if keep and not interrupted.is_set():
                _stay(rehearsal, process, interrupted)
    except (RehearsalError, LocalClusterError) as error:
        refuse(f"\nThe demo failed: {error}")
        return ExitCode.ERROR
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.INTERRUPTED if interrupted.is_set() and not keep else ExitCode.OK


def _watch(
    rehearsal: Rehearsal,
    process: ProvisionerProcess,
    story: Story,
    narrator: Narrator,
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
        if time.monotonic() - last_news > STANDSTILL_SECONDS + create_seconds:
            raise RehearsalError(
                f"nothing has happened for {time.monotonic() - last_news:.0f} s.\n"
                f"JobSets that have not ended: {', '.join(story.unfinished) or 'none'}\n"
                f"node pools: {', '.join(pool.name for pool in rehearsal.gke.pools) or 'none'}\n"
                f"the end of the provisioner's log:\n{process.tail()}"
            )
        interrupted.wait(LOOK_SECONDS)


def _all_gone(story: Story) -> bool:
    return all("gone" in times.entered for times in story.pools.values())


def summary(pools: Iterable[PoolTimes], calls: Mapping[str, Mapping[Any, int]]) -> Iterator[str]:
    """Yield the times of each node pool, the calls to GKE, and what became of the pools."""
    made = [times for times in pools if "creating" in times.entered]
    if made:
        yield click.style("\nTime in each step, in seconds", bold=True)
        yield from _times(made)
    yield click.style("\nCalls to GKE", bold=True)
    yield from calls_table(calls)
    yield ""
    if not made:
        yield "No node pool was created."
        return
    left = [times for times in made if "gone" not in times.entered]
    chips = sum(times.chips for times in made)
    if not left:
        yield f"{chips} chips in {_pools(len(made))}, created and deleted."
        return
    yield f"{chips} chips in {_pools(len(made))}; {len(made) - len(left)} deleted, {len(left)} left:"
    for times in left:
        yield f"  {times.name}: {times.chips} chips, {_phase(times)}"
    yield "They were simulated, and end with the local cluster and this program."


def _times(made: Sequence[PoolTimes]) -> Iterator[str]:
    """Yield a table of 80 columns, whatever the names are."""
    rows: list[tuple[str, ...]] = [("SLICE, NODE POOL", "CHIPS", *(title.upper() for title, _, _ in _STEPS))]
    for times in made:
        # Before it is used, nothing tells whose it is but its name.
        names = [*in_pieces(", ".join(times.jobs)), *in_pieces(times.name)]
        rows.append((names[0], str(times.chips), *_row(times)))
        rows += [(f"  {name}", *[""] * (len(_STEPS) + 1)) for name in names[1:]]
    yield from tables.aligned(rows, right=range(1, len(_STEPS) + 2))


def _pools(count: int) -> str:
    return f"{count} node pool{'' if count == 1 else 's'}"


def _phase(times: PoolTimes) -> str:
    return max(times.entered, key=lambda phase: times.entered[phase]).replace("_", " ")


def _row(times: PoolTimes) -> list[str]:
    return [seconds(times.seconds(start, end)) for _, start, end in _STEPS]


def _stay(rehearsal: Rehearsal, process: ProvisionerProcess, interrupted: threading.Event) -> None:
    click.echo(
        f"\nEverything keeps running until Ctrl-C:\n"
        f"  export KUBECONFIG={rehearsal.cluster.kubeconfig}\n"
        f"  kubectl                  {rehearsal.cluster.binaries['kubectl']}\n"
        f"  simulated GKE            {rehearsal.gke.url}  (state: {rehearsal.gke.url}/simulator/v1/state)\n"
        f"  provisioner's metrics    {process.metrics_url}\n"
        f"  provisioner's readiness  {process.ready_url}\n"
        f"  provisioner's log        {process.log}\n"
    )
    while not interrupted.wait(1.0):
        process.check()
        rehearsal.cluster.check()


def problem_with(manifests: Manifests, environment: Mapping[str, str]) -> str:
    """Say why nothing would ever happen with these manifests; empty where something will."""
    if manifests.problems:
        return "\n".join(output.plain(str(each)) for each in manifests.problems)
    jobsets = [each for each in manifests.documents if each.raw.get("kind") == _KIND]
    if not jobsets:
        kinds = sorted({str(each.raw.get("kind", "?")) for each in manifests.documents})
        there = f" (only {output.plain(', '.join(kinds))})" if kinds else ""
        return f"there is no JobSet in these files{there}, and the demo shows nothing but the life of JobSets"
    if all(_is_suspended(each) for each in jobsets):
        return "every JobSet in these files is suspended, so that nothing would happen; remove spec.suspend"
    mine = {key: value for key, value in environment.items() if not key.startswith(("GCP_", "GKE_"))}
    place = {"GCP_PROJECT_ID": PROJECT, "GCP_CLUSTER_LOCATION": LOCATION, "GCP_ZONE": ZONE, "GCP_CLUSTER": CLUSTER}
    try:
        effective = settings.read_settings({**mine, **place})
    except settings.SettingsError as error:
        return str(error)
    found = forecast(jobsets, effective, GKE_RULES)
    if found.pools or any(each.reason for each in found.remarks):
        # What Events tell is a part of what is shown.
        return ""
    reasons = [output.plain(str(each)) for each in (*found.problems, *found.remarks)]
    return "\n".join(reasons) or f"no JobSet in these files requests {TPU_RESOURCE}, so that nothing would happen"


def _is_suspended(document: Document) -> bool:
    spec = document.raw.get("spec")
    return isinstance(spec, dict) and spec.get("suspend") is True
