"""Tests of the board, which publishes the state of the leader: documents, versions, API paths and the journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.slices import api
from provisioner.slices.board import MAX_JOURNAL_ENTRIES, Board, Document, Journal
from tests.support.board import make_board
from tests.support.clock import NOW
from tests.support.models import make_jobset
from tests.support.world import World


class Stage:
    """World whose decisions are published on a board, with three JobSets to add and remove."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.workloads = [make_jobset(f"train-{index}") for index in range(3)]
        self.world = World()
        self.board: Board = make_board(lambda: self.world.now, lambda: self.seconds)

    def act(self, number: int) -> None:
        """Perform action `number // 3` for JobSet `number % 3`, and publish a round; action 6 only ends leadership."""
        world, workload = self.world, self.workloads[number % 3]
        match number // 3:
            case 0 if workload.uid not in world.workloads:
                world.add(workload)
            case 1 if workload.uid in world.workloads:
                world.remove_jobset(workload)
            case 2:
                world.finish_creates()
            case 3:
                world.schedule()
            case 4:
                world.finish_deletes()
            case 5:
                self.board.journal.write(world.now, "notice", f"something {number}")
            case 7:
                for _ in range(300):
                    self.board.journal.write(world.now, "pool", "flaps", workload=f"JobSet/team-{number % 3}/train")
            case 6:
                self.board.leading = False
                return
            case _:
                world.pass_time(40)
        self.publish()

    def publish(self) -> None:
        plan = self.world.step()
        self.board.publish(self.world.snapshot(), plan, self.world.settings, self.world.now)

    def later(self) -> None:
        """Advance the clock by more than the minimum interval between two views (0.5 s)."""
        self.seconds += 1.0


def test_time_of_serving_is_in_the_document_but_does_not_change_its_version() -> None:
    """The status page sets its clock by `served_at`, because the last decision may be long ago."""
    stage = Stage()
    stage.act(0)
    stage.later()
    first = stage.board.document()
    decided_at = stage.world.now
    stage.world.pass_time(40)
    stage.later()
    later = stage.board.document()
    assert later.view is not None
    assert (later.view.at, later.served_at) == (decided_at, decided_at + timedelta(seconds=40))
    assert later.version == first.version


def test_document_of_a_leader_without_decision_for_60_s_is_stalled() -> None:
    """A follower never decides, so it must not count as stalled."""
    stage = Stage()
    stage.act(0)
    stage.later()
    first = stage.board.document()
    assert not first.stalled
    for seconds, stalled, version in ((55, False, 0), (5, True, 1), (500, True, 1)):
        stage.seconds += seconds
        document = stage.board.document()
        assert (document.stalled, document.version - first.version) == (stalled, version)
    stage.publish()
    stage.later()
    assert not stage.board.document().stalled
    stage.board.leading = False
    stage.seconds += 500
    assert not stage.board.document().stalled


@pytest.mark.timeout(120)  # A hundred worlds of up to 25 rounds each.
@given(steps=st.lists(st.integers(0, 26), max_size=25))
def test_version_grows_exactly_when_the_document_changes(steps: list[int]) -> None:
    """A client that has the current version needs no new document, because only times would differ."""
    stage = Stage()
    last: dict[str, Any] = {}
    for number in steps:
        stage.act(number)
        stage.later()
        document = json.loads(stage.board.everything()[1])
        version = document.pop("version")
        view = document["view"]
        document |= {"served_at": None, "view": {**view, "at": None} if view is not None else None}
        assert version == (last["version"] + (document != last["document"]) if last else 1)
        last = {"version": version, "document": document}


def test_documents_can_be_parsed_with_the_types_of_the_api() -> None:
    """Clients rely on the OpenAPI description, which is generated from these types."""
    stage = Stage()
    for number in (0, 1, 7, 7, 10, 3, 15, 22, 25):
        stage.act(number)
        stage.later()
        msgspec.convert(json.loads(stage.board.everything()[1]), Document, strict=False)


def test_view_is_built_at_most_twice_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.act(0)
    stage.later()
    built: list[datetime] = []
    build = Board._build

    def counted(board: Board, version: int) -> Document:
        built.append(NOW)
        return build(board, version)

    monkeypatch.setattr(Board, "_build", counted)
    for _ in range(50):
        stage.board.everything()[1]
        stage.publish()
    assert len(built) == 1
    stage.later()
    stage.board.everything()[1]
    assert len(built) == 2


def test_follower_has_no_view_and_names_the_leader() -> None:
    """The last view of a former leader is outdated. A change of the leader increases the version."""
    stage = Stage()
    stage.act(0)
    stage.board.leading = False
    stage.board.leader = lambda: "pod-b"
    document = stage.board.document()
    assert (document.leading, document.view, document.leader) == (False, None, "pod-b")
    assert page_of(stage.board, "/api/v1/about")()["leader"] == "pod-b"
    stage.board.leader = lambda: "pod-c"
    stage.later()
    assert stage.board.document().version == document.version + 1


