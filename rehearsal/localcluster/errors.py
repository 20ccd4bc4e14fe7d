"""The exception of the local cluster for its callers. It has no subclasses, because they can only show its text."""

from __future__ import annotations

from collections.abc import Sequence


class LocalClusterError(RuntimeError):
    """A part of the local cluster failed. The text has the failure, the program's last lines, and advice for users."""

    def __init__(self, what: str, /, *, advice: str, output: Sequence[str] = ()) -> None:
        self.what = what
        self.advice = advice
        self.output = tuple(output)
        parts = [what]
        if self.output:
            parts.append("The last lines of its output:\n" + "\n".join(f"    {line}" for line in self.output))
        parts.append(advice)
        super().__init__("\n".join(parts))
