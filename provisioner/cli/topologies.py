"""`tpu-provisioner topologies`: lists the slices that Google offers, with machine types and hosts."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import click

from provisioner import constants, tpu
from provisioner.cli import output
from provisioner.cli.frame import FORMATS, command_with, format_option
from provisioner.cli.output import ExitCode
from provisioner.tpu import Accelerator

_HEAD = ("  TOPOLOGY", "CHIPS", "MACHINE TYPE", "HOSTS", "CHIPS PER POD", "KIND", "LISTED")


def _complete(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    return [label for label in tpu.ACCELERATORS if label.startswith(incomplete)]


@command_with("{prog} topologies", "{prog} topologies tpu-v6e-slice", "{prog} topologies tpu-v5p-slice --all -o json")
@click.argument("accelerator", required=False, shell_complete=_complete)
@click.option(
    "--all", "everything", is_flag=True, help="also list topologies that follow Google's rule but are not on its lists"
)
@format_option()
def command(accelerator: str | None, *, everything: bool, form: str | None) -> int:
    """List the slices that exist, and the machines of each slice.

    ACCELERATOR is one value of cloud.google.com/gke-tpu-accelerator (default: all).
    """
    try:
        offers = tuple(tpu.ACCELERATORS.values()) if accelerator is None else (tpu.find_accelerator(accelerator),)
    except tpu.ShapeError as error:
        raise click.BadParameter(str(error), param_hint="ACCELERATOR") from error
    rows = [row for offer in offers for row in _rows(offer, everything=everything)]
    if form in FORMATS:
        output.write({"topologies": rows}, form)
    else:
        notes = [note for offer in offers for note in _notes(offer, everything=everything)]
        output.show("\n".join(_page(rows, notes, output.terminal_width())))
    return ExitCode.OK


def _page(rows: Sequence[dict[str, Any]], notes: list[str], width: int | None) -> Iterator[str]:
    if any(row["on_request"] for row in rows):
        notes.append(f"* only if the pod selects {constants.INSTANCE_TYPE}; otherwise another machine type is used.")
    head, *lines = output.aligned([_HEAD, *map(_cells, rows)])
    yield head
    for heading, group in groupby(zip(rows, lines, strict=True), key=lambda pair: _heading(pair[0])):
        yield heading
        yield from (line for _, line in group)
    if notes:
        yield ""
        yield from (line for note in notes for line in output.wrapped(note, width))


def _notes(offer: Accelerator, *, everything: bool) -> Iterator[str]:
    hidden = 0 if everything else sum(not offer.documents(topology) for topology in offer.topologies())
    if hidden:
        yield (
            f"{offer.label}: {hidden} more topologies are not on Google's lists but follow its rule: whole 4x4x4 "
            f"cubes, at most {offer.max_cubes}, dimensions in ascending order. --all shows them."
        )
    for machine in offer.machine_types:
        if machine.only_on_request:
            twin = next(type_ for type_ in offer.machine_types if type_.chips == machine.chips and type_ is not machine)
            yield (
                f"{machine.name} has the same slices as {twin.name}; it is used only if the pod selects "
                f"{constants.INSTANCE_TYPE}={machine.name}."
            )


def _rows(offer: Accelerator, *, everything: bool) -> Iterator[dict[str, Any]]:
    shapes = (
        shape
        for topology in offer.topologies()
        for shape in (tpu.shapes_of(offer, topology) if everything or offer.documents(topology) else ())
        if not shape.machine_type.only_on_request
    )
    for (topology, machine), group in groupby(shapes, key=lambda shape: (shape.topology, shape.machine_type)):
        layouts = list(group)
        yield {
            "accelerator": offer.label,
            "generation": offer.generation,
            "topology": str(topology),
            "chips": topology.chips,
            "machine_type": machine.name,
            "hosts": layouts[0].nodes(1),
            "chips_per_pod": [shape.chips_per_pod for shape in layouts],
            # Numbers of chips per pod for which another machine type is used unless the pod selects this one.
            "on_request": [
                shape.chips_per_pod
                for shape in layouts
                if tpu.resolve(offer.label, str(topology), shape.chips_per_pod) != shape
            ],
            "kind": "multi-host" if layouts[0].multi_host else "single-host",
            "boot_disk": machine.disk_types[0],
            "flex_start": machine.flex_start,
            "listed": offer.documents(topology),
        }


def _heading(row: dict[str, Any]) -> str:
    flex_start = "flex-start" if row["flex_start"] else "no flex-start"
    return f"{row['accelerator']}: {row['generation']}, boot disk {row['boot_disk']}, {flex_start}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    chips_per_pod = ",".join(f"{chips}{'*' if chips in row['on_request'] else ''}" for chips in row["chips_per_pod"])
    machines = (str(row["chips"]), row["machine_type"], str(row["hosts"]))
    return f"  {row['topology']}", *machines, chips_per_pod, row["kind"], "yes" if row["listed"] else "by rule"
