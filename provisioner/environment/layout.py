"""How the pods of a slice lie in it: how many it takes, and what grid of chips they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from provisioner import constants, tpu
from provisioner.environment.pods import TpuPod
from provisioner.tpu.environment import topology_in_use


class LayoutError(ValueError):
    """Pods cannot fill the slice that they select; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The slice that a pod is of."""

    accelerator: str
    #: What is used of the slice's topology: the whole, unless the pod asks for a part.
    topology: tpu.Topology
    #: Pods that fill it: one a host, where it has several hosts.
    pods: int
    #: Chips of a VM.
    host_chips: int

    @property
    def one_host(self) -> bool:
        """Whether the slice is one VM."""
        return self.topology.chips <= self.host_chips


def layout_of(pod: TpuPod) -> Layout | None:
    """Return the slice that a pod selects; None where it selects none by its topology.

    LayoutError where Google sells no such slice, in the words of the Event that its owner would get.
    """
    if not (pod.accelerator and pod.topology):
        return None
    part = pod.marks.get(constants.SLICE_TOPOLOGY, "")
    return _layout(pod.accelerator, pod.topology, pod.chips, pod.machine_type, part)


# A review asks several times, and many pods ask for the same.
@lru_cache(maxsize=256)
def _layout(accelerator: str, topology: str, chips: int, machine_type: str, part: str) -> Layout:
    try:
        shape = tpu.resolve(accelerator, topology, chips, machine_type)
    except tpu.ShapeError as error:
        raise LayoutError(str(error)) from error
    used = topology_in_use(shape.topology, part)
    return Layout(
        accelerator=accelerator,
        topology=used,
        pods=max(1, used.chips // chips),
        host_chips=shape.machine_type.chips,
    )
