"""CustomResourceDefinitions of the four kinds, built from `specs` and `statuses`, for Kubernetes 1.30 or newer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.codec import Array, Flag, Form, Json, Map, Moment, Rule, Struct, Text, Whole, struct_of
from provisioner.nodegroups.api.statuses import ResourceStatus
from provisioner.nodegroups.api.types import GROUP, HINTS, VERSION, Kind


def _column(name: str, path: str, about: str, *, kind: str = "string", wide: bool = False) -> Json:
    """Return a column of `kubectl get`; if `wide`, it is shown only with `-o wide`."""
    shown = {"name": name, "type": kind, "jsonPath": path, "description": about}
    return shown | ({"priority": 1} if wide else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Description, short name and columns of a kind."""

    about: str
    short_name: str
    columns: tuple[Json, ...]


_READY = '.status.conditions[?(@.type=="Ready")]'
_STATE = (
    _column("Ready", f"{_READY}.status", "Whether it exists and works."),
    _column("Reason", f"{_READY}.reason", "The reason in one word."),
    _column("Age", ".metadata.creationTimestamp", "When the object was created.", kind="date"),
    _column("Message", f"{_READY}.message", "The reason in a sentence.", wide=True),
)

SHOWN: Mapping[Kind, Shown] = {
    Kind.TPU_NODE_GROUP: Shown(
        about="TPU machines on Compute Engine that are nodes of this cluster: a slice, or machines that are alike.",
        short_name="tng",
        columns=(
            _column("Topology", ".status.topology", "Chips along each axis of a slice."),
            _column("Nodes", ".status.nodes", "Nodes that are ready, of those that are wanted."),
            *_STATE[:3],
            _column("Zone", ".spec.nodeLocation", "Where the machines are.", wide=True),
            _STATE[3],
        ),
    ),
    Kind.WORKLOAD_POLICY: Shown(
        about="A workload policy of Compute Engine: how machines are wired. A TPUNodeGroup creates its own.",
        short_name="tpol",
        columns=(_column("Topology", ".spec.acceleratorTopology", "Chips along each axis of a slice."), *_STATE),
    ),
    Kind.INSTANCE_TEMPLATE: Shown(
        about="An instance template of Compute Engine: what each machine is. A TPUNodeGroup creates its own.",
        short_name="ttmpl",
        columns=(_column("Machine-Type", ".spec.machineType", "Compute Engine's machine type."), *_STATE),
    ),
    Kind.MANAGED_INSTANCE_GROUP: Shown(
        about="A managed instance group of Compute Engine: the machines. A TPUNodeGroup creates its own.",
        short_name="tmig",
        columns=(_column("Size", ".spec.targetSize", "Machines that are wanted.", kind="integer"), *_STATE),
    ),
}

SPECS: Mapping[Kind, Struct] = {kind: struct_of(hints["spec"]) for kind, hints in HINTS.items()}
_OF_A_RESOURCE = struct_of(ResourceStatus)
#: Status of a WorkloadPolicy or an InstanceTemplate: the address of the resource is `uri` instead of `url`.
_OF_A_CHILD = replace(
    _OF_A_RESOURCE, fields={{"url": "uri"}.get(name, name): form for name, form in _OF_A_RESOURCE.fields.items()}
)
STATUSES: Mapping[Kind, Struct] = {
    kind: _OF_A_CHILD if kind in (Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE) else struct_of(hints["status"])
    for kind, hints in HINTS.items()
}


def crd(kind: Kind) -> Json:
    """Return the CustomResourceDefinition of a kind."""
    shown = SHOWN[kind]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(shown.columns),
        "schema": {"openAPIV3Schema": _object(kind, shown.about)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.value,
                "listKind": f"{kind.value}List",
                "plural": kind.plural,
                "singular": kind.value.lower(),
                "shortNames": [shown.short_name],
                "categories": ["tpu"],
            },
            "versions": [version],
        },
    }


