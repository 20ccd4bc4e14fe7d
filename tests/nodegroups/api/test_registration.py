"""Labels and taints in instance metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.capacity import Taint
from provisioner.nodegroups.api.registration import labels_text, parse_labels, parse_taints, taints_text

_NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
_KEYS = st.builds("{}/{}".format, _NAMES, _NAMES) | _NAMES
_VALUES = _NAMES | st.just("")
_EFFECTS = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])


@given(st.dictionaries(_KEYS, _VALUES))
def test_labels_are_read_as_they_were_written(labels: dict[str, str]) -> None:
    assert parse_labels(labels_text(labels)) == labels


@given(st.lists(st.builds(Taint, key=_KEYS, value=_VALUES, effect=_EFFECTS)).map(tuple))
def test_taints_are_read_as_they_were_written(taints: tuple[Taint, ...]) -> None:
    assert parse_taints(taints_text(taints)) == taints


@pytest.mark.parametrize("text", ["", ",", "a", "=b", " , a"])
def test_what_is_no_label_is_left_out(text: str) -> None:
    assert parse_labels(text) == {}


@pytest.mark.parametrize("text", ["", ",", "a=b", ":NoSchedule", "=b:NoSchedule", "a=b:"])
def test_what_is_no_taint_is_left_out(text: str) -> None:
    assert parse_taints(text) == ()
