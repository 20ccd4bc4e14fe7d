"""Logging of the process: a line for each event, in JSON except on a terminal. Callers must not log secrets."""

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

#: Libraries whose INFO lines are shown only at level debug. DEBUG lines are never shown: they contain credentials.
_CHATTY = ("google", "urllib3", "kubernetes", "requests", "asyncio")


#: Keys whose value summarizes an event, the most detailed first.
_WORDS = ("message", "problem", "error", "warning", "remark", "advice")


def _for_cloud_logging(_logger: object, _method: str, line: EventDict) -> EventDict:
    """Rename level, time and message for Cloud Logging; keep `event` for filters."""
    words = next((line[key] for key in _WORDS if line.get(key)), "")
    event = line.get("event", "")
    head: dict[str, Any] = {
        "severity": str(line.pop("level", "info")).upper(),
        "time": line.pop("timestamp", None),
        "message": f"{event}: {words}" if words else str(event),
    }
    return head | {key: value for key, value in line.items() if key not in head}


def configure(level: str = "info", *, stream: TextIO | None = None, force_json: bool = False) -> None:
    """Configure structlog and the standard library's logging for standard output. Call once, before the first line."""
    out = sys.stdout if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        # Inserts the arguments of a library's message, such as "%s".
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[Processor]
    if out.isatty() and not force_json:
        # If rich is installed, structlog would print the variables of each frame, such as tokens and whole clusters.
        renderers = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderers = [
            structlog.processors.format_exc_info,
            _for_cloud_logging,
            structlog.processors.JSONRenderer(default=str),
        ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name in _CHATTY:
        library = logging.getLogger(name)
        library.setLevel(logging.INFO if level == "debug" else max(number, logging.WARNING))
        # Undo that Google's libraries turn off the propagation of their loggers when they are imported.
        library.propagate = True
    logging.captureWarnings(True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
