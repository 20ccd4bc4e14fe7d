"""The only exception of the local cluster. It has no subclasses, because callers can only show its text."""

from __future__ import annotations

from collections.abc import Sequence


class LocalClusterError(RuntimeError):
    """A part of the local cluster could not be built, started or kept running.

    The text contains the failure, the last lines that the failing program wrote, and advice for the user.
    """

    def __init__(self, what: str, /, *, advice: str, output: Sequence[str] = ()) -> None:
        self.what = what
        self.advice = advice
        self.output = tuple(output)
        parts = [what]
        if self.output:
            parts.append("The last lines of its output:\n" + "\n".join(f"    {line}" for line in self.output))
        parts.append(advice)
        super().__init__("\n".join(parts))
