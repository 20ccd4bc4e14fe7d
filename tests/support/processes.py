"""State of processes of this machine."""

from __future__ import annotations

from pathlib import Path


def is_over(pid: int) -> bool:
    """Return whether a process has ended, even if its parent process has not collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
