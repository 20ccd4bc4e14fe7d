"""Tests that chosen ports differ, and are not ports that the kernel gives to clients."""

from __future__ import annotations

from rehearsal.localcluster import ports


def test_ports_differ_and_are_below_the_ports_of_clients() -> None:
    """The kernel must not give a client the port of a server that is being restarted."""
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < ports._first_ephemeral_port()
