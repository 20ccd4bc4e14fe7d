"""Form, level and destination of log lines."""

from __future__ import annotations

import ast
import io
import json
import logging
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

import provisioner
from provisioner.runtime import logs


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_event_is_one_line_of_json(out: io.StringIO) -> None:
    structlog.get_logger("provisioner.x").info("node_pool.created", node_pool="a", chips=16)
    [line] = lines(out)
    stamp = datetime.fromisoformat(line.pop("time"))
    assert stamp.tzinfo is not None
    assert abs((datetime.now(UTC) - stamp).total_seconds()) < 60
    assert line == {
        "message": "node_pool.created",
        "event": "node_pool.created",
        "node_pool": "a",
        "chips": 16,
        "severity": "INFO",
        "logger": "provisioner.x",
    }


@pytest.mark.parametrize("key", ["message", "problem", "error", "warning", "remark", "advice"])
def test_detail_of_an_event_is_part_of_the_message(out: io.StringIO, key: str) -> None:
    """Cloud Logging lists show only the message, so it contains the event and its detail."""
    structlog.get_logger("x").error("slice.notice", **{key: "no such topology"})
    [line] = lines(out)
    assert list(line)[:3] == ["severity", "time", "message"]
    assert (line["severity"], line["event"]) == ("ERROR", "slice.notice")
    assert line["message"] == "slice.notice: no such topology"


def test_lines_are_written_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Cloud Logging shows each line on standard error as an error."""
    logs.configure("info")
    structlog.get_logger("x").info("thing.seen")
    captured = capsys.readouterr()
    assert ("thing.seen" in captured.out, captured.err) == (True, "")


def test_loggers_created_before_configure_use_its_level() -> None:
    """Modules create their loggers at import, which is before `configure` is called."""
    early = structlog.get_logger("early")
    out = io.StringIO()
    logs.configure("warning", stream=out)
    early.info("not.said")
    early.warning("was.said")
    assert [line["event"] for line in lines(out)] == ["was.said"]


def test_lines_of_libraries_have_the_same_form(out: io.StringIO) -> None:
    logging.getLogger("some.library").warning("lost %s of %d", "two", 3, extra={"shard": 7})
    [line] = lines(out)
    assert (line["event"], line["severity"], line["logger"], line["shard"]) == (
        "lost two of 3",
        "WARNING",
        "some.library",
        7,
    )


def test_info_of_noisy_libraries_is_logged_only_at_debug(out: io.StringIO) -> None:
    logging.getLogger("google.auth.transport").info("chat")
    logging.getLogger("urllib3.connectionpool").warning("pool is full")
    assert [line["event"] for line in lines(out)] == ["pool is full"]
    logs.configure("debug", stream=out)
    logging.getLogger("google.auth.transport").info("chat")
    assert lines(out)[-1]["event"] == "chat"


def test_requests_of_libraries_are_never_logged() -> None:
    """At DEBUG, libraries log whole requests, including credentials."""
    out = io.StringIO()
    logs.configure("debug", stream=out)
    logging.getLogger("google.auth.transport.requests").debug("request", extra={"headers": "Bearer secret"})
    logging.getLogger("kubernetes.client.rest").debug("response body: secret")
    structlog.get_logger("provisioner.x").debug("round.started")
    assert [line["event"] for line in lines(out)] == ["round.started"]


def test_library_that_stopped_propagating_is_logged() -> None:
    """Google's libraries turn propagation off when they are imported, which may be before `configure` is called."""
    logging.getLogger("google").propagate = False
    out = io.StringIO()
    logs.configure("info", stream=out)
    logging.getLogger("google.auth").warning("token is old")
    assert [line["event"] for line in lines(out)] == ["token is old"]


def test_exceptions_have_their_traceback(out: io.StringIO) -> None:
    """The traceback is part of the JSON line, because other lines would not be JSON."""
    try:
        {}["gone"]
    except KeyError:
        structlog.get_logger("x").exception("round.failed")
        logging.getLogger("y").exception("library failed")
    ours, theirs = lines(out)
    assert "KeyError: 'gone'" in ours["exception"]
    assert "KeyError: 'gone'" in theirs["exception"]


def test_value_of_an_unknown_type_is_logged_as_text(out: io.StringIO) -> None:
    """The value is a datetime, for which JSON has no type."""
    structlog.get_logger("x").info("thing.seen", when=datetime(2026, 1, 2, tzinfo=UTC))
    assert lines(out)[0]["when"] == "2026-01-02 00:00:00+00:00"


def test_warnings_of_python_are_logged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        out = io.StringIO()
        logs.configure("info", stream=out)
        warnings.warn("old", stacklevel=1)
        logging.captureWarnings(False)
    assert "old" in lines(out)[0]["event"]


def test_terminal_gets_readable_lines_unless_json_is_forced() -> None:
    out = Terminal()
    logs.configure("info", stream=out)
    structlog.get_logger("x").info("node_pool.created", node_pool="a")
    assert "node_pool.created" in out.getvalue()
    assert not out.getvalue().startswith("{")
    out = Terminal()
    logs.configure("info", stream=out, force_json=True)
    structlog.get_logger("x").info("node_pool.created")
    assert lines(out)[0]["event"] == "node_pool.created"


def test_traceback_on_a_terminal_shows_no_variables() -> None:
    """Variables may be secrets, and printing a whole cluster takes seconds."""
    out = Terminal()
    logs.configure("info", stream=out)
    token = str(2**100)
    try:
        int(f"{len(token)} characters")
    except ValueError:
        structlog.get_logger("x").exception("call.crashed")
    assert "ValueError: invalid literal" in out.getvalue()
    assert token not in out.getvalue()


def test_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("info", stream=first)
    logs.configure("info", stream=second)
    structlog.get_logger("x").info("once")
    assert (first.getvalue(), len(lines(second))) == ("", 1)


def test_event_names_are_constants() -> None:
    """A composed name could not be found by a search for the name in a log line or in docs/troubleshooting.md."""
    levels = {"debug", "info", "warning", "error", "exception"}
    dynamic = [
        f"{path.name}:{call.lineno}"
        for path in Path(provisioner.__path__[0]).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in levels
        if "log" in ast.unparse(call.func.value)
        and any(isinstance(node, ast.JoinedStr | ast.BinOp) for node in ast.walk(call.args[0]))
    ]
    assert dynamic == []
