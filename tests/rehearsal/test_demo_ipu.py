"""What the demo of partitions says before it starts anything, and at its end."""

from __future__ import annotations

import pytest

from provisioner.cli.output import ExitCode
from rehearsal.commands.demo_ipu import summary
from rehearsal.commands.main import main
from rehearsal.demos.partitions import PodTimes

STEPS = ("created", "opened", "running", "ended", "released")


def times(name: str, *, until: str = "released") -> PodTimes:
    """Return a pod that has come as far as a step, each 1,234.5 s after the other."""
    reached = STEPS[: STEPS.index(until) + 1]
    return PodTimes(name=name, ipus="64", entered={step: 1234.5 * at for at, step in enumerate(reached)})


def test_what_came_and_went_is_told_with_its_times() -> None:
    """On 80 columns whatever the names are."""
    lines = list(summary([times(f"default/{'long-name-' * 4}"), times("a/b")], []))
    assert lines[-1] == "2 partitions, created, used and removed."
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["a/b", "64", "1234.5", "2469.0", "1234.5"] for line in lines)


def test_a_name_that_fits_stands_on_one_line() -> None:
    """However much room the numbers of other demos need; a longer one goes on beneath."""
    name, long = "default/sweep-on-ipus-9z9lg", "default/" + "x" * 63
    lines = list(summary([times(name), times(long)], []))
    assert any(line.split()[:2] == [name, "64"] for line in lines)
    first = next(at for at, line in enumerate(lines) if line.startswith("default/x"))
    assert "".join(line.split()[0] for line in lines[first : first + 2]) == long


def test_what_is_left_is_named() -> None:
    """And nothing is called removed."""
    lines = list(summary([times("a/b", until="opened")], ["partition p (ACTIVE)", "entry p in the ledger"]))
    assert "Left:\n  partition p (ACTIVE)\n  entry p in the ledger\nThey were simulated" in "\n".join(lines)
    assert not any("removed." in line for line in lines)
    assert any(line.split() == ["a/b", "64", "1234.5"] for line in lines)


@pytest.mark.parametrize("ipus", ["6", "0", "-4"])
def test_a_number_of_ipus_that_no_machines_have_is_a_usage_error(ipus: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit) as ended:
        main(["demo-ipu", f"--ipus={ipus}"])
    assert ended.value.code == ExitCode.USAGE
    assert "is not a multiple of 4" in " ".join(capsys.readouterr().err.split())
