"""Tests of the limits on the size of an object, of its record, and of a page of a list."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.protocol import ANSWER_BYTES, PAGE_BYTES, PAGE_SIZE, Page, Pager, Request
from provisioner.kube.watches import parse_node
from provisioner.model import bounds
from provisioner.model.workloads import Requirements, Workload
from provisioner.workloads.jobset import parse_jobset
from tests.support.counting import counted, measured
from tests.support.kube import FakeKube
from tests.support.objects import parsed_pod, raw_jobset, raw_node, raw_pod, required_affinity

HUGE = 300_000
#: Maximum number of function calls per byte of an object: a container of 40 bytes has six amounts to read.
CALLS_PER_BYTE = 1.5


def requirements_of(*, labels: Any = None, annotations: Any = None, **spec: Any) -> Requirements:
    raw = raw_pod()
    raw["spec"] |= spec
    raw["metadata"]["labels"] |= labels or {}
    raw["metadata"]["annotations"] = annotations
    return parsed_pod(raw).requirements


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"affinity": required_affinity(*({"matchExpressions": term} for term in terms))}


def expression(*values: str) -> dict[str, Any]:
    return {"key": "k", "operator": "In", "values": list(values)}


def many(count: int) -> dict[str, str]:
    return {f"k{index}": "v" for index in range(count)}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"labels": many(124)}, "", id="as many labels as are read"),
        pytest.param({"labels": many(125)}, "labels has 129 entries, and at most 128 are read", id="one more label"),
        pytest.param({"nodeSelector": many(129)}, "nodeSelector has 129 entries", id="too many selectors"),
        pytest.param({"nodeSelector": {"k": "v" * 63}}, "", id="the longest selector"),
        pytest.param(
            {"nodeSelector": {constants.TPU_TOPOLOGY: "9" * 64}},
            f"nodeSelector {constants.TPU_TOPOLOGY} '{'9' * 64}' has 64 characters, and at most 63 are read",
            id="a topology of more digits than a label holds",
        ),
        pytest.param({"labels": {"k" * 318: "v"}}, "a key of labels", id="a long label key"),
        pytest.param({"tolerations": [{"key": "k"}] * 64}, "", id="as many tolerations as are read"),
        pytest.param({"tolerations": [{"key": "k"}] * 65}, "tolerations has 65 entries", id="one more toleration"),
        pytest.param({"tolerations": [{"value": "v" * 318}]}, "a toleration's value", id="a long toleration"),
        pytest.param(affinity(*[[expression("v")]] * 64), "", id="as many terms as are read"),
        pytest.param(affinity(*[[expression("v")]] * 65), "more than 64 expressions", id="one more term"),
        pytest.param(affinity([expression(*map(str, range(1024)))]), "", id="as many values as are read"),
        pytest.param(affinity([expression(*map(str, range(1025)))]), "or 1,024 values", id="one more value"),
        pytest.param(affinity([expression("v" * 318)]), "an affinity expression's value", id="a long value"),
        pytest.param(
            affinity([expression(*["v" * 100] * 1000)]), "of a pod have more than 65,536 characters", id="all"
        ),
        pytest.param({"annotations": {constants.CAPACITY: "x" * 4096}}, "", id="the longest annotation"),
        pytest.param(
            {"annotations": {constants.CAPACITY: "x" * 4097}},
            f"annotation {constants.CAPACITY} '{'x' * 79}…' has 4,097 characters, and at most 4,096 are read",
            id="a longer annotation",
        ),
        pytest.param({"annotations": {"other": "x" * HUGE}}, "", id="an annotation that nobody reads"),
    ],
)
def test_pod_above_a_limit_has_a_problem(fields: dict[str, Any], problem: str) -> None:
    found = "; ".join(requirements_of(**fields).problem)
    assert found.startswith(problem) or (problem and problem in found)
    assert bool(found) is bool(problem)
    assert len(found) < 400


def jobset_of(
    *, replicas: int = 1, parallelism: Any = 1, count: int = 1, chips: int = 4, name: str = "", **template: Any
) -> Workload:
    raw = raw_jobset()
    (job,) = raw["spec"]["replicatedJobs"]
    job["replicas"] = replicas
    job["template"]["spec"] |= {"parallelism": parallelism, "completions": parallelism}
    spec = job["template"]["spec"]["template"]["spec"]
    spec["containers"] = [{"resources": {"limits": {"google.com/tpu": chips}}}]
    spec |= template
    raw["spec"]["replicatedJobs"] = [{**job, "name": name or f"j{index}"} for index in range(count)]
    return parse_jobset(raw)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"replicas": 4096}, "", id="as many child Jobs as are served"),
        pytest.param({"replicas": 4097}, "it has 4,097 jobs that request chips, and at most 4,096", id="one more"),
        pytest.param({"replicas": 17, "count": 256}, "it has 4,352 jobs", id="of several replicated jobs"),
        pytest.param({"replicas": 10**6, "chips": 0}, "", id="a million child Jobs without chips"),
        pytest.param({"replicas": 10**5000}, "it has 2,147,483,647 jobs", id="more than can be counted"),
        pytest.param({"count": 256}, "", id="as many replicated jobs as are read"),
        pytest.param(
            {"count": 257}, "spec.replicatedJobs has 257 entries, and at most 256 are read", id="one more job"
        ),
        pytest.param({"parallelism": 65_536}, "", id="as many pods as hosts"),
        pytest.param({"parallelism": 65_537}, "replicated job j0: parallelism is 65,537", id="more pods than hosts"),
        pytest.param({"parallelism": 65_537, "chips": 0}, "", id="as many pods without chips"),
        pytest.param({"nodeSelector": {"a": "b" * 64}}, "replicated job j0: nodeSelector a", id="a long selector"),
        pytest.param({"nodeSelector": {"a": "b" * 64}, "chips": 0}, "", id="a long selector without chips"),
        pytest.param({"name": "n" * 254}, "the name of a replicated job", id="a long name"),
        pytest.param(
            {"count": 100, "nodeSelector": {f"k{index}": "v" * 63 for index in range(100)}},
            "of a JobSet have more than 262,144 characters",
            id="many large templates",
        ),
    ],
)
def test_jobset_above_a_limit_has_a_problem(fields: dict[str, Any], problem: str) -> None:
    """The number of child Jobs without chips is not limited, because they are not served."""
    found = "; ".join(jobset_of(**fields).problem)
    assert problem in found
    assert bool(found) is bool(problem)


def test_pod_with_too_many_labels_keeps_the_ones_for_decisions() -> None:
    """Otherwise a pod with too many labels could not disable provisioning."""
    found = requirements_of(
        labels={**many(1000), constants.DISABLE: "true"},
        nodeSelector={**many(1000), constants.TPU_TOPOLOGY: "2x2x2", constants.TPU_ACCELERATOR: "a"},
    )
    assert found.labels == {constants.DISABLE: "true"}
    assert found.node_selector == {constants.TPU_TOPOLOGY: "2x2x2", constants.TPU_ACCELERATOR: "a"}


def test_message_of_the_scheduler_is_cut() -> None:
    """The message lists each distinct reason, such as each untolerated taint, so its length grows with the cluster."""
    raw = raw_pod()
    raw["status"]["conditions"][-1]["message"] = "0/3 nodes are available: " + "x" * HUGE
    pod = parsed_pod(raw)
    assert len(pod.unschedulable_message) == bounds.SCHEDULER_MESSAGE
    assert pod.unschedulable_message.endswith("x…")


def test_labels_and_taints_of_a_node_are_limited() -> None:
    """Only administrators write labels and taints of nodes, so labels and taints beyond the limit cause no problem."""
    raw = raw_node()
    raw["metadata"]["labels"] |= many(1000)
    raw["spec"]["taints"] = [{"key": f"k{index}", "effect": "NoSchedule"} for index in range(1000)]
    node = parse_node(raw)
    assert node is not None
    assert (len(node.labels), len(node.taints)) == (bounds.CLUSTER_OBJECT_LABELS, bounds.NODE_TAINTS)


@pytest.mark.timeout(30)  # objects of megabytes
@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"k": "9" * HUGE}},
        {"nodeSelector": {f"k{index}": "é" * 10 for index in range(HUGE // 20)}},
        {"tolerations": [{"key": f"k{index}"} for index in range(HUGE // 20)]},
        affinity([expression(*map(str, range(HUGE // 8)))]),
        {"containers": [{"resources": {"limits": {"google.com/tpu": "1"}}}] * (HUGE // 50)},
    ],
    ids=["one long text", "selectors", "tolerations", "values", "containers"],
)
def test_record_is_small_if_its_object_is_large(spec: dict[str, Any]) -> None:
    raw = raw_jobset()
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"] |= spec
    _, _, kept = measured(lambda: [parse_jobset(raw) for _ in range(10)])
    assert kept < 10 * 20_000
    _, calls = counted(lambda: parse_jobset(raw))
    assert calls < HUGE * CALLS_PER_BYTE


MIB = 1024 * 1024


class Sized(FakeKube):
    """Server with a collection of objects of given sizes, whose pages may be too large. Records the requests."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.asked: list[tuple[int, int]] = []
        self.largest = 0

    def list_page(self, request: Request, *, limit: int = PAGE_SIZE, continue_token: str = "") -> Page:
        start = int(continue_token or 0)
        self.asked.append((start, limit))
        size = sum(self.sizes[start : start + limit])
        if size > (PAGE_BYTES if limit > 1 else ANSWER_BYTES):
            raise errors.TooLarge(f"{request.title}: the answer has more than {PAGE_BYTES:,} bytes")
        self.largest = max(self.largest, size)
        end = min(start + limit, len(self.sizes))
        return Page(
            items=list(range(start, end)),
            resource_version="1",
            continue_token=str(end) if end < len(self.sizes) else "",
            size_bytes=size,
        )


