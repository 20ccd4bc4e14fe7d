"""Checks an installation, for `tpu-provisioner check` and at each start of `run`. Changes nothing."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self


class Status(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    name: str = ""
    status: Status
    message: str
    advice: str = ""

    def of(self, name: str) -> Self:
        """Return the finding with the name of its check."""
        return replace(self, name=name)

    def __str__(self) -> str:
        text = f"{self.message.rstrip('.')}. {self.advice}" if self.advice else self.message
        return f"{self.status.value:<7}  {self.name}: {text}"


def ok(message: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(status=Status.OK, message=_one_line(message))


def warning(message: str, advice: str) -> Finding:
    """Return a finding that the administrator should know about."""
    return Finding(status=Status.WARNING, message=_one_line(message), advice=_one_line(advice))


def failed(message: str, advice: str = "") -> Finding:
    """Return a finding about a problem that the administrator must fix."""
    return Finding(status=Status.FAILED, message=_one_line(message), advice=_one_line(advice))


def unknown(reason: str, advice: str = "") -> Finding:
    """Return the warning that a check has no result, with the reason."""
    return warning(f"not known: {reason}", advice)


def _one_line(text: str) -> str:
    return " ".join(text.split())
