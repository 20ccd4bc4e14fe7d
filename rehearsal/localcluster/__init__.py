"""A real Kubernetes control plane on this machine for rehearsals, demos and end-to-end tests, without Docker.

    from rehearsal import localcluster

    with localcluster.start() as cluster:
        ...  # use cluster.kubeconfig

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, the JobSet controller and, on request, the
LeaderWorkerSet controller, Kueue and KubeRay are the real programs, built once from pinned sources. kwok simulates the
kubelets: a registered Node without OWN_KUBELET becomes ready, and its pods run for the time in their annotations.
Machines can join as with kubeadm. No container ever runs, and the cluster cannot be reached from other machines.
"""

from rehearsal.localcluster.binaries import Binaries, Progress, log_progress, resolve_binaries
from rehearsal.localcluster.cluster import LocalCluster, start
from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.operators import JOBSET, KUBERAY, KUEUE, LWS, Operator

#: Pod annotation: time that a pod of a Job runs before it succeeds, as a Go duration such as 1m30s. kwok.yaml reads it.
RUN_FOR = "rehearsal.tpu-provisioner.cloud.google.com/run-for"
#: Pod annotation: time after which a pod of a Job fails with exit code 1; overrides RUN_FOR.
FAIL_AFTER = "rehearsal.tpu-provisioner.cloud.google.com/fail-after"
#: Node annotation with any value: another program than kwok reports the state of the node.
OWN_KUBELET = "rehearsal.tpu-provisioner.cloud.google.com/own-kubelet"

__all__ = [
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
