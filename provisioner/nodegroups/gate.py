"""Checks with live reads, right before the delete, whether a managed instance group may be deleted (`actions.Proof`).

After the last check, only pods that tolerate the cordon or name their node can be bound. A node that registers later
has no chips until its device plugin runs, after 13 s. The API server cannot select nodes by providerID, so the gate
lists nodes with the group's labels, and TPU nodes without labels of a group. It reads the other nodes by name.
"""

import functools
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from provisioner.kube.errors import NotFound
from provisioner.kube.live import DeletionBlockedError, list_all, look_last, read_one
from provisioner.kube.protocol import Api, collection_path, object_path
from provisioner.kube.watches import UNFINISHED
from provisioner.model.wording import first_of
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.types import ManagedInstanceGroup
from provisioner.nodegroups.planning.actions import Proof
from provisioner.nodegroups.planning.nodes import silent_node
from provisioner.nodegroups.planning.round import Node, Pod
from provisioner.nodegroups.reading import API_ROOT, parse_node, parse_pod
from provisioner.runtime.parallel import ForEach, one_by_one

#: Label selector of TPU nodes without the labels of any group.
_OF_NOBODY = f"{names.ACCELERATOR},!{names.GROUP_NAME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Permits a delete or raises DeletionBlockedError with the reason. Raises ClusterError if a read fails."""

    api: Api
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    #: Calls a function for each node. The controller passes a parallel version, as a group may have thousands of nodes.
    for_each: ForEach = one_by_one

    def verify_deletable(self, proof: Proof) -> None:
        """Raise DeletionBlockedError unless all conditions of a delete are met (`Proof`)."""
        self._refuse_unless_deleted(proof)
        selected = self._selected(proof)
        if doubt := silent_node((node for node in selected if _is_of(node, proof)), proof.oldest_ready):
            raise DeletionBlockedError(doubt)
        nodes = self._nodes(proof, selected)
        for node in nodes:
            if not node.unschedulable:
                raise DeletionBlockedError(f"node {node.name} is not cordoned")
        self._refuse_if_used(proof, [node.name for node in nodes])
        known = {(node.name, node.uid) for node in nodes}
        look_last(lambda: self._strangers(proof, known), self.monotonic)

    def _refuse_unless_deleted(self, proof: Proof) -> None:
        kind = ManagedInstanceGroup.kind
        path = object_path(kind.plural, proof.name, namespace=proof.namespace, root=API_ROOT)
        try:
            meta = read_one(self.api.get(path), functools.partial(parse, ManagedInstanceGroup)).meta
        except NotFound as error:
            raise DeletionBlockedError(f"there is no {kind} {proof.namespace}/{proof.name}") from error
        if meta.uid != proof.uid:
            raise DeletionBlockedError(f"{kind} {meta} was replaced by another one")
        if not meta.deleting:
            raise DeletionBlockedError(f"{kind} {meta} is not being deleted")

    def _nodes(self, proof: Proof, selected: Iterable[Node]) -> list[Node]:
        nodes = {node.name: node for node in selected if _counts(node, proof)}
        missing = proof.provider_ids - {node.provider_id for node in nodes.values()}
        for node in self.for_each(self._node_of_machine, sorted(missing)):
            if node is not None:
                nodes.setdefault(node.name, node)
        return [node for _, node in sorted(nodes.items())]

    def _selected(self, proof: Proof) -> list[Node]:
        labelled = ",".join(f"{key}={value}" for key, value in sorted(proof.group_labels.items()))
        nodes: list[Node] = []
        for selector in filter(None, (labelled, _OF_NOBODY)):
            nodes += list_all(self.api, collection_path("nodes"), {"labelSelector": selector}, parse_node)
        return nodes

    def _node_of_machine(self, provider_id: str) -> Node | None:
        """Return the node with a machine's name: only the name if it is missing, None if it is of another machine."""
        name = provider_id.rpartition("/")[2]
        try:
            node = read_one(self.api.get(object_path("nodes", name)), parse_node)
        except NotFound:
            # The pods of a deleted node exist for about a minute longer and may still run, so they are checked.
            return Node(name=name, uid="", unschedulable=True)
        return node if node.provider_id in ("", provider_id) else None

    def _refuse_if_used(self, proof: Proof, nodes: list[str]) -> None:
        by_node = self.for_each(lambda node: self._blocking_pods(proof, node), nodes)
        blocking = [pod for pods in by_node for pod in pods]
        if blocking:
            listed = first_of([f"{pod.namespace}/{pod.name} on {pod.node}" for pod in blocking])
            what = "with chips " if all(pod.chips for pod in blocking) else ""
            raise DeletionBlockedError(f"unfinished pods {what}are on its machines: {listed}")

    def _blocking_pods(self, proof: Proof, node: str) -> list[Pod]:
        query = {"fieldSelector": f"spec.nodeName={node},{UNFINISHED}"}
        pods = list_all(self.api, collection_path("pods"), query, parse_pod)
        return [pod for pod in pods if pod.keeps_machine(self.clock(), proof)]

    def _strangers(self, proof: Proof, known: Collection[tuple[str, str]]) -> list[str]:
        nodes = [node for node in self._selected(proof) if _counts(node, proof)]
        return [node.name for node in nodes if not node.unschedulable or (node.name, node.uid) not in known]


def _counts(node: Node, proof: Proof) -> bool:
    return _is_of(node, proof) and (node.ready or node.provider_id in proof.provider_ids)


def _is_of(node: Node, proof: Proof) -> bool:
    labelled = bool(proof.group_labels) and proof.group_labels.items() <= node.labels.items()
    here = labelled and names.manager_of(node.provider_id) == proof.place
    return node.is_named_as_its_machine and (here or node.provider_id in proof.provider_ids)
