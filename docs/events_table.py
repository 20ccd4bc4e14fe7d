"""Writes the causes on the pages of Events from the comments of their reasons: `make docs`.

A page is written by hand except for the lines `- Cause:`, the meanings of Events that need no action, and the table of
reasons for deletes.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from provisioner.nodegroups.planning import events as node_group_events
from provisioner.partitions.planning import events as partition_events
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import DeleteReason

_DOCS = Path(__file__).parent
#: Class or module with the reasons of each page. Its source has a comment above each reason.
SOURCES: dict[str, Any] = {
    "events.md": EventReason,
    "node-groups/events.md": node_group_events,
    "partitions/events.md": partition_events,
}
_REASON = re.compile(r'(?m)((?:^ *#: .*\n)+) *[A-Z_]+ = "(\w+)"')
_ENTRY = re.compile(r"(?m)^### `(?P<reason>\w+)`\n\n(?:- Cause: .*\n(?:  - .*\n)*)?")
_ROW = re.compile(r"(?m)^\| `(?P<reason>[A-Z]\w+)` \|.*$")
_DELETES = re.compile(r"(?m)^(  \| reason \| meaning \|\n  \|---\|---\|\n)(?:  \|.*\n)+")


def page_of(name: str) -> str:
    """Return the text of a page with the current causes. Raises SystemExit if the page has an unknown reason."""
    causes = _causes(SOURCES[name])

    def cause(found: re.Match[str]) -> str:
        try:
            return causes[found["reason"]]
        except KeyError:
            source = SOURCES[name].__name__
            raise SystemExit(f"docs/{name}: {found['reason']} has no comment in {source}; add it there") from None

    text = (_DOCS / name).read_text(encoding="utf-8")
    text = _ENTRY.sub(lambda found: f"### `{found['reason']}`\n\n- Cause: {cause(found)}\n", text)
    text = _ROW.sub(lambda found: f"| `{found['reason']}` | {cause(found).removesuffix('.')} |", text)
    rows = (f"  | `{value.replace('_', ' ')}` | {text} |\n" for value, text in _causes(DeleteReason).items())
    deletes = "".join(row.replace(". |", " |") for row in rows)
    return _DELETES.sub(lambda found: found[1] + deletes, text)


def _causes(source: Any) -> dict[str, str]:
    """Return the comment of each reason. Lines that begin with a hyphen are a list."""
    return {
        value: _as_part(" ".join(line.strip().removeprefix("#: ") for line in lines.splitlines())).replace(
            " - ", "\n  - "
        )
        for lines, value in _REASON.findall(inspect.getsource(source))
    }


def _as_part(sentence: str) -> str:
    """Return a sentence with a small first letter, unless its first word is a name."""
    word = sentence.split(" ", 1)[0]
    return sentence if word in ("GKE", "Google", "Compute") else sentence[0].lower() + sentence[1:]


if __name__ == "__main__":
    for page in SOURCES:
        (_DOCS / page).write_text(page_of(page), encoding="utf-8")
