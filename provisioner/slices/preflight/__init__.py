"""What is looked at before the first JobSet: `tpu-provisioner check`, and the same findings in the log of `run`.

Nothing is changed, and whatever goes wrong with a check is a finding, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Status(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    #: Of the check, such as "node pools".
    name: str = ""
    status: Status
    message: str
    #: What to do; empty where nothing has to be done.
    advice: str = ""

    def of(self, name: str) -> Finding:
        """Return it as the finding of the check of a name."""
        return replace(self, name=name)

    def __str__(self) -> str:
        words = f"{self.message.rstrip('.')}. {self.advice}" if self.advice else self.message
        return f"{self.status.value:<7}  {self.name}: {words}"


def ok(message: str) -> Finding:
    """Return a finding of which nothing has to be done."""
    return Finding(status=Status.OK, message=_one_line(message))


def warning(message: str, advice: str) -> Finding:
    """Return a finding that somebody should know of."""
    return Finding(status=Status.WARNING, message=_one_line(message), advice=_one_line(advice))


def failed(message: str, advice: str = "") -> Finding:
    """Return a finding that keeps the provisioner from doing its work."""
    return Finding(status=Status.FAILED, message=_one_line(message), advice=_one_line(advice))


def unknown(why: str, advice: str = "") -> Finding:
    """Return the finding of a check that could not be made."""
    return warning(f"not known: {why}", advice)


def _one_line(text: str) -> str:
    return " ".join(text.split())
