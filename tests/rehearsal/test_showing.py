"""Tests of how a demo runs and ends, with a simulated rehearsal and story."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.cli.output import ExitCode
from rehearsal.commands.showing import Demo
from rehearsal.demos.world import RehearsalError
from rehearsal.localcluster import LocalClusterError


@dataclass
class Stage:
    """Simulates the rehearsal and its story, which yields one line for each check."""

    lines: list[str] = field(default_factory=list)
    looks: int = 0
    interrupted_at: int = 0
    cluster: Any = field(default_factory=lambda: SimpleNamespace(kubeconfig=Path("config"), binaries={"kubectl": "k"}))

    def check(self) -> None:
        self.looks += 1
        if self.looks == self.interrupted_at:
            signal.raise_signal(signal.SIGINT)

    def advance(self) -> Iterator[str]:
        yield from self.lines[self.looks - 1 : self.looks]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def shown(stage: Stage, *, keep: bool = False, patience_seconds: float = 5.0) -> tuple[Demo, bool]:
    """Watch until the second check; return the demo, and whether it reached its end."""
    demo, ended = Demo(keep=keep), False
    with demo:
        ended = demo.watch(
            stage,  # type: ignore[arg-type]
            stage,
            ended=lambda: "nothing is left" if stage.looks > 1 else "",
            picture=lambda: "a picture",
            patience_seconds=patience_seconds,
        )
        demo.stay(stage, {"a place": "somewhere"})  # type: ignore[arg-type]
    return demo, ended


def test_demo_prints_each_change_until_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    demo, ended = shown(Stage(["one", "two"]))
    assert (demo.exit_code, ended) == (ExitCode.OK, True)
    assert [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "one",
        "two",
        "nothing is left",
    ]


@pytest.mark.parametrize(("keep", "code"), [(False, ExitCode.INTERRUPTED), (True, ExitCode.OK)])
def test_interrupted_demo_ends_immediately(keep: bool, code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    """With `keep`, an interruption is the regular end."""
    stage = Stage(["one"], interrupted_at=1)
    demo, ended = shown(stage, keep=keep)
    assert (demo.exit_code, ended, stage.looks) == (code, False, 1)
    assert "Everything keeps running" not in capsys.readouterr().out


def test_kept_cluster_is_described_and_watched_until_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    """The environment variable KEEP has the same effect as the option --keep."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KEEP", "1")
        stage = Stage(interrupted_at=3)
        demo, ended = shown(stage)
    assert (demo.exit_code, ended, stage.looks) == (ExitCode.OK, True, 3)
    assert capsys.readouterr().out.endswith(
        "Everything keeps running until Ctrl-C:\n  export KUBECONFIG=config\n  kubectl  k\n  a place  somewhere\n\n"
    )


def test_demo_without_progress_fails_with_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a limit, the demo would wait forever."""
    demo, ended = shown(Stage(), patience_seconds=0.0)
    assert (demo.exit_code, ended) == (ExitCode.ERROR, False)
    assert "The demo failed: nothing has happened for 0 s.\na picture" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RehearsalError("x"), ExitCode.ERROR),
        (LocalClusterError("x", advice="y"), ExitCode.ERROR),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_error_in_a_demo_determines_the_exit_code(error: BaseException, code: ExitCode) -> None:
    """A second Ctrl-C is a KeyboardInterrupt."""
    demo = Demo(keep=False)
    with demo:
        raise error
    assert demo.exit_code == code


def test_unexpected_exception_is_not_caught() -> None:
    """Users need the traceback to report the error."""
    with pytest.raises(ZeroDivisionError), Demo(keep=False):
        raise ZeroDivisionError
