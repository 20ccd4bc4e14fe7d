"""What the parts of the world share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import errors
from rehearsal.simulators.compute.ledger import Ledger
from rehearsal.simulators.compute.lifecycle import Lifecycle
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.compute.store import Store
from rehearsal.simulators.http import google


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the parts of the world share."""

    moment: Callable[[], AbstractContextManager[datetime]]
    """The world's moment."""
    settings: Callable[[], ComputeSettings]
    store: Store
    ledger: Ledger
    life: Lifecycle


def check_name(body: dict[str, Any]) -> None:
    """Refuse a body without a name, or with a bad one."""
    if "name" not in body:
        raise errors.required("resource.name")
    if not google.is_name(body["name"]):
        raise errors.invalid("resource.name", body["name"], f"Must be a match of regex '{google.NAME_PATTERN}'")
