"""Tests of every rule, bound and default of the CRDs of node groups, and of the examples, on a real API server.

No webhook validates these objects, so the controller must be able to read every object that the API server accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from generators import crds
from generators.crds import crd, schema_of
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model import bounds
from provisioner.nodegroups.api import codec, documents, names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.specs import (
    InstanceConfig,
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    NodeSummary,
    Reason,
    TpuNodeGroupStatus,
    with_condition,
)
from provisioner.nodegroups.api.types import (
    RECORDS,
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    TpuNodeGroup,
    WorkloadPolicy,
)
from rehearsal.demos import Rehearsal
from tests.e2e.kit import remove_node_group_kinds
from tests.support.clock import NOW
from tests.support.localcluster import Kube
from tests.support.nodegroups import SPECS as EXAMPLES
from tests.support.nodegroups import UNREAD, raw_object, without
from tests.support.waiting import wait_for

_NAMESPACE = "node-groups"
_ROOT = "/apis/tpu.google.com/v1alpha1"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MANIFESTS = Path(__file__).parents[2] / "examples" / "nodegroups"

GROUP = EXAMPLES[Kind.TPU_NODE_GROUP]
CONFIG = GROUP["instanceConfig"]
TEMPLATE = EXAMPLES[Kind.INSTANCE_TEMPLATE]
OWN_TEMPLATE = "projects/research-project/global/instanceTemplates/mine"
_OWN = without(GROUP, "instanceConfig", "bootstrapKubernetes", instanceTemplateURI=OWN_TEMPLATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The API server with the CRDs."""

    kube: Kube

    def create(self, kind: Kind, spec: object, *, name: str = "tried", dry: bool = True) -> requests.Response:
        body = {"apiVersion": "tpu.google.com/v1alpha1", "kind": kind.value, "metadata": {"name": name}, "spec": spec}
        path = collection_path(kind.plural, namespace=_NAMESPACE, root=_ROOT)
        return self.kube.call("POST", f"{path}?fieldValidation=Ignore{'&dryRun=All' if dry else ''}", body)

    def path(self, kind: Kind, name: str) -> str:
        return object_path(kind.plural, name, namespace=_NAMESPACE, root=_ROOT)


