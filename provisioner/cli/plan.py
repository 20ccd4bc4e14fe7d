"""`tpu-provisioner plan`: shows offline how the controller decides about manifests in a cluster without node pools."""

import os
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from provisioner import constants, settings
from provisioner.cli import output
from provisioner.cli.frame import FILE, Remote, command_with, remote_options
from provisioner.cli.manifests import Manifests, read_documents, read_manifests
from provisioner.model.capacity import NodePoolRequest, PoolName
from provisioner.model.placement import job_labels
from provisioner.settings import Settings
from provisioner.settings.forms import Prices, cost_in_words
from provisioner.slices.offline.documents import Document
from provisioner.slices.offline.forecast import CHANNEL, Forecast, PlannedPool, assumed, forecast
from provisioner.slices.suppliers import rules_of
from provisioner.slices.suppliers.gke.translate import create_request_json
from provisioner.slices.suppliers.nodegroup.translate import group_document

_UNKNOWN = "*"
#: Labels whose values depend on the UID of a workload, which is unknown before the workload is created.
_UNKNOWN_LABELS = (constants.POOL_JOBSET_UID, constants.POOL_WORKLOAD_UID, constants.NODEPOOL_HASH)
_HEAD = ("SLICES OF", "POOLS", "MACHINE TYPE", "TOPOLOGY", "HOSTS", "CHIPS")
_NUMBERS = (1, 4, 5)
_WIDTH = 30
_COLUMNS = 80
_WIDE = "wide"


class PlanSettings(NamedTuple):
    """Settings of a plan, with remarks for the user."""

    settings: Settings
    remarks: tuple[str, ...]


def read_plan_settings(name: str | None, live: Remote | None, documents: Iterable[Document]) -> PlanSettings:
    """Return the settings in file `name`, of controller `live`, or of the environment. Raises UserError or OSError."""
    warnings: Iterable[str] = ()
    if name:
        variables = _read_settings_file(name)
        warnings = settings.warnings_about_environment(variables)
    elif live is not None:
        # Only plans with --live need these HTTP modules, whose import takes a tenth of the run time.
        from provisioner.cli.asking import settings as settings_of  # noqa: PLC0415

        variables = settings_of(live)
    else:
        variables, warnings = dict(os.environ), settings.warnings_about_environment(os.environ)
    missing = assumed(variables, documents)
    effective = settings.read_settings(variables, inferred=missing)
    remarks = [*warnings]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        remarks.append(f"{_listed(missing.keys())} {are} not set; this plan uses {_listed(missing.values())}.")
    if effective.on_gce:
        remarks.append(
            "Pods are assumed to tolerate google.com/tpu: without GKE they have to say so, or the API server needs the "
            "admission plugin ExtendedResourceToleration."
        )
    elif effective.auto_upgrade is None:
        effective = effective.on_channel(CHANNEL)
        remarks.append("NODEPOOL_AUTO_UPGRADE is auto; this plan is for a cluster on a release channel.")
    if effective.pause_creation:
        remarks.append("PAUSE_CREATION is set: nothing is created until it is unset.")
    return PlanSettings(settings=effective, remarks=tuple(remarks))


