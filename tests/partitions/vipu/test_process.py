"""Programs that run with limits on time and output."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.partitions.vipu.cli import Ended, Runner, StartError
from tests.support.processes import is_over
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(30)


def _run(runner: Runner, folder: Path, script: str, *, seconds: float = 60, max_bytes: int = 1 << 20) -> Ended:
    command = ["/bin/sh", "-c", script]
    return runner.run(command, {"WORD": "from us"}, folder, seconds=seconds, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("script", "want"),
    [
        pytest.param(
            'echo "$WORD" >&2; cat; exit 3', Ended(code=3, stdout="", stderr="from us\n"), id="output and exit code"
        ),
        pytest.param(r"printf 'a\377b'", Ended(code=0, stdout="a\ufffdb", stderr=""), id="output that is no text"),
        pytest.param("exec >&- 2>&-; sleep 0.05; exit 4", Ended(code=4, stdout="", stderr=""), id="closed output"),
        pytest.param(
            "echo half; kill -TERM $$",
            Ended(code=None, stdout="half\n", stderr="", cause="it was killed by SIGTERM"),
            id="killed by a signal",
        ),
    ],
)
def test_run_returns_exit_code_and_output_of_the_program(tmp_path: Path, script: str, want: Ended) -> None:
    ended = _run(Runner(), tmp_path, f"pwd >&2; {script}")
    assert ended == replace(want, stderr=f"{tmp_path}\n{want.stderr}")


def test_large_output_on_both_streams_is_read_completely(tmp_path: Path) -> None:
    script = f"{sys.executable} -IS -c \"import sys; [f.write('x' * 300000) for f in (sys.stdout, sys.stderr)]\""
    ended = _run(Runner(), tmp_path, script)
    assert (ended.code, len(ended.stdout), len(ended.stderr)) == (0, 300_000, 300_000)


def test_output_is_not_written_to_the_file_system(tmp_path: Path) -> None:
    """On a full file system, a truncated list would look complete, because few programs report failed writes."""
    assert int(_run(Runner(), tmp_path, "stat -L -c %d /proc/self/fd/1").stdout) != tmp_path.stat().st_dev


def test_program_with_too_much_output_is_killed(tmp_path: Path) -> None:
    ended = _run(Runner(), tmp_path, "while :; do echo xxxxxxxxxxxxxxxx; done", max_bytes=1000)
    assert (ended.code, ended.cause, len(ended.stdout)) == (None, "it wrote too much", 1000)


def test_child_that_outlives_the_program_is_killed_without_delay(tmp_path: Path) -> None:
    ended = _run(Runner(), tmp_path, "sleep 3600 & echo $!")
    assert ended.code == 0
    wait_for(lambda: is_over(int(ended.stdout)), what="the end of the child")


def test_program_is_killed_with_its_children_when_its_time_is_over(tmp_path: Path) -> None:
    now = [0.0]
    runner = Runner(monotonic=lambda: now[0])
    script = "trap '' TERM INT; sleep 3600 & echo $! > child; echo said; wait"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(_run, runner, tmp_path, script, seconds=10)
        child = int(
            wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), what="a child")
        )
        now[0] = 10.0
    assert (running.result().code, running.result().cause) == (None, "it took too long")
    wait_for(lambda: is_over(child), what="the end of the child")


def test_close_kills_running_programs_and_prevents_new_ones(tmp_path: Path) -> None:
    runner = Runner()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(_run, runner, tmp_path, "touch here; sleep 3600")
        wait_for((tmp_path / "here").exists, what="the program")
        runner.close()
    assert running.result().cause == "it was killed by SIGKILL"
    with pytest.raises(StartError, match="this process is ending"):
        _run(runner, tmp_path, "true")


def test_close_does_not_kill_ended_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the end of a program, its PID may belong to another process."""
    runner = Runner()
    _run(runner, tmp_path, "true")
    killed: list[int] = []
    monkeypatch.setattr("os.killpg", lambda group, _signal: killed.append(group))
    runner.close()
    assert killed == []


def test_close_does_not_wait_for_a_program_that_hangs_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that hangs can block the start of a program."""
    runner = Runner()
    threading.Thread(target=lambda: _run(runner, tmp_path, "sleep 3600"), daemon=True).start()
    (running,) = wait_for(lambda: tuple(runner._running), what="the program")
    stuck, starting = threading.Event(), threading.Event()

    def hang(*_arguments: object, **_options: object) -> None:
        starting.set()
        stuck.wait(20)
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr("provisioner.partitions.vipu.cli.subprocess.Popen", hang)

    def fail_to_start() -> None:
        with pytest.raises(StartError):
            _run(runner, tmp_path, "true")

    second = threading.Thread(target=fail_to_start)
    second.start()
    assert starting.wait(20)
    runner.close()
    assert not stuck.is_set()
    wait_for(lambda: is_over(running), what="the end of the program")
    stuck.set()
    second.join()
