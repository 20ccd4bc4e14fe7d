"""The tables that the simulated `vipu` command prints: columns and lines as public examples of the real one show them.

Examples: "list partitions" in the READMEs of graphcore/examples, "list allocations" and "list ipu-attrs" in the chapter
on allocations of Graphcore's V-IPU User Guide. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_IPU_ATTRIBUTES = (("board ipu index", ""), ("board type", "M2000"), ("clock", "1330MHz"))


def render(header: Sequence[str], rows: Sequence[Sequence[str]], *, rule_first: bool) -> str:
    """Return a table; `rule_first` has a line of dashes over the header, too."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        (" " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in [header, *rows]
    ]
    rule = "-" * (sum(widths) + 3 * len(widths))
    return "\n".join([*([rule] if rule_first else []), lines[0], rule, *lines[1:], rule]) + "\n"


def partitions(listed: Sequence[Mapping[str, Any]], added: Mapping[str, str]) -> str:
    """Return the table of partitions, with columns that the real one has not had so far."""
    allocation = ["Allocation"] if any("allocation" in item for item in listed) else []
    header = ["Partition", *allocation, "Cluster", "ILDs", "GW Routing", "ILD Routing", "Size", "GCDs", "State", *added]
    rows = [
        [
            item["id"],
            *([item["allocation"]] if allocation else []),
            item["cluster"],
            "1",
            "DEFAULT",
            "RINGSWNC",
            str(item["size"]),
            "1",
            item["state"],
            *added.values(),
        ]
        for item in listed
    ]
    return render(header, rows, rule_first=False)


def allocations(listed: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of allocations."""
    rows = [[item["name"], " ".join(item["agents"])] for item in listed]
    return render(["Allocation ID", "Agents"], rows, rule_first=True)


def ipu_attributes(ipus: Sequence[Sequence[Any]]) -> str:
    """Return the table of attributes of IPUs, given as agent and index; what repeats itself is left out."""
    rows: list[list[str]] = []
    before = ""
    for agent, index in ipus:
        for number, (attribute, value) in enumerate(_IPU_ATTRIBUTES):
            shown_agent = agent if number == 0 and agent != before else ""
            shown_index = str(index) if number == 0 else ""
            rows.append([shown_agent, shown_index, attribute, value or str(index)])
        before = agent
    return render(["Agent", "IPU", "Attribute", "Value"], rows, rule_first=False)
