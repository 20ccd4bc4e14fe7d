"""Client of the init container: its waits, its exit codes, and the file that it writes."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli import main
from provisioner.cli.output import ExitCode
from provisioner.partitions import client
from provisioner.partitions.client import Client, GaveUp, NotServed, Reply, Unreachable, write_file
from tests.support.clock import FakeClock
from tests.support.partitions_api import Ground

pytestmark = pytest.mark.timeout(30)

ACTIVE = Reply(status=200, body=b'{"state": "active", "config": {"a": 1}}')
WAITING = Reply(status=202, retry_after="5", body=b'{"message": "the pod waits for IPUs"}')
AWAY = Unreachable("http://it does not answer: refused")


class Play:
    """A client with a simulated clock, whose requests get the answers of a script."""

    def __init__(self, *script: Reply | Exception, chance: float = 0.0, patience_seconds: float | None = None) -> None:
        self.clock = FakeClock()
        self.waited: list[float] = []
        self.said: list[str] = []
        self.tokens: list[str] = []
        self.given: list[float] = []
        self._script = iter(script)
        self.client = Client(
            asked={"namespace": "ml", "pod": "train", "uid": "u", "size": 4},
            send=self._send,
            token=lambda: f"token at {self.clock.seconds:g}",
            say=self.said.append,
            chance=lambda: chance,
            sleep=self._sleep,
            monotonic=self.clock,
            patience_seconds=patience_seconds,
        )

    def _send(self, token: str, body: bytes, seconds: float) -> Reply:
        self.given.append(seconds)
        assert json.loads(body) == {"namespace": "ml", "pod": "train", "uid": "u", "size": 4}
        self.tokens.append(token)
        answer = next(self._script)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.clock.advance(seconds)


def test_fetch_waits_for_retry_after_and_returns_the_configuration() -> None:
    play = Play(WAITING, WAITING, ACTIVE)
    assert json.loads(play.client.fetch()) == {"a": 1}
    assert play.waited == [5.0, 5.0]
    assert play.said == ["the pod waits for IPUs"]
    # The kubelet replaces the token during the wait.
    assert play.tokens == ["token at 1000", "token at 1005", "token at 1010"]


def test_wait_for_an_unreachable_api_doubles_up_to_a_maximum() -> None:
    play = Play(*[AWAY] * 7, WAITING, AWAY, ACTIVE)
    play.client.fetch()
    assert play.waited == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 5.0, 0.5]
    assert play.said == [str(AWAY), "the pod waits for IPUs", str(AWAY)]


def test_wait_is_lengthened_at_random() -> None:
    play = Play(WAITING, AWAY, ACTIVE, chance=1.0)
    play.client.fetch()
    assert play.waited == [7.5, 1.0]


@pytest.mark.parametrize(
    ("reply", "want"),
    [
        pytest.param(Reply(status=503), 0.5, id="no Retry-After"),
        pytest.param(Reply(status=503, retry_after="soon"), 0.5, id="no number"),
        pytest.param(Reply(status=503, retry_after="99999"), 120.0, id="too long"),
        pytest.param(Reply(status=429, retry_after="3"), 3.0, id="too many requests"),
        pytest.param(Reply(status=500, body=b"internal error"), 0.5, id="internal error"),
        pytest.param(Reply(status=502, body=b"<html>"), 0.5, id="a proxy that speaks HTML"),
        pytest.param(Reply(status=200, body=b"[]"), 0.5, id="answer of another server"),
        pytest.param(Reply(status=200, body=b'{"config": ""}'), 0.5, id="no configuration"),
    ],
)
def test_wait_after_an_answer_follows_retry_after_or_the_back_off(reply: Reply, want: float) -> None:
    play = Play(reply, ACTIVE)
    play.client.fetch()
    assert play.waited == [want]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 415, 422])
def test_fetch_raises_not_served_after_a_final_status(status: int) -> None:
    with pytest.raises(NotServed, match="size is 3"):
        Play(WAITING, Reply(status=status, body=b'{"error": "size is 3"}')).client.fetch()


def test_rejected_token_is_retried_for_five_minutes() -> None:
    refused = Reply(status=401, retry_after="60", body=b'{"error": "the token has expired"}')
    with pytest.raises(NotServed, match="has expired"):
        Play(*[refused] * 6).client.fetch()
    # The five minutes begin again if the token was accepted in between.
    assert Play(*[refused] * 4, WAITING, *[refused] * 4, ACTIVE).client.fetch()


def test_fetch_gives_up_after_its_patience_with_the_reason() -> None:
    play = Play(WAITING, WAITING, WAITING, patience_seconds=12.0)
    with pytest.raises(GaveUp, match=r"after 12 s: the pod waits for IPUs"):
        play.client.fetch()
    assert play.waited == [5.0, 5.0]
    # No request lasts longer than the patience of the client, even if the server hangs.
    assert play.given == [12.0, 7.0, 2.0]


def test_unchanged_reason_is_printed_every_minute() -> None:
    play = Play(*[WAITING] * 13, ACTIVE)
    play.client.fetch()
    assert play.said == ["the pod waits for IPUs"] * 2


def test_fetch_waits_for_a_missing_token() -> None:
    play = Play(ACTIVE)
    tokens: Iterator[str | OSError] = iter([FileNotFoundError("no token"), "token"])

    def read() -> str:
        found = next(tokens)
        if isinstance(found, OSError):
            raise found
        return found

    play.client.token = read
    play.client.fetch()
    assert play.said == ["no token"]


def test_written_file_is_complete_and_readable_by_all_users(tmp_path: Path) -> None:
    path = tmp_path / "ipuof.conf"
    for text in ("first", "second"):
        write_file(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["ipuof.conf"]


def test_failed_write_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ipuof.conf"
    write_file(path, "first")

    def fail(_number: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(client.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_file(path, "second")
    assert (path.read_text(encoding="utf-8"), len(list(tmp_path.iterdir()))) == ("first", 1)


@pytest.fixture
def ground() -> Iterator[Ground]:
    made = Ground().start()
    yield made
    made.end()


def get(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **variables: str) -> int:
    pod = ground.pods.get(("ml", "train")) or ground.add_pod()
    (tmp_path / "token").write_text(ground.token(pod), encoding="utf-8")
    variables = {"POD_NAMESPACE": "ml", "POD_NAME": "train", "POD_UID": pod.uid, "IPUS": "4", **variables}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # Do not replace the signal handlers of the test process.
    monkeypatch.setattr("signal.signal", lambda *_: None)
    server = f"http://127.0.0.1:{ground.port}"
    given = [f"--server={server}", f"--token-file={tmp_path / 'token'}", *more]
    return main(["partitions", "get", *given])


def test_command_succeeds_and_writes_the_configuration_file(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ground.placed()
    path = tmp_path / "ipuof.conf"
    for _ in range(2):
        assert get(ground, tmp_path, monkeypatch, f"--file={path}") == ExitCode.OK
        assert json.loads(path.read_text(encoding="utf-8")) == {"partition": "the configuration"}
    assert capsys.readouterr().err.splitlines()[-1] == f"the partition is active; its configuration is in {path}"
    assert get(ground, tmp_path, monkeypatch) == ExitCode.OK


@pytest.mark.parametrize(
    ("more", "variables", "code", "want"),
    [
        pytest.param((), {"POD_UID": "x"}, ExitCode.NOT_SERVED, "only the pod itself", id="UID of another pod"),
        pytest.param(("--timeout=0",), {}, ExitCode.ERROR, "there is no partition after 0 s", id="no time"),
        pytest.param((), {"IPUS": ""}, ExitCode.ERROR, "not set: IPUS", id="a variable that is missing"),
        pytest.param((), {"IPUS": "two"}, ExitCode.ERROR, "IPUS is 'two'", id="no number"),
        pytest.param(("--server=it",), {}, ExitCode.ERROR, "must begin with http://", id="no URL"),
        pytest.param(("--ca-file=it",), {}, ExitCode.ERROR, "begins with https://", id="an authority for plain HTTP"),
        pytest.param(
            ("--server=https://127.0.0.1:1", "--ca-file=it", "--timeout=0"),
            {},
            ExitCode.ERROR,
            "the authorities in it cannot be read",
            id="no file with an authority",
        ),
    ],
)
def test_command_fails_with_an_exit_code_and_a_message(
    ground: Ground,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    variables: dict[str, str],
    code: ExitCode,
    want: str,
) -> None:
    assert get(ground, tmp_path, monkeypatch, *more, **variables) == code
    assert want in capsys.readouterr().err


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["before the first line", "after it"])
def test_request_times_out_if_the_answer_does_not_end(said: bytes) -> None:
    """The time-out applies to the whole answer, even if its bytes arrive one by one."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(client.sender(f"http://127.0.0.1:{server.getsockname()[1]}"), "token", b"{}", 0.3)
        talking, _ = server.accept()
        with talking, contextlib.suppress(OSError):
            talking.sendall(said)
            while not wait([asked], 0.01).done:
                talking.sendall(b"X")
        with pytest.raises(Unreachable, match=r"has not answered in 0\.3 s"):
            asked.result()


def test_signal_ends_the_waiting_command(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token", encoding="utf-8")
    environment: dict[str, Any] = {"POD_NAMESPACE": "ml", "POD_NAME": "p", "POD_UID": "u", "IPUS": "4"}
    command = ["partitions", "get", "--server=http://127.0.0.1:1", f"--token-file={tmp_path / 'token'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "provisioner", *command],
        env={"PYTHONPATH": ".", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "does not answer" in process.stderr.readline()
    process.terminate()
    assert process.wait(20) == ExitCode.INTERRUPTED
    process.stderr.close()


def test_command_starts_without_importing_large_libraries() -> None:
    """Each pod starts the program, so its start must be cheap. HTTP libraries are imported with the first request."""
    code = "import sys, provisioner.cli.partitions, provisioner.cli.partitions_get; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": "."}, check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"kubernetes", "google", "structlog", "starlette", "uvicorn", "msgspec", "requests", "ssl", "asyncio"}
    assert heavy.isdisjoint(loaded)