def _listed(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def _read_settings_file(name: str) -> dict[str, str]:
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise settings.SettingsError([f"{name} is not UTF-8"]) from error
    return _of_config_map(name, text) if re.search(r"^kind:|\"kind\"", text, re.MULTILINE) else _of_lines(name, text)


def _of_lines(name: str, text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        key, separator, value = bare.partition("=")
        if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key):
            problems.append(f"{name}:{number} is not of the form NAME=value")
        values[key] = value
    if problems:
        raise settings.SettingsError(problems)
    return values


def _of_config_map(name: str, text: str) -> dict[str, str]:
    documents, problems = read_documents(name, text)
    maps = [document for document in documents if document.raw.get("kind") == "ConfigMap"]
    data = maps[0].raw.get("data") if len(maps) == 1 else None
    if problems or not isinstance(data, dict):
        raise settings.SettingsError([*map(str, problems)] or [f"{name} is not one ConfigMap with data"])
    return {key: value for key, value in data.items() if isinstance(value, str)}


@command_with(
    "{prog} plan -f jobset.yaml",
    "{prog} plan -f manifests/ --settings settings.env",
    "{prog} plan -f jobset.yaml --live",
    "{prog} plan -f jobset.yaml -o wide",
    "kustomize build . | {prog} plan -f - -o yaml",
)
@click.option(
    "-f",
    "--filename",
    "first",
    multiple=True,
    metavar="FILE",
    type=FILE,
    help="manifest, folder of manifests, or - for standard input; can be repeated",
)
@click.argument("more", nargs=-1, type=FILE, metavar="[FILE]...")
@click.option("-R", "--recursive", is_flag=True, help="also read the folders in a folder")
@click.option("-n", "--namespace", default="default", show_default=True, help="namespace of objects that name none")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["json", "yaml", _WIDE]),
    help="format of the output; wide: with labels and taints; json, yaml: with the requests to GKE",
)
@click.option(
    "--settings",
    "settings_file",
    metavar="FILE",
    type=FILE,
    help="settings.env of an overlay, or a ConfigMap (default: the environment)",
)
@click.option("--live", is_flag=True, help="use the settings of the running controller")
@remote_options
def command(
    *,
    first: tuple[str, ...],
    more: tuple[str, ...],
    recursive: bool,
    namespace: str,
    form: str | None,
    settings_file: str | None,
    live: bool,
    remote: Remote,
) -> int:
    """Show which node pools manifests would get, and the mistakes in them.

    It decides like the controller in a cluster without node pools, and
    works offline, except with --live. It reads, for example, JobSets,
    LeaderWorkerSets, RayClusters, Deployments, StatefulSets, Jobs,
    CronJobs, pods, TrainJobs with their runtime, and PathwaysJobs.

    Exit code 3 when something would not be served, 1 when a file cannot be read.
    """
    if not (first or more):
        raise click.UsageError("no file is given; use -f FILE, or -f - for standard input")
    if live and settings_file:
        raise click.UsageError("--live and --settings exclude each other")
    manifests = read_manifests((*first, *more), recursive=recursive)
    try:
        effective = read_plan_settings(settings_file, remote if live else None, manifests.documents)
    except OSError as error:
        return output.refuse(f"{settings_file}: cannot be read: {error.strerror or error}")
    planned = forecast(
        manifests.documents, effective.settings, rules_of(effective.settings.provider), default_namespace=namespace
    )
    result = _Result(manifests, effective, planned)
    if form in ("json", "yaml"):
        output.write(_data(result), form)
        return result.exit_code
    output.show("\n".join(_lines(result, wide=form == _WIDE)))
    return result.exit_code


class _Result(NamedTuple):
    manifests: Manifests
    effective: PlanSettings
    planned: Forecast

    @property
    def exit_code(self) -> int:
        if self.manifests.problems or not self.manifests.documents:
            return output.ExitCode.ERROR
        return output.ExitCode.OK if self.planned.all_served else output.ExitCode.NOT_SERVED