def _object(kind: Kind, about: str) -> Json:
    return {
        "description": about,
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "Group and version of the API."},
            "kind": {"type": "string", "description": "The kind of the object."},
            "metadata": {"type": "object"},
            "spec": openapi(SPECS[kind]),
            "status": openapi(STATUSES[kind]),
        },
        "x-kubernetes-validations": [
            {
                "rule": "oldSelf.hasValue() || has(self.spec)",
                "optionalOldSelf": True,
                "message": "spec is missing",
                "reason": "FieldValueRequired",
                "fieldPath": ".spec",
            },
            {
                "rule": "oldSelf.hasValue() || self.metadata.name.matches("
                f"'^[a-z]([-a-z0-9]{{0,{_longest_name(kind) - 2}}}[a-z0-9])?$')",
                "optionalOldSelf": True,
                "message": f"a name has at most {_longest_name(kind)} lower-case letters, digits and hyphens, a letter "
                "first and no hyphen last: Compute Engine accepts no other",
            },
        ],
    }


def _longest_name(kind: Kind) -> int:
    return names.NAME_BUDGET if kind is Kind.TPU_NODE_GROUP else names.RESOURCE_NAME


def openapi(form: Form) -> Json:
    """Return the structural OpenAPI schema of a form."""
    written: Json = {"description": form.about, **_constraints(form)}
    if form.default is not None:
        written["default"] = dict(form.default) if isinstance(form.default, Mapping) else form.default
    return written


def _constraints(form: Form) -> Json:
    match form:
        case Text():
            return _text(form)
        case Whole():
            width = "int32" if form.most < 2**31 else "int64"
            return {"type": "integer", "format": width, "minimum": form.least, "maximum": form.most}
        case Flag():
            return {"type": "boolean"}
        case Moment():
            return {"type": "string", "format": "date-time"}
        case Array():
            return _array(form)
        case Map():
            return {"type": "object", "additionalProperties": openapi(form.values), "maxProperties": form.most}
        case Struct():
            return _struct(form)
    assert_never(form)


def _text(form: Text) -> Json:
    if form.choices:
        return {"type": "string", "enum": list(form.choices)}
    written: Json = {"type": "string", "maxLength": form.most}
    if form.least:
        written["minLength"] = form.least
    if form.pattern:
        # A rule instead of `pattern`: its error shows this message, not the regular expression.
        valid = {"rule": f"self.matches(r'^{form.pattern}$')", "message": f"must be {form.meaning}"}
        written["x-kubernetes-validations"] = [valid]
    return written


def _array(form: Array) -> Json:
    written: Json = {"type": "array", "items": openapi(form.items), "maxItems": form.most}
    if form.key:
        written |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [form.key]}
    return written


def _struct(form: Struct) -> Json:
    properties = {name: openapi(each) for name, each in form.fields.items()}
    for name in form.fields if form.fixed else ():
        stays = {"rule": "self == oldSelf", "message": f"{name} cannot be changed; create another object"}
        properties[name].setdefault("x-kubernetes-validations", []).append(stays)
    written: Json = {"type": "object", "properties": properties}
    if form.required:
        written["required"] = list(form.required)
    validations = [_rule(rule) for rule in form.rules] + list(_of_changes(form))
    if validations:
        written["x-kubernetes-validations"] = validations
    return written


def _rule(rule: Rule) -> Json:
    written = {"rule": rule.cel, "message": rule.message}
    return written | ({"fieldPath": f".{rule.field}"} if rule.field else {})


def _of_changes(form: Struct) -> Iterator[Json]:
    if form.all_fixed:
        yield {"rule": "self == oldSelf", "message": "spec cannot be changed; create another object"}
    # Rules of a field itself are not evaluated when the field is added or removed.
    loose = [name for name, each in form.fields.items() if name not in form.required and each.default is None]
    if loose and form.fixed:
        yield {
            "rule": " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in loose),
            "message": f"{', '.join(loose)} cannot be added or removed; create another object",
        }
