"""Finds free TCP ports on 127.0.0.1.

A port is free at the time of the call; another program can take it before it is used. A caller that starts a server
must be able to retry with another port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from rehearsal.localcluster.errors import LocalClusterError

HOST = "127.0.0.1"
_LOWEST = 10_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 200


def _first_ephemeral_port() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _bind(port: int) -> socket.socket | None:
    candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        candidate.bind((HOST, port))
    except OSError:
        candidate.close()
        return None
    return candidate


def free_ports(count: int, *, rng: random.Random | None = None) -> list[int]:
    """Return different free ports.

    The ports are below the kernel's range of ephemeral ports. Otherwise, while a server restarts, a client that
    tries to reach the server could get the same port for itself, and the server could not listen again.
    """
    # The ports are random, so that two programs that search at the same time rarely get the same port.
    rng = rng or random.SystemRandom()
    highest = _first_ephemeral_port() - 1
    held: list[socket.socket] = []
    try:
        for _ in range(_ATTEMPTS + count):
            if len(held) == count:
                return [int(candidate.getsockname()[1]) for candidate in held]
            # If there is no port below the range, port 0 lets the kernel choose one.
            candidate = _bind(rng.randint(_LOWEST, highest) if highest > _LOWEST else 0)
            if candidate is not None:
                held.append(candidate)
        raise LocalClusterError(
            f"No {count} free TCP ports were found on {HOST} in {_ATTEMPTS} attempts.",
            advice="End programs that use thousands of ports, or run this one in its own network namespace.",
        )
    finally:
        for candidate in held:
            candidate.close()
