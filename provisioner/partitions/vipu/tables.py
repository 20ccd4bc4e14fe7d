"""Parses the tables that the `vipu` command prints. Strict, because the format is not published. Pure.

Columns are found by their names in the header. Lines of dashes follow the header and end the table; without the last
line, the table may be truncated. An unreadable part fails the whole table, because lists must not have gaps.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner.partitions.vipu.records import Allocation, Partition, PartitionState

_CELL_END = "|"
_RULE_CHARACTERS = frozenset("-=+| ")
_SHORTEST_RULE = "---"
_MAX_IPUS = 65_536
_LONGEST_SHOWN = 120

#: Names of columns in lower case, including possible names in other versions.
_PARTITION = ("partition", "partition id", "partition name")
_CLUSTER = ("cluster", "cluster id", "cluster name")
_ALLOCATION = ("allocation", "allocation id", "allocation name")
_SIZE = ("size", "ipus", "num ipus")
_STATE = ("state", "status", "partition state")
_AGENTS = ("agents", "agent", "agent ids", "ipu-machines")
_AGENT = ("agent", "agent id")
_IPU = ("ipu", "ipu id")

#: Prefix of states in gRPC's enumeration (seen in PopRun's log).
_STATE_PREFIX = "PS_"
_ACTIVE_STATES = frozenset({"ACTIVE"})
#: Names of states that probably mean a failure; none of them is confirmed.
_ERROR_STATES = frozenset({"ERROR", "FAILED", "FAILURE", "FAULT", "FAULTY", "BROKEN"})


class TableError(ValueError):
    """The text is not the expected table."""


#: An allocation, and the names of its agents (IPU-Machines). `ipus` is None if the table has no number.
Listed = tuple[Allocation, tuple[str, ...]]


def partitions(text: str) -> tuple[Partition, ...]:
    """Read the output of `vipu list partitions`. Raises TableError."""
    table = _Table(text, needed={"Partition": _PARTITION, "Size": _SIZE, "State": _STATE})
    cluster, allocation = table.column(_CLUSTER), table.column(_ALLOCATION)
    by_id: dict[str, Partition] = {}
    for row in table.rows():
        name = row.text(table.needed["Partition"])
        if not name or name.split() != [name]:
            raise row.error("has no id of a partition")
        if name in by_id:
            raise row.error(f"has partition {name} a second time")
        size, state = row.number(table.needed["Size"]), row.text(table.needed["State"])
        if size < 1:
            raise row.error("has no size")
        if not state:
            raise row.error("has no state")
        by_id[name] = Partition(
            id=name,
            size=size,
            state=state_of(state),
            state_text=state,
            cluster=row.text(cluster),
            allocation=row.text(allocation),
        )
    return tuple(by_id.values())


def state_of(word: str) -> PartitionState:
    """Return the usability of a state; an unknown word is OTHER."""
    known = word.upper().removeprefix(_STATE_PREFIX)
    if known in _ACTIVE_STATES:
        return PartitionState.ACTIVE
    return PartitionState.ERROR if known in _ERROR_STATES else PartitionState.OTHER


def allocations(text: str) -> tuple[Listed, ...]:
    """Read `vipu list allocations`. A row with only agents continues the row above. Raises TableError."""
    table = _Table(text, needed={"Allocation": _ALLOCATION, "Agents": _AGENTS})
    cluster, ipus = table.column(_CLUSTER), table.column(_SIZE)
    by_name: dict[str, tuple[Allocation, list[str]]] = {}
    name = ""
    for row in table.rows():
        agents = row.text(table.needed["Agents"]).replace(",", " ").split()
        named = row.text(table.needed["Allocation"])
        if not named:
            if not name or not agents or sum(map(bool, row.cells)) != 1:
                raise row.error("has no id of an allocation")
            by_name[name][1].extend(agents)
            continue
        name = named
        if name.split() != [name]:
            raise row.error("has no id of an allocation")
        if name in by_name:
            raise row.error(f"has allocation {name} a second time")
        total = row.number(ipus) if row.text(ipus) else None
        by_name[name] = (Allocation(name=name, cluster=row.text(cluster), ipus=total), agents)
    return tuple((allocation, tuple(agents)) for allocation, agents in by_name.values())


def ipus_of_agents(text: str) -> Mapping[str, int]:
    """Read the IPUs by agent from `vipu list ipu-attrs`. An empty cell means the agent above. Raises TableError."""
    table = _Table(text, needed={"Agent": _AGENT, "IPU": _IPU})
    seen: set[tuple[str, int]] = set()
    agent = ""
    for row in table.rows():
        named = row.text(table.needed["Agent"])
        if named:
            agent = named
        if not row.text(table.needed["IPU"]):
            if named or not seen:
                raise row.error("has no IPU")
            continue
        if not agent:
            raise row.error("has no agent")
        seen.add((agent, row.number(table.needed["IPU"])))
    return Counter(name for name, _ in seen)


def with_ipus(listed: Sequence[Listed], ipus: Mapping[str, int]) -> tuple[Allocation, ...]:
    """Return allocations with their IPUs: as reported, or the sum over their agents, or None if an agent is unknown."""
    return tuple(
        replace(allocation, ipus=sum(ipus[agent] for agent in set(agents)))
        if allocation.ipus is None and ipus.keys() >= set(agents)
        else allocation
        for allocation, agents in listed
    )


@dataclass(frozen=True, slots=True)
class _Row:
    number_of_line: int
    line: str
    cells: tuple[str, ...]

    def text(self, column: int | None) -> str:
        return "" if column is None else self.cells[column]

    def number(self, column: int | None) -> int:
        text = self.text(column)
        if not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MAX_IPUS)) or int(text) > _MAX_IPUS:
            raise self.error(f"has {text[:_LONGEST_SHOWN]!r} where a number should be")
        return int(text)

    def error(self, problem: str) -> TableError:
        return TableError(f"line {self.number_of_line} {problem}: {self.line[:_LONGEST_SHOWN]!r}")


class _Table:
    def __init__(self, text: str, *, needed: Mapping[str, Sequence[str]]) -> None:
        # The pairs are a generator, because a list of pairs for millions of empty lines would need too much memory.
        self._lines = ((number, line.rstrip()) for number, line in enumerate(text.splitlines(), start=1))
        number, line = self._find_header()
        self._framed = line.lstrip().startswith(_CELL_END) and line.endswith(_CELL_END)
        self._header = self._row(number, line)
        self._names = [" ".join(cell.lower().split()) for cell in self._header.cells]
        #: Indexes of the required columns, by the names that error messages use.
        self.needed: dict[str, int] = {}
        for name, names in needed.items():
            column = self.column(names)
            if column is None:
                raise self._header.error(f"is not a header with a column {name}")
            self.needed[name] = column

    def column(self, names: Sequence[str]) -> int | None:
        """Return the index of the column with one of these names; None if missing. Raises TableError if two exist."""
        indexes = [index for index, name in enumerate(self._names) if name in names]
        if len(indexes) > 1:
            raise self._header.error(f"has two columns {names[0]}")
        return indexes[0] if indexes else None

    def rows(self) -> Iterator[_Row]:
        # Number of lines of dashes still to come: after the header and at the end, even in a table without rows.
        lines_missing = 2
        for number, line in self._lines:
            if not line:
                continue
            if _is_rule(line):
                lines_missing -= 1
                continue
            row = self._row(number, line)
            if len(row.cells) != len(self._names):
                raise row.error(f"has {len(row.cells)} cells, and the header {len(self._names)}")
            yield row
            lines_missing = 1
        if lines_missing > 0:
            raise TableError("the table has no line at its end: it may be cut off")

    def _find_header(self) -> tuple[int, str]:
        shown = ""
        for number, line in self._lines:
            # Skip text before the table, such as a warning.
            if _CELL_END in line and not _is_rule(line):
                return number, line
            shown = shown or line
        raise TableError(f"there is no table, but {shown[:_LONGEST_SHOWN]!r}" if shown else "there is no output")

    def _row(self, number: int, line: str) -> _Row:
        inner = line
        if self._framed:
            inner = line.lstrip().removeprefix(_CELL_END).removesuffix(_CELL_END)
        return _Row(number, line, tuple(cell.strip() for cell in inner.split(_CELL_END)))


def _is_rule(line: str) -> bool:
    return _SHORTEST_RULE in line and _RULE_CHARACTERS.issuperset(line)
