"""Configures logging: a line of JSON for each event or, on a terminal, text. Callers must not log secrets."""

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

#: Libraries whose INFO lines appear only at level debug. Their DEBUG lines may have credentials, and never appear.
_CHATTY = ("google", "urllib3", "kubernetes", "requests", "asyncio")


#: Keys of a log line whose value may summarize the event. The first key that has a value is used.
_WORDS = ("message", "problem", "error", "warning", "remark", "advice")


def _for_cloud_logging(_logger: object, _method: str, line: EventDict) -> EventDict:
    """Name level, time and message as Cloud Logging expects. `event` is kept for filters."""
    words = next((line[key] for key in _WORDS if line.get(key)), "")
    event = line.get("event", "")
    head: dict[str, Any] = {
        "severity": str(line.pop("level", "info")).upper(),
        "time": line.pop("timestamp", None),
        "message": f"{event}: {words}" if words else str(event),
    }
    return head | {key: value for key, value in line.items() if key not in head}


def configure(level: str = "info", *, stream: TextIO | None = None, force_json: bool = False) -> None:
    """Configure structlog and logging to write to `stream`, or to standard output. Call once, before the first line."""
    out = sys.stdout if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[Processor]
    if out.isatty() and not force_json:
        # By default, structlog uses rich if installed, which prints the variables of each frame, such as tokens.
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
        # Google's libraries turn propagation off when they are imported, so their lines would be lost.
        library.propagate = True
    logging.captureWarnings(True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
