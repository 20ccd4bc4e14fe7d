"""Partitions as users see them: the JSON document, the files of the page, and the output in the terminal."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from provisioner.cli import ipus
from provisioner.model.capacity import FailureKind
from provisioner.partitions.board import PATH, Board, Document, LeftOut
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.memory import Memory
from provisioner.partitions.planning.picture import PartitionLine, RejectedLine, View, WaitingLine
from provisioner.partitions.planning.round import Snapshot
from provisioner.runtime.resources import file_pages
from tests.support.clock import NOW
from tests.support.partitions import SERVER, Controller

_ROUNDS = 12


@pytest.fixture(name="controller")
def _controller() -> Controller:
    """Return a controller with a pod with a partition, a pod that waits, and a pod that requests too many IPUs."""
    controller = Controller()
    controller.create_pod("first", 64)
    controller.rounds(_ROUNDS)
    controller.create_pod("second", 32)
    controller.create_pod("third", 128)
    controller.rounds(_ROUNDS)
    return controller


def read(board: Board) -> Document:
    return msgspec.json.decode(board.page().make().body, type=Document)


def document(controller: Controller) -> Document:
    return read(controller.loop.board)


def test_document_has_supply_partitions_and_pods(controller: Controller) -> None:
    page, shown = controller.loop.board.page(), document(controller)
    assert page.path == PATH == "/api/v1/partitions"
    # Programs read the document, so a field must not be renamed or removed.
    assert set(json.loads(page.make().body)) == {
        "served_at", "release", "identity", "leading", "problems", "decided_at", "servers", "supply", "waiting",
        "rejected", "partitions", "left_out",
    }  # fmt: skip
    assert (shown.leading, shown.problems) == (True, ())
    assert [(allocation.server, allocation.ipus, allocation.ours, allocation.free) for allocation in shown.supply] == [
        (SERVER.address, 64, 64, 0)
    ]
    assert [(partition.pod, partition.phase) for partition in shown.partitions] == [("research/first", "active")]
    assert [waiting.pod for waiting in shown.waiting] == ["second"]
    assert [line.pod for line in shown.rejected] == ["third"]
    assert all(waiting.why for waiting in shown.waiting)
    assert [server.nodes for server in shown.servers] == ["ipu-pod=one"]


def test_document_before_the_first_decision_reports_it() -> None:
    """The document must not look like the document of an empty cluster."""
    shown = Controller().loop.board.document()
    assert shown.decided_at is None
    assert list(ipus.page(shown))[-1] == "IPU partitions: nothing has been decided yet"


def test_unreadable_ledger_is_reported_and_the_last_decision_is_kept(controller: Controller) -> None:
    decided = document(controller).decided_at
    controller.loop.known.ledger = None
    controller.kube.fail("GET", "configmaps", RuntimeError("unexpected"), times=0)
    controller.loop.pods.synced = False  # type: ignore[misc]
    controller.rounds(2)
    shown = document(controller)
    assert shown.problems
    assert shown.decided_at == decided
    assert any(line.startswith("ATTENTION") for line in ipus.page(shown))


def test_document_of_a_follower_is_empty(controller: Controller) -> None:
    """Only the leader decides; the last decision of a former leader may contradict the new leader's decisions."""
    controller.loop.is_leader = lambda: False
    controller.rounds(1)
    shown = document(controller)
    assert (shown.leading, shown.partitions, shown.decided_at) == (False, (), None)


def test_unreadable_server_is_reported(controller: Controller) -> None:
    controller.vipu.failing = FailureKind.UNAVAILABLE
    controller.rounds(20, seconds=30.0)
    shown = document(controller)
    assert [server.problem for server in shown.servers] == ["it is down"]
    assert f"ATTENTION: V-IPU server {SERVER.address} cannot be read: it is down" in [*ipus.page(shown)]


def test_terminal_lists_the_pods_of_a_namespace_by_state(controller: Controller) -> None:
    lines = list(ipus.page(document(controller)))
    assert lines[0].startswith("IPUs: 64 of 64 in partitions of this cluster, 0 in others; pods that wait: 1;")
    states = [line.split()[3] for line in lines if line.startswith("research")]
    assert states == ["waiting", "rejected", "active"]
    assert not [line for line in ipus.page(document(controller), "elsewhere") if line.startswith("research")]


