"""`tpu-provisioner gc --dry-run`: lists which node pools will be deleted and when, and why the others are kept."""

from collections.abc import Iterator
from datetime import datetime

import click

from provisioner.cli.asking import attention, board, view_of
from provisioner.cli.frame import FORMATS, Remote, command_with, format_option, remote_options
from provisioner.cli.output import ExitCode, aligned_with_words, plain, show, terminal_width, write
from provisioner.model.wording import clock
from provisioner.slices.board import Document
from provisioner.slices.view.types import PoolView, State


@command_with("{prog} gc --dry-run", "{prog} gc --dry-run -o yaml")
@click.option("--dry-run", is_flag=True, help="required: only the controller deletes node pools")
@format_option()
@remote_options
def command(*, dry_run: bool, form: str | None, remote: Remote) -> int:
    """List the node pools that are deleted, when and why, and why the others are kept.

    It deletes nothing: the controller does, after it has proven for each node pool that nothing needs it.
    """
    if not dry_run:
        raise click.UsageError(
            "add --dry-run: only the controller deletes node pools, and it needs no command for that"
        )
    document = board(remote)
    view = view_of(document)
    if form in FORMATS:
        write({"at": view.at, "pools": view.pools}, form)
        return ExitCode.OK
    show("\n".join(page(document, terminal_width())))
    return ExitCode.OK


def page(document: Document, width: int | None = None) -> Iterator[str]:
    """Yield lines about deleted and kept pools; wrap tables to `width` if given. Raises RemoteError without a view."""
    view = view_of(document)
    yield from attention(document)
    for alert in view.alerts:
        yield plain(f"ALERT {alert.kind}: {alert.message}")
    leaving = [pool for pool in view.pools if _is_leaving(pool)]
    staying = [pool for pool in view.pools if not _is_leaving(pool)]
    yield f"{len(leaving)} of {len(view.pools)} node pools will be deleted, {sum(pool.chips for pool in leaving)} chips"
    if leaving:
        rows = [("NODE POOL", "STATE", "CHIPS", "DELETED AT", "WHY")]
        rows += [
            (pool.name, pool.state.value, str(pool.chips), _due_text(pool, document.served_at), pool.reason)
            for pool in leaving
        ]
        yield from aligned_with_words(rows, width=width)
    if staying:
        yield ""
        yield f"{len(staying)} {'is' if len(staying) == 1 else 'are'} kept, {sum(pool.chips for pool in staying)} chips"
        rows = [("NODE POOL", "STATE", "CHIPS", "FOR", "WHY")]
        rows += [(pool.name, pool.state.value, str(pool.chips), pool.slice or "-", pool.reason) for pool in staying]
        yield from aligned_with_words(rows, width=width)


def _is_leaving(pool: PoolView) -> bool:
    return pool.state is State.DELETING or pool.delete_at is not None


def _due_text(pool: PoolView, now: datetime) -> str:
    if pool.state is State.DELETING:
        return "now"
    if pool.delete_at is None or pool.delete_at <= now:
        return "due"
    return clock(pool.delete_at, now)
