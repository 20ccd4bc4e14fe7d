"""Worlds of the real loop in which one fault prevents the start of a JobSet, and the texts that report the cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import requests

from provisioner import constants
from provisioner.google.errors import Call
from provisioner.kube.errors import NotFound
from provisioner.kube.protocol import object_path
from provisioner.kube.reflector import Collection, Reflector
from provisioner.model.capacity import FailureKind
from provisioner.slices.suppliers.gke.client import grant_help, to_gke_error
from provisioner.slices.suppliers.gke.errors import classify_message
from provisioner.workloads import JOBSET
from tests.support.controller import NAMESPACE, OTHER_CERTIFICATE, World, jobset_path
from tests.support.objects import pod_spec, raw_jobset, raw_leader, toleration

_STOCKOUT = (
    "Not all instances running in IGM after 2100.00s. Expected 4, running 0, transitioning 4. Current errors: "
    "[ZONE_RESOURCE_POOL_EXHAUSTED]: Instance 'gke-test-train-1b89173785-0f1e2d3c-4b5a' creation failed: The zone "
    "'projects/project-1/zones/us-central2-b' does not have enough resources available to fulfill the request. "
    "'(resource type:compute)'."
)
_QUOTA = (
    "Not all instances running in IGM after 31.25s. Expected 4, running 0, transitioning 4. Current errors: "
    "[GCE_QUOTA_EXCEEDED]: Instance 'gke-test-train-1b89173785-0f1e2d3c-4b5a' creation failed: Quota "
    "'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central2."
)
_BAD_DISK = "pd-extreme is not supported with machine type ct4p-hightpu-4t and cannot be used for the boot disk."
_AWAY = "503 The service is currently unavailable."
_UNKNOWN = "The service is currently unavailable."
_NO_CLUSTER = "Not found: projects/project-1/locations/us-central2/clusters/other-cluster."


def beside_a_healthy_one(**changes: object) -> World:
    world = World(**changes)  # type: ignore[arg-type]
    world.run_to_use("healthy")
    return world


def no_such_topology() -> World:
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
    return refused(FailureKind.QUOTA, _QUOTA)


def refused(kind: FailureKind, message: str) -> World:
    world = beside_a_healthy_one()
    world.gke.fail_always("create_node_pool", kind, message=message)
    world.put_jobset("train")
    world.rounds(3, every_seconds=3)
    return world


def failing() -> World:
    """Let pools fail for more than a minute with an internal error of GKE; shorter failures have no Event."""
    world = beside_a_healthy_one()
    world.put_jobset("train")
    world.round(after_seconds=3)
    for _ in range(2):
        (pool,) = (name for name in world.gke.pools if name.startswith("train-"))
        world.gke.fail_pool(pool, FailureKind.UNAVAILABLE, message="Internal error.")
        world.round(after_seconds=3)
        world.finish_deletes()
        world.rounds(11, every_seconds=3)
    return world


def failing_for_long() -> World:
    """Let creates for two slices have an unknown outcome and no effect, until repeated failures cause a pause."""
    return refused_pair(FailureKind.UNKNOWN_OUTCOME, _UNKNOWN, rounds=30)


def refused_pair(kind: FailureKind, message: str, *, rounds: int = 6) -> World:
    world = beside_a_healthy_one()
    world.gke.fail_always("create_node_pool", kind, message=message)
    put_pair(world)
    world.rounds(rounds, every_seconds=3)
    return world


def put_pair(world: World, **pod: Any) -> None:
    spec = pod_spec(**{"topology": "2x2x1", "tolerations": [toleration()], **pod})
    parts: dict[str, Any] = {"namespace": NAMESPACE, "job": "workers"}
    raw = raw_jobset("train", replicas=2, parallelism=1, pod=spec, uid="uid-of-train", **parts)
    world.kube.put_object(jobset_path("train"), raw)
    for number in range(2):
        leader = raw_leader("train", number=number, spec=spec, **parts)
        world.kube.put_object(object_path("pods", leader["metadata"]["name"], namespace=NAMESPACE), leader)


def rejected() -> World:
    return refused(FailureKind.INVALID, _BAD_DISK)


def no_account() -> World:
    account = "my-sa@project-1.iam.gserviceaccount.com"
    message = f'Service account "{account}" does not exist.'
    return refused(classify_message(3, message, (account,)), message)


def too_large() -> World:
    world = beside_a_healthy_one(max_chips=4)
    world.put_jobset("train", topology="2x2x2")
    world.rounds(2, every_seconds=3)
    return world


def limit() -> World:
    """Set MAX_CHIPS to the 4 chips that JobSet "healthy" uses."""
    world = beside_a_healthy_one(max_chips=4)
    world.put_jobset("train")
    world.rounds(2, every_seconds=3)
    return world


def limit_of_failed_pools() -> World:
    """Set MAX_CHIPS to the chips of both JobSets; the pool of "train" has failed and still exists."""
    world = beside_a_healthy_one(max_chips=8)
    world.put_jobset("train")
    world.round(after_seconds=3)
    (pool,) = (name for name in world.gke.pools if name.startswith("train-"))
    world.gke.fail_pool(pool, FailureKind.STOCKOUT, message=_STOCKOUT)
    world.round(after_seconds=3)
    return world


def back_off() -> World:
    """Let GKE reject the create for JobSet "other" with a stockout, so that "train" waits for the back-off as well."""
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
    remedy = grant_help("tpu@p.iam.gserviceaccount.com", "p")
    failure = to_gke_error(error, "create of node pool 'train'", call=Call.CREATE, grant_help=remedy).failure
    assert failure.kind is FailureKind.PERMISSION
    return refused(failure.kind, failure.message)


def wrong_cluster() -> World:
    """Let the kubeconfig trust a certificate authority that is not the cluster's, while JobSet "healthy" runs."""
    world = World(ca_pem=OTHER_CERTIFICATE)
    world.put_jobset("healthy")
    world.put_leader("healthy", node="a-node")
    return stalled(world)


