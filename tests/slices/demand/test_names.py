"""Tests of the names of pools: valid in GKE and unique, for any name of a JobSet."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.workloads import GroupKey, WorkloadUid
from provisioner.slices.demand import SliceId, group_key
from provisioner.slices.planning.spec.specification import pool_name

VALID = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
SLICE = SliceId(workload_uid=WorkloadUid("uid"), group_key=GroupKey("a" * 40))


@given(
    st.one_of(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True), st.text(max_size=80)),
    st.integers(0, 10**6),
)
def test_pool_name_is_valid_for_any_jobset_name(name: str, attempt: int) -> None:
    """GKE accepts at most 40 characters, a letter first and no hyphen last. Ten hex digits make the name unique."""
    made = pool_name(name, SLICE, attempt)
    assert VALID.fullmatch(made)
    assert re.search(r"-[0-9a-f]{10}$", made)


def test_pool_name_begins_with_the_name_of_the_jobset() -> None:
    assert pool_name("train.Big_1", SLICE, 0).startswith("train-big-1-")
    assert pool_name("1st", SLICE, 0).startswith("js-1st-")
    assert pool_name("", SLICE, 0).startswith("js-")
    assert pool_name("x" * 28 + "-y", SLICE, 0)[:29] == "x" * 28 + "-"


def test_pool_name_depends_on_each_of_its_inputs() -> None:
    other_uid = SliceId(workload_uid=WorkloadUid("other"), group_key=SLICE.group_key)
    other_key = SliceId(workload_uid=SLICE.workload_uid, group_key=GroupKey("b" * 40))
    names = [pool_name("train", slice_id, 0) for slice_id in (SLICE, other_uid, other_key)] + [
        pool_name("train", SLICE, 1)
    ]
    assert len(set(names)) == 4
    assert pool_name("train", SLICE, 0) == names[0]


@pytest.mark.timeout(30)  # 100,000 names
def test_100000_pool_names_are_different() -> None:
    """The Go provisioner's names have five hex digits, which collide in 38 of 100 JobSets of 1,000 slices."""
    uid = WorkloadUid("uid")
    ids = (SliceId(workload_uid=uid, group_key=group_key("ns", f"train-slice-{index}")) for index in range(1000))
    names = {pool_name("t" * 50, id_, attempt) for id_ in ids for attempt in range(100)}
    assert len(names) == 100_000
