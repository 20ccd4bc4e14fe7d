"""`status`, `explain` and `gc`, as used to find out why a JobSet does not start."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import yaml

from provisioner.cli import gc, main, status
from provisioner.cli.explain import explanations, lines, nothing_found
from provisioner.model.capacity import FailureKind
from provisioner.model.wording import clock
from provisioner.partitions import board as partitions_board
from provisioner.settings.forms import parse_prices
from provisioner.slices.board import Board, Document
from provisioner.slices.view.explain import for_how_long
from tests.support.board import make_board
from tests.support.clock import NOW
from tests.support.kubeconfig import write_kubeconfig
from tests.support.models import make_job, make_jobset, make_lws, make_pod, make_requirements
from tests.support.settings import settings
from tests.support.wire_server import Answer, WireServer
from tests.support.world import World, failure

_BOARD = "/api/v1/board"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/tpu-provisioner-system/leases/tpu-provisioner"
_PODS = "/api/v1/namespaces/tpu-provisioner-system/pods"


def board_of(world: World) -> Board:
    board = make_board(lambda: world.now, lambda: world.now.timestamp())  # noqa: PLW0108 - it moves
    board.publish(world.snapshot(), world.look(), world.settings, world.now)
    return board


def document_of(world: World, *problems: str, stalled_minutes: int = 0) -> Document:
    board = board_of(world)
    board.problems = lambda: problems
    world.pass_time(60 * stalled_minutes)
    return board.document()


def refused(kind: FailureKind, message: str) -> Document:
    world = World(make_jobset("train"))
    world.refuse_create = lambda _: failure(kind, message)
    world.run(3)
    return document_of(world)


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "jobset/train",
        "JobSet/default/train",
        "slice/train-slice-0",
        "train-slice-0",
        "pod/train-slice-0-0-abcde",
        "train-slice-0-1-fghij",
        "pool/{pool}",
        "{pool}",
    ],
)
def test_explain_accepts_names_of_workload_slice_pod_and_pool(name: str) -> None:
    world = World(make_jobset("train"))
    world.live(3)
    (pool,) = world.pools
    (found,) = explanations(document_of(world), name.format(pool=pool), "")
    assert "running" in found.headline or f"runs on node pool {pool}" in found.headline


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tarin", "Did you mean jobset/train?"),
        ("pod/train-slice-1-0-abcde", "Did you mean slice/train-slice-0?"),
        ("jobste/train", "kind 'jobste' is unknown; did you mean jobset?"),
        ("gizmo/x", "kind 'gizmo' is unknown; use jobset, lws, raycluster, job, slice, pod or pool"),
        ("other", "it does not exist: see `kubectl get"),
    ],
)
def test_unknown_name_or_kind_is_reported_with_the_nearest_one(name: str, words: str) -> None:
    world = World(make_jobset("train"))
    world.live(3)
    document = document_of(world)
    assert explanations(document, name, "") == []
    answer = "\n".join(nothing_found(document, name, ""))
    assert words in answer
    assert ("unknown" in answer) == ("unknown" in words)


def test_name_in_two_namespaces_is_explained_for_both_unless_one_is_given() -> None:
    world = World(make_jobset("train", namespace="one"), make_jobset("train", namespace="two"))
    found = explanations(document_of(world), "train", "")
    assert [explanation.id for explanation in found] == ["JobSet/one/train", "JobSet/two/train"]
    assert [explanation.id for explanation in explanations(document_of(world), "train", "two")] == ["JobSet/two/train"]
    assert explanations(document_of(world), "train", "three") == []


def test_pod_belongs_only_to_the_group_that_its_whole_name_matches() -> None:
    """JobSet "a" and LeaderWorkerSet "a" have groups whose names begin like those of JobSet "a-slice"."""
    world = World(make_jobset("a", replicas=2), make_jobset("a-slice", replicas=1), make_lws("a", uid="lws"))
    (found,) = explanations(document_of(world), "pod/a-slice-slice-0-0-abcde", "")
    assert found.id == "JobSet/default/a-slice/a-slice-slice-0"


@pytest.mark.parametrize(
    ("pod", "groups"),
    [
        pytest.param("train-2-abcde", ["train"], id="index 2 of Job train is no pod of Job train-2"),
        pytest.param("train-2-0-abcde", ["train-2"], id="nor the other way round"),
        pytest.param("train-eval-abcde", [], id="a pod of a Job that requests no chips is of none"),
        pytest.param("train-eval-0-abcde", [], id="an indexed one neither"),
        pytest.param("train-0-abcde", ["train"], id="the plain case"),
        pytest.param("train-0-ab-de", [], id="letters that no controller draws"),
        pytest.param(f"{'long' * 14}-1abcde", ["long" * 14], id="a name that is cut before the index ends"),
        pytest.param(f"{'very' * 15}"[:58] + "abcde", ["very" * 15], id="a name that is cut in the Job's own"),
        pytest.param("serve-0", ["serve-0"], id="a leader of a LeaderWorkerSet"),
        pytest.param("serve-0-3", ["serve-0"], id="a worker of it"),
        pytest.param("serve-0-abcde", [], id="a pod that no LeaderWorkerSet makes"),
        pytest.param("serve.0", [], id="a dot is a dot"),
    ],
)
def test_pod_is_explained_only_by_its_own_slice(pod: str, groups: list[str]) -> None:
    """Names of slices may begin alike: `train` and `train-2` are two Jobs."""
    world = World(make_lws("serve", uid="lws"), settings_=settings(serve_jobs=True))
    for number, name in enumerate(("train", "train-2", "long" * 14, "very" * 15)):
        world.add(make_job(name, uid=f"job-{number}"))
    found = explanations(document_of(world), f"pod/{pod}", "")
    assert [explanation.id.rpartition("/")[2] for explanation in found] == groups


@pytest.mark.parametrize(
    ("pod", "groups"),
    [("a-0-3", ["a-subgroup-0-0", "a-subgroup-1-0"]), ("a-1-3", []), ("a-subgroup-0-0", [])],
    ids=["worker", "worker of another group", "name of a slice"],
)
def test_pod_that_does_not_exist_may_be_of_any_subgroup_of_its_group(pod: str, groups: list[str]) -> None:
    """The name of a worker has the number of its group, and not that of its subgroup."""
    (group,) = make_lws("a").groups
    world = World(make_lws("a", uid="lws", groups=tuple(replace(group, name=f"subgroup-{index}") for index in (0, 1))))
    found = explanations(document_of(world), f"pod/{pod}", "")
    assert [explanation.id.rpartition("/")[2] for explanation in found] == groups


def test_slice_and_workload_of_one_name_are_both_explained() -> None:
    world = World(make_jobset("a"), make_jobset("a-slice-0"))
    document = document_of(world)
    both = [explanation.id for explanation in explanations(document, "a-slice-0", "")]
    assert both == ["JobSet/default/a-slice-0", "JobSet/default/a/a-slice-0"]
    assert [explanation.id for explanation in explanations(document, "jobset/a-slice-0", "")] == both[:1]
    assert [explanation.id for explanation in explanations(document, "slice/a-slice-0", "")] == both[1:]
    assert explanations(document, "job/a", "") == []


def test_pool_named_in_an_event_is_explained_before_and_after_its_life() -> None:
    """Users search for the name that the Event contains."""
    world = World(make_jobset("train"))
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT, "No capacity.")
    world.run(2)
    board = board_of(world)
    (event,) = (notice.message for notice in world.plans[-1].notices if "No capacity." in notice.message)
    name = event.split()[2]
    (found,) = explanations(board.document(), name, "")
    assert found.headline.startswith(f"Node pool {name} does not exist yet: slice train-slice-0 waits for a node pool")
    assert "No capacity." in event
    assert event.startswith(found.headline.partition("train-slice-0 waits for a node pool (for 2 s): ")[2])
    world.workloads.clear()
    world.pods.clear()
    world.pass_time(60)
    board.publish(world.snapshot(), world.look(), world.settings, world.now)
    (found,) = explanations(board.document(), f"pool/{name}", "")
    assert found.headline == f"Node pool {name} has not existed since {clock(world.now, world.now)}."


def test_idle_pool_is_listed_although_its_slice_runs_elsewhere() -> None:
    workload = make_jobset("train")
    world = World(workload)
    world.step()
    world.finish_creates()
    for index in range(2):
        world.put(make_pod(workload, index=index, node=f"their-node-{index}"))
    world.run(2)
    (pool,) = world.pools
    shown = list(status.page(document_of(world)))
    assert any(line.startswith(pool) for line in shown[shown.index("other node pools:") :])


def test_plain_job_is_explained_once() -> None:
    """A plain Job is both a workload and its only group."""
    world = World(settings_=settings(serve_jobs=True))
    world.add(make_job("batch"))
    assert [explanation.kind for explanation in explanations(document_of(world), "batch", "")] == ["workload"]


def test_explanation_lists_the_last_decisions_about_the_workload() -> None:
    world = World(make_jobset("train"))
    board = board_of(world)
    for number in range(20):
        board.journal.write(world.now, "pool", f"train {number}", workload="JobSet/default/train")
        board.journal.write(world.now, "pool", f"other {number}", workload="JobSet/default/other")
    (found,) = explanations(board.document(), "train", "")
    text = "\n".join(lines(found))
    assert "train 19" in text
    assert "train 9" not in text
    assert "other" not in text


def test_control_characters_are_removed_from_output() -> None:
    """Messages of GKE and annotations may contain escape sequences and line breaks."""
    document = refused(FailureKind.INVALID, "no \x1b[2J\x07 such\nthing")
    text = "\n".join([*status.page(document), *lines(explanations(document, "train", "")[0])])
    assert "\x1b" not in text
    assert "\x07" not in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_status_sorts_slices_by_urgency_and_other_pools_last() -> None:
    done = make_jobset("done")
    prices = parse_prices("*=2, currency=EUR")
    world = World(make_jobset("train"), done, settings_=settings(max_chips=64, prices=prices))
    world.live(4)
    world.finish(done)
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT, "No capacity.")
    world.run(2)
    template = make_requirements(topology="2x2x4", tolerations=())
    world.add(make_jobset("late", namespace="team-b", parallelism=4, template=template))
    world.run(3)
    shown = list(status.page(document_of(world)))
    assert "chips: 16 waiting, 8 running, 8 idle; 32.00 EUR an hour; operations in progress: 0" in shown
    assert "limit MAX_CHIPS (all): 16 of 64" in shown
    table = shown[shown.index("") + 1 :]
    assert [line.split()[:4] for line in table[1:3]] == [
        ["team-b", "late", "late-slice-0", "waiting"],
        ["default", "train", "train-slice-0", "running"],
    ]
    assert "other node pools:" in table
    assert any("its workload has finished" in line for line in table)
    only = list(status.page(document_of(world), "team-b"))
    assert "train-slice-0" not in "\n".join(only)
    wide = "\n".join(status.page(document_of(world), wide=True))
    assert "us-central2-b" in wide
    assert "ct4p-hightpu-4t" in wide


def test_long_names_fit_the_terminal_without_being_cut() -> None:
    """Columns that do not fit are printed below their row."""
    world = World(make_jobset("a-training-of-many-words-in-its-name", namespace="the-namespace-of-a-large-team"))
    world.live(4)
    (pool,) = world.pools
    for shown in (status.page(document_of(world), width=80), gc.page(document_of(world), 80)):
        lines = list(shown)
        assert [line for line in lines if len(line) > 80] == []
        assert any(pool in line for line in lines)
    assert any("state running" in line for line in status.page(document_of(world), width=80))


def test_gc_lists_deletes_with_times_and_kept_pools_with_reasons() -> None:
    done = make_jobset("done")
    world = World(make_jobset("train"), done)
    world.live(4)
    world.finish(done)
    shown = list(gc.page(document_of(world)))
    assert shown[0] == "1 of 2 node pools will be deleted, 8 chips"
    going = next(line for line in shown if "its workload has finished" in line)
    due = world.now + timedelta(seconds=world.settings.deletion_delay_seconds)
    assert f"{due:%H:%M}" in going
    assert any("Pods run on it." in line for line in shown)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h 0 min"), (90_000, "1 d 1 h"), (-5, "0 s")],
)
def test_duration_is_printed_in_one_or_two_units(seconds: float, words: str) -> None:
    assert for_how_long(NOW, NOW + timedelta(seconds=seconds)) == words


@pytest.fixture
def wire() -> Iterator[WireServer]:
    server = WireServer()
    yield server
    server.close()


def body_of(world: World) -> bytes:
    return board_of(world).everything()[1]


def run(*arguments: str) -> int:
    return main(arguments)


def test_commands_read_the_controller_at_a_given_address(wire: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The address is usually that of `kubectl port-forward`."""
    wire.answer(f"GET {_BOARD}", Answer(body=body_of(World(make_jobset("train")))))
    assert run("explain", "train", "--server", wire.url) == 0
    assert capsys.readouterr().out.startswith("JobSet default/train: slice train-slice-0 waits")
    assert run("status", "--server", wire.url.removeprefix("http://"), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["slices"][0]["id"] == "JobSet/default/train/train-slice-0"
    assert run("gc", "--dry-run", "--server", wire.url, "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["pools"] == []
    assert run("explain", "train", "--server", wire.url, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "workload"
    assert run("explain", "nobody", "--server", wire.url) == 1
    assert "its pods do not request google.com/tpu" in capsys.readouterr().err


def test_the_leading_pod_is_found_by_the_lease(
    wire: WireServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower has no decisions to show; the API server's proxy connects to the leading pod."""
    kubeconfig = write_kubeconfig(tmp_path / "config", wire.url)
    wire.answer(f"GET {_LEASE}", Answer(body=json.dumps({"spec": {"holderIdentity": "pod-b_404386f3"}}).encode()))
    wire.answer(f"GET {_PODS}/pod-b:8081/proxy{_BOARD}", Answer(body=body_of(World(make_jobset("train")))))
    assert run("status", "--kubeconfig", str(kubeconfig)) == 0
    assert "train-slice-0" in capsys.readouterr().out


def test_any_running_pod_is_read_if_there_is_no_lease(
    wire: WireServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without leader election, only one replica exists, and it decides."""
    kubeconfig = write_kubeconfig(tmp_path / "config", wire.url)
    missing = json.dumps({"kind": "Status", "reason": "NotFound", "code": 404}).encode()
    wire.answer(f"GET {_LEASE}", Answer(status=404, body=missing))
    pods = [
        {"metadata": {"name": "old"}, "status": {"phase": "Failed"}},
        {"metadata": {"name": "new"}, "status": {"phase": "Running"}},
    ]
    wire.answer(f"GET {_PODS}", Answer(body=json.dumps({"metadata": {"resourceVersion": "1"}, "items": pods}).encode()))
    wire.answer(f"GET {_PODS}/new:8081/proxy{_BOARD}", Answer(body=body_of(World(make_jobset("train")))))
    assert run("status", "--kubeconfig", str(kubeconfig)) == 0
    assert "train-slice-0" in capsys.readouterr().out


def _led_by_a(board: Answer) -> dict[str, Answer]:
    lease = Answer(body=b'{"spec":{"holderIdentity":"a"}}')
    return {f"GET {_LEASE}": lease, f"GET {_PODS}/a:8081/proxy{_BOARD}": board}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        pytest.param(
            {f"GET {_LEASE}": Answer(status=403, body=b'{"kind":"Status","reason":"Forbidden","message":"no"}')},
            "get pods/proxy in namespace tpu-provisioner-system",
            id="no right",
        ),
        pytest.param(
            {
                f"GET {_LEASE}": Answer(status=404, body=b'{"kind":"Status","reason":"NotFound"}'),
                f"GET {_PODS}": Answer(body=b'{"metadata":{"resourceVersion":"1"},"items":[]}'),
            },
            "give its address with --server",
            id="not installed",
        ),
        pytest.param(
            _led_by_a(Answer(body=b'{"version":"x"}')), "not in the format of this release", id="another release"
        ),
        pytest.param(
            _led_by_a(Answer(status=503, body=b'{"kind":"Status","message":"no route"}')),
            "use `kubectl --namespace tpu-provisioner-system port-forward pod/a 8081:8081`",
            id="the pod does not answer",
        ),
    ],
)
def test_unreachable_controller_is_reported_with_a_remedy(
    wire: WireServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: dict[str, Answer], words: str
) -> None:
    for what, answer in answers.items():
        wire.answer(what, answer)
    assert run("status", "--kubeconfig", str(write_kubeconfig(tmp_path / "config", wire.url))) == 1
    assert words in capsys.readouterr().err


_LEASE_OF_PARTITIONS = f"{_LEASE}-partitions"
_OF_PARTITIONS = f"GET {_PODS}/p:8081/proxy{partitions_board.PATH}"
_NOT_FOUND = Answer(status=404, body=b'{"kind":"Status","reason":"NotFound"}')
_FORBIDDEN = Answer(status=403, body=b'{"kind":"Status","reason":"Forbidden","message":"no"}')
_NO_ROUTE = Answer(status=503, body=b'{"kind":"Status","message":"no route"}')
_NO_PODS = Answer(body=b'{"metadata":{"resourceVersion":"1"},"items":[]}')


def _led_by(pod: str) -> Answer:
    return Answer(body=json.dumps({"spec": {"holderIdentity": pod}}).encode())


def _partitions_body() -> Answer:
    board = partitions_board.Board(release="test", identity="p", now=lambda: NOW)
    return Answer(body=board.page().make().body)


@pytest.mark.parametrize("command", [("status",), ("explain", "train")], ids=["status", "explain"])
def test_unreachable_api_server_is_reported_without_other_products(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the past, the message named partitions of IPUs, which confused users whose clusters have only TPUs."""
    kubeconfig = write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    assert run(*command, "--kubeconfig", str(kubeconfig)) == 1
    error = capsys.readouterr().err
    assert "the API server does not respond: " in error
    assert "can't be reached" in error
    assert "kubectl config current-context" in error
    assert "partitions" not in error
    assert "IPU" not in error


_SLICES_LEAD = {f"GET {_LEASE}": _led_by("s")}
_PARTITIONS_LEAD = {f"GET {_LEASE_OF_PARTITIONS}": _led_by("p")}
_SLICES_FAIL = {**_SLICES_LEAD, f"GET {_PODS}/s:8081/proxy{_BOARD}": _NO_ROUTE}
_SLICES_ABSENT = {f"GET {_LEASE}": _NOT_FOUND, f"GET {_PODS}": _NO_PODS}


@pytest.mark.parametrize(
    ("answers", "code", "shown", "hidden"),
    [
        pytest.param(
            {**_SLICES_LEAD, f"GET {_PODS}/s:8081/proxy{_BOARD}": None, **_PARTITIONS_LEAD, _OF_PARTITIONS: _NO_ROUTE},
            0, ("train-slice-0", "ATTENTION: the controller of partitions"), "",
            id="slices answer, partitions do not",
        ),
        pytest.param(
            {**_SLICES_FAIL, **_PARTITIONS_LEAD, _OF_PARTITIONS: _partitions_body()},
            0, ("ATTENTION: the controller in namespace", "IPU partitions: nothing has been decided yet"), "",
            id="partitions answer, slices do not",
        ),
        pytest.param(
            {**_SLICES_ABSENT, **_PARTITIONS_LEAD, _OF_PARTITIONS: _partitions_body()},
            0, ("IPU partitions: nothing has been decided yet",), "no controller runs",
            id="only partitions are installed",
        ),
        pytest.param(
            {**_SLICES_ABSENT, **_PARTITIONS_LEAD, _OF_PARTITIONS: _NO_ROUTE},
            1, ("the controller of partitions", "port-forward pod/p 8081:8081"), "no controller runs",
            id="only partitions are installed and do not answer",
        ),
        pytest.param(
            {**_SLICES_ABSENT, **_PARTITIONS_LEAD, _OF_PARTITIONS: _FORBIDDEN},
            1, ("get pods/proxy in namespace", "port-forward pod/p 8081:8081"), "no controller runs",
            id="only partitions are installed and may not be read",
        ),
        pytest.param(
            {**_SLICES_LEAD, f"GET {_PODS}/s:8081/proxy{_BOARD}": None, **_PARTITIONS_LEAD, _OF_PARTITIONS: _FORBIDDEN},
            0, ("train-slice-0",), "partitions", id="slices answer, partitions may not be read",
        ),
        pytest.param(
            {**_SLICES_FAIL, **_PARTITIONS_LEAD, _OF_PARTITIONS: _NO_ROUTE},
            1, ("the controller in namespace", "Is it running?"), "partitions", id="neither answers",
        ),
        pytest.param(_SLICES_ABSENT, 1, ("no controller runs",), "partitions", id="nothing is installed"),
    ],
)  # fmt: skip
def test_status_names_products_only_if_they_are_installed(
    wire: WireServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, Answer | None],
    code: int,
    shown: tuple[str, ...],
    hidden: str,
) -> None:
    for what, answer in answers.items():
        wire.answer(what, answer or Answer(body=body_of(World(make_jobset("train")))))
    assert run("status", "--kubeconfig", str(write_kubeconfig(tmp_path / "config", wire.url))) == code
    printed = "".join(capsys.readouterr())
    assert all(part in printed for part in shown), printed
    assert not hidden or hidden not in printed


def test_explain_of_an_unknown_pod_names_the_controller_that_is_installed(
    wire: WireServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for what, answer in {**_SLICES_ABSENT, **_PARTITIONS_LEAD, _OF_PARTITIONS: _partitions_body()}.items():
        wire.answer(what, answer)
    kubeconfig = str(write_kubeconfig(tmp_path / "config", wire.url))
    assert run("explain", "train", "--kubeconfig", kubeconfig) == 1
    error = capsys.readouterr().err
    assert "the controller of IPU partitions knows no pod or partition 'train'" in error
    assert "google.com/tpu" not in error


def test_plan_live_uses_the_settings_of_the_running_controller(
    wire: WireServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits and zones are the controller's, even if the environment of the shell has others."""
    monkeypatch.setenv("MAX_CHIPS", "1000")
    world = World(settings_=settings(max_chips=4, project_id="their-project", auto_upgrade=False))
    board = board_of(world)
    board.environment = {"MAX_CHIPS": "4", "ZONES": "us-central2-b", "PATH": "/bin", "DEBUG": ""}
    served = json.dumps({"settings": board.settings()}).encode()
    assert b"PATH" not in served
    wire.answer("GET /api/v1/settings", Answer(body=served))
    options = ("-f", "examples/jobset.yaml", "--live", "--server", wire.url)
    assert run("plan", *options) == 3
    told = capsys.readouterr().out
    assert "Limit of all node pools: at most 4 chips" in " ".join(told.split())
    assert "GCP_PROJECT_ID" not in told
    assert "NODEPOOL_AUTO_UPGRADE is auto" not in told
    with pytest.raises(SystemExit):
        run("plan", *options, "--settings", str(tmp_path / "settings.env"))
    wire.answer("GET /api/v1/settings", Answer(body=b'{"settings":{}}'), Answer(body=b'{"settings":{}}'))
    run("plan", *options)
    run("plan", *options)
    assert "has no settings to show yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "server",
    [
        "http://127.0.0.1:1",
        "ftp://x",
        "file:///etc/passwd",
        "http://127.0.0.1:80x",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://",
        "http://a b",
    ],
)
def test_invalid_or_unreachable_address_is_reported(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run("status", "--server", server) == 1
    assert server.partition("://")[2] in capsys.readouterr().err


def test_refused_connection_is_reported_with_a_port_forward_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--server", "127.0.0.1:1", "--controller-namespace", "tpus") == 1
    assert (
        "Connection refused. To reach the controller, use `kubectl --namespace tpus port-forward "
        "deployment/tpu-provisioner 1:8081` and --server http://127.0.0.1:1."
    ) in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_address_of_another_server_is_reported(capsys: pytest.CaptureFixture[str], answer: bytes) -> None:
    """A server that is no controller may speak another protocol, or end its response early."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        served = pool.submit(serve)
        assert run("status", "--server", f"http://127.0.0.1:{listening.getsockname()[1]}") == 1
        served.result(10)
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("problems", [["GKE does not list pools"], []], ids=["a problem", "a loop that hangs"])
def test_output_without_new_decisions_has_the_time_of_the_last_one(
    wire: WireServer, capsys: pytest.CaptureFixture[str], problems: list[str]
) -> None:
    """Durations are counted up to now, although the last decision may be hours ago."""
    world = World(make_jobset("train"))
    decided_at = world.now
    body = msgspec.json.encode(document_of(world, *problems, stalled_minutes=120))
    wire.answer(f"GET {_BOARD}", *(Answer(body=body) for _ in range(3)))
    for words in (("status",), ("gc", "--dry-run"), ("explain", "train")):
        assert run(*words, "--server", wire.url) == 0
        told = capsys.readouterr().out
        assert told.count("ATTENTION: GKE does not list pools") == told.count("ATTENTION") == len(problems)
        assert f"as of {decided_at:%Y-%m-%d %H:%M:%S} UTC, 2 h 0 min ago" in told
        assert "2 h 0 min" in told.partition("ago")[2] or words[0] == "gc"


def test_output_of_a_follower_names_the_leader(wire: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A user may give the address of a follower, which has no decisions to show."""
    board, other = make_board(lambda: NOW, lambda: 0.0), make_board(lambda: NOW, lambda: 0.0)
    other.leader = lambda: "pod-b"
    wire.answer(f"GET {_BOARD}", *(Answer(body=source.everything()[1]) for source in (board, board, other)))
    for words in (("status",), ("explain", "train")):
        assert run(*words, "--server", wire.url, "-o", "json") == 1
        assert "here does not lead; ask the process that holds the Lease tpu-provisioner" in capsys.readouterr().err
    assert run("status", "--server", wire.url) == 0
    told = capsys.readouterr().out
    assert "here does not lead; ask pod pod-b" in told
    assert ", leader here" not in told


def test_gc_without_dry_run_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("gc")
    assert caught.value.code == 2
    assert "only the controller deletes node pools" in capsys.readouterr().err


def test_watched_status_shows_a_failure_and_the_recovery(
    wire: WireServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", sleep)
    wire.answer(
        f"GET {_BOARD}",
        Answer(body=body_of(World(make_jobset("train")))),
        Answer(status=503, body=b"{}"),
        Answer(body=body_of(World(make_jobset("again")))),
    )
    assert run("status", "--watch", "--server", wire.url) == 130
    shown = capsys.readouterr().out
    assert shown.index("train-slice-0") < shown.index("cannot be read") < shown.index("again-slice-0")