def _lines(result: _Result, *, wide: bool) -> Iterator[str]:
    planned = result.planned
    groups = _groups(planned.pools)
    if groups:
        yield from _table(groups, result.effective.settings.prices, wide=wide)
        yield ""
    mistakes = list(map(str, result.manifests.problems))
    mistakes += [str(finding) for finding in planned.remarks if finding.severity.refused]
    notes = [str(finding) for finding in planned.remarks if not finding.severity.refused]
    for head, lines, colour in (("Not served:", mistakes, "red"), ("Notes:", notes, "yellow")):
        if lines:
            yield click.style(head, fg=colour, bold=True)
            yield from (f"  {output.plain(line)}" for line in lines)
            yield ""
    for kind, count, first in planned.ignored:
        yield output.plain(f"Ignored: {_count(count, kind)} ({first.source}:{first.line})")
    if planned.ignored:
        kinds = "JobSets, LeaderWorkerSets, RayClusters, pods and their controllers"
        yield f"plan reads {kinds}, if they request {constants.TPU_RESOURCE}."
        yield ""
    if not result.manifests.documents and not mistakes:
        yield "There is no object in these files."
        return
    for remark in result.effective.remarks:
        yield from textwrap.wrap(output.plain(remark), _COLUMNS, break_on_hyphens=False)
    if any(not pool.named for pool in planned.pools):
        yield "* stands for a random suffix."
    yield _summary(planned, result.effective.settings.prices)


def _summary(planned: Forecast, prices: Prices) -> str:
    if not planned.pools:
        return "No node pools would be created."
    pools, hosts = len(planned.pools), sum(pool.request.hosts for pool in planned.pools)
    chips = sum(pool.chips for pool in planned.pools)
    cost = _cost(planned.pools, prices)
    priced = f", {cost_in_words(cost, prices.currency)}" if cost is not None else ""
    return f"{_count(pools, 'node pool')} would be created: {_count(hosts, 'host')}, {_count(chips, 'chip')}{priced}."


def _cost(pools: Iterable[PlannedPool], prices: Prices) -> float | None:
    """Return the hourly cost of pools, each in its first possible choice of capacity; None if no price is known."""
    costs = [
        prices.per_hour(pool.slice_.shape.accelerator.label, option.choice.kind, pool.chips)
        for pool in pools
        for option in [possible for possible in pool.options if not possible.problem][:1]
        if pool.slice_.shape is not None
    ]
    priced = [cost for cost in costs if cost is not None]
    return sum(priced) if priced else None


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _groups(pools: Sequence[PlannedPool]) -> list[list[PlannedPool]]:
    groups: dict[tuple[object, ...], list[PlannedPool]] = defaultdict(list)
    for pool in pools:
        request = pool.request
        key = (
            pool.slice_.workload.uid,
            pool.template.name if pool.template is not None else "",
            request.machine_type,
            request.topology,
            request.hosts,
            request.zone,
            pool.options,
        )
        groups[key].append(pool)
    return list(groups.values())


def _table(groups: Sequence[Sequence[PlannedPool]], prices: Prices, *, wide: bool) -> Iterator[str]:
    rows = [_HEAD]
    below: list[list[str]] = [[]]
    for pools in groups:
        pool = pools[0]
        request, workload = pool.request, pool.slice_.workload
        part = pool.template.name if pool.template is not None else ""
        first, *rest = _wrapped(output.plain(str(workload)), output.plain(part))
        cells = (str(len(pools)), request.machine_type, request.topology, str(request.hosts), str(pool.chips))
        rows.append((first, *cells))
        below.append([*rest, *_details(pools, prices, wide=wide)])
    for line, more in zip(output.aligned(rows, right=_NUMBERS), below, strict=True):
        yield click.style(line, bold=True) if line.startswith(_HEAD[0]) else line
        yield from more


def _wrapped(text: str, part: str) -> list[str]:
    if part and len(text) + len(part) + 2 <= _WIDTH:
        return [f"{text}: {part}"]
    pieces = [text, part] if part else [text]
    first, *rest = [piece[at : at + _WIDTH] for piece in pieces for at in range(0, len(piece), _WIDTH)]
    return [first, *(f"  {line}" for line in rest)]


