"""The IPUoF configuration of a partition, as `vipu get partition --ipuof-configs` prints it. Pure.

It is a JSON document for the Poplar SDK, whose keys are not published, so nothing of it is interpreted. Without a GCD
the command prints a line of words before it.
"""

from __future__ import annotations

import json

#: A device takes about 300 bytes, and a partition has 64 of them, or 256 over several domains.
MOST_BYTES = 1 << 20


class ConfigError(ValueError):
    """Text that is no IPUoF configuration."""


def parse(text: str) -> str:
    """Return the document that is in the text, as it was printed. Raises ConfigError."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise ConfigError(f"the IPUoF configuration has more than {MOST_BYTES} bytes")
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")), None)
    if begin is None:
        raise ConfigError("there is no JSON in the IPUoF configuration")
    document = "\n".join(lines[begin:]).strip() + "\n"
    try:
        read = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the IPUoF configuration is not JSON: {str(error)[:200]}") from None
    if not read:
        raise ConfigError("the IPUoF configuration is empty")
    return document
