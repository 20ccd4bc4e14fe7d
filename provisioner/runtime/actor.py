"""What carries plans out: its calls run on threads, and their answers wait until the loop takes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from provisioner.runtime.calls import Calls

#: What is said of a change that is not sent for lack of it.
NO_LEASE = "Not sent: too little time is left on the provisioner's leader lease."

A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class CallingActor(Generic[A]):
    """An actor whose calls are answered by an A each. A product's own says what is called."""

    clock: Callable[[], datetime]
    #: Seconds for which this process surely leads; infinite where there is no election.
    lease_seconds: Callable[[], float]
    #: Called whenever an answer has come.
    on_answer: Callable[[], None]
    monotonic: Callable[[], float] = time.monotonic
    calls: Calls[A] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no call."""
        self.calls = Calls(self.on_answer)

    def live(self) -> frozenset[str]:
        """Return the keys of calls that are submitted, and whose answer nobody has taken yet."""
        return self.calls.live()

    def take_answer(self) -> A | None:
        """Return the next answer, None where there is none; its call is not live any more."""
        return self.calls.take()

    def drain(self, *, timeout_seconds: float) -> bool:
        """Drop what has not begun, wait until no call is under way; False when the time is up."""
        self.calls.close()
        return self.calls.wait_until_idle(timeout_seconds=timeout_seconds)