def _details(pools: Sequence[PlannedPool], prices: Prices, *, wide: bool) -> Iterator[str]:
    pool = pools[0]
    request = _shown_request(pool)
    names = dict.fromkeys(output.plain(planned.shown_name) for planned in pools)
    yield f"    {'name' if len(pools) == 1 else 'names'}: {', '.join(names)}"
    for number, option in enumerate(pool.options, start=1):
        impossible = f" (not possible: {output.plain(option.problem)})" if option.problem else ""
        yield f"    {number}. {option.choice}{impossible}"
    if (cost := _cost(pools, prices)) is not None:
        yield f"    cost: {cost_in_words(cost, prices.currency)}"
    if not wide:
        return
    source, namespace = output.plain(pool.document.source), output.plain(pool.slice_.workload.namespace)
    yield f"    from: {source}:{pool.document.line}, namespace {namespace}"
    for key in sorted(request.labels):
        yield f"    label: {output.plain(f'{key}={request.labels[key]}')}"
    for key, value in job_labels(request.labels, request.taints).items():
        yield f"    label: {output.plain(f'{key}={value}')} (written on the nodes)"
    for taint in request.taints:
        yield f"    taint: {output.plain(f'{taint.key}={taint.value}:{taint.effect}')}"


def _shown_request(pool: PlannedPool) -> NodePoolRequest:
    """Return the request of a pool, with placeholders for values that are unknown until the workload exists."""
    if pool.named:
        return pool.request
    labels = {key: _UNKNOWN if key in _UNKNOWN_LABELS else value for key, value in pool.request.labels.items()}
    return replace(pool.request, name=PoolName(pool.shown_name), labels=labels)


def _data(result: _Result) -> dict[str, Any]:
    effective, planned = result.effective.settings, result.planned
    counts = Counter(pool.slice_.workload.owner_kind for pool in planned.pools)
    return {
        "nodePools": [
            {
                "name": pool.shown_name,
                "workload": {
                    "kind": pool.slice_.workload.owner_kind,
                    "namespace": pool.slice_.workload.namespace,
                    "name": pool.slice_.workload.owner_name,
                    "file": pool.document.source,
                    "line": pool.document.line,
                },
                "group": pool.slice_.group_name,
                "machineType": pool.request.machine_type,
                "topology": pool.request.topology,
                "hosts": pool.request.hosts,
                "chips": pool.chips,
                "costPerHour": _cost([pool], effective.prices),
                "zone": pool.request.zone,
                "capacity": [
                    {"choice": str(option.choice), "possible": not option.problem, "problem": option.problem}
                    for option in pool.options
                ],
                "nodeLabels": job_labels(pool.request.labels, pool.request.taints),
                "request": _request_json(effective, _shown_request(pool)),
            }
            for pool in planned.pools
        ],
        "problems": [
            *(
                {"file": problem.source, "line": problem.line, "message": problem.message}
                for problem in result.manifests.problems
            ),
            *(
                {"file": finding.document.source, "line": finding.line, "message": finding.message}
                for finding in planned.remarks
                if not finding.subject
            ),
        ],
        "remarks": [
            {
                "file": finding.document.source,
                "line": finding.line,
                "object": finding.subject,
                "reason": finding.reason,
                "message": finding.message,
                "served": not finding.severity.refused,
                "slices": finding.slices,
            }
            for finding in planned.remarks
            if finding.subject
        ],
        "ignored": [
            {"kind": kind, "count": count, "file": first.source, "line": first.line}
            for kind, count, first in planned.ignored
        ],
        "assumptions": list(result.effective.remarks),
        "totals": {
            "nodePools": len(planned.pools),
            "hosts": sum(pool.request.hosts for pool in planned.pools),
            "chips": sum(pool.chips for pool in planned.pools),
            "costPerHour": _cost(planned.pools, effective.prices),
            "currency": effective.prices.currency,
            "nodePoolsByKind": dict(counts),
        },
        "exitCode": int(result.exit_code),
    }


def _request_json(effective: Settings, request: NodePoolRequest) -> dict[str, Any]:
    if effective.on_gce:
        return group_document(request, effective)
    return create_request_json(effective.cluster_name.path, request)
