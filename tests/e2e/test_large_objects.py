"""Tests of lists whose objects have very different sizes."""

from __future__ import annotations

import pytest

from provisioner.kube.protocol import Page, Pager, Request, collection_path, object_path
from tests.e2e.kit import Ground

pytestmark = pytest.mark.e2e


def test_list_whose_page_size_changes_is_complete_and_consistent(ground: Ground) -> None:
    """The API server must accept a continue token together with a changed limit."""
    path, ours = collection_path("configmaps", namespace=ground.namespace), {"paged": "true"}

    def make(name: str, size: int) -> None:
        ground.api.post(path, {"metadata": {"name": name, "labels": ours}, "data": {"text": "x" * size}})

    sizes = [10] * 8 + [900_000] * 8 + [10] * 16
    names = [f"object-{index:02}" for index in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        make(name, size)
    pager = Pager(ground.api, Request("GET", path, query={"labelSelector": "paged=true"}), max_limit=8)
    pages: list[Page] = [pager.fetch()]
    # The later pages must not show these changes, because all pages have the version of the first page.
    ground.api.delete(object_path("configmaps", names[-1], namespace=ground.namespace))
    make("object-99", 10)
    while pages[-1].continue_token:
        pages.append(pager.fetch(pages[-1].continue_token))
    assert [item["metadata"]["name"] for page in pages for item in page.items] == names
    assert [len(page.items) for page in pages] == [8, 4, 4, 4, 8, 4]
    assert len({page.resource_version for page in pages}) == 1
    ground.api.delete(path)
