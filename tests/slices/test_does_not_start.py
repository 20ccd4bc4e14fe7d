"""A user whose JobSet does not start finds the cause in Events, in the output of the commands and on the page.

Each case runs the real loop in a world with one fault, in most cases with a second JobSet that runs normally.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import pytest
import requests

from provisioner.cli import status
from provisioner.cli.asking import attention
from provisioner.cli.explain import explanations, lines, nothing_found
from provisioner.cli.output import wrapped
from provisioner.google.errors import Call
from provisioner.kube.errors import NotFound
from provisioner.kube.reflector import Collection, Reflector
from provisioner.model.capacity import FailureKind
from provisioner.slices.suppliers.gke.client import to_gke_error
from provisioner.workloads import JOBSET
from tests.support.controller import OTHER_CERTIFICATE, World

_STOCKOUT = "[GCE_STOCKOUT]: The zone 'us-central2-b' does not have enough resources available to fulfill the request."
_QUOTA = "[GCE_QUOTA_EXCEEDED]: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central2."
_AWAY = "503 The service is currently unavailable."


def beside_a_healthy_one(**changes: object) -> World:
    """Return a world in which JobSet "healthy" runs."""
    world = World(**changes)  # type: ignore[arg-type]
    world.run_to_use("healthy")
    return world


def no_such_topology() -> World:
    """Request a topology that no accelerator has."""
    world = beside_a_healthy_one()
    world.put_jobset("train", topology="3x5x7")
    world.round(after_seconds=3)
    return world


def stockout() -> World:
    """Let the pool fail after GKE accepted the create: GKE reports stockouts in this way."""
    world = beside_a_healthy_one()
    world.put_jobset("train")
    world.round(after_seconds=3)
    (pool,) = (name for name in world.gke.pools if name.startswith("train-"))
    world.gke.fail_pool(pool, FailureKind.STOCKOUT, message=_STOCKOUT)
    world.round(after_seconds=3)
    world.finish_deletes()
    world.rounds(2, every_seconds=3)
    return world


def quota() -> World:
    """Let GKE reject the create because of the quota."""
    return refused(FailureKind.QUOTA, _QUOTA)


def refused(kind: FailureKind, message: str) -> World:
    world = beside_a_healthy_one()
    world.gke.fail_always("create_node_pool", kind, message=message)
    world.put_jobset("train")
    world.rounds(3, every_seconds=3)
    return world


def limit() -> World:
    """Set MAX_CHIPS to the 4 chips that JobSet "healthy" uses."""
    world = beside_a_healthy_one(max_chips=4)
    world.put_jobset("train")
    world.rounds(2, every_seconds=3)
    return world


def back_off() -> World:
    """Let the create of another JobSet's pool fail with a stockout, so that "train" waits for the same back-off."""
    world = beside_a_healthy_one()
    world.gke.fail_always("create_node_pool", FailureKind.STOCKOUT, message=_STOCKOUT)
    world.put_jobset("other")
    world.rounds(2, every_seconds=3)
    world.gke.heal()
    world.put_jobset("train")
    world.round(after_seconds=3)
    return world


def missing_permission() -> World:
    """Let GKE reject the create with the 403 that an identity without the role gets."""
    words = 'Required "container.clusters.update" permission(s) for "projects/p".'
    response = requests.Response()
    response.status_code = 403
    response._content = json.dumps({"error": {"code": 403, "status": "PERMISSION_DENIED", "message": words}}).encode()
    error = requests.HTTPError(response=response)
    failure = to_gke_error(error, "create of node pool 'train'", call=Call.CREATE).failure
    assert failure.kind is FailureKind.PERMISSION
    return refused(failure.kind, failure.message)


def wrong_cluster() -> World:
    """Let the kubeconfig trust a certificate authority other than the cluster's, while a JobSet runs."""
    world = World(ca_pem=OTHER_CERTIFICATE)
    world.put_jobset("healthy")
    world.put_leader("healthy", node="a-node")
    return stalled(world)


def gke_away() -> World:
    """Let GKE become unavailable after the first JobSet runs."""
    world = beside_a_healthy_one()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message=_AWAY)
    return stalled(world)


def gke_away_from_the_start() -> World:
    """Let GKE be unavailable from the start of the provisioner."""
    world = World()
    world.gke.fail_always("get_cluster", FailureKind.UNAVAILABLE, message=_AWAY)
    return stalled(world)


def stalled(world: World) -> World:
    """Add JobSet "train", and let two minutes pass in which nothing can be decided."""
    world.put_jobset("train")
    world.rounds(8, every_seconds=15)
    return world


def no_pods() -> World:
    """Let the child Job have no pods, as if a webhook that is unavailable prevented their creation."""
    world = beside_a_healthy_one()
    world.put_jobset("train")
    world.remove_leader("train")
    world.round(after_seconds=3)
    return world


def not_served() -> World:
    """Let SERVED_NAMESPACES contain only another namespace."""
    world = beside_a_healthy_one()
    world.loop.settings = replace(world.settings, namespaces=("other",))
    world.put_jobset("train")
    world.round(after_seconds=3)
    return world


