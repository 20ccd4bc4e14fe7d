"""Where chance comes in: the tokens themselves, from the operating system's source for keys."""

from __future__ import annotations

import secrets
import string

_SYMBOLS = string.ascii_lowercase + string.digits
_ID_LENGTH = 6
_SECRET_LENGTH = 16


def draw_token() -> str:
    """Draw a bootstrap token: an id of 6 symbols, which is no secret, a dot, and 16 that are (83 bits)."""
    return f"{_drawn(_ID_LENGTH)}.{_drawn(_SECRET_LENGTH)}"


def _drawn(length: int) -> str:
    return "".join(secrets.choice(_SYMBOLS) for _ in range(length))
