"""`tpu-provisioner topologies`: which slices there are, and what each is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import click

from provisioner import constants, tpu
from provisioner.cli import output
from provisioner.cli.frame import Command
from provisioner.cli.output import ExitCode
from provisioner.tpu import Accelerator, MachineType, Shape

_HEAD = (
    "ACCELERATOR",
    "GENERATION",
    "TOPOLOGY",
    "CHIPS",
    "MACHINE TYPE",
    "HOSTS",
    "CHIPS PER POD",
    "KIND",
    "BOOT DISK",
    "FLEX-START",
    "LISTED",
)


def _complete(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    return [label for label in tpu.ACCELERATORS if label.startswith(incomplete)]


@click.command(
    cls=Command,
    examples=(
        "{prog} topologies",
        "{prog} topologies tpu-v6e-slice",
        "{prog} topologies tpu-v5p-slice --all",
    ),
)
@click.argument("accelerator", required=False, shell_complete=_complete)
@click.option(
    "--all", "everything", is_flag=True, help="also list topologies that follow Google's rule but are not on its lists"
)
def command(accelerator: str | None, *, everything: bool) -> int:
    """List the slices that exist, and what each consists of.

    ACCELERATOR is one value of cloud.google.com/gke-tpu-accelerator (default: all).
    """
    try:
        offers = tuple(tpu.ACCELERATORS.values()) if accelerator is None else (tpu.find_accelerator(accelerator),)
    except tpu.ShapeError as error:
        raise click.BadParameter(str(error), param_hint="ACCELERATOR") from error
    output.show("\n".join(_page(offers, everything=everything)))
    return ExitCode.OK


def _page(offers: Sequence[Accelerator], *, everything: bool) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    notes: list[str] = []
    for offer in offers:
        topologies = offer.topologies()
        shown = topologies if everything else tuple(filter(offer.documents, topologies))
        for topology in shown:
            rows.extend(_rows(offer, topology))
        if len(shown) < len(topologies):
            notes.append(
                f"{offer.label}: {len(topologies) - len(shown)} more topologies are not on Google's lists but follow "
                f"its rule: whole 4x4x4 cubes, at most {offer.max_cubes}, dimensions in ascending order. --all shows "
                f"them."
            )
        notes.extend(
            f"{machine.name} has the same slices as {_twin(offer, machine)}; it is used only if the pod selects "
            f"{constants.INSTANCE_TYPE}={machine.name}."
            for machine in offer.machine_types
            if machine.only_on_request
        )
    if any("*" in cell for row in rows for cell in row):
        notes.append(f"* only if the pod selects {constants.INSTANCE_TYPE}; otherwise another machine type is used.")
    yield from output.aligned(rows)
    if notes:
        yield ""
        yield from notes


def _rows(offer: Accelerator, topology: tpu.Topology) -> Iterator[tuple[str, ...]]:
    shapes = (shape for shape in tpu.shapes_of(offer, topology) if not shape.machine_type.only_on_request)
    for machine, same in groupby(shapes, key=lambda shape: shape.machine_type):
        layouts = list(same)
        yield (
            offer.label,
            offer.generation,
            str(topology),
            str(topology.chips),
            machine.name,
            str(layouts[0].nodes(1)),
            ",".join(map(_chips_a_pod, layouts)),
            "multi-host" if layouts[0].multi_host else "single-host",
            machine.disk_types[0],
            "yes" if machine.flex_start else "no",
            "yes" if offer.documents(topology) else "by rule",
        )


def _chips_a_pod(shape: Shape) -> str:
    first = tpu.resolve(shape.accelerator.label, str(shape.topology), shape.chips_per_pod)
    return f"{shape.chips_per_pod}{'' if first == shape else '*'}"


def _twin(offer: Accelerator, machine: MachineType) -> str:
    return next(each.name for each in offer.machine_types if each.chips == machine.chips and not each.only_on_request)
