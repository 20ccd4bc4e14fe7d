"""Base of measurements on a real control plane: a rehearsal, JobSets of one slice, and waits for conditions."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provisioner import constants
from provisioner.workloads import JOBSET
from rehearsal.demos.world import LOCATION, PROJECT, ProvisionerProcess, Rehearsal, wait_for
from rehearsal.localcluster import RUN_FOR

NAMESPACE = "default"
_JOBSETS = f"{JOBSET.root}/namespaces/{NAMESPACE}/jobsets"
_HOSTS = 2


def jobset(name: str, *, run_for: str) -> dict[str, Any]:
    """Return a JobSet of one v4 slice, 2x2x2: two pods of four chips."""
    resources = {"requests": {"google.com/tpu": 4}, "limits": {"google.com/tpu": 4}}
    pod = {
        "metadata": {"annotations": {RUN_FOR: run_for}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {constants.TPU_ACCELERATOR: "tpu-v4-podslice", constants.TPU_TOPOLOGY: "2x2x2"},
            "containers": [{"name": "train", "image": "train", "resources": resources}],
        },
    }
    job = {"parallelism": _HOSTS, "completions": _HOSTS, "backoffLimit": 0, "template": pod}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": constants.NODE_POOL},
        },
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job}}]},
    }


@dataclass(frozen=True, slots=True)
class World:
    """A rehearsal with one provisioner."""

    rehearsal: Rehearsal
    provisioner: ProvisionerProcess

    def create(self, *names: str, run_for: str) -> datetime:
        """Create JobSets one after the other; return the time of the first request."""
        started = now()
        for name in names:
            self.rehearsal.api.post(_JOBSETS, jobset(name, run_for=run_for))
        return started

    def jobsets(self) -> list[dict[str, Any]]:
        """List the JobSets."""
        return self.rehearsal.objects(_JOBSETS)

    def running_pods(self) -> int:
        """Count the pods that run or ran."""
        pods = self.rehearsal.objects("/api/v1/pods", labelSelector=constants.JOBSET_NAME)
        return sum(pod["status"].get("phase") in ("Running", "Succeeded") for pod in pods)

    def unschedulable_since(self) -> list[datetime]:
        """Return the times at which the scheduler first found no node for each leader pod, rounded down to seconds."""
        leaders = self.rehearsal.objects("/api/v1/pods", labelSelector=f"{constants.COMPLETION_INDEX}=0")
        conditions = [condition for pod in leaders for condition in pod["status"].get("conditions", ())]
        return [
            datetime.fromisoformat(condition["lastTransitionTime"])
            for condition in conditions
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        ]

    def await_running(self, jobsets: int, timeout_seconds: float) -> datetime:
        """Wait until all pods of `jobsets` JobSets run; return the time."""
        self.wait(lambda: self.running_pods() >= jobsets * _HOSTS, "all pods run", timeout_seconds)
        return now()

    def await_completed(self, timeout_seconds: float) -> datetime:
        """Wait until all JobSets have completed; return the time."""
        self.wait(
            lambda: all(raw.get("status", {}).get("terminalState") == "Completed" for raw in self.jobsets()),
            "all JobSets complete",
            timeout_seconds,
        )
        return now()

    def await_empty(self, timeout_seconds: float = 120.0) -> None:
        """Wait until no pool and no node is left."""
        self.wait(
            lambda: not self.rehearsal.gke.pools and not self.rehearsal.objects("/api/v1/nodes"),
            "nothing is left",
            timeout_seconds,
        )

    def clear(self) -> None:
        """Delete all JobSets and wait until nothing is left."""
        self.rehearsal.api.delete(_JOBSETS)
        self.wait(lambda: not self.jobsets(), "the JobSets are gone", 60.0)
        self.await_empty()

    def wait(self, condition: Any, what: str, timeout_seconds: float) -> None:
        """Wait with short intervals, so that polling does not blur the measurement."""
        wait_for(condition, what, timeout_seconds, self.provisioner.tail, longest_poll_seconds=0.1)

    def calls(self, method: str) -> list[datetime]:
        """Return the times of the calls of a method of GKE."""
        return [call.when for call in self.rehearsal.gke.calls if call.method == method]

    def create_operations(self) -> list[tuple[datetime, datetime]]:
        """Return the start and the end of each create operation, as GKE reports them."""
        address = f"{self.rehearsal.gke.url}/v1/projects/{PROJECT}/locations/{LOCATION}/operations"
        with urllib.request.urlopen(address, timeout=10) as answer:
            operations = json.load(answer)["operations"]
        return [
            (datetime.fromisoformat(operation["startTime"]), datetime.fromisoformat(operation["endTime"]))
            for operation in operations
            if operation["operationType"] == "CREATE_NODE_POOL" and operation.get("endTime")
        ]

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Return the provisioner's resident memory, or its peak (VmHWM), in MiB, as Linux counts it."""
        status = Path(f"/proc/{self.provisioner.pid}/status").read_text(encoding="utf-8")
        return next(float(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024

    def total_calls(self) -> int:
        """Count the calls to GKE since the last reset."""
        return len(self.rehearsal.gke.calls)


@contextmanager
def world(**environment: str) -> Iterator[World]:
    """Start a rehearsal with one provisioner."""
    with Rehearsal(progress=lambda _: None) as rehearsal:
        provisioner = rehearsal.provisioner(environment=environment)
        provisioner.start()
        yield World(rehearsal, provisioner)


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def pause(seconds: float) -> None:
    """Sleep for a time that is itself part of the measurement."""
    time.sleep(seconds)
