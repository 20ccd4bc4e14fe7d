"""Lines for the terminal about IPUs: capacity, partitions, and why pods wait or are rejected."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from provisioner.cli.output import aligned, aligned_with_words, plain, wrapped
from provisioner.partitions.board import Document
from provisioner.partitions.planning.picture import PartitionLine, RejectedLine, WaitingLine
from provisioner.slices.view.explain import for_how_long, moment

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


class _Found(NamedTuple):
    waiting: list[WaitingLine]
    rejected: list[RejectedLine]
    held: list[PartitionLine]


def _find(document: Document, namespace: str, name: str | None = None) -> _Found:
    """Return the entries about pods of a namespace, all if empty; with `name`, only those of this pod or partition."""

    def is_wanted(entry_namespace: str, *names: str) -> bool:
        return namespace in ("", entry_namespace) and (name is None or name in names)

    owners = ((partition, *partition.pod.partition("/")) for partition in document.partitions)
    return _Found(
        waiting=[line for line in document.waiting if is_wanted(line.namespace, line.pod)],
        rejected=[line for line in document.rejected if is_wanted(line.namespace, line.pod)],
        held=[partition for partition, owner, _, pod in owners if is_wanted(owner, partition.id, pod)],
    )


def page(document: Document, namespace: str = "", *, width: int | None = None) -> Iterator[str]:
    """Yield a document as lines, for all namespaces if `namespace` is empty. `width` None does not wrap lines."""
    yield from _attention(document)
    if document.decided_at is None:
        yield "IPU partitions: nothing has been decided yet"
        return
    yield from wrapped(_summary(document), width)
    if document.supply:
        yield from aligned([*_supply(document)], right=(2, 3, 4, 5), width=width)
    found = _find(document, namespace)
    if any(found):
        yield ""
        yield from aligned_with_words([*_rows(found, document.served_at)], width=width)
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
    found = _find(document, namespace, id_)
    if any(found):
        yield from _attention(document)
    for refusal in found.rejected[:_MAX_EXPLAINED]:
        yield plain(f"pod {refusal.namespace}/{refusal.pod} gets no IPUs as it is: {refusal.why}")
    for line in found.waiting[:_MAX_EXPLAINED]:
        waited = for_how_long(line.since, document.served_at)
        yield plain(
            f"pod {line.namespace}/{line.pod} has waited for {line.ipus} IPUs for {waited}, "
            f"at place {line.place} of {_waiting(document)}: {line.why}"
        )
    for partition_line in found.held[:_MAX_EXPLAINED]:
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


def _rows(found: _Found, now: datetime) -> Iterator[tuple[str, ...]]:
    yield ("NAMESPACE", "POD", "IPUS", "STATE", "FOR", "PARTITION", "V-IPU SERVER", "WHY")
    for line in found.waiting:
        since = for_how_long(line.since, now)
        yield (line.namespace, line.pod, str(line.ipus), "waiting", since, "-", "-", line.why)
    for refusal in found.rejected:
        yield (refusal.namespace, refusal.pod, "-", "rejected", "-", "-", "-", refusal.why)
    for partition in found.held:
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
