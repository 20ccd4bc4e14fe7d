"""The pictures of the documentation keep their colours when they become small."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.page.palette import with_palette


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(rows: list[bytes], width: int, color_type: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, len(rows), 8, color_type, 0, 0, 0)
    data = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


_RED, _BLUE, _GRAY = (200, 0, 0), (0, 0, 200), (90, 90, 90)


def _pixels(png: bytes, width: int) -> list[list[tuple[int, ...]]]:
    palette = png[png.index(b"PLTE") + 4 :]
    data = zlib.decompress(png[png.index(b"IDAT") + 4 :])
    rows = [data[at + 1 : at + 1 + width] for at in range(0, len(data), width + 1)]
    return [[tuple(palette[3 * place : 3 * place + 3]) for place in row] for row in rows]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(b"\0" + bytes((*_RED, *_GRAY)), id="none"),
        pytest.param(b"\1" + bytes((*_RED, 146, 90, 90)), id="from the left"),
        pytest.param(b"\2" + bytes((0, 0, 0, 90, 90, 146)), id="from above"),
        pytest.param(b"\3" + bytes((100, 0, 0, 246, 90, 246)), id="from the mean"),
        pytest.param(b"\4" + bytes((0, 0, 0, 90, 90, 146)), id="from the nearest"),
    ],
)
def test_rows_are_read_with_each_filter(second: bytes) -> None:
    """A picture of two rows: red and blue, red and grey."""
    found = with_palette(_png([b"\0" + bytes((*_RED, *_BLUE)), second], 2))
    assert _pixels(found, 2) == [[_RED, _BLUE], [_RED, _GRAY]]


def test_a_rare_colour_is_kept_beside_many_shades() -> None:
    """Three hundred shades of grey, and one red dot."""
    shades = [(each % 256, each % 256, (each * 7) % 256) for each in range(300)]
    row = b"\0" + b"".join(bytes((*color, *color)) for color in shades) + bytes(_RED)
    [found] = _pixels(with_palette(_png([row], 601)), 601)
    assert found[-1] == _RED
    for want, got in zip(shades, found[::2], strict=False):
        assert max(abs(a - b) for a, b in zip(want, got, strict=True)) <= 12


def test_other_pictures_are_refused() -> None:
    """What is not read is not spoilt."""
    with pytest.raises(ValueError, match="only PNG files"):
        with_palette(_png([b"\0\0"], 1, color_type=0))
