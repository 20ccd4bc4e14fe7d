"""Raw JSON of pods, JobSets and nodes as API servers send it."""

from __future__ import annotations

from typing import Any


def job_reference(group_name: str, **changes: Any) -> dict[str, Any]:
    """Return the owner reference that the Job controller puts on the pods of a Job."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": group_name, "uid": f"uid-of-{group_name}"}
    return {**reference, "controller": True, **changes}


def raw_pod(name: str = "train-slice-0-0-abcde", *, namespace: str = "default", **changes: Any) -> dict[str, Any]:
    """Return an unschedulable leader pod; `changes` replace spec, status or parts of metadata."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": "train",
                "jobset.sigs.k8s.io/jobset-uid": "jobset-uid-1",
                "jobset.sigs.k8s.io/job-key": "a" * 40,
                "batch.kubernetes.io/job-completion-index": "0",
            },
            "ownerReferences": [job_reference("train-slice-0")],
        },
        "spec": {
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
                "cloud.google.com/gke-tpu-topology": "2x2x2",
            },
            "containers": [{"name": "main", "resources": {"requests": {"google.com/tpu": "4"}}}],
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available",
                    "lastTransitionTime": "2026-01-01T00:00:05Z",
                }
            ],
        },
    }
    metadata = changes.pop("metadata", {})
    pod["metadata"].update(metadata)
    pod.update(changes)
    return pod


def raw_jobset(name: str = "train", *, namespace: str = "default", **changes: Any) -> dict[str, Any]:
    """Return a JobSet of two slices."""
    jobset: dict[str, Any] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"},
        "spec": {
            "replicatedJobs": [
                {
                    "name": "slice",
                    "replicas": 2,
                    "template": {
                        "spec": {
                            "parallelism": 4,
                            "completions": 4,
                            "template": {
                                "spec": {
                                    "containers": [{"resources": {"limits": {"google.com/tpu": 4}}}],
                                }
                            },
                        }
                    },
                }
            ]
        },
    }
    jobset["metadata"].update(changes.pop("metadata", {}))
    jobset.update(changes)
    return jobset


def raw_node(name: str = "gke-c-p-1", *, pool: str = "train-pool", **changes: Any) -> dict[str, Any]:
    """Return a ready node of one of our pools."""
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "cloud.google.com/gke-nodepool": pool,
                "google.com/nodepool-manager": "tpu-provisioner",
            },
        },
        "spec": {"providerID": f"gce://project/zone/{name}"},
        "status": {
            "allocatable": {"google.com/tpu": "4", "cpu": "239830m", "memory": "405Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    node["metadata"].update(changes.pop("metadata", {}))
    node.update(changes)
    return node
