"""Ports that are free and stay so over a restart."""

from __future__ import annotations

import random
import socket

from rehearsal.localcluster import ports


class _Scripted(random.Random):
    """Gives the numbers that it was told, then random ones."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(1)
        self._numbers = list(numbers)

    def randint(self, a: int, b: int) -> int:
        return self._numbers.pop(0) if self._numbers else super().randint(a, b)


def test_ports_differ_and_lie_below_those_of_clients() -> None:
    """A client must never be given the port of a server that is down for a moment."""
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < ports._first_ephemeral_port()


def test_a_taken_port_is_passed_over() -> None:
    """The next one is tried."""
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        number = taken.getsockname()[1]
        (found,) = ports.free_ports(1, rng=_Scripted(number))
    assert found != number
