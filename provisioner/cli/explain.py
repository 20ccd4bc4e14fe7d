"""`tpu-provisioner explain`: why one workload, slice, pod or node pool waits, runs or is deleted."""

import sys
from collections.abc import Iterator

import click

from provisioner.cli import ipus
from provisioner.cli.asking import attention, board, documents, view_of, view_problem
from provisioner.cli.frame import FORMATS, Remote, command_with, format_option, remote_options
from provisioner.cli.output import ExitCode, aligned, plain, show, terminal_width, wrapped, write
from provisioner.slices.board import Document
from provisioner.slices.view.explain import Explanation, explain, moment, nearest_kind, nearest_names, unknown_kind


@command_with(
    "{prog} explain train                  # of any kind, in any namespace",
    "{prog} explain -n team-a pod/train-slice-0-0-abcde",
    "{prog} explain slice/train-slice-0 -o json",
    "{prog} explain pool/train-3138c02866",
)
@click.argument("name", metavar="[KIND/]NAME")
@click.option("--namespace", "-n", default="", metavar="NAME", help="of the workload or pod (default: any)")
@format_option()
@remote_options
def command(name: str, *, namespace: str, form: str | None, remote: Remote) -> int:
    """Explain why a workload, slice, pod or node pool waits, runs or is deleted.

    The first line has the reason, the time and the next step; the evidence follows. KIND is jobset, lws, raycluster,
    job, slice, pod or pool. Pods that request IPUs are explained as well.
    """
    if form in FORMATS:
        document = board(remote)
        matches = explanations(document, name, namespace)
        view_of(document)
        write([*matches], form)
        return ExitCode.OK if matches else ExitCode.ERROR
    answers = documents(remote)
    problems = [plain(f"ATTENTION: {answers.problem}")] if answers.problem else []
    explained: list[str] = []
    missing: list[str] = []
    if answers.partitions is not None:
        explained += ipus.explain(answers.partitions, name, namespace)
    if answers.slices is not None:
        problems += attention(answers.slices)
        matches = explanations(answers.slices, name, namespace)
        explained += [line for explanation in matches for line in lines(explanation)]
        missing += nothing_found(answers.slices, name, namespace)
    elif not answers.problem:
        missing.append(f"tpu-provisioner: the controller of IPU partitions knows no pod or partition {name!r}")
    if problems or explained:
        width = terminal_width()
        show("\n".join(part for line in (*problems, *explained) for part in wrapped(line, width)))
    if explained:
        return ExitCode.OK
    if answers.partitions is not None:
        # The document omits entries above a limit, and the pod may be one of them.
        missing += ipus.left_out(answers.partitions)
    print("".join(f"{line}\n" for line in missing), end="", file=sys.stderr)
    return ExitCode.ERROR


def explanations(document: Document, name: str, namespace: str) -> list[Explanation]:
    """Return the explanations of all objects of this name; empty if the document has no view."""
    if document.view is None:
        return []
    return explain(document.view, document.served_at, document.tracks, document.activity, name, namespace)


def nothing_found(document: Document, name: str, namespace: str) -> Iterator[str]:
    """Yield lines about a name that has no explanation: the problem, or the possible causes."""
    view = document.view
    if view is None:
        problem = "nothing has been decided yet: see ATTENTION above" if document.problems else view_problem(document)
        yield f"tpu-provisioner: {problem}"
        return
    if kind := unknown_kind(name):
        near = nearest_kind(kind)
        kinds = "jobset, lws, raycluster, job, slice, pod or pool"
        yield f"tpu-provisioner: kind {kind!r} is unknown; {f'did you mean {near}?' if near else f'use {kinds}'}"
        return
    where = f" in namespace {namespace}" if namespace else ""
    if document.problems or document.stalled:
        yield (
            f"tpu-provisioner: no workload, slice, pod or node pool {name!r}{where} was known at the last decision "
            f"({moment(view.at)}). Nothing is decided at the moment: see ATTENTION above, or "
            "/readyz. Workloads created since then get node pools after that."
        )
        return
    yield f"tpu-provisioner: the provisioner knows no workload, slice, pod or node pool {name!r}{where}."
    if names := nearest_names(view, name):
        yield f"Did you mean {' or '.join(names)}?"
    yield "Causes:"
    yield "  - it does not exist: see `kubectl get jobsets,leaderworkersets,jobs,pods --all-namespaces`"
    yield "  - its pods do not request google.com/tpu"
    yield "  - it is a plain Job or pod that the setting SERVE_PODS leaves out"
    yield "  - its namespace is not in the setting SERVED_NAMESPACES"
    yield "  - its kind is not installed: see `kubectl get crd jobsets.jobset.x-k8s.io`"


def lines(explanation: Explanation) -> Iterator[str]:
    """Yield an explanation as lines for the terminal."""
    yield plain(explanation.headline)
    yield from aligned([(f"  {name}", value) for name, value in explanation.facts])
    for notice in explanation.notices:
        yield plain(f"  {'Warning' if notice.warning else 'Normal'} {notice.reason}: {notice.message}")
    if explanation.activity:
        yield "  Last decisions:"
        yield from (plain(f"    {entry.at:%Y-%m-%d %H:%M:%S} UTC  {entry.message}") for entry in explanation.activity)
