"""Tests of the simulated `vipu` command and its server, over HTTP on a local port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.simulators.vipu import command
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.faults import CREATE
from rehearsal.simulators.vipu.settings import VipuSettings

USERS = {"alice": {"key": "sesame", "allocations": ["alloc-1"]}}


@pytest.fixture
def vipu() -> Iterator[VipuSimulator]:
    """A server with 64 IPUs on which every change ends at once."""
    settings = VipuSettings(create_seconds=0, remove_seconds=0)
    with VipuSimulator(settings) as simulator:
        yield simulator


class Shell:
    """Runs the command in this process."""

    def __init__(self, vipu: VipuSimulator, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.environment = {"VIPU_CLI_API_HOST": vipu.host, "VIPU_CLI_API_PORT": str(vipu.port), "HOME": str(home)}
        self._capsys = capsys

    def run(self, line: str, **environment: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        code = command.run(line.split(), {**self.environment, **environment})
        return (code, *self._capsys.readouterr())


@pytest.fixture
def shell(vipu: VipuSimulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell with the server in its environment."""
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


def test_configuration_follows_a_line_of_text_unless_one_gcd_is_requested(shell: Shell) -> None:
    shell.run("create partition p1 --size 2")
    assert len(json.loads(shell.run("get partition p1 --gcd 0 --ipuof-configs")[1])["devices"]) == 2
    assert shell.run("get partition p1 --ipuof-configs")[1].splitlines()[:2] == ["IPUoF configuration of p1:", "{"]


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


def test_options_override_the_environment_which_overrides_the_configuration_file(
    vipu: VipuSimulator, shell: Shell, tmp_path: Path
) -> None:
    file = tmp_path / "cli.hcl"
    file.write_text(f'api-host = "{vipu.host}"\napi-port="{vipu.port}"\n', "utf-8")
    assert shell.run(f"list partitions --config {file}", VIPU_CLI_API_HOST="", VIPU_CLI_API_PORT="")[0] == 0
    assert shell.run(f"list partitions --config {file}", VIPU_CLI_API_PORT="1")[0] == 1
    assert shell.run(f"list partitions --config {file} --api-port {vipu.port}", VIPU_CLI_API_PORT="1")[0] == 0
    version = shell.run("--server-version")[1].splitlines()
    assert version[1] == f"host: {vipu.host}:{vipu.port}"


def test_configuration_file_with_a_key_must_be_private(vipu: VipuSimulator, shell: Shell, tmp_path: Path) -> None:
    vipu.set(users=USERS, secure=True)
    file = tmp_path / "cli.hcl"
    file.write_text('api-user-id = "alice"\napi-access-key = "sesame"\n', "utf-8")
    file.chmod(0o644)
    assert "can be read by others" in shell.run(f"list partitions --config {file}")[2]
    file.chmod(0o600)
    assert shell.run(f"list partitions --config {file}")[0] == 0
    assert "Unauthenticated" in shell.run("list partitions")[2]
    file.write_text("nonsense", "utf-8")
    assert "invalid HCL" in shell.run(f"list partitions --config {file}")[2]


def test_create_returns_when_it_has_ended_or_timed_out(vipu: VipuSimulator, shell: Shell) -> None:
    vipu.set(create_seconds=0.1)
    shell.run("create partition p1 --size 1")
    assert [item.state for item in vipu.partitions] == ["ACTIVE"]
    vipu.set(create_seconds=60, change_wait_seconds=0.05)
    assert "DeadlineExceeded" in shell.run("create partition p2 --size 1")[2]
    assert [item.state for item in vipu.partitions] == ["ACTIVE", "PENDING"]


@pytest.mark.timeout(30)  # Starts three processes, and the machine may be busy.
def test_server_and_command_run_as_separate_programs(tmp_path: Path) -> None:
    module = [sys.executable, "-m", "rehearsal.simulators.vipu"]
    installed = subprocess.run(
        [*module, "install", tmp_path], check=True, capture_output=True, text=True
    ).stdout.strip()
    serve = [*module, "serve", "--port", "0", "--settings", '{"create_seconds": 0}']
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        host, port = server.stdout.readline().split("VIPU_SERVERS=")[1].split()[0].split(":")
        create = [installed, "create", "partition", "p1", "--size", "1", "-H", host, "--api-port", port]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(create, check=True, capture_output=True, text=True, env=environment)
        assert done.stdout == "create partition (p1): success.\n"
        server.terminate()
        assert server.wait() == 0
