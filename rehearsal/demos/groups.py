"""Rehearsal of node groups: local control plane, controller, simulated Compute Engine, and the story of a demo.

Machines know only the facts about the cluster that the controller writes into their metadata. The story, as lines for
users and as times for a table, uses objects of the API server, the log of the controller, and the status of machines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import collection_path
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import GROUP, VERSION, Kind
from provisioner.nodegroups.bootstrap import tokens
from rehearsal import localcluster
from rehearsal.demos.story import WorkloadStory
from rehearsal.demos.world import ControllerProcess, RehearsedCluster, Times, read_records
from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator

API_ROOT = f"/apis/{GROUP}/{VERSION}"
#: ServiceAccount of the device plugin's DaemonSet. The account gets no rights, because no device plugin runs.
_PLUGIN_ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "tpu-device-plugin-sa", "namespace": "kube-system"},
}
#: Bindings of two existing roles, which machines need to join with their tokens.
_MACHINES = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"machines-{role.rpartition(':')[2]}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": tokens.GROUP}],
    }
    for role in ("system:node-bootstrapper", "kubeadm:get-nodes")
]


class GroupRehearsal(RehearsedCluster):
    """The local cluster with the CRDs of node groups, and the simulated Compute Engine."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        settings: ComputeSettings | None = None,
        progress: Callable[[str], None] = localcluster.log_progress,
    ) -> None:
        super().__init__(directory=directory, progress=progress)
        self.compute = ComputeSimulator(settings or ComputeSettings(machines_join=True))

    def start_rest(self) -> None:
        """Install the CRDs, and start the simulated Compute Engine."""
        folder = resources.files("provisioner.nodegroups.api") / "crds"
        definitions = "---\n".join(file.read_text(encoding="utf-8") for file in folder.iterdir())
        self.kubectl("apply", "--server-side", "--filename=-", stdin=definitions)
        named = [f"customresourcedefinition/{kind.plural}.{GROUP}" for kind in Kind]
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *named)
        for machine in (_PLUGIN_ACCOUNT, *_MACHINES):
            self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(machine))
        self.create_namespace(constants.DEFAULT_NAMESPACE)
        self.compute.start()

    def stop_rest(self) -> None:
        """Stop the simulated Compute Engine."""
        self.compute.stop()

    def controller(self, *, projects: Sequence[str], environment: Mapping[str, str] | None = None) -> ControllerProcess:
        """Create a controller process, not started yet, that may create resources in these projects."""
        return self.process(
            "nodegroups",
            environment={
                "GCP_PROJECT_ID": projects[0],
                "ALLOWED_PROJECTS": ",".join(projects),
                "GCE_ENDPOINT": self.compute.url,
                **(environment or {}),
            },
        )

    def left(self) -> list[str]:
        """Return the names of all objects and Compute Engine resources that exist because of node groups."""
        paths = [
            *((str(kind), f"{API_ROOT}/{kind.plural}", "") for kind in Kind),
            ("Node", collection_path("nodes"), ""),
            ("token", collection_path("secrets", namespace="kube-system"), names.GROUP_NAME),
        ]
        found = []
        for kind, path, label in paths:
            query = {"labelSelector": label} if label else {}
            found += [f"{kind} {raw['metadata']['name']}" for raw in self.objects(path, **query)]
        found += [f"{resource.collection} {resource.name}" for resource in self.compute.world.resources()]
        return found + [f"machine {machine.name}" for machine in self.compute.machines]


_KINDS = {
    "WorkloadPolicy": "workload policy",
    "InstanceTemplate": "instance template",
    "ManagedInstanceGroup": "managed instance group",
}
#: Line of the story for each log event, with kind and name of a resource in Compute Engine.
_WORDS = {
    "resource.create_accepted": "requests {kind} {name} from Compute Engine",
    "resource.delete_accepted": "deletes {kind} {name}",
    "resource.gone": "{kind} {name} is gone",
}
_DONE = {"CREATE": "{kind} {name} exists", "DELETE": "{kind} {name} is gone"}
_COUNTED = {
    "running": "machines run",
    "joined": "machines have joined the cluster",
    "shown": "nodes are ready and show their chips",
}


@dataclass(slots=True, kw_only=True)
class GroupTimes(Times):
    """Time at which a group first reached each step, in seconds of the story's clock."""

    machines: int = 0