def test_problems_before_the_first_round_are_in_the_document() -> None:
    """Users must see the problem if GKE is unavailable before the first decision."""
    stage = Stage()
    stage.board.problems = lambda: ("GKE does not list the node pools",)
    document = stage.board.document()
    assert (document.view, document.problems) == (None, ("GKE does not list the node pools",))


def page_of(board: Board, path: str) -> Callable[[], Any]:
    page = next(candidate for candidate in api.pages(board) if candidate.path == path)
    return lambda: json.loads(page.make().body)


@pytest.mark.parametrize("name", ["workloads", "slices", "pools", "timeline", "activity"])
def test_each_list_has_its_own_path(name: str) -> None:
    stage = Stage()
    assert page_of(stage.board, f"/api/v1/{name}")() == {"version": 1, "items": []}
    for number in (0, 8, 8):
        stage.act(number)
    stage.board.journal.write(stage.world.now, "notice", "something")
    stage.later()
    assert len(page_of(stage.board, f"/api/v1/{name}")()["items"]) == 1


def test_description_contains_every_path_of_the_api() -> None:
    board = Stage().board
    described = page_of(board, "/api/v1/openapi.json")()
    served = {page.path for page in api.pages(board) if page.path.startswith("/api/v1/")}
    assert set(described["paths"]) == served - {"/api/v1/openapi.json"}
    assert set(page_of(board, "/api/v1")()["paths"]) == set(described["paths"])
    text = json.dumps(described)
    names = {ref.partition('"')[0] for ref in text.split("#/components/schemas/")[1:]}
    assert names <= set(described["components"]["schemas"])
    assert "One letter for each host" not in described["info"]["description"]


def test_about_has_the_cluster_and_capacity_has_the_waiting_chips() -> None:
    stage = Stage()
    assert page_of(stage.board, "/api/v1/capacity")()["capacity"] is None
    stage.act(0)
    stage.later()
    assert page_of(stage.board, "/api/v1/capacity")()["capacity"]["chips"]["waiting"] == 8
    about = page_of(stage.board, "/api/v1/about")()
    assert (about["about"]["cluster"], about["leading"]) == ("my-cluster", True)


@pytest.mark.parametrize("name", ["board", "about", "capacity", "workloads", "slices", "pools", "timeline", "activity"])
def test_etag_depends_on_process_and_version(name: str) -> None:
    """A round without changes keeps the ETag. The version is not sufficient: each process counts versions from 1."""

    def tag(stage: Stage) -> str:
        stage.later()
        return next(page for page in api.pages(stage.board) if page.path.endswith(f"/{name}")).make().headers["ETag"]

    stage, other = Stage(), Stage()
    other.board.about = replace(other.board.about, started_at=NOW + timedelta(seconds=1))
    first = tag(stage)
    stage.publish()
    second = tag(stage)
    stage.world.pass_time(1)
    stage.publish()
    assert tag(stage) == second
    assert len({first, second, tag(other)}) == 3


def write(journal: Journal, namespace: str, times: int = 1) -> None:
    for _ in range(times):
        journal.write(NOW, "notice", "Something.", workload=f"JobSet/{namespace}/train" if namespace else "")


def namespaces(journal: Journal) -> Counter[str]:
    return Counter(entry.workload.split("/")[1] if entry.workload else "" for entry in journal.entries())


def test_full_journal_keeps_entries_of_quiet_namespaces() -> None:
    """The oldest entry of the largest namespace is dropped. Entries without a namespace count as one namespace."""
    journal = Journal()
    write(journal, "quiet", 20)
    write(journal, "", 30)
    write(journal, "noisy", 2_000)
    assert namespaces(journal) == {"quiet": 20, "": 30, "noisy": 450}
    assert [entry.number for entry in journal.entries()][:50] == list(range(1, 51))
    assert journal.entries()[50].number == 2_050 - 450 + 1


def test_full_journal_with_one_entry_per_namespace_drops_the_oldest() -> None:
    journal = Journal()
    for number in range(MAX_JOURNAL_ENTRIES + 7):
        write(journal, f"team-{number}")
    assert [entry.number for entry in journal.entries()] == list(range(8, MAX_JOURNAL_ENTRIES + 8))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.integers(1, 15)), max_size=12))
def test_full_journal_keeps_nearly_equal_numbers_of_entries_per_namespace(writes: list[tuple[str, int]]) -> None:
    journal, written = Journal(max_entries=20), list[str]()
    for namespace, times in writes:
        write(journal, namespace, times)
        written += [namespace] * times
    kept, counts, wrote = journal.entries(), namespaces(journal), Counter(written)
    assert len(kept) == min(len(written), 20)
    assert [entry.number for entry in kept] == sorted(entry.number for entry in kept)
    for namespace, count in counts.items():
        last = [number for number, name in enumerate(written, 1) if name == namespace][-count:]
        mine = [entry.number for entry in kept if (entry.workload.split("/")[1] if entry.workload else "") == namespace]
        assert mine == last
        if count < wrote[namespace]:
            assert count >= max(counts.values()) - 1
