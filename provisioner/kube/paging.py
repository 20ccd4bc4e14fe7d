"""Read collections in pages that are bounded in bytes, whatever is in the cluster.

The API server bounds a page by its number of objects alone, and one object may have 1.5 MB. So a page that turns out
too large is given up and asked for again with half as many objects, and pages grow again while they are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from provisioner.kube import errors
from provisioner.kube.protocol import DEFAULT_TIMEOUTS, PAGE_BYTES, PAGE_SIZE, Api, Page, Timeouts


@dataclass(slots=True)
class Pager:
    """Fetches the pages of one list; `limit` is how many objects the next one may have."""

    api: Api
    path: str
    query: Mapping[str, str]
    _: KW_ONLY
    most: int = PAGE_SIZE
    metadata_only: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin with as many as there may be."""
        self.limit = self.most

    def fetch(self, continue_token: str = "") -> Page:
        """Return the page that a token stands for; TooLarge where a single object is beyond all bounds."""
        while True:
            try:
                page = self.api.list_page(
                    self.path,
                    self.query,
                    limit=self.limit,
                    continue_token=continue_token,
                    metadata_only=self.metadata_only,
                    timeouts=self.timeouts,
                )
            except errors.TooLarge:
                if self.limit == 1:
                    raise
                self.limit //= 2
            else:
                # Twice as many objects of this size would still leave room.
                if page.size_bytes * 3 <= PAGE_BYTES:
                    self.limit = min(self.most, self.limit * 2)
                return page
