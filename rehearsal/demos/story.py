"""The story of a rehearsal: lines for users about each change, and times for a table.

The story uses only objects of the API server and the log of the provisioner, as users can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from provisioner import constants
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads import JOBSET
from provisioner.workloads.capacity_requests import PROVISIONING_REQUEST
from rehearsal.demos.world import ProvisionerProcess, Rehearsal, RehearsedCluster, Times, read_records

#: Line of the story for each phase of a pool. Changes to other phases are not shown.
_PHASE_WORDS = {
    "creating": "requests node pool {node_pool} from GKE: {nodes} of {machine_type}, {chips} chips, for slice {slice}",
    "provisioning": "node pool {node_pool}: GKE creates it",
    "ready": "node pool {node_pool} is ready, {nodes} nodes",
    "in_use": "slice {slice} runs on node pool {node_pool}",
    "idle": "node pool {node_pool} is not needed any more",
    "deleting": "deleting node pool {node_pool}",
    "failed": "node pool {node_pool} failed: {note}",
    "gone": "node pool {node_pool} is gone",
}
#: Webhook of JobSet whose rejections look like failures in the Events of Jobs, and the text that explains them.
_JOBSET_WEBHOOK = "vpod.kb.io"
_REJECTION_IS_NORMAL = (
    "JobSet creates the other pods of a slice when the leader pod has a node; until then, Events of the Jobs contain "
    f'`admission webhook "{_JOBSET_WEBHOOK}" denied the request`, which is no failure'
)
#: Changes of the phase that are not shown. A pool is ready again between the end of its pods and of its JobSet, and a
#: pool whose create failed never existed.
_NOT_SHOWN = {("in_use", "ready"), ("wanted", "gone"), ("blocked", "gone"), ("creating", "gone")}


@dataclass(slots=True, kw_only=True)
class PoolTimes(Times):
    """Time at which a pool first entered each phase, in seconds since the epoch."""

    chips: int = 0
    shape: str = ""
    jobs: list[str] = field(default_factory=list)


class WorkloadStory:
    """Yields the changes of JobSets and their leader pods since the last `workloads`."""

    def __init__(self, rehearsal: RehearsedCluster) -> None:
        self._rehearsal = rehearsal
        self._jobset_states: dict[str, str] = {}
        self._pod_states: dict[str, str] = {}
        self._rejection_explained = False

    @property
    def unfinished(self) -> list[str]:
        """Names of the JobSets that have not ended."""
        return [name for name, state in self._jobset_states.items() if state not in ("Completed", "Failed", "deleted")]

    @property
    def all_ended(self) -> bool:
        """Whether there are JobSets, and all have ended."""
        return bool(self._jobset_states) and not self.unfinished

    @property
    def failed(self) -> list[str]:
        """Names of the JobSets that failed."""
        return [name for name, state in self._jobset_states.items() if state == "Failed"]

    @property
    def completed(self) -> list[str]:
        """Names of the JobSets that completed."""
        return [name for name, state in self._jobset_states.items() if state == "Completed"]

    def workloads(self) -> Iterator[str]:
        """Check for changes; yield a line for each."""
        yield from self._jobsets()
        yield from self._pods()
        yield from self._rejections()

    def _changes(
        self, known: dict[str, str], now: Mapping[str, str], line: Callable[[str, str], str | None]
    ) -> Iterator[str]:
        for name, state in now.items():
            if known.get(name) != state:
                known[name] = state
                text = line(name, state)
                if text is not None:
                    yield text
        for name in known.keys() - now.keys():
            known[name] = "deleted"

    def _jobsets(self) -> Iterator[str]:
        states = {}
        for raw in self._rehearsal.objects(f"{JOBSET.root}/jobsets"):
            metadata, status = raw["metadata"], raw.get("status", {})
            state = status.get("terminalState") or ("suspended" if raw["spec"].get("suspend") else "created")
            states[f"{metadata['namespace']}/{metadata['name']}"] = state
        yield from self._changes(self._jobset_states, states, lambda name, state: f"JobSet {name}: {state.lower()}")

    def _pods(self) -> Iterator[str]:
        states = {}
        for raw in self._rehearsal.objects("/api/v1/pods", labelSelector=constants.JOBSET_NAME):
            metadata = raw["metadata"]
            if metadata["labels"].get(constants.COMPLETION_INDEX) == "0":
                states[f"{metadata['namespace']}/{metadata['name']}"] = _pod_state(raw)
        yield from self._changes(self._pod_states, states, _pod_line)

    def _rejections(self) -> Iterator[str]:
        """Yield the explanation of JobSet's rejections once, when an Event reports the first one."""
        if self._rejection_explained:
            return
        events = self._rehearsal.objects("/api/v1/events", fieldSelector="reason=FailedCreate")
        if any(_JOBSET_WEBHOOK in str(event.get("message")) for event in events):
            self._rejection_explained = True
            yield _REJECTION_IS_NORMAL


