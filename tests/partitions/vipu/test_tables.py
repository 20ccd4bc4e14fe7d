"""Parsing of the tables of the `vipu` command: every layout is read, and invalid tables are rejected."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.partitions.vipu import tables
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionState
from provisioner.partitions.vipu.tables import TableError

#: Long time-out, because Hypothesis records each of the many choices that draw a table.
pytestmark = pytest.mark.timeout(20)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=12)
CELLS = st.text("abAB01 ()/é-", max_size=9).map(str.strip)
PUBLIC = """\
 Partition   | Cluster  | ILDs | GW Routing | ILD Routing | Size | GCDs | State
---------------------------------------------------------------------------------
 p64         | c64_1-16 | 1    | DEFAULT    | RINGSWNC    | 64   | 1    | ACTIVE
---------------------------------------------------------------------------------
"""


@dataclass(frozen=True)
class Layout:
    """Layout in which `vipu` may print a table."""

    framed: bool
    rule_first: bool
    rule_after_header: bool
    rule_between: bool
    indent: int
    padding: int
    banner: str
    blank_lines: bool

    def draw(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        widths = [max(len(row[column]) for row in (header, *rows)) + self.padding for column in range(len(header))]
        rule = ("+" if self.framed else "-") + "-" * (sum(widths) + 3 * len(widths))
        lines = [self._line(row, widths) for row in (header, *rows)]
        drawn = [self.banner, *([rule] if self.rule_first else []), lines[0]]
        drawn += [rule] if self.rule_after_header or not rows else []
        for line in lines[1:]:
            drawn += [line, *([rule] if self.rule_between else [])]
        return ("\n\n" if self.blank_lines else "\n").join([*drawn, rule]) + "\n"

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        return f"| {cells} |" if self.framed else " " * self.indent + cells.rstrip()


LAYOUTS = st.builds(
    Layout,
    indent=st.integers(0, 3),
    padding=st.integers(0, 4),
    banner=st.sampled_from(["", "Warning: the client is older than the server", "vipu 1.18 -- user: us"]),
)


@st.composite
def _drawn(draw: st.DrawFn, cells: Mapping[str, Sequence[str]], unknown: Sequence[str]) -> str:
    """Draw the text of a table with `cells` and unknown columns, in any order and layout."""
    count = max((len(column) for column in cells.values()), default=0)
    columns = dict(cells)
    for name in draw(st.lists(st.sampled_from(unknown), unique=True)) if unknown else ():
        columns[name] = draw(st.lists(CELLS, min_size=count, max_size=count))
    names = draw(st.permutations(list(columns)))
    rows = [[columns[name][number] for name in names] for number in range(count)]
    # No row may be empty or consist of dashes, because it would look like an empty line or a rule.
    shown = [row for row in rows if any(cell.strip("-=+ ") for cell in row)]
    assert len(shown) == len(rows)
    return draw(LAYOUTS).draw(names, rows)


@settings(max_examples=60)
@given(st.data(), st.lists(st.tuples(NAMES, st.integers(1, 4096), CELLS), unique_by=lambda row: row[0], max_size=4))
def test_partitions_are_read_in_every_layout(data: st.DataObject, rows: list[tuple[str, int, str]]) -> None:
    ids = [f"p{name}" for name, _, _ in rows]
    states = [f"S{state}" for _, _, state in rows]
    clusters = data.draw(st.none() | st.lists(NAMES, min_size=len(rows), max_size=len(rows)))
    allocations = data.draw(st.none() | st.lists(NAMES, min_size=len(rows), max_size=len(rows)))
    cells: dict[str, Sequence[str]] = {
        data.draw(st.sampled_from(["Partition", "Partition ID", "PARTITION"])): ids,
        data.draw(st.sampled_from(["Size", "SIZE"])): [str(size) for _, size, _ in rows],
        data.draw(st.sampled_from(["State", "Status"])): states,
    }
    if clusters is not None:
        cells["Cluster"] = clusters
    if allocations is not None:
        cells[data.draw(st.sampled_from(["Allocation", "Allocation ID"]))] = allocations
    text = data.draw(_drawn(cells, ["ILDs", "GW Routing", "ILD Routing", "GCDs", "Health"]))
    assert tables.partitions(text) == tuple(
        Partition(
            id=ids[number],
            size=size,
            state=PartitionState.OTHER,
            state_text=states[number],
            cluster=(clusters or [""] * len(rows))[number],
            allocation=(allocations or [""] * len(rows))[number],
        )
        for number, (_, size, _) in enumerate(rows)
    )


@settings(max_examples=60)
@given(
    st.data(),
    st.lists(st.tuples(NAMES, st.lists(NAMES, min_size=1, max_size=6)), unique_by=lambda row: row[0], max_size=6),
    st.booleans(),
)
def test_allocations_are_read_in_every_layout(
    data: st.DataObject, rows: list[tuple[str, list[str]]], wrapped: bool
) -> None:
    ids: list[str] = []
    agents: list[str] = []
    for name, names in rows:
        named = [f"ag{item}" for item in names]
        pieces = [[item] for item in named] if wrapped else [named]
        ids += [f"a{name}", *[""] * (len(pieces) - 1)]
        agents += [" ".join(piece) for piece in pieces]
    text = data.draw(_drawn({"Allocation ID": ids, "Agents": agents}, [] if wrapped else ["Users", "Notes"]))
    assert tables.allocations(text) == tuple(
        (Allocation(name=f"a{name}"), tuple(f"ag{item}" for item in names)) for name, names in rows
    )


@settings(max_examples=60)
@given(
    st.data(),
    st.dictionaries(NAMES, st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 3),
    st.booleans(),
)
def test_ipus_are_counted_in_every_layout(
    data: st.DataObject, counts: dict[str, int], attributes: int, repeats: bool
) -> None:
    rows = [
        (
            agent if repeats or (index == 0 and number == 0) else "",
            str(index) if repeats or number == 0 else "",
            f"attribute {number}",
        )
        for agent, count in counts.items()
        for index in range(count)
        for number in range(attributes)
    ]
    cells = {"Agent": [row[0] for row in rows], "IPU": [row[1] for row in rows], "Attribute": [row[2] for row in rows]}
    assert tables.ipus_of_agents(data.draw(_drawn(cells, ["Value", "Unit"]))) == counts


def test_public_example_of_a_table_is_read() -> None:
    expected = Partition(
        id="p64", size=64, state=PartitionState.ACTIVE, state_text="ACTIVE", cluster="c64_1-16", allocation=""
    )
    assert tables.partitions(PUBLIC) == (expected,)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        pytest.param("", "there is no output", id="nothing"),
        pytest.param("\n\n", "there is no output", id="empty lines"),
        pytest.param("----\n----\n", "there is no table, but '----'", id="lines of dashes alone"),
        pytest.param(PUBLIC.replace("State", "Mood"), "line 1 is not a header with a column State", id="no state"),
        pytest.param(PUBLIC.replace("Size", "Many"), "line 1 is not a header with a column Size", id="no size"),
        pytest.param(PUBLIC.replace("GCDs", "Status"), "line 1 has two columns state", id="two columns of one meaning"),
        pytest.param(PUBLIC.replace(" 64 ", " 64G"), "line 3 has '64G' where a number", id="a size with a unit"),
        pytest.param(PUBLIC.replace(" 64 ", " -4 "), "line 3 has '-4' where a number", id="negative size"),
        pytest.param(PUBLIC.replace(" 64 ", " 0  "), "line 3 has no size", id="no IPUs"),
        pytest.param(PUBLIC.replace(" 64 ", " 9999999"), "line 3 has '9999999' where", id="size above the maximum"),
        pytest.param(PUBLIC.replace(" 64 ", " ٦٤ "), "line 3 has '٦٤' where a number", id="digits of another script"),
        pytest.param(PUBLIC.replace("ACTIVE", ""), "line 3 has no state", id="an empty state"),
        pytest.param(PUBLIC.replace(" p64 ", "     "), "line 3 has no id of a partition", id="no id"),
        pytest.param(PUBLIC.replace(" p64 ", "p 64 "), "line 3 has no id of a partition", id="an id with a space"),
        pytest.param(PUBLIC.replace(" | ACTIVE", ""), "line 3 has 7 cells, and the header 8", id="a row cut short"),
        pytest.param(PUBLIC.replace("\n p64 ", "\n a | b\n p64 "), "line 3 has 2 cells", id="a wrapped line"),
        pytest.param(PUBLIC + "1 partition\n", "line 5 has 1 cells", id="words after the table"),
        pytest.param(PUBLIC.rsplit("\n", 2)[0], "it may be cut off", id="no line at the end"),
        pytest.param(PUBLIC.splitlines()[0], "it may be cut off", id="a header alone"),
        pytest.param("\n".join(PUBLIC.splitlines()[:2]), "it may be cut off", id="a header and its line"),
        pytest.param(
            PUBLIC + PUBLIC.splitlines()[2] + "\n----\n", "line 5 has partition p64 a second time", id="an id twice"
        ),
    ],
)
def test_invalid_table_of_partitions_is_rejected_as_a_whole(table: str, problem: str) -> None:
    with pytest.raises(TableError) as caught:
        tables.partitions(table)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (("ACTIVE", "active", "PS_ACTIVE"), PartitionState.ACTIVE),
        (("ERROR", "PS_FAILED"), PartitionState.ERROR),
        (("INACTIVE", "ACTIVATING", "ACTIVE (degraded)", ""), PartitionState.OTHER),
    ],
)
def test_only_known_states_are_active_or_error(words: tuple[str, ...], state: PartitionState) -> None:
    assert {tables.state_of(word) for word in words} == {state}


_ATTRIBUTES = " Agent | IPU | Attribute"


@pytest.mark.parametrize(
    ("header", "rows", "problem"),
    [
        (" Allocation ID | Agents", ["  | ag0"], "line 3 has no id of an allocation"),
        (" Allocation ID | Agents", [" a b | ag0"], "line 3 has no id of an allocation"),
        (" Allocation ID | Agents", [" a | ag0", " a | ag1"], "line 4 has allocation a a second time"),
        (" Allocation ID | Agents", [" a | ag0", "   | "], "line 4 has no id of an allocation"),
        # A row without an id continues the row above only if it has agents and nothing else.
        (" Allocation | Agents | Cluster", [" a | ag0 | c", "   | ag1 | c"], "line 4 has no id of an allocation"),
        (_ATTRIBUTES, ["     | 0   | clock"], "line 3 has no agent"),
        (_ATTRIBUTES, [" ag0 |     | clock"], "line 3 has no IPU"),
        (_ATTRIBUTES, ["     |     | clock"], "line 3 has no IPU"),
        (_ATTRIBUTES, [" ag0 | one | clock"], "line 3 has 'one' where a number should be"),
    ],
)
def test_invalid_table_of_allocations_or_attributes_is_rejected(header: str, rows: list[str], problem: str) -> None:
    parse = tables.ipus_of_agents if header is _ATTRIBUTES else tables.allocations
    with pytest.raises(TableError) as caught:
        parse("\n".join([header, "-----", *rows, "-----"]))
    assert problem in str(caught.value)


def test_ipus_of_allocations_are_reported_or_summed_or_unknown() -> None:
    text = (
        " Allocation | Agents   | Cluster | IPUs\n-----\n"
        " a          | ag0, ag1 | c1      | 7\n"
        " b          | ag0 ag1  | c1      | \n"
        " c          | ag1 ag2  | c2      | \n"
        " d          |          | c2      | \n-----\n"
    )
    assert tables.with_ipus(tables.allocations(text), {"ag0": 4, "ag1": 2}) == (
        Allocation(name="a", cluster="c1", ipus=7),
        Allocation(name="b", cluster="c1", ipus=6),
        Allocation(name="c", cluster="c2", ipus=None),
        Allocation(name="d", cluster="c2", ipus=0),
    )


@given(st.text("ab-|=+ \n\r\x0c\u2028é", max_size=40))
def test_text_that_is_not_a_table_is_rejected(text: str) -> None:
    for parse in (tables.partitions, tables.allocations, tables.ipus_of_agents):
        with pytest.raises(TableError):
            parse(text)


@given(st.text(" |-\nabc019", max_size=60))
def test_text_that_looks_like_a_table_is_read_completely_or_rejected(text: str) -> None:
    with contextlib.suppress(TableError):
        found = tables.partitions(f" Partition | Size | State\n-----\n{text}\n-----\n")
        assert len(found) == sum(1 for line in text.split("\n") if line.strip(" -|"))


@pytest.mark.parametrize("text", ["-" * 4_000_000 + "x | Partition", "\n" * 1_000_000], ids=["dashes", "empty lines"])
def test_huge_text_without_a_table_takes_little_memory(text: str) -> None:
    tracemalloc.start()
    with pytest.raises(TableError):
        tables.partitions(text)
    assert tracemalloc.get_traced_memory()[1] < 40_000_000
    tracemalloc.stop()
