"""`tpu-provisioner inject`: what the webhook does to pods, done to manifests, without a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from provisioner.cli import output
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import Command
from provisioner.cli.manifests import ManifestFiles, manifest_options
from provisioner.environment import Injection, Settings
from provisioner.environment.manifest import Printed, inject_manifests, pods_of_manifests

_PROGRAM = "tpu-provisioner inject"
#: Of one object, with --pods: what somebody reads.
_MOST_PODS = 64


@click.command(
    cls=Command,
    examples=(
        "{prog} inject -f statefulset.yaml | kubectl apply -f -",
        "kustomize build . | {prog} inject -f - --topology",
        "{prog} inject -f jobset.yaml --pods",
    ),
)
@manifest_options
@click.option("--opt-in", is_flag=True, help="only pods that ask for it by label or annotation, as the webhook does")
@click.option("--topology", is_flag=True, help="also the variables that GKE's device plugin sets")
@click.option("--pods", is_flag=True, help=f"print the pods instead: the first {_MOST_PODS} of each object")
@click.option(
    "-o", "--output", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="format"
)
def command(
    *,
    files: ManifestFiles,
    namespace: str,
    opt_in: bool,
    topology: bool,
    pods: bool,
    form: str,
) -> int:
    """Print manifests with the TPU variables of their pods.

    It does offline what the webhook does, so that the printed manifest works in
    a cluster without the webhook. The variables are set in the templates of
    StatefulSets, Jobs and JobSets, and in pods. Other objects are printed as
    they are.

    Exit code 3 when not all variables can be told, 1 when a file cannot be
    read; then nothing is printed.
    """
    manifests = files.read()
    wrong = [str(each) for each in manifests.problems]
    wrong += [
        f"{each.source}:{each.line}: is not a Kubernetes object"
        for each in manifests.documents
        if not isinstance(each.value, dict)
    ]
    if wrong or not manifests.documents:
        # Half of a manifest must not be applied.
        _say(wrong or ["there is no object in these files"])
        return ExitCode.ERROR
    settings = Settings(injection=Injection.OPT_IN if opt_in else Injection.ALL, topology=topology, asked=not opt_in)
    objects = [each.value for each in manifests.documents]
    if pods:
        found = pods_of_manifests(objects, settings, namespace, _MOST_PODS)
    else:
        found = inject_manifests(objects, settings, namespace)
    try:
        sys.stdout.write(_text([each for printed in found for each in printed.objects], form))
        sys.stdout.flush()
    except BrokenPipeError:
        output.drop_the_rest()
    for document, printed in zip(manifests.documents, found, strict=True):
        _say(f"{document.source}:{document.line}: {each}" for each in _lines(printed))
    return ExitCode.NOT_SERVED if any(each.problems for each in found) else ExitCode.OK


def _lines(printed: Printed) -> Iterable[str]:
    yield from printed.problems
    yield from (f"note: {each}" for each in printed.notes)


def _say(lines: Iterable[str]) -> None:
    for each in lines:
        sys.stderr.write(f"{_PROGRAM}: {output.plain(each)}\n")


def _text(objects: Sequence[dict[str, Any]], form: str) -> str:
    """Return objects in a form that kubectl takes."""
    if form == "json":
        whole = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return f"{json.dumps(whole, indent=2, ensure_ascii=False)}\n"
    from provisioner.cli.yamlwriting import yaml_of  # noqa: PLC0415 - only for YAML

    return yaml_of(objects)
