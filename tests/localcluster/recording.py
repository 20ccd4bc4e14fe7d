"""What becomes of the pods of a LeaderWorkerSet, told in words that are the same in every run.

A story is a list of steps such as "pod serve-1#2 created by statefulset serve#1". #2 is the second object of that kind
and name since the recording began. Steps of different objects may come in another order in the next run; those of one
object, its history, may not.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable
from typing import Any

import requests

from tests.support.localcluster import Kube

KINDS = {"LeaderWorkerSet": "lws", "StatefulSet": "statefulset", "Pod": "pod"}
POOL = "cloud.google.com/gke-nodepool"
_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"


def path_of(kind: str, namespace: str) -> str:
    """Return the path of a collection."""
    return {
        "LeaderWorkerSet": f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets",
        "StatefulSet": f"/apis/apps/v1/namespaces/{namespace}/statefulsets",
        "Pod": f"/api/v1/namespaces/{namespace}/pods",
    }[kind]


class Recorder:
    """Watches the LeaderWorkerSets, StatefulSets and pods of a namespace from when it is made."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._events: list[dict[str, Any]] = []
        #: The pool that each group was first seen on; groups keep it over recordings by the caller's hand.
        self.pools: dict[str, str] = {}
        self._before: dict[str, dict[str, Any]] = {}
        self._watches: list[tuple[threading.Thread, requests.Response]] = []
        for kind in KINDS:
            path = path_of(kind, namespace)
            found = kube.get(path)
            for item in found["items"]:
                self._before[item["metadata"]["uid"]] = item | {"kind": kind}
            version = found["metadata"]["resourceVersion"]
            answer = kube.watch(f"{path}?watch=1&resourceVersion={version}")
            thread = threading.Thread(target=self._read, args=(answer,), daemon=True)
            thread.start()
            self._watches.append((thread, answer))

    def _read(self, answer: requests.Response) -> None:
        # It ends with an error when close() shuts the connection down.
        with answer, contextlib.suppress(requests.RequestException):
            for line in answer.iter_lines(chunk_size=None):
                self._events.append(json.loads(line))

    def close(self) -> None:
        """Stop watching."""
        for thread, answer in self._watches:
            # Closing the answer would wait for the thread that reads it.
            answer.raw.connection.sock.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)

    def story(self) -> list[str]:
        """Return what has happened, in the order in which the API server did it."""
        names: dict[str, str] = {}
        counts: dict[tuple[str, str], int] = {}
        told: dict[str, list[str]] = {}

        def named(item: dict[str, Any]) -> str:
            uid, name = item["metadata"]["uid"], item["metadata"]["name"]
            if uid not in names:
                kind = KINDS[item["kind"]]
                counts[kind, name] = counts.get((kind, name), 0) + 1
                names[uid] = f"{kind} {name}#{counts[kind, name]}"
            return names[uid]

        before = {named(item): item for item in self._before.values()}
        told |= {name: self._facts(item, names) for name, item in before.items()}
        steps: list[str] = []
        # Resource versions are etcd's revisions: one order over all kinds.
        for event in sorted(self._events, key=lambda event: int(event["object"]["metadata"]["resourceVersion"])):
            name = named(event["object"])
            facts = self._facts(event["object"], names) if event["type"] != "DELETED" else ["gone"]
            steps += [f"{name} {fact}" for fact in facts if fact not in told.get(name, [])]
            told.setdefault(name, []).extend(facts)
        return steps

    def _facts(self, item: dict[str, Any], names: dict[str, str]) -> list[str]:
        metadata, spec, status = item["metadata"], item["spec"], item.get("status", {})
        owners = [names.get(one["uid"], "somebody else") for one in metadata.get("ownerReferences", [])]
        facts = [f"created by {owners[0]}" if owners else "created"]
        if item["kind"] != "Pod":
            facts.append(f"asks for {spec['replicas']}")
        else:
            conditions = {one["type"]: one for one in status.get("conditions", [])}
            if conditions.get("PodScheduled", {}).get("reason") == "Unschedulable":
                facts.append("unschedulable")
            if "nodeName" in spec:
                pool = spec["nodeName"].rpartition("-")[0]
                same = self.pools.setdefault(metadata["labels"][_GROUP_INDEX], pool) == pool
                facts.append("bound to its group's pool" if same else "bound to another pool")
            if status.get("phase") == "Running":
                facts.append("running")
        if "deletionTimestamp" in metadata:
            waits = "foregroundDeletion" in metadata.get("finalizers", [])
            facts.append("deleting after what it owns" if waits else "deleting")
        return facts


def histories(story: Iterable[str]) -> dict[str, list[str]]:
    """Return the steps of each object."""
    found: dict[str, list[str]] = {}
    for step in story:
        kind, name, what = step.split(" ", 2)
        found.setdefault(f"{kind} {name}", []).append(what)
    return found


def literal(items: Iterable[dict[str, Any]], *, pools: dict[str, str]) -> list[dict[str, Any]]:
    """Return objects without what differs between two runs: UIDs get names, pools those of their groups."""
    text = json.dumps([_trimmed(item) for item in items])
    for item in items:
        metadata = item["metadata"]
        text = text.replace(metadata["uid"], f"uid-of-{KINDS[item['kind']]}-{metadata['name']}")
    for group, pool in pools.items():
        for node in (f"{pool}-0", f"{pool}-1"):
            text = text.replace(f'"{node}"', f'"a-node-of-group-{group}"')
        text = text.replace(f'"{POOL}": "{pool}"', f'"{POOL}": "pool-of-group-{group}"')
    found: list[dict[str, Any]] = json.loads(text)
    return found


def _trimmed(item: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(item))
    for key in ("managedFields", "resourceVersion", "creationTimestamp", "generation"):
        kept["metadata"].pop(key, None)
    if item["kind"] == "Pod":
        # Random names, and what the API server gives every pod.
        for key in ("volumes", "enableServiceLinks", "preemptionPolicy", "priority", "securityContext"):
            kept["spec"].pop(key, None)
        for container in kept["spec"]["containers"]:
            container.pop("volumeMounts", None)
        kept["status"] = {
            "phase": item["status"]["phase"],
            "conditions": [
                {"type": one["type"], "status": one["status"]}
                for one in sorted(item["status"]["conditions"], key=lambda one: str(one["type"]))
            ],
        }
    elif item["kind"] == "LeaderWorkerSet":
        for one in kept["status"]["conditions"]:
            del one["lastTransitionTime"]
    return kept
