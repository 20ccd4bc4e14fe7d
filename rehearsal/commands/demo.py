"""`tpu-rehearsal demo`: runs a JobSet without a cloud, and shows each step until its node pools are deleted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from provisioner import settings
from provisioner.cli import output
from provisioner.cli.frame import command_with
from provisioner.cli.manifests import Manifests, read_manifests
from provisioner.cli.output import ExitCode
from provisioner.constants import TPU_RESOURCE
from provisioner.slices.offline.documents import Document
from provisioner.slices.offline.forecast import forecast
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from rehearsal.commands.showing import (
    STANDSTILL_SECONDS,
    Demo,
    calls_table,
    example,
    left_behind,
    missing,
    refuse,
    steps_table,
)
from rehearsal.commands.simulator import simulated_gke
from rehearsal.demos.story import PoolTimes, Story
from rehearsal.demos.world import (
    CLUSTER,
    LOCATION,
    PROJECT,
    ZONE,
    ProvisionerProcess,
    Rehearsal,
    RehearsalError,
)
from rehearsal.simulators.gke.settings import SimulatorSettings

_EXAMPLES = ("jobset.yaml",)
_WITH_KUEUE = ("kueue/queue.yaml", "kueue/two-slices.yaml", "kueue/one-slice.yaml")
_KIND = "JobSet"
_STEPS = (
    ("decided", "wanted", "creating"),
    ("created", "creating", "ready"),
    ("bound", "ready", "in_use"),
    ("used", "in_use", "idle"),
    ("kept", "idle", "deleting"),
    ("deleted", "deleting", "gone"),
)


@command_with(
    "{prog} demo",
    "{prog} demo my-jobset.yaml --create-seconds=60",
    "KEEP=1 {prog} demo --watch      # open the page, and look around",
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="[FILE]...")
@simulated_gke(create_seconds=12.0, delete_seconds=4.0)
@click.option("--kueue", is_flag=True, help="run Kueue, and by default the example of a queue with two JobSets")
@click.option("--watch", is_flag=True, help="open the status page in a browser")
@click.option("--keep", is_flag=True, help="keep everything running afterwards (also KEEP=1)")
def command(
    files: tuple[Path, ...],
    *,
    gke: SimulatorSettings,
    kueue: bool,
    watch: bool,
    keep: bool,
) -> int:
    """Run a JobSet on a local control plane with a simulated GKE, and show each step.

    FILE is a manifest to apply (default: the example JobSet). The first run builds the control plane, which takes about
    ten minutes, and with Kueue ten more. Exit code 0 when everything was created and deleted.
    """
    files = files or tuple(map(example, _WITH_KUEUE if kueue else _EXAMPLES))
    if problem := missing(files):
        refuse(problem)
        return ExitCode.USAGE
    problem = problem_with(read_manifests(map(str, files)), os.environ)
    if problem:
        refuse(problem)
        return ExitCode.ERROR
    gke = replace(gke, project=PROJECT, location=LOCATION, cluster=CLUSTER)
    demo = Demo(keep=keep)
    with demo, Rehearsal(settings=gke, progress=demo.tell, kueue=kueue) as rehearsal:
        delay = os.environ.get("NODEPOOL_DELETION_DELAY", "5s")
        process = rehearsal.provisioner(environment={"NODEPOOL_DELETION_DELAY": delay})
        process.start()
        demo.tell(f"the provisioner runs; GKE is simulated at {rehearsal.gke.url}")
        demo.tell(f"the status page is at {process.page_url}")
        if watch and not webbrowser.open(process.page_url):
            demo.tell("no browser could be started here; open that address yourself")
        for file in files:
            rehearsal.kubectl("apply", "--server-side", "-f", str(file))
        story = Story(rehearsal, process, requests=kueue)
        demo.watch(
            rehearsal,
            story,
            ended=partial(_ended, rehearsal, story),
            picture=partial(_picture, rehearsal, story, process),
            patience_seconds=STANDSTILL_SECONDS + gke.create_seconds,
        )
        click.echo("\n".join(summary(story.pools.values(), rehearsal.gke.call_counts())))
        demo.stay(
            rehearsal,
            {
                **places(rehearsal.gke.url, process),
                "the same again": _again(rehearsal.cluster.binaries["kubectl"], files),
            },
        )
    return demo.exit_code


def command_path() -> str:
    """Return the command `tpu-provisioner`, with its path unless a shell finds it."""
    beside = Path(sys.argv[0]).with_name("tpu-provisioner")
    return "tpu-provisioner" if shutil.which("tpu-provisioner") or not beside.exists() else str(beside)


def _again(program: Path, files: Iterable[Path]) -> str:
    """Return the command that deletes the objects of the demo's files and applies them again."""
    kubectl = shlex.quote(str(program))
    options = shlex.join(option for file in files for option in ("-f", str(file)))
    return f"{kubectl} delete --ignore-not-found {options} && {kubectl} apply --server-side {options}"