def gke_away() -> World:
    world = beside_a_healthy_one()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message=_AWAY)
    return stalled(world)


def gke_away_from_the_start() -> World:
    world = World()
    world.gke.fail_always("get_cluster", FailureKind.UNAVAILABLE, message=_AWAY)
    return stalled(world)


def away_since_a_create() -> World:
    """Let GKE become unavailable between the decision that saw JobSet "train" and the creation of its leader pod."""
    world = beside_a_healthy_one()
    world.put_jobset("train")
    world.remove_leader("train")
    world.round(after_seconds=3)
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message=_AWAY)
    return stalled(world)


def no_such_cluster() -> World:
    world = World()
    world.gke.fail_always("get_cluster", FailureKind.NOT_FOUND, message=_NO_CLUSTER)
    return stalled(world)


def stalled(world: World) -> World:
    """Add JobSet "train", and let two minutes pass in which the fault prevents all decisions."""
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
    world = beside_a_healthy_one()
    world.loop.settings = replace(world.settings, namespaces=("other",))
    world.put_jobset("train")
    world.round(after_seconds=3)
    return world


def no_room() -> World:
    world = beside_a_healthy_one()
    spec = pod_spec(topology="2x2x1", tolerations=[toleration()])
    spec["containers"][0]["resources"]["requests"]["cpu"] = "1000"
    leader = raw_leader("train", namespace=NAMESPACE, job="workers", spec=spec)
    world.put_jobset("train")
    world.kube.put_object(object_path("pods", leader["metadata"]["name"], namespace=NAMESPACE), leader)
    world.rounds(2, every_seconds=3)
    return world


