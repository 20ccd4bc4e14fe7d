"""Read collections in pages that are bounded in bytes, whatever is in the cluster.

The API server bounds a page by its number of objects alone, and one object may have 1.5 MB. So a page that turns out
too large is given up and asked for again with half as many objects, and pages grow again while they are small.
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.kube import errors
from provisioner.kube.protocol import DEFAULT_TIMEOUTS, PAGE_BYTES, PAGE_SIZE, Api, Page, Timeouts


class Pager:
    """Fetches the pages of one list; `limit` is how many objects the next one may have."""

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        *,
        most: int = PAGE_SIZE,
        metadata_only: bool = False,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.limit = most
        self._api = api
        self._path = path
        self._query = query
        self._most = most
        self._metadata_only = metadata_only
        self._timeouts = timeouts

    def fetch(self, continue_token: str = "") -> Page:
        """Return the page that a token stands for; TooLarge where a single object is beyond all bounds."""
        while True:
            try:
                page = self._api.list_page(
                    self._path,
                    self._query,
                    limit=self.limit,
                    continue_token=continue_token,
                    metadata_only=self._metadata_only,
                    timeouts=self._timeouts,
                )
            except errors.TooLarge:
                if self.limit == 1:
                    raise
                self.limit //= 2
            else:
                # Twice as many objects of this size would still leave room.
                if page.size_bytes * 3 <= PAGE_BYTES:
                    self.limit = min(self._most, self.limit * 2)
                return page