@pytest.mark.parametrize(
    ("name", "namespace", "part"),
    [
        pytest.param("second", "", "has waited for 32 IPUs", id="a pod by its name"),
        pytest.param("pod/second", "research", "at place", id="with kind and namespace"),
        pytest.param("first", "", "64 IPUs, is active", id="pod with its partition"),
        pytest.param("third", "", "gets no IPUs as it is", id="rejected pod"),
        pytest.param("second", "elsewhere", "", id="pod of another namespace"),
        pytest.param("jobset/second", "", "", id="object of another kind"),
        pytest.param("nobody", "", "", id="unknown pod"),
    ],
)
def test_explain_describes_only_matching_pods_with_ipus(
    controller: Controller, name: str, namespace: str, part: str
) -> None:
    said = "\n".join(ipus.explain(document(controller), name, namespace))
    assert (part in said) if part else said == ""


def test_explain_accepts_the_id_of_a_partition(controller: Controller) -> None:
    """`vipu list partitions` shows the id of a partition, but not its pod."""
    (held,) = document(controller).partitions
    assert "of pod research/first" in "\n".join(ipus.explain(document(controller), held.id, ""))


def test_page_serves_its_files_with_a_content_security_policy() -> None:
    served = {page.path: page.make() for page in file_pages("provisioner.partitions")}
    assert set(served) == {"/", "/page/style.css", "/page/page.js"}
    assert b"page/page.js" in served["/"].body
    assert all("default-src 'none'" in page.headers["Content-Security-Policy"] for page in served.values())


def document_of(view: View) -> Document:
    board = Board(release="test", identity="test", now=lambda: NOW)
    board.publish(Plan(memory=Memory(), view=view), Snapshot(cluster_uid=""), NOW)
    return read(board)


def holding(number: int, phase: str = "active") -> PartitionLine:
    return PartitionLine(
        id=f"p{number:04}", server="a", allocation="", ipus=1, pod=f"research/train-{number}", phase=phase, since=NOW
    )


def rejected(number: int, namespace: str = "research") -> RejectedLine:
    return RejectedLine(namespace=namespace, pod=f"wrong-{number}", why="It asks for too much.")


@pytest.fixture(name="crowd")
def _crowd() -> Document:
    view = View(
        waiting=tuple(
            WaitingLine(namespace="research", pod=f"train-{number}", ipus=4, place=number + 1, since=NOW, why="Full.")
            for number in range(3000)
        ),
        rejected=tuple(map(rejected, range(3000))),
        partitions=(*map(holding, range(1500)), holding(1500, "broken")),
    )
    return document_of(view)


def test_document_of_thousands_of_pods_keeps_the_most_important_lines(crowd: Document) -> None:
    """The cost of a request must not grow with the number of waiting or invalid pods."""
    assert [waiting.place for waiting in crowd.waiting] == list(range(1, 1001))
    assert [line.pod for line in crowd.rejected] == [f"wrong-{number}" for number in range(1000)]
    assert [partition.phase for partition in crowd.partitions].count("broken") == 1
    assert [partition.id for partition in crowd.partitions] == [*(f"p{number:04}" for number in range(999)), "p1500"]
    assert crowd.left_out == LeftOut(waiting=2000, rejected=2000, partitions=501)


def test_rejected_pods_of_one_namespace_do_not_displace_those_of_another() -> None:
    """Otherwise a namespace with thousands of invalid pods would hide the invalid pod of another namespace."""
    shown = document_of(View(rejected=(*map(rejected, range(2999)), rejected(2999, "other"))))
    assert [line.pod for line in shown.rejected] == [*(f"wrong-{number}" for number in range(999)), "wrong-2999"]


def test_number_of_left_out_lines_is_shown(crowd: Document) -> None:
    """Without the number, users could believe that the page shows all pods."""
    lines = list(ipus.page(crowd))
    assert "pods that wait: 3000;" in lines[0]
    words = "Not shown: 2000 more pods that wait, 2000 more rejected pods, 501 more partitions."
    assert lines[-1] == words
    assert list(ipus.left_out(crowd)) == [words]
    (told,) = ipus.explain(crowd, "train-999", "research")
    assert "at place 1000 of 3000" in told


def test_problem_of_a_partition_is_shown() -> None:
    why = "V-IPU server a cannot be read."
    document = document_of(View(partitions=(replace(holding(1, "creating"), why=why),)))
    assert [partition.why for partition in document.partitions] == [why]
    assert any(why in line for line in ipus.page(document))
    assert any(why in line for line in ipus.explain(document, "train-1", "research"))