@pytest.fixture(scope="module")
def server(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield the API server, with objects that were created when the CRDs had no rules."""
    kube = Kube(rehearsal.cluster.kubeconfig, tmp_path_factory.mktemp("credentials"))
    rehearsal.create_namespace(_NAMESPACE)
    server = Server(kube=kube)
    for kind in Kind:
        definition = crd(kind)
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
        kube.create(_DEFINITIONS, definition)
    for kind in Kind:
        wait_for(lambda kind=kind: server.create(kind, {}).status_code == 201, what="the kinds are served")
    for name, spec in _OF_BEFORE.items():
        body = {
            "apiVersion": "tpu.google.com/v1alpha1",
            "kind": "TPUNodeGroup",
            "metadata": {"name": name, "finalizers": ["tpu.google.com/cleanup-mig"]},
            **({"spec": spec} if spec is not None else {}),
        }
        kube.create(collection_path("tpunodegroups", namespace=_NAMESPACE, root=_ROOT), body)
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(crds.FOLDER))
    for kind in Kind:
        wait_for(lambda kind=kind: server.create(kind, {}).status_code == 422, what="the definitions are asked")
    yield server
    remove_node_group_kinds(rehearsal)


#: Specs of objects from before the CRDs had rules, by name of the object. The controller cannot serve them.
_OF_BEFORE: Mapping[str, dict[str, Any] | None] = {
    "a" * 60: dict(GROUP),
    "no.resource": dict(GROUP),
    "no-machines": without(GROUP, nodeCount=0, targetSizePolicyMode="INDIVIDUAL"),
    "no-zone": without(GROUP, nodeLocation="us-central1"),
    "no-template": without(GROUP, "instanceConfig"),
    "nothing": None,
}


# --- Rules of the CRDs ---


Json = dict[str, Any]
#: Pairs by the message of a rule: a spec that breaks only this rule, and a similar spec that satisfies it.
Rules = Mapping[str, Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]]


def _config_rules(kind: Kind) -> Rules:
    """Return the rules of instanceConfig, which apply to groups and templates."""

    def spec(*gone: str, **changes: Any) -> Json:
        if kind is Kind.INSTANCE_TEMPLATE:
            return without(TEMPLATE, *gone, **changes)
        return without(GROUP, instanceConfig=without(CONFIG, *gone, **changes))

    flex = {"provisioningModel": "FLEX_START"}
    standard = {"provisioningModel": "STANDARD"}
    return {
        "Only v6 and v7 TPU machine types are supported": [
            (spec(machineType="ct5p-hightpu-4t"), spec(machineType="ct6e-standard-4t")),
        ],
        "Reservation is required when provisioningModel is RESERVATION_BOUND": [
            (spec("reservation"), spec("reservation", "provisioningModel")),
            (spec(reservation=""), spec("provisioningModel", reservation="")),
        ],
        "ProvisioningModel must be RESERVATION_BOUND when reservation is specified": [
            (spec(provisioningModel="SPOT"), spec("provisioningModel")),
        ],
        "reservationAffinity must not be given with reservation": [
            (
                spec(reservationAffinity="NO_RESERVATION"),
                spec("reservation", "provisioningModel", reservationAffinity="NO_RESERVATION", secureBoot=True),
            ),
        ],
        "maxRunDurationSeconds must be given with provisioningModel FLEX_START, and only then": [
            (spec("reservation", **flex), spec("reservation", **flex, maxRunDurationSeconds=600)),
            (spec("reservation", **standard, maxRunDurationSeconds=600), spec("reservation", **standard)),
        ],
        "keys of metadata have 1 to 128 letters, digits, hyphens and underscores": [
            (spec(metadata={"k" * 129: "x"}), spec(metadata={"k" * 128: "x"})),
            (spec(metadata={"good": "x", "a key": "x"}), spec(metadata={"good": "x", "a_key-2": "x"})),
        ],
    }


def _with_metadata(*lengths: int, text: str = "x") -> Json:
    metadata = {f"key-{number}": text * length for number, length in enumerate(lengths)}
    return without(GROUP, instanceConfig={**CONFIG, "metadata": metadata})


RULES: Mapping[Kind, Rules] = {
    Kind.INSTANCE_TEMPLATE: {
        **_config_rules(Kind.INSTANCE_TEMPLATE),
        "all values of metadata together have at most 524,288 bytes": [
            tuple(
                without(TEMPLATE, metadata={"a": "x" * 262_144, "b": "\N{GRINNING FACE}" * count})
                for count in (65_537, 65_536)
            ),
        ],
    },
    Kind.TPU_NODE_GROUP: {
        **_config_rules(Kind.TPU_NODE_GROUP),
        "all values of metadata together have at most 262,144 bytes": [
            (_with_metadata(200_000, 62_145), _with_metadata(200_000, 62_144)),
            (_with_metadata(65_536, 1, text="\N{GRINNING FACE}"), _with_metadata(65_536, text="\N{GRINNING FACE}")),
        ],
        "targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less": [
            (without(GROUP, nodeCount=1), without(GROUP, nodeCount=1, targetSizePolicyMode="INDIVIDUAL")),
            (without(GROUP, nodeCount=1), without(GROUP, "targetSizePolicyMode", nodeCount=1)),
        ],
        "Either InstanceConfig or InstanceTemplateURI must be specified": [(without(GROUP, "instanceConfig"), GROUP)],
        "InstanceConfig and InstanceTemplateURI cannot be specified together": [
            (without(_OWN, instanceConfig=CONFIG), _OWN),
        ],
        "Bootstrapping is not supported when bringing your own instance template": [
            (without(_OWN, bootstrapKubernetes={}), _OWN),
        ],
        "InstanceTemplateURI must belong to the same project as specified in spec.project": [
            (
                without(_OWN, instanceTemplateURI=OWN_TEMPLATE.replace(*change)),
                without(_OWN, instanceTemplateURI=OWN_TEMPLATE.replace("global", "regions/us-central1")),
            )
            for change in (
                ("research-project", "other-project"),
                ("global", "zones/us-central1-c"),
                ("instanceTemplates", "images"),
                ("mine", "mine/yours"),
                ("projects/", "https://example.com/projects/"),
            )
        ],
        "must be an IPv4 address or a host name; the port goes into controlPlanePort": [
            (without(GROUP, bootstrapKubernetes={"controlPlaneIP": broken}), GROUP)
            for broken in ("10.128.0.9:443", "fd20:0:0:1::9", "[fd20::9]")
        ],
        'must be a minor version of Kubernetes such as "1.31"': [
            (without(GROUP, bootstrapKubernetes={"version": broken}), GROUP) for broken in ("1.33.4", "v1.33", "1")
        ],
        "controlPlanePort must be given with controlPlaneIP only": [
            (
                without(GROUP, bootstrapKubernetes={"controlPlanePort": 443}),
                without(GROUP, bootstrapKubernetes={"controlPlanePort": 443, "controlPlaneIP": "10.0.0.1"}),
            ),
        ],
    },
}

#: Changes of a group: the old and the new spec, and the message of the rule that forbids the change.
CHANGES = (
    *(
        (GROUP, without(GROUP, **{name: value}), f"{name} cannot be changed; create another object")
        for name, value in {
            "project": "another-project",
            "nodeLocation": "us-central1-a",
            "instanceConfig": without(CONFIG, bootDiskSizeGB=100),
            "nodeCount": 3,
            "minNodeCount": 1,
            "acceleratorConnectionMode": "static",
            "topology": "2x2x4",
            "bootstrapKubernetes": {},
            "targetSizePolicyMode": "INDIVIDUAL",
        }.items()
    ),
    (
        _OWN,
        without(_OWN, instanceTemplateURI=f"{OWN_TEMPLATE}-2"),
        "instanceTemplateURI cannot be changed; create another object",
    ),
    *(
        (old, new, "cannot be added or removed; create another object")
        for old, new in (
            (GROUP, without(GROUP, "nodeCount")),
            (without(GROUP, "topology"), GROUP),
            (GROUP, without(GROUP, "bootstrapKubernetes")),
            (GROUP, without(GROUP, "targetSizePolicyMode")),
            (_OWN, without(_OWN, "instanceTemplateURI", instanceConfig=CONFIG)),
        )
    ),
)
CHILD_CHANGES = {
    Kind.WORKLOAD_POLICY: {"acceleratorTopology": "2x2x4"},
    Kind.INSTANCE_TEMPLATE: {"metadata": {"team": "another"}},
    Kind.MANAGED_INSTANCE_GROUP: {"targetSize": 4},
}


def _rules(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for part in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield from _rules(part)


@pytest.mark.parametrize("kind", Kind)
def test_every_rule_of_the_crd_is_tested(kind: Kind) -> None:
    """The test fails also if a rule that is listed here is missing in the CRD."""
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    # The messages of patterns count as tested, because the tests of bounds use values that break them (`_values`).
    tried = {*RULES.get(kind, ()), "spec is missing", "Compute Engine accepts no other", "must be a", "must be the "}
    tried |= {words for _, _, words in CHANGES} if kind is Kind.TPU_NODE_GROUP else {"spec cannot be changed; create"}
    rules = list(_rules(schema))
    assert [message for message in rules if not any(words in message for words in tried)] == []
    assert [words for words in tried if not any(words in message for message in rules)] == []


@pytest.mark.e2e
@pytest.mark.parametrize(("kind", "words"), [(kind, words) for kind, rules in RULES.items() for words in rules])
def test_spec_that_breaks_a_rule_is_rejected_only_with_its_message(kind: Kind, words: str, server: Server) -> None:
    for broken, kept in RULES[kind][words]:
        answer = server.create(kind, broken)
        assert answer.status_code == 422, answer.text
        assert [words in cause["message"] for cause in answer.json()["details"]["causes"]] == [True]
        answer = server.create(kind, kept)
        assert answer.status_code == 201, answer.text


@pytest.mark.e2e
@pytest.mark.parametrize("kind", Kind)
def test_object_without_a_spec_is_rejected(kind: Kind, server: Server) -> None:
    answer = server.create(kind, None)
    assert answer.status_code == 422
    assert "spec is missing" in answer.text


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "kind", "good"),
    [
        pytest.param("a" * 45, Kind.TPU_NODE_GROUP, True, id="as long as its children's names allow"),
        pytest.param("a" * 46, Kind.TPU_NODE_GROUP, False, id="one character more"),
        pytest.param("my.slice", Kind.TPU_NODE_GROUP, False, id="a dot"),
        pytest.param("1-slice", Kind.TPU_NODE_GROUP, False, id="a digit first"),
        pytest.param("a", Kind.TPU_NODE_GROUP, True, id="one letter"),
        pytest.param("a" * 63, Kind.WORKLOAD_POLICY, True, id="as long as Compute Engine takes it"),
        pytest.param("a" * 64, Kind.WORKLOAD_POLICY, False, id="a policy's with one more"),
        pytest.param("a" * 64, Kind.INSTANCE_TEMPLATE, False, id="a template's with one more"),
        pytest.param("a" * 64, Kind.MANAGED_INSTANCE_GROUP, False, id="a managed instance group's with one more"),
    ],
)
def test_name_is_accepted_if_the_names_derived_from_it_are_valid(
    name: str, kind: Kind, good: bool, server: Server
) -> None:
    """The names of the resources in Compute Engine are derived from the name of the object."""
    answer = server.create(kind, EXAMPLES[kind], name=name)
    assert answer.status_code == (201 if good else 422), answer.text
    assert ("Compute Engine accepts no other" in answer.text) is not good
    problem = names.group_name_problem if kind is Kind.TPU_NODE_GROUP else names.resource_name_problem
    assert (problem(name) == "") is good


@pytest.mark.e2e
def test_no_field_of_a_group_can_be_changed_added_or_removed(server: Server) -> None:
    for index, (old, new, words) in enumerate(CHANGES):
        name = f"change-{index}"
        made = server.create(Kind.TPU_NODE_GROUP, old, name=name, dry=False)
        assert made.status_code == 201, made.text
        path = f"{server.path(Kind.TPU_NODE_GROUP, name)}?dryRun=All"
        answer = server.kube.call("PUT", path, {**made.json(), "spec": new})
        assert answer.status_code == 422, (new, answer.text)
        assert [words in cause["message"] for cause in answer.json()["details"]["causes"]] == [True]
        answer = server.kube.call("PUT", path, {**made.json(), "spec": old})
        assert answer.status_code == 200, answer.text


@pytest.mark.e2e
@pytest.mark.parametrize("kind", CHILD_CHANGES)
def test_no_field_of_a_child_can_be_changed(kind: Kind, server: Server) -> None:
    """The controller never changes a resource in Compute Engine, so a changed spec would contradict the resource."""
    made = server.create(kind, EXAMPLES[kind], name="fixed", dry=False)
    assert made.status_code == 201, made.text
    path = f"{server.path(kind, 'fixed')}?dryRun=All"
    answer = server.kube.call("PUT", path, {**made.json(), "spec": {**EXAMPLES[kind], **CHILD_CHANGES[kind]}})
    assert answer.status_code == 422, answer.text
    assert "spec cannot be changed; create another object" in answer.text
    labelled = {**made.json(), "metadata": {**made.json()["metadata"], "labels": {"team": "research"}}}
    assert server.kube.call("PUT", path, labelled).status_code == 200


@pytest.mark.e2e
@pytest.mark.parametrize("name", _OF_BEFORE)
def test_object_that_is_invalid_now_can_still_be_deleted(name: str, server: Server) -> None:
    """The controller can write the status and remove finalizers; otherwise the namespace could never be deleted."""
    path = server.path(Kind.TPU_NODE_GROUP, name)
    group = parse(TpuNodeGroup, server.kube.get(path))
    why = Condition(type="Ready", status=ConditionStatus.FALSE, reason=Reason.INVALID_SPEC, message="cannot be served")
    status = TpuNodeGroupStatus(conditions=with_condition((), why, NOW))
    patch = documents.status_patch(group, status)
    assert patch is not None
    server.kube.merge(f"{path}/status", patch)
    after = parse(TpuNodeGroup, server.kube.get(path))
    assert after.status == status
    assert server.kube.call("DELETE", path).status_code == 200
    server.kube.merge(path, documents.finalizers_patch(parse(TpuNodeGroup, server.kube.get(path)).meta, ()))
    assert server.kube.call("GET", path).status_code == 404


# --- Bounds and forms of fields ---


def _values(schema: Mapping[str, Any]) -> Iterator[object]:
    """Yield values within and beyond the bounds of a schema, and values of other types."""
    yield from (5, True, 1.5, "", "x", "A b", "x\n", [], {}, ["x"], {"a": "b"})
    match schema:
        case {"type": "string"}:
            most = schema.get("maxLength", 40)
            yield from (*schema.get("enum", ()), "4x4", "2x2x2", "us-central1-c", "us-central1", "research-project")
            yield from ("1.31", "x" * most, "x" * (most + 1), "$(reboot)", "a;b", "\N{SNOWMAN}")
        case {"minimum": least, "maximum": most}:
            yield from (least - 1, least, most, most + 1)
        case {"maxItems": most}:
            yield from (["x"] * most, ["x"] * (most + 1), [{"email": "default", "scopes": []}] * most)
            yield [{"email": "default"}] * most
        case {"maxProperties": most}:
            for count in (most, most + 1):
                yield {f"k{index}": "x" for index in range(count)}
            yield {"a": 5}
        case _:
            yield from (True, False)


def _trials(kind: Kind) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in schema_of(kind, "spec")["properties"].items():
        yield from ((f"{name} {str(value)[:40]!r}", {**EXAMPLES[kind], name: value}) for value in _values(schema))
        if "properties" in schema:
            base = EXAMPLES[kind].get(name, {})
            for inner, part in schema["properties"].items():
                for value in _values(part):
                    yield f"{name}.{inner} {str(value)[:40]!r}", {**EXAMPLES[kind], name: {**base, inner: value}}


@pytest.mark.e2e
@pytest.mark.parametrize("kind", Kind)
def test_object_that_the_api_server_accepts_can_be_parsed(kind: Kind, server: Server) -> None:
    taken = 0
    for _, spec in _trials(kind):
        answer = server.create(kind, spec)
        assert answer.status_code in (201, 422), answer.text
        if answer.status_code == 201:
            parse(RECORDS[kind], answer.json())
            taken += 1
    assert taken >= len(schema_of(kind, "spec")["properties"])


def _of_size(field: str, value: object) -> Json:
    return without(GROUP, instanceConfig={**CONFIG, field: value})


#: Bounds of TPUNodeGroups, each with a function that returns a spec in which the number of items is its argument.
BOUNDS: Mapping[str, tuple[int, Callable[[int], Json]]] = {
    "machines": (
        bounds.GROUP_NODES,
        lambda count: without(GROUP, "topology", nodeCount=count, targetSizePolicyMode="INDIVIDUAL"),
    ),
    "entries of metadata": (
        64,
        lambda count: _of_size("metadata", {f"k{index}": "x" for index in range(count)}),
    ),
    "network tags": (bounds.NETWORK_TAGS, lambda count: _of_size("networkTags", [f"t{tag}" for tag in range(count)])),
    "scopes": (
        64,
        lambda count: _of_size("serviceAccounts", [{"email": "default", "scopes": ["https://s"] * count}]),
    ),
    "characters of an address": (1024, lambda count: _of_size("image", "x" * count)),
}


@pytest.mark.e2e
@pytest.mark.parametrize("name", BOUNDS)
def test_spec_is_accepted_only_within_a_bound(name: str, server: Server) -> None:
    bound, make = BOUNDS[name]
    assert server.create(Kind.TPU_NODE_GROUP, make(bound)).status_code == 201
    assert server.create(Kind.TPU_NODE_GROUP, make(bound + 1)).status_code == 422


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("bound", "make"),
    [
        pytest.param(
            bounds.CONDITIONS,
            lambda count: {
                "conditions": [
                    {
                        "type": f"Type{index}",
                        "status": "True",
                        "reason": "R",
                        "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                    for index in range(count)
                ]
            },
            id="conditions",
        ),
        pytest.param(
            bounds.RECREATIONS, lambda count: {"recreations": ["2026-01-01T00:00:00Z"] * count}, id="recreations"
        ),
    ],
)
def test_status_is_accepted_only_within_a_bound(bound: int, make: Callable[[int], Json], server: Server) -> None:
    made = server.create(Kind.TPU_NODE_GROUP, GROUP, name=f"bound-{bound}", dry=False).json()
    path = f"{server.path(Kind.TPU_NODE_GROUP, f'bound-{bound}')}/status?dryRun=All"
    for count, code in ((bound, 200), (bound + 1, 422)):
        assert server.kube.call("PUT", path, {**made, "status": make(count)}).status_code == code


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("kind", "spec", "added"),
    [
        pytest.param(
            Kind.TPU_NODE_GROUP,
            {
                "project": "research-project",
                "nodeLocation": "us-central1-c",
                "instanceConfig": {"machineType": "tpu7x-standard-4t"},
            },
            {
                "minNodeCount": 0,
                "acceleratorConnectionMode": "STATIC",
                "instanceConfig": {"machineType": "tpu7x-standard-4t", "subnetwork": "default"},
            },
            id="of a group",
        ),
        pytest.param(
            Kind.WORKLOAD_POLICY,
            without(EXAMPLES[Kind.WORKLOAD_POLICY], "type"),
            {"type": "HIGH_THROUGHPUT"},
            id="of a policy",
        ),
        pytest.param(
            Kind.INSTANCE_TEMPLATE,
            {"project": "research-project", "machineType": "tpu7x-standard-4t"},
            {"subnetwork": "default", "maintenancePolicy": "TERMINATE", "bootDisk": {"autoDelete": True}},
            id="of a template",
        ),
        pytest.param(
            Kind.INSTANCE_TEMPLATE,
            {"project": "research-project", "machineType": "tpu7x-standard-4t", "bootDisk": {}},
            {"subnetwork": "default", "maintenancePolicy": "TERMINATE", "bootDisk": {"autoDelete": True}},
            id="of a template's boot disk",
        ),
        pytest.param(
            Kind.MANAGED_INSTANCE_GROUP,
            without(EXAMPLES[Kind.MANAGED_INSTANCE_GROUP], "defaultActionOnFailure", "targetSizePolicyMode"),
            {"defaultActionOnFailure": "DO_NOTHING"},
            id="of a managed instance group",
        ),
    ],
)
def test_defaults_of_the_crd_equal_those_of_the_parser(
    kind: Kind, spec: dict[str, Any], added: dict[str, Any], server: Server
) -> None:
    answer = server.create(kind, spec)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"] == {**spec, **added}
    assert codec.write(parse(RECORDS[kind], raw_object(kind, spec)).spec) == without({**spec, **added}, *UNREAD)


# --- Examples, and objects that the controller creates ---


@pytest.mark.e2e
def test_examples_apply_with_strict_validation(rehearsal: Rehearsal, server: Server) -> None:
    """Strict validation rejects fields that the CRDs do not define."""
    said = rehearsal.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(_MANIFESTS))
    assert said.count("created") == len(list(_MANIFESTS.iterdir()))


@pytest.mark.e2e
def test_created_child_is_parsed_without_differences(server: Server) -> None:
    """If the API server added a default, the child would differ from the wanted one, and be recreated repeatedly."""
    made = server.create(Kind.TPU_NODE_GROUP, GROUP, name="parent", dry=False)
    group = parse(TpuNodeGroup, made.json()).meta
    for wanted in _children(group):
        kind = wanted.kind
        raw = documents.child(wanted)
        child = server.kube.create(collection_path(kind.plural, namespace=_NAMESPACE, root=_ROOT), raw)
        assert without(child["spec"], *UNREAD) == raw["spec"]
        read = parse(RECORDS[kind], child)
        assert read.spec == wanted.spec
        assert child["metadata"]["ownerReferences"] == raw["metadata"]["ownerReferences"]
        assert read.meta.finalizers == (names.CHILD_FINALIZERS[kind],)


def _children(group: ObjectMeta) -> Iterator[Child]:
    def meta(kind: Kind) -> ObjectMeta:
        owner = ObjectMeta(namespace="", name=group.name, uid=group.uid)
        return ObjectMeta(
            namespace=group.namespace,
            name=names.child_name(group, kind),
            uid="",
            owner=owner,
        )

    yield WorkloadPolicy(
        meta=meta(Kind.WORKLOAD_POLICY),
        spec=WorkloadPolicySpec(project="research-project", region="us-central1", accelerator_topology="2x2x2"),
    )
    yield InstanceTemplate(
        meta=meta(Kind.INSTANCE_TEMPLATE),
        spec=InstanceTemplateSpec(
            project="research-project",
            config=InstanceConfig(machine_type="tpu7x-standard-4t", metadata={"b": "", "a": "x"}),
        ),
    )
    yield ManagedInstanceGroup(
        meta=meta(Kind.MANAGED_INSTANCE_GROUP),
        spec=ManagedInstanceGroupSpec(
            project="research-project", location="us-central1-c", instance_template="t", target_size=2
        ),
    )


@pytest.mark.e2e
def test_columns_of_a_group_show_its_status(rehearsal: Rehearsal, server: Server) -> None:
    made = server.create(Kind.TPU_NODE_GROUP, GROUP, name="seen", dry=False)
    group = parse(TpuNodeGroup, made.json())
    waiting = Condition(
        type="Ready", status=ConditionStatus.FALSE, reason=Reason.AWAITING_NODE_JOIN, message="1 of 2 nodes are ready"
    )
    status = TpuNodeGroupStatus(
        conditions=with_condition((), waiting, NOW),
        observed_generation=group.meta.generation,
        node_summary=NodeSummary(ready=1, reconciling=1, failed=0),
        topology="2x2x2",
        node_count=2,
    )
    patch = documents.status_patch(group, status)
    assert patch is not None
    server.kube.merge(f"{server.path(Kind.TPU_NODE_GROUP, 'seen')}/status", patch)
    head, row = rehearsal.kubectl("get", "tng", "seen", "-n", _NAMESPACE).splitlines()
    assert head.split() == ["NAME", "TOPOLOGY", "NODES", "READY", "REASON", "AGE"]
    assert row.split()[:5] == ["seen", "2x2x2", "1/2", "False", "AwaitingNodeJoin"]
    assert "tpunodegroup.tpu.google.com/seen" in rehearsal.kubectl("get", "tpu", "-n", _NAMESPACE, "-o", "name")
    assert parse(TpuNodeGroup, server.kube.get(server.path(Kind.TPU_NODE_GROUP, "seen"))).status == status
