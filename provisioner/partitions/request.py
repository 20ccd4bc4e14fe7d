"""How many IPUs a pod asks for by its annotations: what admission says of a pod and what is done about it are one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provisioner.partitions import names

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
#: A wrong value is quoted up to here: an annotation may have 256 KiB.
_LONGEST_QUOTE = 40


class Wrong(Exception):  # noqa: N818 - it is a verdict on what somebody wrote, which callers pass on to them
    """What a pod asks for cannot be served; its text is a sentence for whoever wrote it."""


def read_size(annotations: Mapping[str, str], *, largest: int) -> int | None:
    """Return the IPUs that a pod asks for, a power of two of at most `largest`; None: it asks for none.

    Raises Wrong where it asks for anything else, or for two different sizes. Of what users write anything is borne,
    also values that are no text.
    """
    asked = {key: _read(key, annotations[key]) for key in names.SIZE_ANNOTATIONS if key in annotations}
    if not asked:
        return None
    if len(set(asked.values())) > 1:
        both = " and ".join(f"{key} asks for {size}" for key, size in asked.items())
        raise Wrong(f"{both} IPUs: keep one of the annotations, or give both the same value.")
    key, size = next(iter(asked.items()))
    if size & (size - 1):
        below = 1 << (size.bit_length() - 1)
        nearest = f"{min(below, largest)}" if below * 2 > largest else f"{below} or {below * 2}"
        raise Wrong(f"{key} asks for {size} IPUs, and a partition has a power of two of them: ask for {nearest}.")
    if size > largest:
        raise Wrong(f"{key} asks for {size} IPUs, and the largest partition that is served has {largest}.")
    return size


def _read(key: str, value: object) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    raise Wrong(f'{key} is {_quoted(value)}, and has to be a number of IPUs that is a power of two, such as "4".')


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    # Only this much of a long value is made readable.
    text = ascii(value[:_LONGEST_QUOTE])[1:-1]
    return f'"{text[:_LONGEST_QUOTE]}..."' if len(value) > _LONGEST_QUOTE or len(text) > _LONGEST_QUOTE else f'"{text}"'
