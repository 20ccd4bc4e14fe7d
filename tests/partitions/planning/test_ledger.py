"""The ledger is encoded as a ConfigMap and read back; any content of the ConfigMap can be read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from provisioner.partitions.names import partition_id
from provisioner.partitions.planning.ledger import Entry, characters_of, encode, ledger_of, of_cluster
from tests.partitions.planning.stories import make_entry, make_pod

_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
_NAMES = st.text(alphabet="abc-.019", min_size=1, max_size=9) | st.just("a" * 253)
_ENTRIES = st.builds(
    Entry,
    id=_NAMES,
    namespace=_NAMES,
    pod=_NAMES,
    pod_uid=_NAMES,
    size=st.sampled_from([1, 2, 4, 64, 1024]),
    server=_NAMES,
    allocation=_NAMES | st.just(""),
    reconfigurable=st.booleans(),
    recorded_at=st.integers(0, 4 * 10**15).map(lambda micros: _BEGIN + timedelta(microseconds=micros)),
)
_TEXTS = st.text(max_size=20) | st.sampled_from(["{", "[]", "null", '{"size":4}', "[" * 2000])
_GARBAGE = st.none() | st.integers() | _TEXTS


@given(st.lists(_ENTRIES, max_size=5, unique_by=lambda entry: entry.id))
def test_encoded_entries_are_read_back_unchanged(entries: list[Entry]) -> None:
    data = encode(entries)
    ledger = ledger_of(data, resource_version="7")
    assert sorted(ledger.entries, key=lambda entry: entry.id) == sorted(entries, key=lambda entry: entry.id)
    assert (ledger.resource_version, ledger.unreadable) == ("7", {})
    assert all(0 <= characters_of(entry) - len(entry.id) - len(data[entry.id]) < 100 for entry in entries)


@given(_ENTRIES, st.dictionaries(st.text(max_size=5), _GARBAGE, max_size=4))
def test_unreadable_values_are_kept_and_do_not_affect_entries(entry: Entry, garbage: dict[Any, Any]) -> None:
    data = {**garbage, **encode([entry])}
    ledger = ledger_of(data, resource_version="7")
    assert ledger.entries == (entry,)
    assert ledger.unreadable.keys() == {key for key in data if key != entry.id}
    for key, text in garbage.items():
        if isinstance(text, str) and key != entry.id:
            assert ledger.unreadable[key] == text


def test_entry_with_an_invalid_field_is_unreadable() -> None:
    entry = make_entry(make_pod("a"))
    wrong = {"pod": "", "namespace": "a" * 254, "uid": 1, "size": 0, "reconfigurable": 1, "allocation": None}
    for field, value in (*wrong.items(), ("size", "4"), ("size", 1 << 21), ("allocation", "a" * 254)):
        text = json.dumps({**json.loads(encode([entry])[entry.id]), field: value})
        assert ledger_of({"a": text}, resource_version="1").unreadable == {"a": text}


@given(st.none() | st.integers() | st.text() | st.lists(st.integers()))
def test_data_that_is_not_a_mapping_is_an_empty_ledger(data: Any) -> None:
    assert ledger_of(data, resource_version="1").entries == ()


def test_time_in_another_time_zone_is_read_as_the_same_time_in_utc() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    entry = make_entry(make_pod("a"), at=moment)
    (read,) = ledger_of(encode([entry]), resource_version="1").entries
    assert read.recorded_at == moment
    assert read.recorded_at.tzinfo is UTC


def test_entries_of_another_cluster_are_unreadable() -> None:
    """A backup of another cluster was restored; the partitions of that cluster must not be removed."""
    entry = make_entry(make_pod("a"))
    ours, theirs = (replace(entry, id=partition_id(cluster, entry.pod_uid, "s:1")) for cluster in ("here", "there"))
    ledger = of_cluster(ledger_of(encode([ours, theirs]), resource_version="1"), "here")
    assert (ledger.entries, ledger.unreadable) == ((ours,), encode([theirs]))
