"""A real Kubernetes control plane on this machine, without Docker: for rehearsals, demos and end-to-end tests.

    from rehearsal import localcluster

    with localcluster.start() as cluster:
        ...  # use cluster.kubeconfig

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, the JobSet controller and, on request, the
LeaderWorkerSet controller, Kueue and KubeRay are the real programs, built once from pinned sources. kwok simulates the
kubelets: every registered Node becomes ready, and its pods run for the time in their annotations. Machines can join the
cluster as they join a cluster of kubeadm. No container ever runs, and nothing is reachable from other machines.
"""

from rehearsal.localcluster.binaries import Binaries, Progress, log_progress, resolve_binaries
from rehearsal.localcluster.cluster import LocalCluster, start
from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.operators import JOBSET, KUBERAY, KUEUE, LWS, Operator
from rehearsal.localcluster.stages import DEFAULT_RUN_SECONDS, FAIL_AFTER, OWN_KUBELET, RUN_FOR

__all__ = [
    "DEFAULT_RUN_SECONDS",
    "FAIL_AFTER",
    "JOBSET",
    "KUBERAY",
    "KUEUE",
    "LWS",
    "OWN_KUBELET",
    "RUN_FOR",
    "Binaries",
    "LocalCluster",
    "LocalClusterError",
    "Operator",
    "Progress",
    "log_progress",
    "resolve_binaries",
    "start",
]