def read(kube: Sized, *, most: int = PAGE_SIZE) -> list[int]:
    pager, found, token = Pager(kube, Request("GET", "/p"), max_limit=most), [], ""
    while True:
        page = pager.fetch(token)
        found += page.items
        token = page.continue_token
        if not token:
            return found


@pytest.mark.parametrize(
    ("sizes", "max_calls"),
    [
        pytest.param([4096] * 1200, 3, id="pods of a usual size come in full pages"),
        pytest.param([3 * MIB // 2] * 100, 110, id="objects of etcd's limit come two at a time"),
        pytest.param([3 * MIB] * 20, 30, id="larger ones one at a time"),
        pytest.param([1000] * 600 + [MIB] * 40 + [1000] * 2000, 40, id="pages grow again after large objects"),
        pytest.param([15 * MIB] + [1000] * 600, 20, id="one very large object is read alone"),
        pytest.param([], 1, id="nothing"),
    ],
)
def test_every_object_is_read_once_in_pages_of_limited_size(sizes: list[int], max_calls: int) -> None:
    kube = Sized(*sizes)
    assert read(kube) == list(range(len(sizes)))
    assert kube.largest <= max([PAGE_BYTES, *sizes])
    assert len(kube.asked) <= max_calls


def test_object_above_the_limit_raises_an_error_without_an_endless_loop() -> None:
    kube = Sized(1000, 17 * MIB)
    with pytest.raises(errors.TooLarge, match="GET /p: the answer has more than"):
        read(kube, most=2)
    assert kube.asked == [(0, 2), (0, 1), (1, 2), (1, 1)]
