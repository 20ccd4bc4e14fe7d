"""Pods are read from any JSON, and mistakes in their requests are reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.kube.fields import UNKNOWN_TIME, MalformedObject
from provisioner.partitions import names
from provisioner.partitions.demand import Pod, Wrong, parse_pod, read_size
from provisioner.settings.partitions import Server
from tests.support.any_json import spoilt
from tests.support.objects import required_affinity

_KEY = "ipu.example.com/pod"
_ONE = Server(host="vipu-1", port=8090, node_selector=(_KEY, "1"))
_TWO = Server(host="vipu-2", port=8091, node_selector=(_KEY, "2"))
_ANY = Server(host="fd00::1", port=8090)
_OURS = {"name": "graphcore-partition"}


def _raw(*, annotations: Any = None, spec: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team",
            "name": "a",
            "uid": "uid-a",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-23T01:02:03Z",
            "annotations": annotations if annotations is not None else {names.IPUS: "4"},
            **metadata,
        },
        "spec": spec if spec is not None else {},
        "status": status if status is not None else {},
    }


def test_all_relevant_fields_of_a_pod_are_read() -> None:
    raw = _raw(
        annotations={
            names.IPUS: "8",
            names.STATUS: names.INJECTED,
            names.PARTITION_HOST: "fd00::1",
            names.PARTITION_PORT: "8090",
            names.RELEASE: "true",
        },
        spec={
            "priority": 100,
            "nodeName": "host-1",
            "activeDeadlineSeconds": 3600,
            "terminationGracePeriodSeconds": 5,
            "schedulingGates": [{"name": "example.com/other"}],
            "initContainers": [_OURS],
        },
        status={"phase": "Failed", "startTime": "2026-11-23T01:03:00Z"},
        deletionTimestamp="2026-11-23T02:00:00Z",
        deletionGracePeriodSeconds=3,
    )
    assert parse_pod(raw) == Pod(
        namespace="team",
        name="a",
        uid="uid-a",
        resource_version="7",
        created_at=datetime(2026, 11, 23, 1, 2, 3, tzinfo=UTC),
        size=8,
        injected=True,
        held_by_others=True,
        priority=100,
        node="host-1",
        finished=True,
        deletion_deadline=datetime(2026, 11, 23, 2, tzinfo=UTC),
        deletion_grace_seconds=3.0,
        released=True,
        active_deadline_seconds=3600.0,
        grace_seconds=5.0,
        started_at=datetime(2026, 11, 23, 1, 3, tzinfo=UTC),
        server_annotation="[fd00::1]:8090",
        begun=True,
    )


def _ended(code: int, name: str = "graphcore-partition") -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": name, "state": {"terminated": {"exitCode": code}}}]}


@pytest.mark.parametrize(
    ("status", "gated", "want"),
    [
        pytest.param({}, False, False, id="no status"),
        pytest.param({"phase": "Pending", **_ended(0)}, False, True, id="init container succeeded"),
        pytest.param({"phase": "Pending", **_ended(3)}, False, False, id="init container failed"),
        pytest.param({"phase": "Pending", **_ended(0, "other")}, False, False, id="another init container succeeded"),
        pytest.param({"phase": "Running"}, False, True, id="pod running"),
        pytest.param({"phase": "Running", **_ended(0)}, True, False, id="pod with its gate and a written status"),
    ],
)
def test_pod_has_begun_after_its_init_container_has_succeeded(status: dict[str, Any], gated: bool, want: bool) -> None:
    spec = {"schedulingGates": [{"name": names.SCHEDULING_GATE}]} if gated else {}
    assert parse_pod(_raw(spec=spec, status=status)).begun is want


def test_pod_without_optional_fields_has_the_defaults_of_the_api() -> None:
    pod = parse_pod({"metadata": {"namespace": "team", "name": "a", "uid": "uid-a"}})
    assert pod == Pod(
        namespace="team",
        name="a",
        uid="uid-a",
        resource_version="",
        created_at=UNKNOWN_TIME,
        size=0,
        grace_seconds=30.0,
    )


@pytest.mark.parametrize(
    ("annotations", "spec", "part", "want"),
    [
        pytest.param({}, {"priority": -5}, "priority", -5, id="a low priority"),
        pytest.param({}, {"priority": True}, "priority", 0, id="a truth value is no priority"),
        pytest.param({names.RELEASE: "false"}, {}, "released", False, id="not released"),
        pytest.param({names.STATUS: "no"}, {"initContainers": [_OURS]}, "injected", False, id="not injected"),
        # Admission cannot reject a static pod, which runs without a gate: a partition would be useless to it.
        pytest.param(
            {names.STATUS: names.INJECTED, names.MIRROR: "x"}, {"initContainers": [_OURS]}, "injected", False,
            id="static pod with the annotation",
        ),
        # This pod runs with a partition of Graphcore's plugin, and must not get a second one.
        pytest.param(
            {names.STATUS: names.INJECTED}, {"initContainers": [{"name": "ipu-init"}]}, "injected", False,
            id="pod injected by Graphcore's plugin",
        ),
        pytest.param({names.PARTITION_HOST: "a"}, {}, "server_annotation", "", id="a host without a port"),
        pytest.param({names.PARTITION_PORT: "8090"}, {}, "server_annotation", "", id="a port without a host"),
        pytest.param({names.IPUS: "1024"}, {}, "size", 1024, id="the largest partition of all"),
        pytest.param({names.IPUS: "2048"}, {}, "size", 0, id="a larger one"),
    ],
)  # fmt: skip
def test_field_of_a_pod_is_read_or_has_its_default(
    annotations: dict[str, str], spec: dict[str, Any], part: str, want: object
) -> None:
    found = getattr(parse_pod(_raw(annotations=annotations, spec=spec)), part)
    assert (found, type(found)) == (want, type(want))


def test_server_annotations_of_a_pod_with_its_gate_are_ignored() -> None:
    annotations = {names.IPUS: "4", names.PARTITION_HOST: "vipu-1", names.PARTITION_PORT: "8090"}
    pod = parse_pod(_raw(annotations=annotations, spec={"schedulingGates": [{"name": names.SCHEDULING_GATE}]}))
    assert (pod.gated, pod.held_by_others, pod.server_annotation) == (True, False, "")


def _affinity(*terms: Any) -> dict[str, Any]:
    return {"affinity": required_affinity(*terms)}


def _term(operator: str, *values: str, key: str = _KEY) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


_BOTH = {
    "matchExpressions": [
        expression for key in ("zone", _KEY) for expression in _term("In", "1", key=key)["matchExpressions"]
    ]
}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({}, None, id="no selector"),
        pytest.param({"nodeSelector": {"other": "x"}}, None, id="selector of another label"),
        pytest.param({"nodeSelector": {_KEY: "1"}}, {_ONE, _ANY}, id="a selector of one server's nodes"),
        pytest.param({"nodeSelector": {_KEY: "3"}}, {_ANY}, id="selector of no server's nodes"),
        pytest.param(_affinity(_term("In", "2", "3")), {_TWO, _ANY}, id="an affinity to one of several values"),
        pytest.param(_affinity(_term("NotIn", "2")), {_ONE, _ANY}, id="an affinity away from one"),
        pytest.param(_affinity(_term("Exists")), None, id="label with any value"),
        pytest.param(_affinity(_term("DoesNotExist")), {_ANY}, id="nodes without the label"),
        pytest.param(_affinity(_term("In", "x", key="zone")), None, id="affinity to another label"),
        pytest.param(_affinity(_BOTH), {_ONE, _ANY}, id="all expressions of a term together"),
        pytest.param(_affinity(_term("In", "1"), _term("In", "2")), None, id="either of two terms is enough"),
        pytest.param(_affinity({}), set(), id="a term without requirements matches no node"),
        pytest.param(_affinity({"matchFields": [{"key": "metadata.name"}]}), None, id="affinity to a node by name"),
        pytest.param(
            {"nodeSelector": {_KEY: "1"}, **_affinity(_term("In", "2"))}, {_ANY}, id="selector and affinity together"
        ),
    ],
)
def test_servers_of_a_pod_follow_its_selector_and_affinity(spec: dict[str, Any], want: set[Server] | None) -> None:
    pod = parse_pod(_raw(spec=spec), servers=(_ONE, _TWO, _ANY))
    assert pod.servers == (None if want is None else {server.address for server in want})


def test_affinity_that_exceeds_a_bound_is_a_problem() -> None:
    """The affinity is read at each change of the pod, and a large one would delay all other pods."""
    annotations, terms = {names.IPUS: "4"}, [_term("Lt", "0")] * 2000
    pod = parse_pod(_raw(annotations=annotations, spec=_affinity(*terms)), servers=(_ONE,))
    assert (pod.size, "node affinity" in pod.problem, pod.servers) == (4, True, None)


@pytest.mark.parametrize(
    "raw", [None, [], {}, _raw(uid=None), _raw(deletionTimestamp="soon")], ids=["null", "list", "empty", "uid", "time"]
)
def test_pod_without_identity_or_with_an_invalid_deletion_time_is_malformed(raw: object) -> None:
    with pytest.raises(MalformedObject):
        parse_pod(raw)


_SPEC = {
    "priority": 1,
    "nodeName": "host-1",
    "activeDeadlineSeconds": 60,
    "terminationGracePeriodSeconds": 5,
    "nodeSelector": {_KEY: "1"},
    "schedulingGates": [{"name": names.SCHEDULING_GATE}],
    "initContainers": [_OURS],
    **_affinity(_term("In", "1")),
}
_ANNOTATIONS = dict.fromkeys((names.IPUS, names.IPU, names.PARTITION_PORT, names.PARTITION_HOST, names.STATUS), "4")


@given(st.data())
def test_any_json_results_in_a_valid_pod(data: st.DataObject) -> None:
    status = {"phase": "Running", "startTime": "2026-11-23T01:03:00Z", **_ended(0)}
    spec, annotations, status = (spoilt(data, part) for part in (_SPEC, _ANNOTATIONS, status))
    pod = parse_pod(_raw(annotations=annotations, spec=spec, status=status), servers=(_ONE, _TWO))
    assert pod.size == 0 or pod.size.bit_count() == 1
    assert pod.active_deadline_seconds is None or 0 < pod.active_deadline_seconds < 2**31
    assert pod.servers is None or pod.servers <= {_ONE.address, _TWO.address}


_VALUES = st.one_of(st.text(max_size=200), st.integers(-5, 500).map(str), st.none(), st.integers(), st.booleans())


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({}, None, id="a pod without annotations asks for none"),
        pytest.param({"graphcore.ai/status": "injected"}, None, id="another annotation"),
        pytest.param({names.IPUS: "1"}, 1, id="one IPU is a partition"),
        pytest.param({names.IPUS: "64"}, 64, id="the largest is served"),
        pytest.param({names.IPU: "4"}, 4, id="the short spelling counts as well"),
        pytest.param({names.IPU: "4", names.IPUS: "4"}, 4, id="both may be there with the same size"),
    ],
)
def test_valid_size_is_read(annotations: dict[str, str], want: int | None) -> None:
    assert read_size(annotations, largest=64) == want


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        pytest.param({names.IPUS: "3"}, ["3 IPUs", "ask for 2 or 4."], id="three is no power of two"),
        pytest.param({names.IPUS: "48"}, ["ask for 32 or 64."], id="above the middle of two powers of two"),
        pytest.param({names.IPUS: "200"}, ["ask for 64."], id="far above the largest"),
        pytest.param({names.IPUS: "536870912"}, ["has 64"], id="the longest number that is read"),
        pytest.param({names.IPUS: "1073741824"}, ["is '1073741824',"], id="a longer one"),
        pytest.param({names.IPUS: "100"}, ["ask for 64."], id="next power of two is not served"),
        pytest.param({names.IPUS: "128"}, ["128 IPUs", "has 64"], id="more than the largest"),
        pytest.param({names.IPUS: "0"}, ["is '0'"], id="zero"),
        pytest.param({names.IPUS: "-2"}, ["is '-2'"], id="a negative number"),
        pytest.param({names.IPUS: ""}, ["is ''"], id="nothing"),
        pytest.param({names.IPUS: " 4"}, ["is ' 4'"], id="leading blank"),
        pytest.param({names.IPUS: "٤"}, ["is '٤'"], id="digits of other scripts"),
        pytest.param({names.IPUS: "1e1"}, ["is '1e1'"], id="an exponent"),
        pytest.param({names.IPUS: "9" * 300_000}, ["9…, but"], id="number with 300,000 digits"),
        pytest.param({names.IPUS: 4}, ["is 4, but"], id="a number where a text belongs"),
        pytest.param({names.IPUS: "4", names.IPU: "2"}, [names.IPUS, names.IPU, "4", "2"], id="two sizes"),
        pytest.param({names.IPUS: "4", names.IPU: "x"}, [f"{names.IPU} is 'x'"], id="one good and one bad"),
    ],
)
def test_invalid_size_is_reported_with_valid_ones(annotations: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(Wrong) as caught:
        read_size(annotations, largest=64)
    for word in words:
        assert word in str(caught.value)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(names.SIZE_ANNOTATIONS, _VALUES)), st.sampled_from([1, 64]))
def test_any_annotation_results_in_a_size_or_a_short_sentence(annotations: dict[str, Any], largest: int) -> None:
    size, sentence = 1, "."
    try:
        size = read_size(annotations, largest=largest) or 1
    except Wrong as wrong:
        sentence = str(wrong)
    assert 1 <= size <= largest
    assert size.bit_count() == 1
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert len(sentence) <= 400
