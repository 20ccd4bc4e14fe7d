"""Shows the progress of builds: a single changing line on a terminal, otherwise one line for each program."""

from __future__ import annotations

import re
import shutil
from typing import TextIO

#: Messages about the current step. On a terminal, the next message overwrites them.
_STEP = re.compile(r"building \S+ \(\d+/\d+\)|another process is building")
_STILL_RUNS = "so far"
#: Sequence that moves the cursor to the start of the line and erases the line.
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Writes messages to a stream. Used by one thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changes = stream.isatty()
        #: Whether the last line on the terminal is the message about a step.
        self._open = False

    def show(self, text: str, *, prefix: str = "") -> None:
        """Write a message. On a terminal, overwrite the previous message if that is about a step."""
        is_step = _STEP.match(text) is not None
        if not self._changes:
            # Messages that a step still runs would only lengthen a log.
            if not (is_step and _STILL_RUNS in text):
                self._stream.write(f"{prefix}{text}\n")
            self._stream.flush()
            return
        erase = _ERASE if self._open else ""
        line = f"{prefix}{text}"
        if is_step:
            line = line[: max(1, shutil.get_terminal_size().columns - 1)]
        self._stream.write(f"{erase}{line}" if is_step else f"{erase}{line}\n")
        self._stream.flush()
        self._open = is_step

    def close(self) -> None:
        """Erase a message about a step that is still shown."""
        if self._open:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._open = False