def no_jobset() -> World:
    """Let the API server have no JobSet CRD."""
    world = World()
    collection = Collection(
        name=JOBSET.plural, resource=JOBSET.resource, root=JOBSET.root, install_hint=JOBSET.install_hint
    )
    watch: Reflector[object] = Reflector(collection, parse=lambda raw: raw, on_change=lambda: None)
    watch.failed(NotFound("the server could not find the requested resource", status=404))
    world.jobsets.synced, world.jobsets.missing, world.jobsets.problem = False, True, watch.problem
    world.rounds(8, every_seconds=15)
    return world


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause: the world that has it, and the texts that must report it."""

    play: Callable[[], World]
    #: Parts of the report; each place must show all of them.
    words: tuple[str, ...]
    #: Next step that the first three lines of `explain` must contain in a terminal of 80 columns.
    next: str = ""
    #: What to do: in Events, `status`, the first two lines of `explain`, and the page.
    step: str = ""
    #: Whether Events report it. Groups without pods, of a namespace that is not served or of a missing CRD have none.
    in_events: bool = True
    #: Whether it concerns all workloads: it is then in /readyz, and above the lists of the page and of `status`.
    for_all: bool = False


CAUSES = {
    "no such topology": Cause(
        play=no_such_topology, words=("topology 3x5x7 is not valid for tpu-v4-podslice", "nearest valid: 4x4x8")
    ),
    "stockout": Cause(
        play=stockout,
        words=("stockout since", "next try", "does not have enough resources"),
        step="To wait less, allow more capacity types or zones.",
        next="next try 00:17:16 UTC",
    ),
    "quota": Cause(
        play=quota,
        words=("quota since", "next try", "Quota 'TPUS_PER_TPU_FAMILY' exceeded"),
        step="Request more quota from Google",
        next="next try",
    ),
    "limit": Cause(
        play=limit,
        words=("Limit of all node pools: 4 of 4 chips in use", "this slice needs 4"),
        step="The administrator can raise MAX_CHIPS",
        next="place 1 of 1 in the queue",
    ),
    "back-off": Cause(play=back_off, words=("stockout since", "next try", "does not have enough resources")),
    "missing permission": Cause(
        play=missing_permission, words=('Required "container.clusters.update"', "Grant the provisioner's identity")
    ),
    "wrong cluster": Cause(
        play=wrong_cluster, words=("does not trust the certificate authority", "Check GCP_PROJECT_ID"), for_all=True
    ),
    "GKE is away": Cause(play=gke_away, words=("GKE does not list the node pools", "503"), for_all=True),
    "GKE is away from the start": Cause(play=gke_away_from_the_start, words=("503",), for_all=True),
    "pods are not created": Cause(
        play=no_pods,
        words=("It has no pods", "kubectl describe jobset/train job/train-workers-0 --namespace=research"),
        in_events=False,
    ),
    "not served": Cause(play=not_served, words=("namespace research is not among SERVED_NAMESPACES",), in_events=False),
    "JobSet is missing": Cause(
        play=no_jobset, words=("the JobSet CRD is not installed", "install JobSet"), in_events=False, for_all=True
    ),
}


def flat(text: str) -> str:
    """Return the text with each line break and run of spaces replaced by one space."""
    return " ".join(text.split())


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_cause_is_in_events_commands_and_page(cause: Cause) -> None:
    """The last Event of pod and JobSet, `status` at any width, the start of `explain` and the page show the cause."""
    world = cause.play()
    document = world.board.document()
    problems = flat("; ".join(world.loop.problems()))
    assert [words for words in cause.words if (words in problems) is not cause.for_all] == []

    told = {each.ref.kind: each.message for each in world.recorder.told if "train" in each.ref.name}
    assert sorted(told) == (["JobSet", "Pod"] if cause.in_events else [])
    said = (*cause.words, cause.step)
    assert [words for message in told.values() for words in said if words not in message] == []

    for width in (80, 120, 200, None):
        shown = [*status.page(document, width=width)]
        assert [words for words in said if words not in flat("\n".join(shown))] == [], width
        assert "not the leader" not in shown[0]
        assert [line for line in shown if width and "train-workers-0" in line and len(line) > width] == []
    for name in ("train", "train-workers-0", "pod/train-workers-0-0"):
        found = explanations(document, name, "")
        first = [line for each in found for line in islice(lines(each), 2)]
        shown = [part for each in found for line in lines(each) for part in wrapped(line, 80)]
        assert cause.next in flat("\n".join(shown[:3])), name
        assert [line for line in shown if len(line) > 80] == []
        if name.startswith("pod/") and not cause.in_events:
            # These worlds have no such pod, or the provisioner does not watch it.
            continue
        answer = flat("\n".join([*attention(document), *first]))
        assert [words for words in said if words not in answer] == [], name
        # A stalled provisioner may not have seen the workload yet, so a missing one is not a mistake of the user.
        assert found or "it does not exist" not in "\n".join(nothing_found(document, name, ""))

    page = json.loads(world.board.everything()[1])
    banners = page["problems"]
    rows = [each for each in (page["view"] or {"slices": []})["slices"] if each["group"] == "train-workers-0"]
    # A problem that concerns all workloads is shown as a banner instead of as the reason of each slice.
    seen = banners if cause.for_all else [f"{each['reason']} {each['next_step']}" for each in rows]
    assert [words for words in said if words not in flat("; ".join(seen))] == []
    assert page["leading"], "the page says who leads"
    # The slice of the other JobSet shows no fault.
    if document.view is not None:
        assert [each.state.value for each in document.view.slices if "healthy" in each.id] == ["running"]


def test_failed_pool_that_is_deleted_quickly_is_not_reported_as_missing() -> None:
    """GKE may delete a pool so fast that no list of pools shows it with status STOPPING."""
    assert "NodePoolNotFound" not in stockout().recorder.reasons("JobSet")