def split() -> World:
    """Let two slices have one pod each on each of two pools of two hosts, without exclusive placement."""
    world = beside_a_healthy_one()
    spec, names = pod_spec(topology="2x2x2", tolerations=[toleration()]), ("train", "other")
    for name in names:
        raw = raw_jobset(name, namespace=NAMESPACE, job="workers", pod=spec, uid=f"uid-of-{name}")
        del raw["metadata"]["annotations"]
        world.kube.put_object(jobset_path(name), raw)
        world.put_leader(name, topology="2x2x2")
    world.round(after_seconds=3)
    pools = world.finish_creates()
    for host, name in enumerate(names):
        for index, pool in enumerate(pools):
            pod = raw_leader(name, namespace=NAMESPACE, job="workers", node=f"gke-test-{pool}-{host}", spec=spec)
            pod["metadata"] |= {"name": f"{name}-workers-0-{index}", "uid": f"pod-{index}-of-{name}"}
            pod["metadata"]["labels"][constants.COMPLETION_INDEX] = str(index)
            world.kube.put_object(object_path("pods", pod["metadata"]["name"], namespace=NAMESPACE), pod)
    world.rounds(2, every_seconds=3)
    return world


def no_jobset() -> World:
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
    """A cause for which a JobSet does not start: the world with the fault, and the texts that must report the cause."""

    play: Callable[[], World]
    #: Parts of the text of the cause. Each output shows all parts; a table of 80 columns shows at least the first.
    words: tuple[str, ...]
    #: Advice to the user in Events, in `status`, in the first three lines of `explain`, and at the top of the page.
    step: str
    #: Place in the queue, time of the next attempt, or affected objects; in the first three lines of `explain`.
    place: str
    #: Cause in the first three lines of `explain` if they do not contain `words`; empty if they do.
    short: str = ""
    #: Text on the page instead of `place`; empty if the page shows `place`.
    place_on_page: str = ""
    #: Whether Events report the cause. False if pods or the CRD are missing, or the namespace is not served.
    in_events: bool = True
    #: Whether the cause affects all workloads, so that /readyz reports it, and the page and `status` above their lists.
    for_all: bool = False


_REJECTED = {"place": "Slice train-workers-0 is rejected", "place_on_page": "Rejected"}
_CHECK_NETWORK = "check the provisioner's network"
_STANDS_STILL = {"place": "ATTENTION: ", "place_on_page": "No node pools are created or deleted at the moment:"}