class GroupStory(WorkloadStory):
    """Yields the changes of JobSets and node groups since the last `advance`."""

    def __init__(
        self,
        rehearsal: GroupRehearsal,
        controller: ControllerProcess,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(rehearsal)
        self._compute = rehearsal.compute
        self._controller = controller
        self._clock = clock
        self._offset = 0
        self._states: dict[str, str] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._equipped: set[str] = set()
        #: Times of the groups by namespace/name.
        self.groups: dict[str, GroupTimes] = {}

    @property
    def all_ready(self) -> bool:
        """Whether there are groups, and every group has been ready at some time."""
        return bool(self.groups) and all("ready" in times.entered for times in self.groups.values())

    def advance(self) -> Iterator[str]:
        """Check for changes; yield a line for each."""
        yield from self._log()
        yield from self._groups()
        yield from self.workloads()

    def _groups(self) -> Iterator[str]:
        states = {}
        for raw in self._rehearsal.objects(f"{API_ROOT}/tpunodegroups"):
            name = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
            times = self.groups.setdefault(name, GroupTimes(name=name))
            yield from self._count(times, raw.get("status", {}))
            if "deletionTimestamp" in raw["metadata"]:
                self._enter(times, "deleting")
            self._enter(times, "wanted")
            states[name] = _state(raw)
        for name in self._states.keys() - states.keys():
            if "gone" not in self.groups[name].entered:
                self._enter(self.groups[name], "gone")
                yield f"TPUNodeGroup {name} is gone"
        yield from self._changes(
            self._states, states, lambda name, state: f"TPUNodeGroup {name}: {state}" if state else None
        )

    def _count(self, times: GroupTimes, status: Mapping[str, Any]) -> Iterator[str]:
        wanted, machines = status.get("nodeCount", 0), status.get("machines", [])
        conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
        # Running machines are read from Compute Engine, because the controller lists machines less often.
        running = {machine.name for machine in self._compute.machines if machine.status == "RUNNING"}
        counts = {
            "running": sum(machine["name"] in running for machine in machines),
            "joined": sum(bool(machine.get("node")) for machine in machines),
            "shown": sum(machine["ready"] for machine in machines),
        }
        times.machines = max(times.machines, wanted)
        if wanted and len(machines) == wanted:
            self._enter(times, "made")
        for step, count in counts.items():
            if count > self._counts.get((times.name, step), 0):
                yield f"TPUNodeGroup {times.name}: {count} of {wanted} {_COUNTED[step]}"
            self._counts[times.name, step] = count
            if wanted and count == wanted:
                self._enter(times, step)
        if conditions.get("Ready") == "True":
            self._enter(times, "ready")

    def _enter(self, times: GroupTimes, step: str) -> None:
        times.enter(step, self._clock())

    def _log(self) -> Iterator[str]:
        records, self._offset = read_records(self._controller.log, self._offset)
        for record in records:
            line = self._line(record)
            if line:
                yield line

    def _line(self, record: Mapping[str, Any]) -> str:
        event = str(record.get("event", ""))
        words = _DONE.get(str(record.get("type")), "") if event == "operation.done" else _WORDS.get(event, "")
        if words:
            name = str(record["resource"]).rpartition(" ")[2]
            return words.format(kind=_KINDS.get(str(record["object"]), record["object"]), name=name)
        if event == "machine.metadata_set":
            return self._metadata(str(record["machine"]))
        if event == "node_group.notice":
            words = str(record["message"]).removeprefix(f"{event}: ")
            return f"on {record['kind']} {record['namespace']}/{record['name']}: {words}"
        if record.get("severity") in ("ERROR", "CRITICAL"):
            return f"controller: {event}: {record.get('problem') or record.get('exception', '')}"
        return ""

    def _metadata(self, machine: str) -> str:
        name = machine.rpartition("/")[2]
        if machine in self._equipped:
            return ""
        self._equipped.add(machine)
        return f"machine {name} gets a token of its own, to join with"


def _state(raw: Mapping[str, Any]) -> str:
    conditions = raw.get("status", {}).get("conditions", [])
    ready: Mapping[str, Any] = next((condition for condition in conditions if condition["type"] == "Ready"), {})
    reason = str(ready.get("reason", ""))
    # The message of a delete is shown, because it names the resource for which the delete waits.
    return f"{reason}: {ready['message']}" if reason.startswith("Deleting") and ready.get("message") else reason
