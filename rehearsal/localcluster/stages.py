"""Configuration of kwok, which simulates all kubelets of the local cluster: its changes to nodes and pods.

kwok ignores a node whose annotation says that it has its own kubelet, but not the pods of that node. kwok sets
conditions, and never a node's capacity, allocatable resources, labels, taints or provider ID: those belong to the
client that registered the node. A node without capacity remains without. Pods have no containers: a pod of a Job runs
for the time in its annotations and then succeeds or fails, even if its restart policy would have a kubelet restart it.
Any change of a running pod restarts that time.
"""

from __future__ import annotations

from typing import Any

#: Pod annotation: time that a pod of a Job runs before it succeeds, as a Go duration such as 1m30s.
RUN_FOR = "rehearsal.tpu-provisioner.cloud.google.com/run-for"

#: Pod annotation: time after which a pod of a Job fails with exit code 1; overrides RUN_FOR.
FAIL_AFTER = "rehearsal.tpu-provisioner.cloud.google.com/fail-after"

#: Node annotation, of any value: another program reports the node's state.
OWN_KUBELET = "rehearsal.tpu-provisioner.cloud.google.com/own-kubelet"

DEFAULT_RUN_SECONDS = 10

# Interval between heartbeats of a node, without and with jitter: well below the 50 s after which the node lifecycle
# controller treats a node as dead.
_HEARTBEAT_MILLISECONDS = (20_000, 25_000)
_PARALLELISM = 16
_POD_NETWORK = "10.64.0.0/12"
_NODE_ADDRESS = "192.0.2.1"  # reserved for documentation: no host has it

_NODE_READY = """\
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
{{ end }}
{{ if not .status.addresses }}
addresses:
- type: InternalIP
  address: {{ NodeIP | Quote }}
- type: Hostname
  address: {{ NodeName | Quote }}
{{ end }}
{{ if not .status.nodeInfo.kubeletVersion }}
nodeInfo:
  architecture: amd64
  operatingSystem: linux
  osImage: none
  kernelVersion: none
  containerRuntimeVersion: none
  kubeletVersion: {{ printf "kwok-%s" Version | Quote }}
{{ end }}
"""

# The patch is merged by type: status and transition time of a condition are kept.
_NODE_HEARTBEAT = """\
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
{{ end }}
"""

_POD_RUNNING = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
conditions:
{{ range $type := list "Initialized" "ContainersReady" "Ready" }}
- type: {{ $type }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
{{ range .spec.readinessGates }}
- type: {{ .conditionType | Quote }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""


# Filled in with the operator %, because kwok interprets all kinds of braces.
_POD_ENDED = """\
{{ $now := Now }}
{{ $start := or .status.startTime $now }}
phase: %(phase)s
conditions:
{{ range $type := list "ContainersReady" "Ready" }}
- type: {{ $type }}
  status: "False"
  reason: Pod%(phase)s
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state:
    terminated:
      exitCode: %(exit_code)d
      reason: %(reason)s
      startedAt: {{ $start | Quote }}
      finishedAt: {{ $now | Quote }}
{{ end }}
"""


def _where(key: str, operator: str, *values: str) -> dict[str, Any]:
    expression: dict[str, Any] = {"key": key, "operator": operator}
    return {"jq": expression | ({"values": list(values)} if values else {})}


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


def _stage(
    name: str,
    kind: str,
    *,
    where: list[dict[str, Any]],
    status: str | None = None,
    delay: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a stage that sets the status of an object or, without a status, deletes it."""
    step: dict[str, Any] = {"delete": True}
    if status is not None:
        step = {"patch": {"subresource": "status", "root": "status", "template": status}}
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": where},
        "steps": [step],
    }
    if delay is not None:
        spec["delay"] = delay
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": spec,
    }


def _delay_from(annotation: str, *, default_seconds: int) -> dict[str, Any]:
    return {
        "durationMilliseconds": default_seconds * 1000,
        "durationFrom": {"jq": {"expression": _annotation(annotation)}},
    }


def kwok_configuration() -> list[dict[str, Any]]:
    """Return the documents of kwok's configuration file."""
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    played = _where(_annotation(OWN_KUBELET), "DoesNotExist")
    living = _where(".metadata.deletionTimestamp", "DoesNotExist")
    of_a_job = _where(".metadata.ownerReferences.[].kind", "In", "Job")
    running = _where(".status.phase", "In", "Running")
    options = {
        "manageAllNodes": True,
        "cidr": _POD_NETWORK,
        "nodeIP": _NODE_ADDRESS,
        # No leases: kwok never handles a pod if its own view of the node's lease is older than the pod, and a restarted
        # kwok waits until its predecessor's leases expire.
        "nodeLeaseDurationSeconds": 0,
        # kwok uses its defaults only if there are no stages; with zero it exits or handles nothing.
        "nodeLeaseParallelism": _PARALLELISM,
        "nodePlayStageParallelism": _PARALLELISM,
        "podPlayStageParallelism": _PARALLELISM,
        "podsOnNodeSyncParallelism": 4,
        # kwok with a stream instead of lists was once seen to miss a pod that was bound right after its node was
        # created.
        "enablePodsOnNodeSyncListPager": True,
        "enablePodsOnNodeSyncStreamWatch": False,
    }
    return [
        {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "metadata": {"name": "localcluster"},
            "options": options,
        },
        _stage(
            "node-ready",
            "Node",
            where=[played, _where(ready, "NotIn", "True")],
            status=_NODE_READY,
        ),
        _stage(
            "node-heartbeat",
            "Node",
            where=[played, _where(ready, "In", "True")],
            status=_NODE_HEARTBEAT,
            delay={
                "durationMilliseconds": _HEARTBEAT_MILLISECONDS[0],
                # Nodes of a pool are created together; the jitter spreads their heartbeats.
                "jitterDurationMilliseconds": _HEARTBEAT_MILLISECONDS[1],
            },
        ),
        _stage(
            "pod-running",
            "Pod",
            where=[living, _where(".status.phase", "In", "Pending"), _where(ready, "NotIn", "True")],
            status=_POD_RUNNING,
        ),
        _stage(
            "pod-succeeded",
            "Pod",
            where=[living, running, of_a_job, _where(_annotation(FAIL_AFTER), "DoesNotExist")],
            status=_POD_ENDED % {"phase": "Succeeded", "exit_code": 0, "reason": "Completed"},
            delay=_delay_from(RUN_FOR, default_seconds=DEFAULT_RUN_SECONDS),
        ),
        _stage(
            "pod-failed",
            "Pod",
            where=[living, running, of_a_job, _where(_annotation(FAIL_AFTER), "Exists")],
            status=_POD_ENDED % {"phase": "Failed", "exit_code": 1, "reason": "Error"},
            delay=_delay_from(FAIL_AFTER, default_seconds=DEFAULT_RUN_SECONDS),
        ),
        # kwok deletes by name, and its own delete changes the pod again (to grace period 0). Without the second
        # condition, the stage ran again for that change and deleted the next pod of a StatefulSet, which has the same
        # name.
        _stage(
            "pod-deleted",
            "Pod",
            where=[
                _where(".metadata.deletionTimestamp", "Exists"),
                _where(".metadata.deletionGracePeriodSeconds | tostring", "NotIn", "0"),
            ],
        ),
    ]
