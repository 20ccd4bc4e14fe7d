"""`tpu-provisioner drain`: lists the node pools and TPUNodeGroups that still exist. Needs no running controller."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

import click

from provisioner import constants
from provisioner.cli.frame import FORMATS, command_with, format_option, kubeconfig_option, read_by
from provisioner.cli.output import ExitCode, write
from provisioner.cli.start import StartError, in_cluster, prepare
from provisioner.kube.errors import ClusterError, NotFound
from provisioner.kube.fields import MalformedObject, at, created_at, name
from provisioner.kube.lease import holder_of
from provisioner.kube.live import find_nodes_of_pool, list_all
from provisioner.kube.protocol import Api, collection_path
from provisioner.kube.watches import PAUSE_QUERY
from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.model.membership import Membership
from provisioner.model.wording import UserError, first_of
from provisioner.model.workloads import WorkloadKind, owner_of_name
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.reading import API_ROOT
from provisioner.runtime import logs
from provisioner.runtime.clock import wall_clock
from provisioner.settings import Settings, SettingsError
from provisioner.settings.forms import go_duration_seconds
from provisioner.slices.app import choose
from provisioner.slices.planning.spec.specification import Ownership, read_ownership
from provisioner.slices.supplier import Supplier, SupplierError
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.workloads.parse_pod import parse_pod
from provisioner.workloads.pods import get_workload, list_pods_on_node

_LOOK_SECONDS = 10.0
#: Seconds after which `drain --wait` repeats unchanged lines, because proxies close connections without traffic.
_REMIND_SECONDS = 60.0
#: Seconds since a Lease's last renewal after which `drain` reports that no process leads; the Lease ends after 30 s.
_LEASE_SECONDS = 60.0
_WITHOUT_NODE = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}


@command_with(
    "{prog} drain                         # what is left, and why",
    "{prog} drain --wait --timeout 30m    # before an uninstall",
    "{prog} drain -o json                 # for programs",
)
@format_option()
@click.option("--wait", is_flag=True, help="wait until no node pool is left")
@click.option(
    "--timeout",
    "patience_seconds",
    default="0s",
    callback=read_by(go_duration_seconds),
    metavar="DURATION",
    help='give up waiting after this time, such as "30m" (default: never)',
)
@kubeconfig_option
def command(kubeconfig: str | None, *, wait: bool, patience_seconds: float, form: str | None) -> int:
    """List the node pools and TPUNodeGroups that are left and why, or wait until none is left.

    It changes nothing: the controllers delete them. Exit code 0 only when none is left.
    """
    try:
        effective, api, tried = prepare(kubeconfig, os.environ)
    except (SettingsError, StartError) as error:
        raise UserError(f"{error}\n{in_cluster('drain')}") from error
    # Only unexpected errors are logged, because the result is printed.
    logs.configure("error", stream=sys.stderr)
    supplier, proof = choose(effective, api, tried.gke, wall_clock)
    look = Look(settings=effective, api=api, supplier=supplier, identity=proof)
    patience = (patience_seconds or float("inf")) if wait else 0.0

    def say(line: str) -> None:
        if form not in FORMATS:
            # Without `flush`, Python would hold the lines back if standard output is not a terminal.
            print(line, flush=True)

    left = drain(look, patience, say=say, wait=time.sleep, monotonic=time.monotonic)
    if form in FORMATS:
        pools = [{"name": name, "reason": reason} for name, reason in left.pools.items()]
        write({"node_pools": pools, "messages": left.messages}, form)
    return ExitCode.ERROR if any(left) else ExitCode.OK


def drain(
    look: Look,
    patience_seconds: float,
    *,
    say: Callable[[str], None],
    wait: Callable[[float], None],
    monotonic: Callable[[], float],
) -> Left:
    """Call `look.left` every 10 s until nothing is left, for at most `patience_seconds`; return the last result."""
    began = printed_at = monotonic()
    last: list[str] = []
    while any(left := look.left()):
        lines = list(look.lines(left))
        if lines != last or monotonic() - printed_at >= _REMIND_SECONDS:
            say("\n".join(lines))
            last, printed_at = lines, monotonic()
        left_seconds = patience_seconds - (monotonic() - began)
        if left_seconds <= 0:
            if patience_seconds:
                say(f"Gave up waiting after {patience_seconds:.0f} s.")
            return left
        wait(min(_LOOK_SECONDS, left_seconds))
    say(f"No node pool of the provisioner is left in {look.settings.cluster_name}.")
    return left


def _needed_by(kind: WorkloadKind, namespace: str, name: str) -> str:
    owner, named = owner_of_name(kind, name)
    return f"{owner} {namespace}/{named} needs it; delete the {owner}, or let it end"


def _place_of(raw: object) -> tuple[str, str]:
    metadata = at(raw, "metadata")
    return name(metadata.get("namespace")), name(metadata.get("name"))


class Left(NamedTuple):
    """Node pools that still exist, with reasons. Both fields are empty only if certainly no such pool exists."""

    pools: dict[PoolName, str]
    #: Messages about TPUNodeGroups, waiting pods and the controller, or the reason why the pools are unknown.
    messages: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Reads the node pools that still exist, and why they exist."""

    settings: Settings
    api: Api
    supplier: Supplier
    #: Proof that the GKE node pools belong to the cluster of `api`; None for TPUNodeGroups, which are read from `api`.
    identity: ClusterProof | None
    now: Callable[[], datetime] = wall_clock

    def lines(self, left: Left) -> Iterator[str]:
        """Yield a result of `left` as lines for users."""
        if pools := left.pools:
            yield f"{len(pools)} node pool{'s are' if len(pools) > 1 else ' is'} left in {self.settings.cluster_name}:"
            width = max(map(len, pools))
            yield from (f"  {name.ljust(width)}  {reason}" for name, reason in pools.items())
        yield from left.messages

    def left(self) -> Left:
        """Read the pools that still exist. Errors become texts in the result."""
        # Without the proof, GCP_CLUSTER may be another cluster, and this cluster would seem to have no pools.
        proof = self.identity
        if proof is not None and not proof.proven and not proof.attempt():
            return Left({}, [proof.problem])
        try:
            pools = sorted(self.supplier.list_pools(), key=lambda pool: pool.name)
        except SupplierError as error:
            return Left(
                {}, [f"{self.supplier.rules.supplier_name} does not list the node pools: {error.failure.message}"]
            )
        membership = Membership.of(pools)
        reasons = {
            pool.name: self._why(pool, owner, membership) for pool in pools if (owner := read_ownership(pool.labels))
        }
        return Left(reasons, [*self._messages(any_left=bool(reasons)), *self._node_groups(reasons)])

    def _node_groups(self, pools: Container[str]) -> Iterator[str]:
        """Yield a line about the TPUNodeGroups that still exist, except for groups that `pools` already contains."""
        try:
            # Without the API group, a list of its objects may fail with 403, but this read of the group fails with 404.
            self.api.get(API_ROOT)
            path = collection_path(Kind.TPU_NODE_GROUP.plural, root=API_ROOT)
            listed = list_all(self.api, path, {}, _place_of, metadata_only=True)
        except NotFound:
            return
        except ClusterError as error:
            yield (
                f"TPUNodeGroups cannot be listed: {error}. To see whether some are left: kubectl get tpunodegroups "
                "--all-namespaces"
            )
            return
        of_slices = self.settings.node_groups_in if self.settings.on_gce else ""
        groups = [f"{namespace}/{name}" for namespace, name in listed if namespace != of_slices or name not in pools]
        if groups:
            yield (
                f"TPUNodeGroups are left, and their machines cost money: {first_of(groups)}. Delete them, and keep "
                "their controller until none is left: kubectl delete tpunodegroups --all --all-namespaces"
            )

    def _messages(self, *, any_left: bool) -> Iterator[str]:
        namespace = self.settings.own_namespace
        try:
            path = collection_path("configmaps", namespace=namespace)
            paused = self.settings.pause_creation or any(list_all(self.api, path, PAUSE_QUERY, created_at))
            waiting = "" if paused or any_left else first_of(self._waiting())
        except (ClusterError, MalformedObject) as error:
            paused, waiting = False, f"unknown: {error}"
        if waiting:
            yield f"Pods that wait for a node pool: {waiting}"
        if not paused and (any_left or waiting):
            yield (
                "Creation is not paused: the controller continues to create node pools. To pause it: "
                f"kubectl --namespace={namespace} create configmap {constants.PAUSE_CONFIGMAP_NAME}"
            )
        idle = self._no_leader_reason() if any_left or waiting else ""
        if idle:
            yield (
                f"{idle}. Unless a controller runs without --leader-elect, nothing deletes node pools. To start it "
                "(with high-availability, --replicas=2): "
                f"kubectl --namespace={namespace} scale deployment/tpu-provisioner --replicas=1"
            )

    def _why(self, pool: NodePool, owner: Ownership, membership: Membership) -> str:
        kind, namespace, name = owner.workload
        named = owner.workload.text
        if pool.status is PoolStatus.STOPPING:
            return "being deleted"
        if pool.status is PoolStatus.ERROR:
            return "failed; the controller deletes it"
        try:
            workload = get_workload(self.api, kind, namespace, name, owner.workload_uid)
            if workload is not None and owner.workload_uid in ("", workload.uid):
                if workload.lives:
                    return _needed_by(kind, namespace, name)
                if workload.keeps_pools(while_suspended=self.settings.keep_suspended):
                    setting = "KEEP_POOLS_OF_SUSPENDED_JOBSETS"
                    return f"{named} is suspended and keeps it; delete the {kind.value}, or unset {setting}"
            nodes, _ = find_nodes_of_pool(self.api, pool.name, pool.hosts, membership, self.settings.node_namespace)
            for node in nodes:
                for pod in list_pods_on_node(self.api, node.name):
                    if pod.has_devices and not pod.finished:
                        if pod.kind is not None and pod.workload_name and pod.deletion_deadline is None:
                            # Report the pod's own workload, because the pool may have been created for another one.
                            return _needed_by(pod.kind, pod.namespace, pod.workload_name)
                        return f"pod {pod.namespace}/{pod.name} requests chips and runs on it; delete it, or let it end"
        except (ClusterError, MalformedObject) as error:
            return f"cannot tell who needs it (it was created for {named}): {error}"
        return f"not needed (it was created for {named}); the controller deletes it"

    def _waiting(self) -> list[str]:
        """Return the pending pods that may get node pools, as namespace/name."""
        parse = partial(parse_pod, serve_pods=self.settings.serve_pods, jobs=self.settings.serve_jobs)
        pods = filter(None, list_all(self.api, collection_path("pods"), _WITHOUT_NODE, parse))
        served = self.settings.namespaces
        return [f"{pod.namespace}/{pod.name}" for pod in pods if not served or pod.namespace in served]

    def _no_leader_reason(self) -> str:
        """Return a sentence that no controller leads; empty if a controller leads, or if the Lease cannot be read."""
        namespace = self.settings.own_namespace
        try:
            holder, renewed = holder_of(self.api, constants.LEASE_NAME, namespace=namespace)
        except ClusterError:
            return ""
        old = renewed is not None and (self.now() - renewed).total_seconds() > _LEASE_SECONDS
        if holder and not old:
            return ""
        since = f" since {renewed:%Y-%m-%d %H:%M:%S} UTC" if renewed is not None else ""
        return f"No process has held Lease {namespace}/{constants.LEASE_NAME}{since}"
