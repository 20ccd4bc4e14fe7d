"""Looking at processes of the machine."""

from __future__ import annotations

from pathlib import Path


def is_over(pid: int) -> bool:
    """Tell whether a process is gone, or only waits to be noticed by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
