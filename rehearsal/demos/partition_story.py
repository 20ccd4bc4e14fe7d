"""What happens to pods with IPUs in a rehearsal, as lines for people and as times for a table.

It sees what any user could see: the API server's objects and what the V-IPU server lists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.kube.protocol import collection_path
from provisioner.partitions import names
from rehearsal.demos.partitions import PartitionRehearsal
from rehearsal.demos.times import Times

_ENDED = {"Succeeded": "has succeeded", "Failed": "has failed"}


@dataclass(slots=True, kw_only=True)
class PodTimes(Times):
    """When one pod got how far for the first time, in seconds of the story's clock."""

    ipus: str
    partition: str = ""


class PartitionStory:
    """Tells what has changed of pods and partitions, each time it is asked."""

    def __init__(self, rehearsal: PartitionRehearsal, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rehearsal = rehearsal
        self._clock = clock
        self._listed: dict[str, str] = {}
        self._waits: set[tuple[str, str]] = set()
        #: By UID.
        self.pods: dict[str, PodTimes] = {}
        #: Pods whose configuration was handed over, by UID.
        self._served: set[str] = set()
        self.failed: list[str] = []

    @property
    def unfinished(self) -> list[str]:
        """Name the pods that have not ended."""
        return [each.name for each in self.pods.values() if "ended" not in each.entered]

    def advance(self) -> Iterator[str]:
        """Look again; yield a line for each thing that has changed."""
        # Partitions first: a pod that runs has had its own before.
        listed = {each.id: each.state for each in self._rehearsal.vipu.partitions}
        for raw in self._rehearsal.objects(collection_path("pods"), labelSelector=names.POD_LABEL):
            yield from self._pod(raw)
        by_partition = {each.partition: each for each in self.pods.values() if each.partition}
        for partition_id, state in listed.items():
            if self._listed.get(partition_id) != state:
                yield f"partition {partition_id}: {state}"
        for partition_id in self._listed.keys() - listed.keys():
            yield f"partition {partition_id} is removed"
            if partition_id in by_partition:
                self._enter(by_partition[partition_id], "released")
        self._listed = listed
        yield from self._events()

    def _pod(self, raw: Mapping[str, Any]) -> Iterator[str]:
        metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
        title = f"pod {metadata['namespace']}/{metadata['name']}"
        times = self.pods.get(metadata["uid"])
        if times is None:
            asked = metadata["annotations"].get(names.IPUS, "?")
            times = self.pods[metadata["uid"]] = PodTimes(
                name=f"{metadata['namespace']}/{metadata['name']}", ipus=asked
            )
            self._enter(times, "created")
            yield f"{title} asks for {asked} IPUs, and is held back from the scheduler"
        gates = {gate["name"] for gate in spec.get("schedulingGates") or []}
        if names.SCHEDULING_GATE not in gates and self._enter(times, "opened"):
            times.partition = metadata["annotations"][names.PARTITION_ID]
            nodes = ", ".join(f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items())
            yield f"{title} is let to the scheduler with partition {times.partition}, for nodes with {nodes}"
        if status.get("phase") == "Running" and self._enter(times, "running"):
            yield f"{title} runs on {spec.get('nodeName')}"
        if metadata["uid"] not in self._served and spec.get("nodeName"):
            self._served.add(metadata["uid"])
            if status.get("phase") not in _ENDED:
                configuration = self._rehearsal.configuration_of(raw)
                self._enter(times, "configured")
                yield f"{title} has its IPUoF configuration, {len(configuration)} characters"
        phase = status.get("phase")
        if phase in _ENDED and self._enter(times, "ended"):
            yield f"{title} {_ENDED[phase]}"
            if phase == "Failed":
                self.failed.append(times.name)

    def _events(self) -> Iterator[str]:
        """Tell why pods wait, each reason once."""
        query = {"fieldSelector": "reason=PartitionWaiting"}
        for raw in self._rehearsal.objects(collection_path("events", root="/apis/events.k8s.io/v1"), **query):
            about, note = raw.get("regarding", {}), raw.get("note", "")
            if about.get("uid") in self.pods and (about["uid"], note) not in self._waits:
                self._waits.add((about["uid"], note))
                yield f"pod {about['namespace']}/{about['name']} waits: {note}"

    def _enter(self, times: PodTimes, step: str) -> bool:
        return times.enter(step, self._clock())