CAUSES = {
    "no such topology": Cause(
        play=no_such_topology,
        words=("topology 3x5x7 is not valid for tpu-v4-podslice",),
        step="nearest valid: 4x4x8",
        **_REJECTED,
    ),
    "pods fit no host": Cause(
        play=no_room,
        words=("the pod requests 1000 cpu, a node of ct4p-hightpu-4t offers 239.33 to pods",),
        step="request less in each pod",
        **_REJECTED,
    ),
    "stockout": Cause(
        play=stockout,
        words=("stockout since", "does not have enough resources"),
        step="To wait less, allow more capacity types or zones.",
        place="next try 00:17:16 UTC",
        short="stockout",
    ),
    "quota": Cause(
        play=quota,
        words=("quota since", "Quota 'TPUS_PER_TPU_FAMILY' exceeded"),
        step="Request more quota from Google",
        place="next try 00:17:38 UTC",
        short="Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central2",
    ),
    "failing creates": Cause(
        play=failing,
        words=("failed create since", "on-demand in us-central2-b", "Internal error."),
        step="If it lasts, allow other capacity types",
        place="next try 00:18:20 UTC",
        short="failed create of on-demand in us-central2-b: Internal error.",
    ),
    "failing creates for long": Cause(
        play=failing_for_long,
        words=("failed create, next try", _UNKNOWN),
        step="If it lasts, allow other capacity types",
        place="next try 00:18:43 UTC",
        short=f"failed create: {_UNKNOWN}",
    ),
    "failing creates of two slices": Cause(
        play=lambda: refused_pair(FailureKind.UNAVAILABLE, "Internal error.", rounds=30),
        words=("failed create", "Internal error."),
        step="If it lasts, allow other capacity types",
        place="next try 00:18:25 UTC",
    ),
    "quota of two slices": Cause(
        play=lambda: refused_pair(FailureKind.QUOTA, _QUOTA),
        words=("quota since", "Quota 'TPUS_PER_TPU_FAMILY' exceeded"),
        step="Request more quota from Google",
        place="next try 00:17:38 UTC",
        short="Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central2",
    ),
    "request of two slices rejected by GKE": Cause(
        play=lambda: refused_pair(FailureKind.INVALID, _BAD_DISK),
        words=(_BAD_DISK.removesuffix("."),),
        step="Correct it in the",
        **_REJECTED,
    ),
    "request rejected by GKE": Cause(
        play=rejected, words=(_BAD_DISK.removesuffix("."),), step="Correct it in the", **_REJECTED
    ),
    "no such service account": Cause(
        play=no_account,
        words=("my-sa@project-1.iam.gserviceaccount.com",),
        step="Create it, or",
        **_REJECTED,
    ),
    "larger than a limit": Cause(
        play=too_large,
        words=("Limit of all node pools: at most 4 chips", "this slice needs 8"),
        step="Request fewer chips, or ask the administrator to raise MAX_CHIPS.",
        **_REJECTED,
    ),
    "limit": Cause(
        play=limit,
        words=("Limit of all node pools: 4 of 4 chips in use", "this slice needs 4"),
        short="limit of all node pools",
        step="The administrator can raise MAX_CHIPS",
        place="place 1 of 1",
    ),
    "limit of failed pools": Cause(
        play=limit_of_failed_pools,
        words=("Limit of all node pools: 4 of 8 chips in use", "4 more in node pools that failed"),
        short="limit of all node pools",
        step="Wait until the failed node pools are deleted.",
        place="place 1 of 1",
    ),
    "back-off": Cause(
        play=back_off,
        words=("stockout since", "does not have enough resources"),
        step="To wait less, allow more capacity types or zones.",
        place="next try 00:17:13 UTC",
        short="stockout",
    ),
    "missing permission": Cause(
        play=missing_permission,
        words=("missing permission since", 'Required "container.clusters.update"'),
        step="Grant tpu@p.iam.gserviceaccount.com container.clusters.update on project p.",
        place="next try 00:17:44 UTC",
        short="missing permission",
    ),
    "wrong cluster": Cause(
        play=wrong_cluster,
        words=("does not trust the certificate authority of cluster 'test'",),
        step="Check GCP_PROJECT_ID",
        **_STANDS_STILL,
        for_all=True,
    ),
    "GKE is away": Cause(
        play=gke_away,
        words=("GKE does not list the node pools", "503"),
        step=_CHECK_NETWORK,
        **_STANDS_STILL,
        for_all=True,
    ),
    "GKE is away since a workload was created": Cause(
        play=away_since_a_create,
        words=("GKE does not list the node pools", "503"),
        step=_CHECK_NETWORK,
        **_STANDS_STILL,
        for_all=True,
    ),
    "no such cluster": Cause(
        play=no_such_cluster,
        words=("clusters/other-cluster",),
        step="Correct GCP_PROJECT_ID, GCP_CLUSTER_LOCATION",
        **_STANDS_STILL,
        for_all=True,
    ),
    "GKE is away from the start": Cause(
        play=gke_away_from_the_start, words=("503",), step="if the failure lasts, check", **_STANDS_STILL, for_all=True
    ),
    "split slice": Cause(
        play=split,
        words=("The pods of job train-workers-0 are on 2 node pools", "which pods of other slices use as well"),
        step="restart the JobSet with the annotation alpha.jobset.sigs.k8s.io/exclusive-topology",
        place="other-65a7fcb8d2, train-1b89173785",
        short="is split",
    ),
    "pods are not created": Cause(
        play=no_pods,
        words=("It has no pods",),
        step="kubectl describe jobset/train job/train-workers-0 --namespace=research",
        place="has no node pool",
        place_on_page="No pool",
        in_events=False,
    ),
    "not served": Cause(
        play=not_served,
        words=("namespace research is not among",),
        step="SERVED_NAMESPACES",
        place="has no node pool",
        place_on_page="No pool",
        in_events=False,
    ),
    "JobSet is missing": Cause(
        play=no_jobset,
        words=("the JobSet CRD is not installed",),
        step="install JobSet",
        **_STANDS_STILL,
        in_events=False,
        for_all=True,
    ),
}