def places(gke_url: str, process: ProvisionerProcess) -> dict[str, str]:
    """Return the addresses of a demo that keeps running, and commands that use these addresses, by name."""
    return {
        "status page": process.page_url,
        "commands": f"{command_path()} status --server {process.page_url}",
        "simulated GKE": f"{gke_url}  (state: {gke_url}/simulator/v1/state)",
        "simulated stockout": f"""curl -d '{{"kind": "stockout"}}' {gke_url}/simulator/v1/faults""",
        "provisioner's metrics": process.metrics_url,
        "provisioner's readiness": process.ready_url,
        "provisioner's log": str(process.log),
    }


def _ended(rehearsal: Rehearsal, story: Story) -> str:
    """Return the final message, empty until the end. Raises RehearsalError if a JobSet failed or gets no pool."""
    if story.invalid:
        raise RehearsalError("no pool can be created:\n" + "\n".join(story.invalid))
    if story.failed:
        raise RehearsalError(f"JobSet {', '.join(story.failed)} failed; see its pods for the reason")
    gone = all("gone" in times.entered for times in story.pools.values())
    if not (story.all_ended and gone) or rehearsal.gke.pools or rehearsal.objects("/api/v1/nodes"):
        return ""
    return "nothing is left: no node pool, no node"


def _picture(rehearsal: Rehearsal, story: Story, process: ProvisionerProcess) -> str:
    return (
        f"JobSets that have not ended: {', '.join(story.unfinished) or 'none'}\n"
        f"node pools: {', '.join(pool.name for pool in rehearsal.gke.pools) or 'none'}\n"
        f"the end of the provisioner's log:\n{process.tail()}"
    )


def summary(pools: Iterable[PoolTimes], calls: Mapping[str, Mapping[Any, int]]) -> Iterator[str]:
    """Yield the times of each node pool, the calls to GKE, and the final state of the pools."""
    made = [times for times in pools if "creating" in times.entered]
    if made:
        # A pool that was never in use has no jobs, so only its name shows for which slice it was created.
        rows = (((", ".join(times.jobs), times.name), str(times.chips), times) for times in made)
        yield from steps_table(("SLICE, NODE POOL", "CHIPS"), rows, _STEPS)
    yield from calls_table("GKE", calls)
    yield ""
    if not made:
        yield "No node pool was created."
        return
    left = [times for times in made if "gone" not in times.entered]
    chips = sum(times.chips for times in made)
    if not left:
        yield f"{chips} chips in {_pools(len(made))}, created and deleted."
        return
    yield from left_behind(
        f"{chips} chips in {_pools(len(made))}; {len(made) - len(left)} deleted, {len(left)} left:",
        (f"{times.name}: {times.chips} chips, {_phase(times)}" for times in left),
    )


def _pools(count: int) -> str:
    return f"{count} node pool{'' if count == 1 else 's'}"


def _phase(times: PoolTimes) -> str:
    return max(times.entered, key=lambda phase: times.entered[phase]).replace("_", " ")


def problem_with(manifests: Manifests, environment: Mapping[str, str]) -> str:
    """Return the reason why the demo cannot use the manifests; empty if it can."""
    if manifests.problems:
        return "\n".join(output.plain(str(problem)) for problem in manifests.problems)
    jobsets = [document for document in manifests.documents if document.raw.get("kind") == _KIND]
    if not jobsets:
        kinds = sorted({str(document.raw.get("kind", "?")) for document in manifests.documents})
        there = f" (only {output.plain(', '.join(kinds))})" if kinds else ""
        return f"there is no JobSet in these files{there}, and the demo shows nothing but the life of JobSets"
    if all(_is_suspended(jobset) for jobset in jobsets):
        return "every JobSet in these files is suspended, so nothing would happen; remove spec.suspend"
    mine = {key: value for key, value in environment.items() if not key.startswith(("GCP_", "GKE_"))}
    place = {"GCP_PROJECT_ID": PROJECT, "GCP_CLUSTER_LOCATION": LOCATION, "GCP_ZONE": ZONE, "GCP_CLUSTER": CLUSTER}
    try:
        effective = settings.read_settings({**mine, **place})
    except settings.SettingsError as error:
        return str(error)
    found = forecast(jobsets, effective, GKE_RULES)
    if found.pools or any(remark.reason for remark in found.remarks):
        # A remark with a reason is no problem here, because the demo shows it as an Event.
        return ""
    reasons = [output.plain(str(remark)) for remark in found.remarks]
    return "\n".join(reasons) or f"no JobSet in these files requests {TPU_RESOURCE}, so nothing would happen"


def _is_suspended(document: Document) -> bool:
    spec = document.raw.get("spec")
    return isinstance(spec, dict) and spec.get("suspend") is True
