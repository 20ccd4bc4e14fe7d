"""Lines for the terminal about IPUs: capacity, partitions, and why pods wait or are rejected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from provisioner.cli.output import aligned, aligned_with_words, plain, wrapped
from provisioner.slices.view.explain import for_how_long, moment

if TYPE_CHECKING:
    from provisioner.partitions.board import Document
    from provisioner.partitions.planning.picture import PartitionLine, RejectedLine, WaitingLine

_UNKNOWN = "?"
_MAX_EXPLAINED = 20
_MEANINGS = {
    "wanted": "is recorded and not requested yet",
    "creating": "is being created",
    "active": "is active",
    "broken": "exists and is unusable",
    "misplaced": "is where its pod may not run, and is removed",
    "lost": "is gone from its server, and is created again",
    "withdrawn": "is withdrawn from this server",
    "releasing": "is being removed",
    "gone": "is removed",
    "orphan": "has no pod, and is removed soon",
}


def page(document: Document, namespace: str = "", *, width: int | None = None) -> Iterator[str]:
    """Yield a document as lines, for all namespaces if `namespace` is empty. `width` None does not wrap lines."""
    yield from _attention(document)
    if document.decided_at is None:
        yield "IPU partitions: nothing has been decided yet"
        return
    yield from wrapped(_summary(document), width)
    if document.supply:
        yield from aligned([*_supply(document)], right=(2, 3, 4, 5), width=width)
    waiting = [line for line in document.waiting if namespace in ("", line.namespace)]
    held = [partition for partition in document.partitions if namespace in ("", partition.pod.partition("/")[0])]
    rejected = [line for line in document.rejected if namespace in ("", line.namespace)]
    if waiting or rejected or held:
        yield ""
        yield from aligned_with_words([*_rows(document, waiting, rejected, held)], width=width)
    yield from left_out(document)


def left_out(document: Document) -> Iterator[str]:
    """Yield a line with the numbers of pods and partitions that the document omits; no line if it omits none."""
    counts = (
        (document.left_out.waiting, "more pods that wait"),
        (document.left_out.rejected, "more rejected pods"),
        (document.left_out.partitions, "more partitions"),
    )
    omitted = [f"{count} {noun}" for count, noun in counts if count]
    if omitted:
        yield f"Not shown: {', '.join(omitted)}."


def explain(document: Document, name: str, namespace: str) -> Iterator[str]:
    """Yield lines about the pods and partitions of this name; no line if the name is unknown."""
    kind, _, id_ = name.rpartition("/")
    if kind not in ("", "pod", "pods", "partition"):
        return
    waiting = [
        waiting_line
        for waiting_line in document.waiting
        if waiting_line.pod == id_ and namespace in ("", waiting_line.namespace)
    ]
    held = [
        partition
        for partition in document.partitions
        if id_ in (partition.id, partition.pod.partition("/")[2]) and namespace in ("", partition.pod.partition("/")[0])
    ]
    rejected = [
        rejected_line
        for rejected_line in document.rejected
        if rejected_line.pod == id_ and namespace in ("", rejected_line.namespace)
    ]
    if waiting or rejected or held:
        yield from _attention(document)
    for refusal in rejected[:_MAX_EXPLAINED]:
        yield plain(f"pod {refusal.namespace}/{refusal.pod} gets no IPUs as it is: {refusal.why}")
    for line in waiting[:_MAX_EXPLAINED]:
        waited = for_how_long(line.since, document.served_at)
        yield plain(
            f"pod {line.namespace}/{line.pod} has waited for {line.ipus} IPUs for {waited}, "
            f"at place {line.place} of {_waiting(document)}: {line.why}"
        )
    for partition_line in held[:_MAX_EXPLAINED]:
        age = for_how_long(partition_line.since, document.served_at)
        owner = f"of pod {partition_line.pod}" if partition_line.pod else "of no pod"
        meaning = _MEANINGS.get(partition_line.phase, partition_line.phase)
        reason = f": {partition_line.why}" if partition_line.why else ""
        yield plain(f"partition {partition_line.id} {owner}, {partition_line.ipus} IPUs, {meaning} ({age}){reason}")
        where = [("  server", partition_line.server), ("  allocation", partition_line.allocation or "unknown")]
        yield from aligned([*where, ("  since", moment(partition_line.since))])


def _attention(document: Document) -> Iterator[str]:
    yield from (plain(f"ATTENTION: IPU partitions: {problem}") for problem in document.problems)
    for server in document.servers:
        if server.problem:
            yield plain(f"ATTENTION: V-IPU server {server.address} cannot be read: {server.problem}")


def _summary(document: Document) -> str:
    ours = sum(supply.ours for supply in document.supply)
    others = sum(supply.others for supply in document.supply)
    totals = [supply.ipus for supply in document.supply]
    total = _UNKNOWN if None in totals else str(sum(count for count in totals if count is not None))
    return (
        f"IPUs: {ours} of {total} in partitions of this cluster, {others} in others; pods that wait: "
        f"{_waiting(document)}; tpu-provisioner {document.release}, {document.identity}"
    )


def _waiting(document: Document) -> int:
    return len(document.waiting) + document.left_out.waiting


def _supply(document: Document) -> Iterator[Sequence[str]]:
    yield ("V-IPU SERVER", "ALLOCATION", "IPUS", "OURS", "OTHERS", "FREE")
    for supply in document.supply:
        total, free = (_UNKNOWN if count is None else str(count) for count in (supply.ipus, supply.free))
        yield (supply.server, supply.allocation or "-", total, str(supply.ours), str(supply.others), free)


def _rows(
    document: Document, waiting: Sequence[WaitingLine], rejected: Sequence[RejectedLine], held: Sequence[PartitionLine]
) -> Iterator[tuple[str, ...]]:
    now = document.served_at
    yield ("NAMESPACE", "POD", "IPUS", "STATE", "FOR", "PARTITION", "V-IPU SERVER", "WHY")
    for line in waiting:
        since = for_how_long(line.since, now)
        yield (line.namespace, line.pod, str(line.ipus), "waiting", since, "-", "-", line.why)
    for refusal in rejected:
        yield (refusal.namespace, refusal.pod, "-", "rejected", "-", "-", "-", refusal.why)
    for partition in held:
        namespace, _, pod = partition.pod.partition("/")
        since = for_how_long(partition.since, now)
        yield (
            namespace or "-",
            pod or "-",
            str(partition.ipus),
            partition.phase,
            since,
            partition.id,
            partition.server,
            partition.why,
        )
