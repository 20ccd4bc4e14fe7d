"""Prints the pages of Events from their reasons' comments and a text with the remedies: `make docs`.

The argument is the folder of the page: `.`, node-groups or partitions. In its events.in, a line `@NAME` stands for the
reason's heading and cause, `| @NAME` for the reason's row in a table, and `@DeleteReason` for the table of its values.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provisioner import constants
from provisioner.nodegroups.planning import events as node_group_events
from provisioner.partitions.planning import events as partition_events
from provisioner.slices.planning.plan import DeleteReason

_MODULES = {".": constants, "node-groups": node_group_events, "partitions": partition_events}
_CAUSE = re.compile(r'(?m)((?:^ *#: .*\n)+) *([A-Z_]+) = "')


def page_of(folder: str) -> str:
    """Return the text of a page. Raises KeyError if a reason has no comment."""
    module = _MODULES[folder]
    text = (Path(__file__).parent / folder / "events.in").read_text(encoding="utf-8")
    causes = _causes(module)

    def written(found: re.Match[str]) -> str:
        reason, cause = getattr(module, found["name"]), causes[found["name"]]
        if found["row"]:
            return f"| `{reason}` | {_as_part(cause).removesuffix('.')} |"
        return f"### `{reason}`\n\n- Cause: {_as_part(cause)}"

    text = text.replace("@DeleteReason\n", "".join(_delete_reasons()))
    return re.sub(r"(?m)^(?P<row>\| )?@(?P<name>[A-Z_]+)$", written, text)


def _causes(source: Any) -> dict[str, str]:
    """Return the comment of each constant that has a text as its value. Lines that begin with a hyphen are a list."""
    return {
        name: " ".join(line.strip().removeprefix("#: ") for line in lines.splitlines()).replace(" - ", "\n  - ")
        for lines, name in _CAUSE.findall(inspect.getsource(source))
    }


def _as_part(sentence: str) -> str:
    """Return a sentence with a small first letter, unless its first word is a name."""
    word = sentence.split(" ", 1)[0]
    return sentence if word in ("GKE", "Google", "Compute") else sentence[0].lower() + sentence[1:]


def _delete_reasons() -> Iterator[str]:
    yield "  | reason | meaning |\n  |---|---|\n"
    for name, cause in _causes(DeleteReason).items():
        said = DeleteReason[name].value.replace("_", " ")
        yield f"  | `{said}` | {_as_part(cause).removesuffix('.')} |\n"


if __name__ == "__main__":
    sys.stdout.write(page_of(sys.argv[1]))