class Story(WorkloadStory):
    """Yields the changes of JobSets and node pools since the last `advance`."""

    def __init__(self, rehearsal: Rehearsal, provisioner: ProvisionerProcess, *, requests: bool = False) -> None:
        super().__init__(rehearsal)
        self._with_requests = requests
        self._requests: dict[str, str] = {}
        self._provisioner = provisioner
        self._offset = 0
        self._ready_nodes: dict[str, int] = {}
        #: Number of hosts of each node pool, as text.
        self._hosts: dict[str, str] = {}
        self.pools: dict[str, PoolTimes] = {}
        #: Notices of the provisioner about requests that only the user can correct.
        self.invalid: list[str] = []

    def advance(self) -> Iterator[str]:
        """Check for changes; yield a line for each."""
        yield from self.workloads()
        if self._with_requests:
            yield from self._of_requests()
        yield from self._log()
        yield from self._nodes()

    def _of_requests(self) -> Iterator[str]:
        """Yield the message of the last condition of each ProvisioningRequest whenever it changes."""
        states = {}
        for raw in self._rehearsal.objects(f"{PROVISIONING_REQUEST.root}/provisioningrequests"):
            name = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
            states[name] = str((raw.get("status", {}).get("conditions") or [{}])[-1].get("message", "created"))
        yield from self._changes(self._requests, states, lambda name, state: f"ProvisioningRequest {name}: {state}")

    def _nodes(self) -> Iterator[str]:
        ready: dict[str, int] = {}
        selector = f"{constants.NODEPOOL_MANAGER}={constants.MANAGER}"
        for raw in self._rehearsal.objects("/api/v1/nodes", labelSelector=selector):
            pool = raw["metadata"]["labels"].get(constants.NODE_POOL, "")
            ready[pool] = ready.get(pool, 0) + is_ready(raw)
        for pool, count in ready.items():
            if count > self._ready_nodes.get(pool, 0):
                yield f"node pool {pool}: {count} of {self._hosts.get(pool, 'its')} nodes ready"
        self._ready_nodes = ready

    def _log(self) -> Iterator[str]:
        records, self._offset = read_records(self._provisioner.log, self._offset)
        for record in records:
            if record.get("event") == "node_pool.phase_changed":
                yield from self._phase(record)
            elif record.get("event") == "slice.notice":
                words = str(record["message"]).removeprefix("slice.notice: ")
                if record.get("reason") == EventReason.INVALID_REQUEST:
                    self.invalid.append(f"{record['namespace']}/{record['name']}: {words}")
                yield f"on {record['kind']} {record['namespace']}/{record['name']}: {words}"
            elif record.get("severity") in ("ERROR", "CRITICAL"):
                yield f"provisioner: {record.get('event')}: {record.get('problem') or record.get('exception', '')}"

    def _phase(self, record: Mapping[str, Any]) -> Iterator[str]:
        name, new = str(record["node_pool"]), str(record["new"])
        times = self.pools.setdefault(name, PoolTimes(name=name))
        times.enter(new, datetime.fromisoformat(record["time"]).timestamp())
        if record.get("chips"):
            times.chips = record["chips"]
            times.shape = f"{record['machine_type']} {record['topology']}"
        # `slice` is missing or null for a pool without a slice. The last part of a slice's id is the name of its Job.
        job = str(record.get("slice") or "of no workload").rpartition("/")[2]
        if new == "in_use" and job not in times.jobs:
            times.jobs.append(job)
        hosts = self._hosts[name] = str(record.get("nodes", "")).rpartition("/")[2]
        words = _PHASE_WORDS.get(new)
        if words is not None and (record.get("old"), new) not in _NOT_SHOWN:
            known = {"machine_type": "", "chips": "", "note": "no reason is given"}
            yield words.format(**{**known, **record, "slice": job, "nodes": hosts})


def _pod_state(raw: Mapping[str, Any]) -> str:
    phase = str(raw.get("status", {}).get("phase", ""))
    if phase != "Pending":
        return phase
    for condition in raw["status"].get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "unschedulable"
    return "scheduled" if raw["spec"].get("nodeName") else "pending"


def _pod_line(name: str, state: str) -> str | None:
    words = {
        "unschedulable": "cannot be scheduled",
        "Running": "runs",
        "Succeeded": "has succeeded",
        "Failed": "has failed",
    }
    return f"leader pod {name} {words[state]}" if state in words else None


def is_ready(raw: Mapping[str, Any]) -> bool:
    """Return whether an object's condition Ready is True."""
    conditions = raw.get("status", {}).get("conditions", ())
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
