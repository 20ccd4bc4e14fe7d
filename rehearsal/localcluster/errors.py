"""The one error that users of the local cluster meet.

It does not tell classes of failure apart: nobody can do more about any of them than read the text.
"""

from __future__ import annotations

from collections.abc import Sequence


class LocalClusterError(RuntimeError):
    """Something of the local cluster could not be built, started or kept running.

    The text says what failed, ends with the last lines that the failing program wrote, and says what to do.
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
