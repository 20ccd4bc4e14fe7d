"""Large texts in gzip's form, for clients that take it; what several of them are sent is compressed once.

zlib lets other threads run meanwhile.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import OrderedDict
from typing import Final

#: Higher levels take twice as long and more for a tenth less (docs/performance.md).
_LEVEL = 3
#: So many compressed texts are kept, of those that are longer than so many bytes.
_MOST_KEPT = 4
_KEPT_BYTES = 4096
#: How a text begins and ends, as RFC 1952 has it; in between are blocks.
BEGIN: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


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
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()

    def whole(self, text: bytes) -> bytes:
        """Return a text, compressed."""
        end = struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)
        return b"".join((BEGIN, self.block(text), _LAST_BLOCK, end))

    def block(self, text: bytes) -> bytes:
        """Return a text as a part of a longer one that begins with BEGIN, whatever stands before and behind it."""
        if len(text) < _KEPT_BYTES:
            return _block(text)
        digest = hashlib.blake2b(text, digest_size=16).digest()
        block = self._blocks.pop(digest, None) or _block(text)
        self._blocks[digest] = block
        while len(self._blocks) > _MOST_KEPT:
            self._blocks.popitem(last=False)
        return block


def _block(text: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)
