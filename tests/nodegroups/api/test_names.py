"""Tests of the names of child objects, and of the description that marks a Compute Engine resource as a group's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.capacity import Taint
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.statuses import OperationType
from provisioner.nodegroups.api.types import Kind, ObjectMeta
from tests.support.nodegroups import CLUSTER_UID, UID

GROUP = ObjectMeta(namespace="research", name="slice", uid=UID)
MARK = f"tpu-provisioner: TPUNodeGroup research/slice uid {UID} cluster {CLUSTER_UID}"
CHILDREN = (Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE, Kind.MANAGED_INSTANCE_GROUP)

GROUP_NAMES = st.from_regex(r"[a-z](?:[-a-z0-9]{0,43}[a-z0-9])?", fullmatch=True)
UIDS = st.uuids().map(str)
NAMESPACES = st.from_regex(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
OBJECT_NAMES = st.from_regex(r"[a-z0-9](?:[-.a-z0-9]{0,80}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        (Kind.WORKLOAD_POLICY, "slice-policy-a618e442"),
        (Kind.INSTANCE_TEMPLATE, "slice-template-a618e442"),
        (Kind.MANAGED_INSTANCE_GROUP, "slice-mig-a618e442"),
    ],
)
def test_name_of_a_child_is_that_of_tpu_operator(kind: Kind, want: str) -> None:
    # The suffix of the names: printf 0b5c9f0e-6f63-4c2b-9b6e-6d7f9a3d1c11 | sha256sum | cut -c-8
    assert names.child_name(GROUP, kind) == want


def test_name_budget_of_groups_fits_the_longest_name_of_a_child() -> None:
    assert names.NAME_BUDGET == 45
    longest = ObjectMeta(namespace="n", name="a" * 45, uid=UID)
    assert max(len(names.child_name(longest, kind)) for kind in CHILDREN) == 63
    assert names.resource_name_problem("a" * 63) == ""
    assert names.resource_name_problem("a" * 64)


@given(GROUP_NAMES, UIDS)
def test_children_of_a_group_with_a_valid_name_have_valid_names(name: str, uid: str) -> None:
    assert names.group_name_problem(name) == ""
    group = ObjectMeta(namespace="n", name=name, uid=uid)
    of_children = [names.child_name(group, kind) for kind in CHILDREN]
    assert [names.resource_name_problem(name_of_child) for name_of_child in of_children] == ["", "", ""]
    assert len(set(of_children)) == 3


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("slice-1", "", id="letters, digits and hyphens"),
        pytest.param("a" * 45, "", id="as long as can be"),
        pytest.param("a" * 46, "has 46 characters, and names of its resources in Compute Engine leave", id="too long"),
        pytest.param("1-slice", "a letter first", id="a digit first"),
        pytest.param("my.slice", "digits and hyphens", id="a dot, which Kubernetes takes"),
        pytest.param("", "is invalid for Compute Engine", id="no name"),
        pytest.param("slice\n", "is invalid for Compute Engine", id="a line end"),
        pytest.param("slice-", "no hyphen last", id="a hyphen last"),
    ],
)
def test_name_of_a_group_that_compute_engine_rejects_is_reported(name: str, want: str) -> None:
    problem = names.group_name_problem(name)
    assert want in problem
    assert bool(problem) == bool(want)


@pytest.mark.parametrize(
    ("identity", "good"),
    [
        pytest.param(("research", "slice", UID), True, id="what the API server gives"),
        pytest.param(("research", "my.slice", UID), True, id="a dot in a name"),
        pytest.param(("research", "slice uid 1", UID), False, id="a blank in a name"),
        pytest.param(("research", "slice", f"{UID}\n"), False, id="a line end"),
        pytest.param(("re/search", "slice", UID), False, id="a stroke in a namespace"),
        pytest.param(("", "slice", UID), False, id="no namespace"),
        pytest.param(("n" * 64, "slice", UID), False, id="a namespace that is too long"),
        pytest.param(("research", "s" * 254, UID), False, id="a name that is too long"),
    ],
)
def test_identity_is_valid_only_if_the_api_server_accepts_it(identity: tuple[str, str, str], good: bool) -> None:
    assert names.is_identity(*identity) is good


@given(st.sampled_from(list(Kind)), NAMESPACES, OBJECT_NAMES, UIDS, UIDS)
def test_mark_is_one_line_and_is_parsed_unchanged(
    kind: Kind, namespace: str, name: str, uid: str, cluster_uid: str
) -> None:
    mark = names.mark_of(ObjectMeta(namespace=namespace, name=name, uid=uid), kind, cluster_uid)
    text = str(mark)
    assert len(text.splitlines()) == 1
    assert len(text) <= 2048
    assert names.parse_mark(text) == mark


def test_mark_contains_kind_name_uid_and_cluster() -> None:
    assert str(names.mark_of(GROUP, Kind.TPU_NODE_GROUP, CLUSTER_UID)) == MARK

    child = ObjectMeta(namespace="research", name="t", uid=UID)
    assert str(names.mark_of(child, Kind.INSTANCE_TEMPLATE, CLUSTER_UID)) == (
        f"tpu-provisioner: InstanceTemplate research/t uid {UID} cluster {CLUSTER_UID}"
    )


@pytest.mark.parametrize(
    "description",
    [
        pytest.param("", id="nothing"),
        pytest.param("TPU slice of the research team", id="words of somebody else"),
        pytest.param(f" {MARK}", id="a blank before it"),
        pytest.param(f"{MARK}\n", id="a line end behind it"),
        pytest.param(f"{MARK}\n{MARK}", id="two marks"),
        pytest.param(f"was {MARK}", id="words before it"),
        pytest.param(f"{MARK} {MARK.removeprefix('tpu-provisioner: ')}", id="two owners"),
        pytest.param(MARK.replace("TPUNodeGroup", "Deployment"), id="a kind that is not ours"),
        pytest.param(MARK.replace("TPUNodeGroup", "tpunodegroup"), id="another case"),
        pytest.param(MARK.replace("research/", "a/research/"), id="two namespaces"),
        pytest.param(MARK.replace(" uid ", "  uid "), id="two blanks"),
        pytest.param(MARK.replace(" uid ", "\N{NO-BREAK SPACE}uid "), id="a blank of another kind"),
        pytest.param(MARK.replace("slice", "sl\N{LATIN SMALL LETTER DOTLESS I}ce"), id="a letter that looks alike"),
        pytest.param(MARK.replace(f" cluster {CLUSTER_UID}", ""), id="no cluster"),
        pytest.param(f"{MARK}{'x' * 5000}", id="far too long"),
    ],
)
def test_description_that_is_not_exactly_a_mark_is_rejected(description: str) -> None:
    assert names.parse_mark(description) is None


@given(UIDS, UIDS, st.integers(1, 99), st.integers(1, 99))
def test_request_id_differs_by_object_operation_and_attempt(one: str, other: str, first: int, second: int) -> None:
    create = names.request_id(one, OperationType.CREATE, first)
    assert create == names.request_id(one, OperationType.CREATE, first)
    assert create != names.request_id(one, OperationType.DELETE, first)
    assert (create == names.request_id(one, OperationType.CREATE, second)) is (first == second)
    assert (create == names.request_id(other, OperationType.CREATE, first)) is (one == other)


def test_request_id_of_an_attempt_is_the_same_in_all_releases() -> None:
    assert names.request_id(UID, OperationType.CREATE, 1) == "e0df9d5e-d62b-577c-b78d-468f2ace8053"


def test_finalizers_are_those_of_tpu_operator() -> None:
    # Objects that tpu-operator created have these finalizers, which this controller must remove.
    assert names.GROUP_FINALIZERS == (
        "tpu.google.com/cleanup-mig",
        "tpu.google.com/cleanup-template",
        "tpu.google.com/cleanup-policy",
        "tpu.google.com/cleanup-nodes",
        "tpu.google.com/cleanup-device-plugin",
    )
    assert sorted(names.CHILD_FINALIZERS.values()) == [
        "tpu.google.com/instancetemplate-cleanup",
        "tpu.google.com/managedinstancegroup-cleanup",
        "tpu.google.com/workloadpolicy-cleanup",
    ]
    assert set(names.CHILD_FINALIZERS) == set(CHILDREN)


_NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
_KEYS = st.builds("{}/{}".format, _NAMES, _NAMES) | _NAMES
_VALUES = _NAMES | st.just("")
_EFFECTS = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])


@given(
    st.dictionaries(_KEYS, _VALUES), st.lists(st.builds(Taint, key=_KEYS, value=_VALUES, effect=_EFFECTS)).map(tuple)
)
def test_labels_and_taints_are_parsed_unchanged(labels: dict[str, str], taints: tuple[Taint, ...]) -> None:
    assert names.parse_labels(names.labels_text(labels)) == labels
    assert names.parse_taints(names.taints_text(taints)) == taints


def test_malformed_label_or_taint_is_left_out() -> None:
    for text in ("", ",", "a", "=b", " , a"):
        assert names.parse_labels(text) == {}, text
    for text in ("", ",", "a=b", ":NoSchedule", "=b:NoSchedule", "a=b:"):
        assert names.parse_taints(text) == (), text
