"""The last decisions: bounded, and fair between namespaces."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from provisioner.slices.board import MOST_ENTRIES, Journal
from tests.support.clock import NOW


def write(journal: Journal, namespace: str, times: int = 1) -> None:
    """Write entries of a workload in a namespace; of none for an empty one."""
    for _ in range(times):
        journal.write(NOW, "notice", "Something.", workload=f"JobSet/{namespace}/train" if namespace else "")


def namespaces(journal: Journal) -> Counter[str]:
    """Count the entries of each namespace."""
    return Counter(each.workload.split("/")[1] if each.workload else "" for each in journal.entries())


def test_the_last_entries_are_kept() -> None:
    journal = Journal()
    for number in range(MOST_ENTRIES + 20):
        journal.write(NOW, "pool", f"message {number}")
    entries = journal.entries()
    assert (len(entries), entries[0].number, entries[-1].number) == (MOST_ENTRIES, 21, MOST_ENTRIES + 20)


def test_a_workload_that_flaps_does_not_push_out_the_entries_of_others() -> None:
    """Of its own namespace only the last are kept; of no namespace as of any other."""
    journal = Journal()
    write(journal, "quiet", 20)
    write(journal, "", 30)
    write(journal, "noisy", 10_000)
    assert namespaces(journal) == {"quiet": 20, "": 30, "noisy": 450}
    assert [each.number for each in journal.entries()][:50] == list(range(1, 51))
    assert journal.entries()[50].number == 10_050 - 450 + 1


def test_two_that_flap_share_the_room() -> None:
    """Whoever comes later gets as much as who was there before."""
    journal = Journal()
    write(journal, "first", 1000)
    write(journal, "second", 1000)
    assert namespaces(journal) == {"first": 250, "second": 250}


def test_of_as_many_namespaces_as_entries_the_oldest_goes() -> None:
    journal = Journal()
    for number in range(MOST_ENTRIES + 7):
        write(journal, f"team-{number}")
    assert [each.number for each in journal.entries()] == list(range(8, MOST_ENTRIES + 8))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.integers(1, 15)), max_size=12))
def test_what_is_kept_is_as_even_as_it_can_be(writes: list[tuple[str, int]]) -> None:
    """Who has lost an entry has no fewer than others, but for one; and each has its last ones, in order."""
    journal, written = Journal(most=20), list[str]()
    for namespace, times in writes:
        write(journal, namespace, times)
        written += [namespace] * times
    kept, counts, wrote = journal.entries(), namespaces(journal), Counter(written)
    assert len(kept) == min(len(written), 20)
    assert [each.number for each in kept] == sorted(each.number for each in kept)
    for namespace, count in counts.items():
        last = [number for number, each in enumerate(written, 1) if each == namespace][-count:]
        mine = [each.number for each in kept if (each.workload.split("/")[1] if each.workload else "") == namespace]
        assert mine == last
        if count < wrote[namespace]:
            assert count >= max(counts.values()) - 1
