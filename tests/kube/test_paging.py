"""Pages are bounded in bytes, whatever is in the cluster."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from provisioner.kube import errors
from provisioner.kube.protocol import ANSWER_BYTES, DEFAULT_TIMEOUTS, PAGE_BYTES, PAGE_SIZE, Page, Pager, Timeouts
from tests.support.kube import FakeKube

MIB = 1024 * 1024


class Sized(FakeKube):
    """A collection of objects of given sizes, whose pages may be too large; notes what was asked for."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.asked: list[tuple[int, int]] = []
        self.largest = 0

    def list_page(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        limit: int = PAGE_SIZE,
        continue_token: str = "",
        metadata_only: bool = False,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> Page:
        """Return the next objects, as far as they fit."""
        start = int(continue_token or 0)
        self.asked.append((start, limit))
        size = sum(self.sizes[start : start + limit])
        if size > (PAGE_BYTES if limit > 1 else ANSWER_BYTES):
            raise errors.TooLarge(f"GET {path}: the answer has more than {PAGE_BYTES:,} bytes")
        self.largest = max(self.largest, size)
        end = min(start + limit, len(self.sizes))
        return Page(
            items=list(range(start, end)),
            resource_version="1",
            continue_token=str(end) if end < len(self.sizes) else "",
            size_bytes=size,
        )


def read(kube: Sized, *, most: int = PAGE_SIZE) -> list[int]:
    """Read a list to its end."""
    pager, found, token = Pager(kube, "/p", {}, most=most), [], ""
    while True:
        page = pager.fetch(token)
        found += page.items
        token = page.continue_token
        if not token:
            return found


@pytest.mark.parametrize(
    ("sizes", "most_calls"),
    [
        pytest.param([4096] * 1200, 3, id="pods of a usual size come in full pages"),
        pytest.param([3 * MIB // 2] * 100, 110, id="objects of etcd's limit come two at a time"),
        pytest.param([3 * MIB] * 20, 30, id="larger ones one at a time"),
        pytest.param([1000] * 600 + [MIB] * 40 + [1000] * 2000, 40, id="pages grow again after large objects"),
        pytest.param([15 * MIB] + [1000] * 600, 20, id="one very large object is read alone"),
        pytest.param([], 1, id="nothing"),
    ],
)
def test_every_object_is_read_once_in_pages_of_bounded_size(sizes: list[int], most_calls: int) -> None:
    """Whatever their sizes, and in few more calls than needed."""
    kube = Sized(*sizes)
    assert read(kube) == list(range(len(sizes)))
    assert kube.largest <= max([PAGE_BYTES, *sizes])
    assert len(kube.asked) <= most_calls


def test_an_object_beyond_all_bounds_is_an_error_and_no_endless_loop() -> None:
    """The error names what was asked for."""
    kube = Sized(1000, 17 * MIB)
    with pytest.raises(errors.TooLarge, match="GET /p: the answer has more than"):
        read(kube, most=2)
    assert kube.asked == [(0, 2), (0, 1), (1, 2), (1, 1)]
