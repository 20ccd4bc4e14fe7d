"""Node group objects with any value in any field: no object prevents an honest group from being processed.

Each field of objects that the controller reads is replaced by values of wrong types, of absurd sizes and with odd
characters. The result is parsed and decided on together with an honest group, whose planned writes must not change.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from provisioner.kube.fields import MalformedObject
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.types import InstanceTemplate, Kind, ManagedInstanceGroup, TpuNodeGroup, WorkloadPolicy
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.planning.decide import Plan, decide
from provisioner.nodegroups.planning.memory import Memory
from provisioner.nodegroups.planning.round import Cluster, PlanningSettings, Snapshot
from provisioner.nodegroups.reading import parse_device_plugin, parse_node, parse_pod
from tests.support.clock import NOW
from tests.support.nodegroup_world import LABELS, PROJECT, raw_kind, raw_machine_node, raw_pod_on

pytestmark = pytest.mark.timeout(60)

Json = dict[str, Any]
#: Limit of etcd on one object, in bytes.
_LIMIT_BYTES = 1_500_000
#: Maximum length of a message, in characters.
_MESSAGE = 2000
_CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "m",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
_MACHINE = {"name": "m-0", "state": "RUNNING", "node": "m-0", "ready": True, "since": "2026-01-01T00:00:00Z"}
_GROUP_STATUS = {
    "conditions": [_CONDITION],
    "observedGeneration": 1,
    "nodeSummary": {"ready": 1, "reconciling": 0, "failed": 0},
    "nodeCount": 2,
    "topology": "2x2x2",
    "machines": [_MACHINE],
    "recreations": ["2026-01-01T00:00:00Z"],
}
_CHILD_STATUS = {
    "conditions": [_CONDITION],
    "operationName": "operation-1",
    "operationType": "CREATE",
    "operationAttempt": 1,
}
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**9,
    10**30,
    1e308,
    "",
    "\ud800\x00\u202e",
    "x" * _LIMIT_BYTES,
    "1" * 5000,
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+14:00",
    [],
    {},
    [None] * 5000,
    [{"name": f"m-{number}"} for number in range(5000)],
    {f"k{number}": "v" for number in range(5000)},
)


def _object(kind: Kind, **status: Any) -> Json:
    finalizers = [*names.GROUP_FINALIZERS] if kind is Kind.TPU_NODE_GROUP else [names.CHILD_FINALIZERS[kind]]
    annotations = dict.fromkeys(names.READ_ANNOTATIONS, "true")
    return {
        **raw_kind(kind, "hostile", uid=f"hostile-{kind}", finalizers=finalizers, annotations=annotations),
        "status": status,
    }


def _secret() -> Json:
    raw = tokens.secret_of("abcdef.0123456789abcdef", group=LABELS, machine="m-0", machine_id="17", expires_at=NOW)
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in raw.pop("stringData").items()}
    return {**raw, "metadata": {**raw["metadata"], "uid": "s"}, "data": encoded}


_READ: dict[str, tuple[Json, Callable[[object], Any]]] = {
    "groups": (_object(Kind.TPU_NODE_GROUP, **_GROUP_STATUS), partial(parse, TpuNodeGroup)),
    "policies": (_object(Kind.WORKLOAD_POLICY, **_CHILD_STATUS, uri="u"), partial(parse, WorkloadPolicy)),
    "templates": (
        _object(Kind.INSTANCE_TEMPLATE, **_CHILD_STATUS, uri="u"),
        partial(parse, InstanceTemplate),
    ),
    "managers": (
        _object(Kind.MANAGED_INSTANCE_GROUP, **_CHILD_STATUS, url="u"),
        partial(parse, ManagedInstanceGroup),
    ),
    "nodes": (raw_machine_node("m-0"), parse_node),
    "pods": (raw_pod_on("m-0"), parse_pod),
    "tokens": (_secret(), tokens.parse_secret),
}


def _places(raw: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in an object."""
    for key in raw if isinstance(raw, dict) else range(len(raw)):
        yield (*path, key)
        if isinstance(raw[key], dict | list):
            yield from _places(raw[key], (*path, key))


def _with(raw: Json, path: tuple[Any, ...], value: Any) -> Json:
    changed = copy.deepcopy(raw)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def _plan(what: str, record: Any, *, limit: int = 0) -> Plan:
    honest = parse(
        TpuNodeGroup, raw_kind(Kind.TPU_NODE_GROUP, "honest", uid="honest", finalizers=[*names.GROUP_FINALIZERS])
    )
    seen: dict[str, Any] = {"groups": (honest,)}
    if record is not None:
        seen[what] = (*seen.get(what, ()), record)
    snapshot = Snapshot(cluster=Cluster(uid="c"), **seen)
    settings = PlanningSettings(project_id=PROJECT, startup_script="#!", machines_per_namespace=limit)
    return decide(snapshot, Memory(), settings, NOW)


def _honest(plan: Plan) -> list[str]:
    return sorted(write.key for write in plan.writes if "/honest" in write.key)


# A limit counts unreadable groups too, so with a limit the odd object is in another namespace than the honest group.
@pytest.mark.parametrize(("namespace", "limit"), [("research", 0), ("another", 64)], ids=["no limit", "limit"])
@pytest.mark.parametrize("what", _READ)
def test_any_value_in_any_field_does_not_affect_an_honest_group(what: str, namespace: str, limit: int) -> None:
    """Parsing may raise only MalformedObject, which the caches catch; deciding must not raise."""
    raw, parse = _READ[what]
    if raw["metadata"].get("namespace") == "research":
        raw = _with(raw, ("metadata", "namespace"), namespace)
    expected = _honest(_plan("groups", None, limit=limit))
    assert expected
    assert parse(raw) is not None
    going = _with(raw, ("metadata", "deletionTimestamp"), "2026-01-01T00:00:00Z")
    for whole in (raw, going) if what in ("groups", "managers") else (raw,):
        for path in _places(whole):
            for odd in _ODD:
                record = _read(parse, _with(whole, path, odd))
                if record is None:
                    continue
                plan = _plan(what, record, limit=limit)
                assert not plan.crashed, (path, odd)
                assert _honest(plan) == expected, (path, odd)


def _read(parse: Callable[[object], Any], raw: Json) -> Any:
    try:
        return parse(raw)
    except MalformedObject as error:
        if len(str(error)) > _MESSAGE:
            raise
        return None


def test_daemon_set_of_any_form_is_read_or_malformed() -> None:
    raw: Json = {"metadata": {"name": "n", "namespace": "kube-system", "uid": "u", "annotations": {"a": "b"}}}
    for path in _places(raw):
        for odd in _ODD:
            plugin = _read(parse_device_plugin, _with(raw, path, odd))
            assert plugin is None or isinstance(plugin.version, str)
