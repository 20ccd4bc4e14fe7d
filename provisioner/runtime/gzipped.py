"""Large texts in gzip's form, for clients that take it; what several of them are sent is compressed once.

zlib lets other threads run meanwhile.
"""

from __future__ import annotations

import gzip
import hashlib
from collections import OrderedDict

#: Higher levels take twice as long and more for a tenth less (docs/performance.md).
_LEVEL = 3
#: So many compressed texts are kept.
_MOST_KEPT = 4


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a client names gzip in its header Accept-Encoding, and does not rule it out."""
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0") not in ("q=", "q=0.")
    return False


class Packer:
    """Compresses texts. Used by one thread."""

    def __init__(self) -> None:
        #: By the digests of the texts, the last used last.
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()

    def whole(self, text: bytes) -> bytes:
        """Return a text, compressed."""
        digest = hashlib.blake2b(text, digest_size=16).digest()
        packed = self._kept.pop(digest, None) or gzip.compress(text, _LEVEL, mtime=0)
        self._kept[digest] = packed
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return packed
