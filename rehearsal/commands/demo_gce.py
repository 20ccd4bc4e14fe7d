"""`tpu-rehearsal demo-gce`: runs a JobSet on a TPUNodeGroup without a cloud, until the group is deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from provisioner.cli import output
from provisioner.cli.frame import command_with
from provisioner.cli.manifests import Manifests, read_manifests
from provisioner.cli.output import ExitCode
from provisioner.nodegroups.api.types import Kind
from provisioner.runtime import logs
from rehearsal.commands.showing import Demo, calls_table, example, left_behind, missing, refuse, steps_table
from rehearsal.demos.groups import GroupRehearsal, GroupStory, GroupTimes
from rehearsal.demos.world import PROJECT, ControllerProcess, RehearsalError
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.settings import SettingsError

_EXAMPLES = ("nodegroups/slice.yaml", "nodegroups/jobset-on-slice.yaml")
#: Number of VMs of every simulated reservation.
_RESERVED = 10_000
#: Environment of the provisioner, which runs if no manifest has a TPUNodeGroup.
_PROVISIONER = {
    "PROVIDER": "gce",
    "GCP_PROJECT_ID": PROJECT,
    "GCP_ZONE": "us-east5-b",
    "NODE_GROUP_IMAGES": f"*=projects/{PROJECT}/global/images/tpu",
    "NODEPOOL_DELETION_DELAY": "5s",
    "NODE_MIN_LIFESPAN": "0s",
}
_STEPS = (
    ("made", "wanted", "made"),
    ("running", "made", "running"),
    ("joined", "running", "joined"),
    ("ready", "joined", "ready"),
    ("used", "ready", "deleting"),
    ("deleted", "deleting", "gone"),
)


@command_with(
    "{prog} demo-gce",
    "{prog} demo-gce my-group.yaml my-jobset.yaml --boot-seconds=30",
    "{prog} demo-gce examples/v6e-4x4-spot/jobset.yaml      # PROVIDER=gce",
    "KEEP=1 {prog} demo-gce      # look around afterwards",
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="[FILE]...")
@click.option("--create-seconds", type=float, default=4.0, show_default=True, help="time until a machine runs")
@click.option("--boot-seconds", type=float, default=4.0, show_default=True, help="time until it can join")
@click.option("--keep", is_flag=True, help="keep everything running afterwards (also KEEP=1)")
def command(files: tuple[Path, ...], *, create_seconds: float, boot_seconds: float, keep: bool) -> int:
    """Run a JobSet on a TPUNodeGroup, on a local control plane with a simulated Compute Engine.

    FILE is a manifest to apply (default: the example of a slice, and a JobSet on it). With JobSets alone the
    provisioner runs as well, with PROVIDER=gce, and creates their groups. The machines join the control plane
    with bootstrap tokens, as by kubeadm. When every JobSet has completed, the groups are deleted.
    The first run builds the control plane, which takes about ten minutes. Exit code 0 when everything was
    created and deleted.
    """
    files = files or tuple(map(example, _EXAMPLES))
    if problem := missing(files):
        refuse(problem)
        return ExitCode.USAGE
    manifests = read_manifests(map(str, files))
    if problem := problem_with(manifests):
        refuse(problem)
        return ExitCode.ERROR
    groups = _groups(manifests)
    try:
        simulated = _simulated(groups, create_seconds=create_seconds, boot_seconds=boot_seconds)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    # Hide log lines of simulated guests that are no warnings, such as lines about a read of missing metadata.
    logs.configure("warning")
    demo = Demo(keep=keep)
    with demo, GroupRehearsal(settings=simulated, progress=demo.tell) as rehearsal:
        process = rehearsal.controller(projects=sorted({group["spec"]["project"] for group in groups}) or [PROJECT])
        process.start()
        url = rehearsal.compute.url
        demo.tell(f"the controller of node groups runs; Compute Engine is simulated at {url}")
        if not groups:
            rehearsal.process("run", environment=_PROVISIONER).start()
            demo.tell("the provisioner runs with PROVIDER=gce: it creates and deletes TPUNodeGroups")
        for file in files:
            rehearsal.kubectl("apply", "--server-side", "-f", str(file))
        story = GroupStory(rehearsal, process)
        picture = partial(_picture, rehearsal, story, process)
        if demo.watch(rehearsal, story, ended=partial(_used, story), picture=picture):
            if groups:
                rehearsal.kubectl("delete", "tpunodegroups", "--all", "--all-namespaces", "--wait=false")
            demo.watch(rehearsal, story, ended=partial(_gone, rehearsal, story), picture=picture)
        click.echo("\n".join(summary(story.groups.values(), rehearsal.compute.call_counts(), rehearsal.left())))
        places = {
            "simulated Compute Engine": f"{url}  (state: {url}/simulator/v1/state)",
            "controller's metrics": process.metrics_url,
            "controller's readiness": process.ready_url,
            "controller's log": str(process.log),
        }
        demo.stay(rehearsal, places)
    return demo.exit_code


def _used(story: GroupStory) -> str:
    """Return a message, empty until all groups were ready and all JobSets ended. Raises RehearsalError on failure."""
    if story.failed:
        raise RehearsalError(f"JobSet {', '.join(story.failed)} failed; see its pods for the reason")
    if not story.all_ready or story.unfinished:
        return ""
    return "nothing needs the machines any more: the TPUNodeGroups are deleted"


def _gone(rehearsal: GroupRehearsal, story: GroupStory) -> str:
    """Return the final message, empty while anything is left."""
    if not all("gone" in times.entered for times in story.groups.values()) or rehearsal.left():
        return ""
    return "nothing is left: no policy, template, group, machine, node or token"


def _picture(rehearsal: GroupRehearsal, story: GroupStory, process: ControllerProcess) -> str:
    return (
        f"JobSets that have not ended: {', '.join(story.unfinished) or 'none'}\n"
        f"left: {', '.join(rehearsal.left()) or 'nothing'}\n"
        f"the end of the controller's log:\n{process.tail()}"
    )


def _simulated(groups: Iterable[Mapping[str, Any]], *, create_seconds: float, boot_seconds: float) -> ComputeSettings:
    """Return settings of a fast simulated Compute Engine, with the reservations that the groups name."""
    reservations = {}
    for group in groups:
        spec = group["spec"]
        config = spec.get("instanceConfig")
        if isinstance(config, dict) and config.get("reservation"):
            reservation = {"machine_type": config.get("machineType", ""), "count": _RESERVED}
            reservations[f"{spec['project']}/{spec['nodeLocation']}/{config['reservation']}"] = reservation
    return ComputeSettings(
        reservations=reservations,
        operation_seconds=0.5,
        provisioning_seconds=create_seconds / 2,
        staging_seconds=create_seconds / 2,
        stopping_seconds=1,
        machines_join=True,
        boot_seconds=boot_seconds,
        join_retry_seconds=0.5,
        longest_join_retry_seconds=2,
        heartbeat_seconds=5,
        graceful_shutdown=True,
    )


def summary(groups: Iterable[GroupTimes], calls: Mapping[str, Mapping[Any, int]], left: Sequence[str]) -> Iterator[str]:
    """Yield the times of each group, the calls to Compute Engine, and the names of the resources that are left."""
    groups = list(groups)
    rows = (((times.name,), str(times.machines), times) for times in groups)
    yield from steps_table(("TPUNODEGROUP", "NODES"), rows, _STEPS)
    yield from calls_table("Compute Engine", calls)
    yield ""
    if left:
        yield from left_behind("Left:", left)
        return
    count = sum(times.machines for times in groups)
    yield f"{count} machine{'' if count == 1 else 's'}, created, joined and deleted."


def problem_with(manifests: Manifests) -> str:
    """Return the reason why the demo cannot use the manifests; empty if it can."""
    if manifests.problems:
        return "\n".join(output.plain(str(problem)) for problem in manifests.problems)
    groups = _groups(manifests)
    if not groups and not any(document.raw.get("kind") == "JobSet" for document in manifests.documents):
        kinds = sorted({str(document.raw.get("kind", "?")) for document in manifests.documents})
        there = f" (only {output.plain(', '.join(kinds))})" if kinds else ""
        return f"there is neither a {Kind.TPU_NODE_GROUP} nor a JobSet in these files{there}"
    for group in groups:
        spec = group["spec"]
        if not isinstance(spec.get("project"), str) or not isinstance(spec.get("nodeLocation"), str):
            return f"{Kind.TPU_NODE_GROUP} {output.plain(_name(group))} has no project or no nodeLocation"
        if "bootstrapKubernetes" not in spec:
            return (
                f"{Kind.TPU_NODE_GROUP} {output.plain(_name(group))} has no bootstrapKubernetes: its machines join by "
                "what is in their image, which is not simulated"
            )
    return ""


def _groups(manifests: Manifests) -> list[Mapping[str, Any]]:
    found = [document.raw for document in manifests.documents if document.raw.get("kind") == Kind.TPU_NODE_GROUP]
    return [{**raw, "spec": raw["spec"] if isinstance(raw.get("spec"), dict) else {}} for raw in found]


def _name(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get("name", "?")) if isinstance(metadata, dict) else "?"
