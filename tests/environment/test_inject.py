"""Variables of pods by owner, and mistakes of gke-tpu-env-injector, which this webhook replaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.admission.review import Request
from provisioner.environment.pods import read_pod
from provisioner.environment.review import inject, review_pod, wanted
from provisioner.environment.variables import is_absent, topology_in_use
from provisioner.kube.fields import MalformedObject
from provisioner.settings.webhook import WebhookSettings
from provisioner.tpu.catalogue import Topology
from tests.support.patches import apply_patch

OLD_KEY = "gke-tpu-env-injector.aaronbatilo.dev/inject"
V5E_4X4 = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"}
TOPOLOGY_8X8 = {"cloud.google.com/gke-tpu-topology": "8x8"}
V6E_2X2 = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x2"}
TPU7X_2X2X2 = {"cloud.google.com/gke-tpu-accelerator": "tpu7x", "cloud.google.com/gke-tpu-topology": "2x2x2"}
ALL = WebhookSettings(injection="all")


ASKS = {OLD_KEY: "enabled"}


def container(chips: int = 4, name: str = "worker", **more: Any) -> dict[str, Any]:
    resources = {"limits": {"google.com/tpu": str(chips)}} if chips else {}
    return {"name": name, "image": "busybox", "resources": resources, **more}


def pod_of(
    owner: dict[str, Any],
    name: str,
    *,
    selector: dict[str, str] | None = V5E_4X4,
    containers: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    metadata = {"name": name, "namespace": "ml", "ownerReferences": [reference], "labels": {}, "annotations": {}}
    metadata |= more.pop("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeSelector": selector or {}, "containers": containers or [container()], **more},
    }


def stateful_set(replicas: int = 4, start: int = 0, service: str = "workers", **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"replicas": replicas, "serviceName": service}
    if start:
        spec["ordinals"] = {"start": start}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "train", "namespace": "ml", "uid": "uid-1", **metadata},
        "spec": spec,
    }


def injected(
    pod: dict[str, Any], owner: dict[str, Any], settings: WebhookSettings = ALL
) -> tuple[list[dict[str, str]], Any]:
    read = read_pod(pod, "ml")
    assert read is not None
    found = inject(read, owner, settings)
    after = apply_patch(pod, found.patch)
    spec = after["spec"]
    everything = [*spec.get("initContainers", []), *spec["containers"]]
    return [{entry["name"]: entry.get("value", "?") for entry in one.get("env") or []} for one in everything], found


def names(start: int, end: int, suffix: str = ".workers") -> str:
    return ",".join(f"train-{number}{suffix}" for number in range(start, end))


def test_pod_index_label_takes_precedence_over_the_pod_name():
    owner = stateful_set()
    pod = pod_of(owner, "train-3", metadata={"labels": {"apps.kubernetes.io/pod-index": "2"}})
    [found], _ = injected(pod, owner)
    assert found["TPU_WORKER_ID"] == "2"


def test_worker_index_starts_at_the_first_ordinal():
    owner = stateful_set(start=5)
    [found], _ = injected(pod_of(owner, "train-6"), owner)
    assert found == {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": names(5, 9)}


def test_pod_with_multislice_false_gets_no_slice_variables():
    owner = stateful_set(replicas=8)
    key = {"annotations": {"tpu-provisioner.cloud.google.com/multislice": "false"}}
    [found], _ = injected(pod_of(owner, "train-6", metadata=key), owner)
    assert "MEGASCALE_NUM_SLICES" not in found


@pytest.mark.parametrize(("replicas", "pod", "own"), [(9, "train-5", "1"), (4, "train-8", "2")])
def test_pods_beyond_the_last_whole_slice_count_as_an_incomplete_slice(replicas: int, pod: str, own: str):
    owner = stateful_set(replicas)
    [found], _ = injected(pod_of(owner, pod), owner)
    assert (found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_SLICE_ID"]) == ("3", own)


def test_part_smaller_than_a_host_is_a_slice_of_one_pod():
    owner = stateful_set(replicas=2)
    together = {constants.SLICE_TOPOLOGY: "1x1", constants.MULTISLICE: "true"}
    [found], _ = injected(pod_of(owner, "train-1", metadata={"annotations": together}), owner)
    assert (found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_SLICE_ID"]) == ("2", "1")


def test_part_longer_than_its_slice_along_one_axis_is_ignored():
    assert topology_in_use(Topology((2, 2, 4)), "2x2x2") == Topology((2, 2, 2))
    assert topology_in_use(Topology((2, 2, 4)), "2x4x4") == Topology((2, 2, 4))


def test_one_host_slices_with_multislice_true_get_slice_variables():
    owner = stateful_set(replicas=3)
    key = {"annotations": {"tpu-provisioner.cloud.google.com/multislice": "true"}}
    [found], _ = injected(pod_of(owner, "train-2", selector=V6E_2X2, metadata=key), owner)
    assert found == {
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "MEGASCALE_NUM_SLICES": "3",
        "MEGASCALE_SLICE_ID": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "train-0.workers",
    }


def test_pod_created_before_the_set_is_scaled_gets_names_of_a_whole_slice():
    owner = stateful_set(replicas=2)
    [found], said = injected(pod_of(owner, "train-1"), owner)
    assert found == {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": names(0, 4)}
    assert said.problems


def required(selector: dict[str, str]) -> dict[str, Any]:
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in selector.items()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_topology_by_required_affinity_divides_replicas_into_slices():
    """In the past, eight replicas with the topology 4x4 counted as one slice of eight pods, not as two slices."""
    pod = pod_of(stateful_set(8), "train-5", selector=None, affinity=required(V5E_4X4))
    [found], said = injected(pod, stateful_set(8))
    assert (found["TPU_WORKER_ID"], found["TPU_WORKER_HOSTNAMES"]) == ("1", names(4, 8))
    assert (found["MEGASCALE_NUM_SLICES"], said.problems) == ("2", ())


def test_topology_by_required_affinity_counts_slices_of_replicated_jobs():
    one, other = (replicated(name) for name in ("a", "b"))
    for entry, topology in ((one, "4x4"), (other, "4x8")):
        affinity = required({**V5E_4X4, constants.TPU_TOPOLOGY: topology})
        entry["template"]["spec"]["template"]["spec"]["affinity"] = affinity
    [found], _ = injected(pod_of_jobset("a", selector=None, affinity=required(V5E_4X4)), jobset(one, other))
    assert "MEGASCALE_NUM_SLICES" not in found


def test_kind_of_another_api_group_is_reported_with_its_group():
    """In the past, a Job of Volcano was reported as if it were a Job of batch/v1."""
    owner = {**stateful_set(), "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    [_], said = injected(pod_of(owner, "train-0", metadata={"labels": ASKS}), {})
    assert "'Job' of batch.volcano.sh/v1alpha1" in said.problems[0]
    assert "a Job of batch/v1" in said.problems[0]


@pytest.mark.parametrize(
    ("chips", "network", "is_reported"),
    [
        pytest.param(1, {"hostNetwork": True}, True, id="one of four chips"),
        pytest.param(4, {"hostNetwork": True}, False, id="a whole VM"),
        pytest.param(1, {}, False, id="a network of its own"),
    ],
)
@pytest.mark.parametrize("given", [{}, {"TPU_RUNTIME_METRICS_PORTS": "9431"}], ids=["our ports", "ports of its own"])
def test_pods_that_share_the_ports_of_a_vm_are_reported(
    chips: int, network: dict[str, bool], given: dict[str, str], *, is_reported: bool
):
    """Each libtpu listens on port 8431 of the node's network, so the second pod on a VM fails immediately."""
    one = container(chips, env=[{"name": name, "value": value} for name, value in given.items()])
    pod = pod_of(stateful_set(1), "train-0", selector=V6E_2X2, containers=[one], **network)
    for topology in (True, False):
        _, said = injected(pod, stateful_set(1), replace(ALL, topology=topology))
        assert any("port 8431" in problem for problem in said.problems) == (is_reported and topology and not given)


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        pytest.param({"hostNetwork": True}, "ClusterFirst", id="network of the node"),
        pytest.param({"dnsPolicy": "Default"}, "Default", id="DNS of the node"),
        pytest.param({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.9"]}}, "None", id="other servers"),
        pytest.param({}, "", id="DNS of the cluster"),
        pytest.param({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, "", id="both"),
        pytest.param({"hostNetwork": True, "dnsConfig": {"searches": ["ml.svc.cluster.local"]}}, "", id="own search"),
    ],
)
def test_pod_that_cannot_resolve_host_names_gets_a_warning(spec: dict[str, Any], policy: str):
    """Without DNS, libtpu waits silently. With hostNetwork, Kubernetes treats ClusterFirst, the default, as Default."""
    several, one = stateful_set(), stateful_set(1)
    for owner, selector, is_reported in ((several, V5E_4X4, bool(policy)), (one, V6E_2X2, False)):
        [found], said = injected(pod_of(owner, "train-0", selector=selector, **spec), owner)
        assert "TPU_WORKER_HOSTNAMES" in found
        assert [f"with dnsPolicy {policy} " in problem for problem in said.problems] == [True] * is_reported


def test_replicas_without_a_topology_are_one_slice():
    owner = stateful_set(replicas=3)
    [found], said = injected(pod_of(owner, "train-2", selector=None), owner)
    assert found == {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": names(0, 3)}
    assert not said.problems


@pytest.mark.parametrize(
    ("owner", "pod_name", "problem"),
    [
        (stateful_set(start=5), "train-0", "it has no number"),
        ({**stateful_set(), "metadata": {"uid": "uid-2"}}, "train-0", "another one has its name"),
    ],
    ids=["a number before the first", "an owner of the same name"],
)
def test_unknown_worker_index_is_reported_and_sets_no_variables(owner: dict[str, Any], pod_name: str, problem: str):
    [found], said = injected(pod_of(stateful_set(), pod_name), owner)
    assert found == {}
    assert problem in said.problems[0]


def test_unknown_generation_is_reported_only_if_the_pod_asks():
    owner = stateful_set()
    selector = {**V5E_4X4, "cloud.google.com/gke-tpu-accelerator": "tpu8t"}
    for asks in (False, True):
        pod = pod_of(owner, "train-0", selector=selector, metadata={"labels": ASKS if asks else {}})
        [found], said = injected(pod, owner)
        assert (found, len(said.problems)) == ({}, asks)


def container_list(count: int) -> list[dict[str, Any]]:
    return [container(1, f"c-{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("owner", "pod", "problem"),
    [
        (stateful_set(2**31 - 1), {}, "would have 2,147,483,647 workers"),
        (stateful_set(5000), {"containers": container_list(2)}, "would have 10,000 workers"),
        (stateful_set(10_000), {"containers": [container(0)], "initContainers": [container()]}, "have 10,000 workers"),
        (stateful_set(), {"metadata": {"labels": {"apps.kubernetes.io/pod-index": "999999999"}}}, "1,000,000,000"),
        (stateful_set(4000, service="s" * 63), {}, "TPU_WORKER_HOSTNAMES would have 298,909 characters"),
        (stateful_set(service="s" * 10_000), {}, "spec.serviceName"),
        (stateful_set(90), {"containers": container_list(64)}, "its TPU variables would have 14,299,766 characters"),
    ],
    ids=[
        *("replicas", "replicas and containers", "replicas alone", "the index", "the length of the list"),
        *("the name of the Service", "all lists together"),
    ],
)
def test_variables_beyond_the_limits_are_reported_and_not_set(owner: dict[str, Any], pod: dict[str, Any], problem: str):
    raw = pod_of(owner, "train-0", selector=None, **pod)
    found, said = injected(raw, owner)
    assert not any(found)
    assert problem in said.problems[0]
    assert len(said.problems[0]) < 500


def test_resiliency_variable_equals_the_selected_label():
    owner = stateful_set(16)
    cube = {"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice", "cloud.google.com/gke-tpu-topology": "4x4x4"}
    for said in ("false", "true"):
        selector = {**cube, constants.ICI_RESILIENCY: said}
        [found], _ = injected(pod_of(owner, "train-0", selector=selector), owner, replace(ALL, topology=True))
        assert found["ENABLE_ICI_RESILIENCY"] == said


def test_hosts_of_the_largest_slice_are_all_listed():
    owner = stateful_set(2304)
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu7x", "cloud.google.com/gke-tpu-topology": "16x24x24"}
    [found], said = injected(pod_of(owner, "train-2303", selector=selector), owner)
    assert not said.problems
    assert found["TPU_WORKER_HOSTNAMES"] == names(0, 2304)


def test_pod_with_more_than_64_containers_with_chips_is_malformed():
    raw = pod_of(stateful_set(), "train-0", containers=container_list(65))
    with pytest.raises(MalformedObject, match="more than 64 of its containers request"):
        read_pod(raw)


@pytest.mark.parametrize("absent", [{}, {"env": None}, {"env": []}, {"env": "x"}], ids=str)
def test_missing_list_of_variables_is_created(absent: dict[str, Any]):
    owner = stateful_set()
    pod = pod_of(owner, "train-0", containers=[container(**absent)])
    [found], _ = injected(pod, owner)
    assert found["TPU_WORKER_ID"] == "0"


@pytest.mark.parametrize(
    ("given", "added", "told"),
    [
        pytest.param({"name": "TPU_WORKER_ID", "value": "7"}, set(), True, id="another number"),
        pytest.param({"name": "TPU_WORKER_ID", "value": ""}, set(), False, id="no number"),
        pytest.param({"name": "TPU_WORKER_ID", "value": "1"}, {"TPU_WORKER_HOSTNAMES"}, False, id="the same number"),
        pytest.param(
            {"name": "TPU_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}}},
            {"TPU_WORKER_HOSTNAMES"},
            False,
            id="a number from a label",
        ),
        pytest.param(
            {"name": "TPU_WORKER_HOSTNAMES", "value": "a,b,c,d"}, {"TPU_WORKER_ID"}, False, id="host names alone"
        ),
        pytest.param({"name": "TPU_WORKER_HOSTNAMES", "value": ""}, set(), False, id="no host names"),
    ],
)
def test_host_names_are_not_added_to_a_worker_index_of_the_user(given: dict[str, Any], added: set[str], *, told: bool):
    """In the past, only worker 0 got host names if the template of a pod without the label had the index 0."""
    owner = stateful_set()
    for asks in (True, False):
        pod = pod_of(owner, "train-1", containers=[container(env=[given])], metadata={"labels": ASKS if asks else {}})
        [found], said = injected(pod, owner)
        assert found.keys() - {given["name"]} == added
        problem = "a container has TPU_WORKER_ID and lacks TPU_WORKER_HOSTNAMES; set all of them or none"
        assert said.problems == ((problem,) if told else ())


ADDRESSES = ("TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT")
_ADDRESS_AND_PORT = " and ".join(ADDRESSES)


@pytest.mark.parametrize(
    ("given", "added", "lacks"),
    [
        pytest.param({"TPU_WORKER_ID": "7"}, (), f"TPU_WORKER_HOSTNAMES and {_ADDRESS_AND_PORT}", id="another number"),
        pytest.param({"TPU_WORKER_HOSTNAMES": "b.x,a.x"}, ("TPU_WORKER_ID",), _ADDRESS_AND_PORT, id="other host names"),
        pytest.param({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "b.x,a.x"}, (), "", id="and their number"),
        pytest.param({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": names(0, 2)}, ADDRESSES, "", id="the same"),
        pytest.param(
            {"TPU_PROCESS_ADDRESSES": "b.x:1,a.x:1", "TPU_PROCESS_PORT": "1"},
            (),
            "TPU_WORKER_ID and TPU_WORKER_HOSTNAMES",
            id="other addresses",
        ),
        pytest.param({"TPU_WORKER_ID": "7", "TPU_PROCESS_PORT": ""}, (), "", id="one of them turned off"),
        pytest.param(
            {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_PROCESS_ADDRESSES": "b.x:1,a.x:1"},
            (),
            "TPU_WORKER_ID and TPU_PROCESS_PORT",
            id="some of them",
        ),
    ],
)
def test_layout_of_the_user_is_not_completed(given: dict[str, str], added: tuple[str, ...], lacks: str):
    owner = stateful_set(replicas=2)
    pod = pod_of(owner, "train-1", selector=TPU7X_2X2X2, containers=[with_env(given)], metadata={"labels": ASKS})
    [found], said = injected(pod, owner)
    assert found.keys() - given.keys() == set(added)
    assert {name: found[name] for name in given} == given
    problem = f"a container has {' and '.join(given)} and lacks {lacks}; set all of them or none"
    assert said.problems == ((problem,) if lacks else ())


@pytest.mark.parametrize(
    ("replicas", "selector"), [(8, V5E_4X4 | {"cloud.google.com/gke-tpu-topology": "4x8"}), (8, None)]
)
def test_worker_index_is_not_added_to_host_names_of_an_earlier_size(replicas: int, selector: dict[str, str] | None):
    """gke-tpu-env-injector wrote names into the StatefulSet; after it grew, workers 4 to 7 had an index beyond them."""
    owner = stateful_set(replicas=replicas)
    containers = [with_env({"TPU_WORKER_HOSTNAMES": names(0, 4)})]
    pod = pod_of(owner, "train-7", selector=selector, containers=containers, metadata={"labels": ASKS})
    [found], said = injected(pod, owner)
    assert found == {"TPU_WORKER_HOSTNAMES": names(0, 4)}
    assert said.problems == ("a container has TPU_WORKER_HOSTNAMES and lacks TPU_WORKER_ID; set all of them or none",)


@pytest.mark.parametrize(
    "given",
    [{"value": ""}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {}],
    ids=["empty", "from a field", "without a value"],
)
def test_existing_variable_of_any_form_is_kept(given: dict[str, Any]):
    owner = stateful_set()
    pod = pod_of(owner, "train-0", containers=[container(env=[{"name": "TPU_WORKER_ID", **given}])])
    read = read_pod(pod, "ml")
    assert read is not None
    after = apply_patch(pod, inject(read, owner, ALL).patch)["spec"]["containers"][0]["env"]
    assert [entry for entry in after if entry["name"] == "TPU_WORKER_ID"] == [{"name": "TPU_WORKER_ID", **given}]


@pytest.mark.parametrize("selector", [TPU7X_2X2X2, {"cloud.google.com/gke-nodepool": "ours"}], ids=["", "a node pool"])
def test_default_variables_of_gke_are_replaced(selector: dict[str, str]):
    """If a pod selects no accelerator, only the default variables show that its generation needs addresses."""
    owner = stateful_set(replicas=2)
    given = {
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_PROCESS_ADDRESSES": "localhost:8471",
        "TPU_PROCESS_PORT": "8471",
    }
    pod = pod_of(owner, "train-1", selector=selector, containers=[with_env(given)], initContainers=[container()])
    [alone, found], _ = injected(pod, owner)
    assert alone == found
    assert found == {
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": names(0, 2),
        "TPU_PROCESS_ADDRESSES": "train-0.workers:8471,train-1.workers:8471",
        "TPU_PROCESS_PORT": "8471",
    }


def test_localhost_counts_as_absent_only_for_worker_variables():
    given = {"TPU_WORKER_HOSTNAMES": "localhost", "MEGASCALE_NUM_SLICES": "9"}
    read: Any = read_pod(pod_of(stateful_set(), "train-0", containers=[with_env(given)]))
    ours = {"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_NUM_SLICES": "2"}
    assert [name for name in ours if is_absent(name, read.containers[0], ours)] == ["TPU_WORKER_HOSTNAMES"]


@pytest.mark.parametrize(
    ("hosts", "addresses", "absent"),
    [
        pytest.param("localhost", None, True, id="one localhost"),
        pytest.param("localhost,localhost", "localhost:1,localhost:2", True, id="two processes"),
        pytest.param("localhost,localhost,localhost", None, False, id="the container's own value"),
        pytest.param("localhost", "localhost:1,localhost:2,localhost:3", False, id="the container's own addresses"),
        pytest.param("localhost", "a:1", False, id="another host in the addresses"),
        pytest.param("localhost,", None, False, id="an empty host at the end"),
        pytest.param(",localhost", None, False, id="an empty host at the beginning"),
        pytest.param("localhost2", None, False, id="a longer name"),
        pytest.param("localhost\n", None, False, id="a newline"),
        pytest.param("", None, False, id="empty"),
        pytest.param(",".join(["localhost"] * 9216), None, True, id="as many as the largest slice has"),
        pytest.param(",".join(["localhost"] * 9217), None, False, id="more"),
    ],
)
def test_variable_counts_as_absent_if_all_hosts_are_localhost(hosts: str, addresses: str | None, *, absent: bool):
    given = {"TPU_WORKER_ID": "7", "TPU_WORKER_HOSTNAMES": hosts}
    given |= {"TPU_PROCESS_ADDRESSES": addresses} if addresses is not None else {}
    read: Any = read_pod(pod_of(stateful_set(), "train-0", containers=[with_env(given)]))
    ours = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost,localhost,localhost"}
    assert is_absent("TPU_WORKER_ID", read.containers[0], ours) is absent


WORKER = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b"}
WHOLE = {"TPU_PROCESS_ADDRESSES": "a:1,b:1", "TPU_PROCESS_PORT": "1"}
SLICES = {"MEGASCALE_NUM_SLICES": "9", "MEGASCALE_SLICE_ID": "8", "MEGASCALE_COORDINATOR_ADDRESS": "c"}


def with_env(given: dict[str, str]) -> dict[str, Any]:
    return container(env=[{"name": name, "value": value} for name, value in given.items()])


@pytest.mark.parametrize(
    ("owner", "selector"),
    [
        pytest.param(stateful_set(service=""), V5E_4X4, id="no host names"),
        pytest.param(stateful_set(replicas=3), V5E_4X4, id="pods that fill no slice"),
        pytest.param(stateful_set(), {**V5E_4X4, "cloud.google.com/gke-tpu-topology": "4x5"}, id="no such topology"),
        pytest.param({**stateful_set(), "kind": "ReplicaSet"}, V5E_4X4, id="no number"),
    ],
)
def test_pod_with_all_worker_variables_gets_no_warning(owner: dict[str, Any], selector: dict[str, str]):
    asks = {"labels": {OLD_KEY: "enabled"}}
    pod = pod_of(owner, "train-1", selector=selector, containers=[with_env(WORKER)], metadata=asks)
    [found], said = injected(pod, owner)
    assert (found, said.problems) == (WORKER, ())
    lacking = pod_of(owner, "train-1", selector=selector, containers=[with_env(WORKER), container()], metadata=asks)
    assert injected(lacking, owner)[1].problems


@pytest.mark.parametrize("owned", [False, True], ids=["nobody's", "a Deployment's"])
def test_pod_without_index_gets_a_warning_only_if_it_asks(*, owned: bool):
    def problems(selector: dict[str, str], **labels: str) -> int:
        pod = pod_of({**stateful_set(), "kind": "ReplicaSet"}, "a", selector=selector, metadata={"labels": labels})
        if not owned:
            del pod["metadata"]["ownerReferences"]
        return len(injected(pod, {})[1].problems)

    for selector in ({}, V5E_4X4):
        assert (problems(selector), problems(selector, **{OLD_KEY: "enabled"})) == (0, 1)


def test_init_container_gets_each_host_once_also_if_the_pod_is_reviewed_again():
    owner = stateful_set()
    pod = pod_of(owner, "train-0", containers=[container("2"), container("2", name="other")])
    pod["spec"]["initContainers"] = [container()]
    [first, one, other], said = injected(pod, owner)
    assert not injected(apply_patch(pod, said.patch), owner)[1].patch
    assert first["TPU_WORKER_HOSTNAMES"] == names(0, 4)
    assert first["TPU_PROCESS_ADDRESSES"] == ",".join(f"train-{index}.workers:8471" for index in range(4))
    assert one["TPU_WORKER_HOSTNAMES"] == other["TPU_WORKER_HOSTNAMES"]
    assert one["TPU_WORKER_HOSTNAMES"].count("train-0.") == 2


def test_localhost_is_complete_unless_the_slice_has_several_hosts():
    """GKE's webhook sets localhost on pods without a Job. Without a topology, the slice may have only this pod."""
    local = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    owner = {**stateful_set(), "kind": "ReplicaSet"}
    pods = [pod_of(owner, "a", selector=selector, containers=[with_env(local)]) for selector in ({}, V5E_4X4)]
    for pod in pods:
        pod["metadata"]["labels"][OLD_KEY] = "enabled"
    assert [bool(injected(pod, owner)[1].problems) for pod in pods] == [False, True]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        pytest.param({"TPU_PROCESS_PORT": "9000"}, {"TPU_PROCESS_PORT": "9000"}, id="another port"),
        pytest.param({"TPU_PROCESS_ADDRESSES": "a:1,b:1"}, {"TPU_PROCESS_ADDRESSES": "a:1,b:1"}, id="other addresses"),
        pytest.param({"MEGASCALE_NUM_SLICES": ""}, {"MEGASCALE_NUM_SLICES": ""}, id="no slices"),
        pytest.param({"MEGASCALE_COORDINATOR_ADDRESS": "c"}, {"MEGASCALE_COORDINATOR_ADDRESS": "c"}, id="another one"),
        pytest.param(WORKER | WHOLE, WHOLE, id="all of the processes"),
        pytest.param(SLICES, SLICES, id="all of the slices"),
    ],
)
def test_variables_of_a_group_are_set_together_or_not_at_all(given: dict[str, str], found: dict[str, str]):
    owner = stateful_set(replicas=4)
    pod = pod_of(owner, "train-3", selector=TPU7X_2X2X2, containers=[with_env(given)], metadata={"labels": ASKS})
    [after], said = injected(pod, owner)
    begun = ("TPU_PROCESS_", "MEGASCALE_")["MEGASCALE_NUM_SLICES" in found or "MEGASCALE_COORDINATOR_ADDRESS" in found]
    assert {name: value for name, value in after.items() if name.startswith(begun)} == found
    assert {"TPU_PROCESS_PORT", "MEGASCALE_NUM_SLICES"} - given.keys() & after.keys()
    assert [" and lacks " in text for text in said.problems] == [True] * (len(given) == 1 and "" not in given.values())


def test_port_of_the_user_is_kept_in_a_one_host_slice():
    local = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    given = {**local, "TPU_PROCESS_ADDRESSES": "localhost:9000", "TPU_PROCESS_PORT": "9000"}
    owner = stateful_set(replicas=1)
    selector = {**TPU7X_2X2X2, "cloud.google.com/gke-tpu-topology": "2x2x1"}
    [after], said = injected(pod_of(owner, "train-0", selector=selector, containers=[with_env(given)]), owner)
    assert {name: after[name] for name in given} == given
    assert not said.problems


def job(**spec: Any) -> dict[str, Any]:
    spec = {"completionMode": "Indexed", "parallelism": 4, "completions": 4, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "uid-j"}, "spec": spec}


def test_job_without_index_or_subdomain_gets_a_warning():
    [_], said = injected(pod_of(job(), "train-x", subdomain="workers"), job())
    assert "has no completionMode Indexed" in said.problems[0]
    marks = {"annotations": {"batch.kubernetes.io/job-completion-index": "2"}}
    [_], said = injected(pod_of(job(), "train-x", metadata=marks), job())
    assert "has no subdomain" in said.problems[0]


def test_host_names_of_a_job_are_not_more_than_its_completions():
    marks = {"annotations": {"batch.kubernetes.io/job-completion-index": "2"}}
    owner = job(parallelism=8)
    [found], _ = injected(pod_of(owner, "", selector=None, subdomain="workers", metadata=marks), owner)
    assert found == {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": names(0, 4)}


@pytest.mark.parametrize("index", [1, 5])
def test_pods_of_a_job_in_several_rounds_form_no_multislice(index: int):
    """Pods of a second round would wait for a coordinator that has ended."""
    marks = {"annotations": {"batch.kubernetes.io/job-completion-index": str(index)}}
    owner = job(completions=8)
    [found], _ = injected(pod_of(owner, "", subdomain="workers", metadata=marks), owner)
    first = index - index % 4
    assert found == {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": names(first, first + 4)}


def replicated(
    name: str,
    replicas: int = 1,
    chips: int = 4,
    parallelism: int = 4,
    selector: dict[str, str] | None = None,
    multislice: str = "",
    **after: str,
) -> dict[str, Any]:
    """Return a replicated job; `after` has the names and status of the replicated jobs that it depends on."""
    notes = {"annotations": {"tpu-provisioner.cloud.google.com/multislice": multislice}} if multislice else {}
    template = {"metadata": notes, "spec": {"containers": [container(chips)], "nodeSelector": selector or {}}}
    needs = [{"name": other, "status": status} for other, status in after.items()]
    job = {"spec": {"template": template, **({"parallelism": parallelism} if parallelism > 1 else {})}}
    return {"name": name, "replicas": replicas, "template": job, "dependsOn": needs}


def jobset(*jobs: dict[str, Any]) -> dict[str, Any]:
    jobs = jobs or (replicated("driver", 1, 0), replicated("a", 2), {**replicated("b"), "groupName": "default"})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ml", "uid": "uid-js"},
        "spec": {"replicatedJobs": list(jobs)},
    }


def pod_of_jobset(name: str, number: int = 0, index: int = 0, **more: Any) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"js-{name}-{number}", "uid": "u"}}
    marks = {
        "jobset.sigs.k8s.io/jobset-name": "js",
        "jobset.sigs.k8s.io/replicatedjob-name": name,
        "jobset.sigs.k8s.io/job-index": str(number),
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    return pod_of(owner, "", metadata={"labels": marks, "annotations": marks}, **{"subdomain": "js", **more})


def test_second_child_job_of_a_replicated_job_is_the_second_slice():
    [found], _ = injected(pod_of_jobset("a", 1), jobset())
    assert (found["MEGASCALE_SLICE_ID"], found["MEGASCALE_NUM_SLICES"]) == ("1", "3")


def test_containers_of_a_multislice_get_different_ports():
    """JobSets of xpk have two containers on each host of tpu7x. With one port, only one of them could listen."""
    pods = {"selector": TPU7X_2X2X2, "containers": [container(2, "jax-tpu-1"), container(2, "jax-tpu-2")]}
    owner = jobset(replicated("a", 2, parallelism=2, selector=TPU7X_2X2X2))
    for index in (0, 1):
        raw = pod_of_jobset("a", 1, index, **pods)
        found, said = injected(raw, owner)
        assert [variables["MEGASCALE_PORT"] for variables in found] == ["8080", "8081"]
        assert {variables["MEGASCALE_COORDINATOR_ADDRESS"] for variables in found} == {"js-a-0-0.js:8080"}
        assert not injected(apply_patch(raw, said.patch), owner)[1].patch
    ports = ([{"name": "MEGASCALE_PORT", "value": value}] for value in ("9000", "9001"))
    pods["containers"] = [container(2, env=env) for env in ports]
    found, _ = injected(pod_of_jobset("a", 1, **pods), owner)
    assert [(variables["MEGASCALE_SLICE_ID"], variables["MEGASCALE_COORDINATOR_ADDRESS"]) for variables in found] == [
        ("1", "js-a-0-0.js:9000")
    ] * 2


def test_host_names_of_a_child_job_are_not_more_than_its_completions():
    """In the past, the list of host names had names of pods that are never created."""
    entry = replicated("a", parallelism=8)
    entry["template"]["spec"]["completions"] = 4
    [found], _ = injected(pod_of_jobset("a", selector=None), jobset(entry))
    assert found["TPU_WORKER_HOSTNAMES"] == ",".join(f"js-a-0-{index}.js" for index in range(4))


def test_replicated_job_without_replicas_is_not_the_coordinator():
    [found], said = injected(pod_of_jobset("b"), jobset(replicated("a", 0), replicated("b", 2)))
    assert found["MEGASCALE_NUM_SLICES"] == "2"
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == "js-b-0-0.js"
    assert not said.problems


@pytest.mark.parametrize(
    ("own", "slices", "coordinator"),
    [
        pytest.param("prepare", "3 of 0", "prepare", id="before two"),
        pytest.param("train", "4 of 0", "train", id="between others"),
        pytest.param("watch", "4 of 2", "train", id="beside it"),
        pytest.param("score", "", "", id="after all that ended, also before what it needs"),
    ],
)
def test_replicated_jobs_that_never_run_together_form_no_multislice(own: str, slices: str, coordinator: str):
    owner = jobset(
        replicated("prepare", 3),
        replicated("train", 2, prepare="Complete"),
        replicated("watch", 2, train="Ready"),
        replicated("score", train="Complete", watch="Complete"),
    )
    [found], said = injected(pod_of_jobset(own), owner)
    want = (
        dict(zip(("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"), slices.split(" of "), strict=True)) if slices else {}
    )
    assert {name: found[name] for name in found if name.endswith(("_SLICES", "SLICE_ID"))} == want
    assert found.get("MEGASCALE_COORDINATOR_ADDRESS", "") == (f"js-{coordinator}-0-0.js" if slices else "")
    assert not said.problems


def test_all_pods_of_a_multislice_count_the_same_slices():
    """`eval` runs next to `warm` and then next to `train`. The dependency on `fetch` (no chips) is ignored."""
    warm, train = replicated("warm", fetch="Complete"), replicated("train", warm="Complete")
    owner = jobset(replicated("fetch", chips=0), warm, train, replicated("eval"))
    found = [injected(pod_of_jobset(name), owner)[0][0] for name in ("warm", "train", "eval")]
    assert [variables.get("MEGASCALE_NUM_SLICES") for variables in found] == ["2", None, "2"]
    assert [variables.get("MEGASCALE_SLICE_ID") for variables in found] == ["0", None, "1"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replicated("b", 3, selector=V6E_2X2), id="of another accelerator"),
        pytest.param(replicated("b", 3, selector={**V5E_4X4, **TOPOLOGY_8X8}), id="of another topology"),
        pytest.param(replicated("b", 3, chips=8, selector=V5E_4X4), id="of VMs with more chips"),
        pytest.param(replicated("b", 3, parallelism=1, selector=V5E_4X4), id="of fewer pods"),
        pytest.param({**replicated("b", 3, selector=V5E_4X4), "groupName": "samplers"}, id="of another group"),
        pytest.param(replicated("b", 3, selector=V5E_4X4, multislice="false"), id="whose pods say that they are apart"),
    ],
)
def test_replicated_jobs_with_different_slices_form_no_multislice(other: dict[str, Any]):
    [found], said = injected(pod_of_jobset("a", 1), jobset(other, replicated("a", 2, selector=V5E_4X4)))
    assert (found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_SLICE_ID"]) == ("2", "1")
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == "js-a-0-0.js"
    assert not said.problems


@pytest.mark.parametrize(
    ("replicas", "parallelism", "number", "index", "hosts", "own"),
    [
        pytest.param(4, 1, 3, 0, "0-0 1-0 2-0 3-0", None, id="one slice of Jobs of one pod"),
        pytest.param(8, 1, 6, 0, "4-0 5-0 6-0 7-0", "1", id="second slice of Jobs of one pod"),
        pytest.param(4, 2, 3, 0, "2-0 2-1 3-0 3-1", "1", id="second slice of Jobs of two pods"),
    ],
)
def test_child_jobs_that_together_fill_a_slice_are_numbered_in_it(
    replicas: int, parallelism: int, number: int, index: int, hosts: str, own: str | None
):
    """If each child Job counted as a slice, the host names would include pods that never exist."""
    owner = jobset(replicated("a", replicas, parallelism=parallelism, selector=V5E_4X4))
    [found], said = injected(pod_of_jobset("a", number, index), owner)
    listed = [f"js-a-{host}.js" for host in hosts.split()]
    assert found["TPU_WORKER_HOSTNAMES"].split(",") == listed
    assert listed[int(found["TPU_WORKER_ID"])] == f"js-a-{number}-{index}.js"
    assert (found.get("MEGASCALE_SLICE_ID"), found.get("MEGASCALE_NUM_SLICES")) == (own, own and "2")
    assert not said.problems
    # With exclusive placement, each child Job has its own node pool, so its pods must fill a slice.
    exclusive = pod_of_jobset("a", number, index)
    exclusive["metadata"]["annotations"][constants.EXCLUSIVE_TOPOLOGY] = constants.NODE_POOL
    assert "make it 4" in injected(exclusive, owner)[1].problems[0]


def test_child_jobs_of_dynamic_slicing_are_a_slice_each():
    """The selected topology is that of a node pool, and each child Job uses a part of it."""
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice", "cloud.google.com/gke-tpu-topology": "4x4x4"}
    owner = jobset(replicated("a", 4, selector=selector), replicated("b", 3, selector=selector))
    pod = pod_of_jobset("b", 1, 2, selector=selector)
    pod["metadata"]["annotations"][constants.SLICE_TOPOLOGY] = "2x2x4"
    [found], said = injected(pod, owner)
    assert found["TPU_WORKER_HOSTNAMES"] == ",".join(f"js-b-1-{index}.js" for index in range(4))
    assert (found["TPU_WORKER_ID"], found["MEGASCALE_SLICE_ID"], found["MEGASCALE_NUM_SLICES"]) == ("2", "5", "7")
    assert not said.problems


def test_one_vm_pods_of_one_child_job_form_no_multislice():
    pod = pod_of_jobset("a", 1, 3, selector=V6E_2X2)
    [found], said = injected(pod, jobset(replicated("a", 2, selector=V6E_2X2), replicated("b", selector=V6E_2X2)))
    assert (found, said.problems) == (ALONE, ())


ALONE = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}


@pytest.mark.parametrize("lacks", ["subdomain", "Indexed"])
@pytest.mark.parametrize("slices", [1, 2])
def test_one_vm_slices_need_host_names_and_indexes_only_in_a_multislice(lacks: str, slices: int):
    pod = pod_of_jobset("a", selector=V6E_2X2, subdomain="" if lacks == "subdomain" else "js")
    if lacks == "Indexed":
        del pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
    [found], said = injected(pod, jobset(replicated("a", slices, parallelism=1)))
    assert found == ALONE
    assert [lacks in problem for problem in said.problems] == [True] * (slices - 1)


def test_one_vm_slices_with_multislice_false_need_no_host_names():
    pod = pod_of_jobset("a", selector=V6E_2X2, subdomain="")
    pod["metadata"]["annotations"]["tpu-provisioner.cloud.google.com/multislice"] = "false"
    [found], said = injected(pod, jobset())
    assert (found, said.problems) == (ALONE, ())


def test_jobset_with_more_than_256_replicated_jobs_gets_a_warning():
    jobs = [replicated(f"r{number}") for number in range(257)]
    [found], said = injected(pod_of_jobset("r0"), jobset(*jobs))
    assert found == {}
    assert "has 257 replicated jobs, and at most 256 are read" in said.problems[0]
    assert not injected(pod_of_jobset("r0"), jobset(*jobs[:256]))[1].problems


def pod_of_group(worker: int, *, leader_has_chips: bool = True, **annotations: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "serve-1", "uid": "u"}}
    lws = "leaderworkerset.sigs.k8s.io/"
    labels = {f"{lws}name": "serve", f"{lws}worker-index": str(worker), f"{lws}group-index": "1"}
    notes = {f"{lws}size": "4", **{f"{lws}{key.replace('_', '-')}": value for key, value in annotations.items()}}
    if leader_has_chips and worker:
        notes[f"{lws}leader-requests-tpus"] = "true"
    name = f"serve-1-{worker}" if worker else "serve-1"
    return pod_of(owner, name, subdomain="serve", metadata={"labels": labels, "annotations": notes})


@pytest.mark.parametrize("given", [{}, {"TPU_PROCESS_ADDRESSES": "localhost:8471", "TPU_PROCESS_PORT": "8471"}])
def test_addresses_of_a_leader_worker_set_have_its_port(given: dict[str, str]):
    """Addresses that GKE's webhook set before are replaced."""
    pod = pod_of_group(1, size="2")
    pod["spec"] |= {"nodeSelector": TPU7X_2X2X2, "containers": [with_env(given)]}
    [after], said = injected(pod, {})
    assert after["TPU_PROCESS_ADDRESSES"] == "serve-1.serve:8476,serve-1-1.serve:8476"
    assert after["TPU_PROCESS_PORT"] == "8476"
    assert not said.problems


def test_leader_without_chips_is_not_a_worker():
    pod = pod_of_group(1, leader_has_chips=False, size="5")
    [found], said = injected(pod, {})
    hosts = ",".join(f"serve-1-{index}.serve" for index in range(1, 5))
    assert found == {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": hosts}
    assert not said.problems


def test_several_processes_of_a_pod_get_addresses_in_any_generation():
    owner = stateful_set()
    both, _ = injected(pod_of(owner, "train-0", containers=[container(2, "a"), container(2, "b")]), owner)
    assert [variables["TPU_PROCESS_PORT"] for variables in both] == ["8471", "8472"]


def test_slices_of_a_leader_worker_group_form_no_multislice():
    [found], _ = injected(pod_of_group(1, size="8"), {})
    assert found.keys() == {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"}


@pytest.mark.parametrize(
    ("worker", "leader_has_chips", "size", "index", "hosts"),
    [
        pytest.param(0, True, "8", 0, ["", "-1", "-2", "-3"], id="leader with chips"),
        pytest.param(3, True, "8", 3, ["", "-1", "-2", "-3"], id="last worker of its subgroup"),
        pytest.param(4, True, "8", 0, ["-4", "-5", "-6", "-7"], id="first worker of another subgroup"),
        pytest.param(4, False, "9", 3, ["-1", "-2", "-3", "-4"], id="worker of a leader without chips"),
        pytest.param(5, False, "9", 0, ["-5", "-6", "-7", "-8"], id="another subgroup of a leader without chips"),
    ],
)
def test_pods_of_a_subgroup_are_numbered_as_by_leaderworkerset(
    worker: int, leader_has_chips: bool, size: str, index: int, hosts: list[str]
):
    """LeaderWorkerSet sets equal values, perhaps after this webhook. Up to release 0.9, some leaders got index -1."""
    pod = pod_of_group(worker, leader_has_chips=leader_has_chips, size=size, subgroup_size="4")
    [found], said = injected(pod, {})
    names = ",".join(f"serve-1{host}.serve" for host in hosts)
    assert found == {"TPU_WORKER_ID": str(index), "TPU_WORKER_HOSTNAMES": names}
    assert not said.problems
    wrong = {"TPU_WORKER_HOSTNAMES": names, "TPU_WORKER_ID": "-1" if worker == 0 else str(index)}
    pod["spec"]["containers"] = [with_env(wrong)]
    [after], said = injected(pod, {})
    assert (after, said.problems) == (found, ())


def test_subgroup_whose_pods_have_several_containers_gets_a_warning_only_if_it_asks():
    """The webhook of LeaderWorkerSet numbers only the first container."""
    pod = pod_of_group(1, subgroup_size="4")
    pod["spec"]["containers"] = [container(2, "a"), container(2, "b")]
    both, said = injected(pod, {})
    assert both == [{}, {}]
    assert not said.problems
    pod["metadata"]["labels"][OLD_KEY] = "enabled"
    assert "numbers only the first container" in injected(pod, {})[1].problems[0]


@pytest.mark.parametrize("selector", [None, {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}])
def test_topology_variables_without_a_whole_selector_are_reported_missing(selector: dict[str, str] | None):
    owner = stateful_set()
    pod = pod_of(owner, "train-0", selector=selector)
    [found], said = injected(pod, owner, WebhookSettings(injection="all", topology=True))
    assert found["TPU_WORKER_ID"] == "0"
    assert "selects no accelerator and topology" in said.problems[0]


@pytest.mark.parametrize(
    ("injection", "on_pod", "on_owner", "expected"),
    [
        ("opt-in", {}, {}, False),
        ("opt-in", {"labels": {OLD_KEY: "enabled"}}, {}, True),
        ("opt-in", {"annotations": {OLD_KEY: "enabled"}}, {}, True),
        ("opt-in", {"annotations": {"tpu-provisioner.cloud.google.com/inject": "enabled"}}, {}, True),
        ("opt-in", {"labels": {OLD_KEY: "true"}}, {}, False),
        ("opt-in", {}, {"labels": {OLD_KEY: "enabled"}}, True),
        ("opt-in", {}, {"annotations": {OLD_KEY: "enabled"}}, True),
        ("opt-in", {"labels": {OLD_KEY: "disabled"}}, {"labels": {OLD_KEY: "enabled"}}, False),
        ("all", {}, {}, True),
        ("all", {"labels": {OLD_KEY: "disabled"}}, {}, False),
        ("all", {}, {"labels": {OLD_KEY: "disabled"}}, False),
    ],
)
def test_pod_gets_variables_if_it_or_its_owner_or_the_setting_asks(
    injection: str, on_pod: dict[str, Any], on_owner: dict[str, Any], expected: bool
):
    owner = stateful_set(**on_owner)
    asks = "enabled" in str((on_pod, on_owner))
    for selector in (V5E_4X4, None, {"cloud.google.com/gke-tpu-topology": "4x4"}):
        read = read_pod(pod_of(owner, "train-0", metadata=on_pod, selector=selector), "ml")
        assert read is not None
        found = wanted(read, owner, WebhookSettings(injection=injection))
        assert found is (expected and (asks or selector is V5E_4X4))


def test_label_of_a_stateful_set_asks_for_its_pods():
    """A slice of one VM needs no names of other pods, but the webhook reads the owner for its label."""
    one_host = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    pod = pod_of(stateful_set(), "train-0", selector=one_host)
    request = Request(operation="CREATE", kind="Pod", namespace="ml", object=pod)
    for owner, asks in ((stateful_set(labels=ASKS), True), (stateful_set(), False)):
        assert bool(review_pod(request, lambda _, owner=owner: owner, WebhookSettings()).patch) == asks
