"""The way to the removal of a partition: what was decided on a cache is read live, right before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from provisioner import kube
from provisioner.kube.gates import KeptError
from provisioner.kube.live import list_all
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import RemovePartition
from provisioner.partitions.reading import parse_pod

_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Lets a removal through, or raises KeptError. Raises ClusterError where Kubernetes does not answer."""

    api: Api
    cluster_uid: Callable[[], str]
    parse: Callable[[object], Pod] = parse_pod

    def pass_through(self, call: RemovePartition) -> None:
        """Prove that no pod may use the partition any more."""
        if not call.id.startswith(names.id_prefix(self.cluster_uid())):
            raise KeptError("it is no partition of this cluster")
        if call.pod is None:
            for pod in self._pods():
                if names.owner_id(self.cluster_uid(), pod.uid) == names.owner_of(call.id):
                    self._refuse_if_used(pod, call)
            return
        namespace, name, uid = call.pod
        try:
            raw = self.api.get(object_path("pods", name, namespace=namespace), timeouts=_TIMEOUTS)
        except kube.NotFound:
            return
        pod = self.parse(raw)
        if pod.uid == uid:
            self._refuse_if_used(pod, call)

    def _pods(self) -> list[Pod]:
        return list_all(self.api, collection_path("pods"), {"labelSelector": names.POD_LABEL}, self.parse)

    def _refuse_if_used(self, pod: Pod, call: RemovePartition) -> None:
        if pod.finished or pod.released:
            return
        if pod.told_partition not in ("", call.id):
            return
        if call.unused and not pod.begun:
            # Its init container waits for it.
            return
        if pod.deletion_deadline is not None and pod.deletion_deadline == call.past_deletion:
            # It has had its grace, as this process counts time.
            return
        raise KeptError(f"pod {pod.namespace}/{pod.name} has not ended")
