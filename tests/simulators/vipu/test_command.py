"""Tests of the simulated `vipu` command and its server, over HTTP on a local port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.simulators.vipu import command
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.faults import CREATE
from rehearsal.simulators.vipu.settings import VipuSettings


@pytest.fixture
def vipu() -> Iterator[VipuSimulator]:
    """A server with 64 IPUs on which every change ends immediately."""
    settings = VipuSettings(create_seconds=0, remove_seconds=0)
    with VipuSimulator(settings) as simulator:
        yield simulator


class Shell:
    """Runs the simulated command in the test process."""

    def __init__(self, vipu: VipuSimulator, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.environment = {"VIPU_CLI_API_HOST": vipu.host, "VIPU_CLI_API_PORT": str(vipu.port), "HOME": str(home)}
        self._capsys = capsys

    def run(self, line: str, **environment: str) -> tuple[int, str, str]:
        code = command.run(line.split(), {**self.environment, **environment})
        return (code, *self._capsys.readouterr())


@pytest.fixture
def shell(vipu: VipuSimulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(vipu, tmp_path, capsys)


def test_table_of_partitions_is_like_that_of_public_examples(vipu: VipuSimulator, shell: Shell) -> None:
    assert shell.run("create partition p64 --size 64 --reconfigurable") == (0, "create partition (p64): success.\n", "")
    assert shell.run("list partitions")[1].splitlines() == [
        " Partition | Cluster | ILDs | GW Routing | ILD Routing | Size | GCDs | State",
        "-" * 79,
        " p64       | c16     | 1    | DEFAULT    | RINGSWNC    | 64   | 1    | ACTIVE",
        "-" * 79,
    ]
    assert vipu.count(CREATE) == 1
    vipu.set(lists_allocations=True)
    assert shell.run("list partitions")[1].startswith(" Partition | Allocation | Cluster |")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "create partition p1 --size 3",
            "create partition (p1): failed: rpc error: code = InvalidArgument desc = partition size 3 is not a",
        ),
        ("create partition p1", 'create partition (p1): failed: required flag(s) "size" not set'),
        ("create partition p1 --size 1 --gcd 0", "Error: unknown flag: --gcd"),
        ("create partition --size 1", "Error: accepts 1 arg(s), received 0"),
        ("create partition p1 --size many", "Error: argument --size: invalid int value: 'many'"),
        ("destroy partition p1", 'Error: unknown command "destroy partition p1" for "vipu"'),
        (
            "remove partition p1",
            "remove partition (p1): failed: rpc error: code = NotFound desc = partition 'p1' not found",
        ),
        ("list partitions --config /nowhere", "list partitions: failed: cannot read the configuration file: No such"),
    ],
)
def test_rejected_command_prints_its_error_to_stderr(shell: Shell, line: str, error: str) -> None:
    code, output, said = shell.run(line)
    assert (code, output) == (1, "")
    assert said.startswith(error)
