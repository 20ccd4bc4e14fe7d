"""What stands above everything that a command shows of a controller: what keeps it from deciding, and of when it is."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.cli.output import plain
from provisioner.slices.board import Document
from provisioner.slices.view.explain import for_how_long, moment


def attention(document: Document, *, dated: bool = False) -> Iterator[str]:
    """Say what keeps the controller from deciding; then, or where `dated` asks for it, of when its last decision is."""
    yield from (plain(f"ATTENTION: {each}") for each in document.problems)
    view = document.view
    if view is not None and (dated or document.problems or document.stalled):
        ago = f", {for_how_long(view.at, document.served_at)} ago" if document.stalled else ""
        yield f"as of {moment(view.at)}{ago}"
