"""What is remembered between decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Losing it is safe: what must not be lost is in the ledger, in the pods and on the servers."""
