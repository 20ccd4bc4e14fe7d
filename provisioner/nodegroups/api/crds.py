"""CustomResourceDefinitions of the four kinds, from the declarations of their fields in `specs` and `statuses`.

They need Kubernetes 1.30 or newer: some rules are asked only when an object is made, so that one which is there already
and breaks them can still be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import get_type_hints

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.codec import struct_of
from provisioner.nodegroups.api.forms import Json, Struct, openapi
from provisioner.nodegroups.api.statuses import ResourceStatus
from provisioner.nodegroups.api.types import GROUP, RECORDS, VERSION, Kind


def _column(name: str, path: str, about: str, *, kind: str = "string", wide: bool = False) -> Json:
    """Return what `kubectl get` shows of an object; with `-o wide` only where told so."""
    shown = {"name": name, "type": kind, "jsonPath": path, "description": about}
    return shown | ({"priority": 1} if wide else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """How a kind is called and shown."""

    about: str
    short_name: str
    columns: tuple[Json, ...]


_READY = '.status.conditions[?(@.type=="Ready")]'
_STATE = (
    _column("Ready", f"{_READY}.status", "Whether it is there and works."),
    _column("Reason", f"{_READY}.reason", "Why, in one word."),
    _column("Age", ".metadata.creationTimestamp", "Since when it is wanted.", kind="date"),
    _column("Message", f"{_READY}.message", "Why, in words.", wide=True),
)

_SHOWN: Mapping[Kind, _Shown] = MappingProxyType(
    {
        Kind.TPU_NODE_GROUP: _Shown(
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
        Kind.WORKLOAD_POLICY: _Shown(
            about="A workload policy of Compute Engine: how machines are wired. A TPUNodeGroup makes its own.",
            short_name="tpol",
            columns=(
                _column("Topology", ".spec.acceleratorTopology", "Chips along each axis of a slice."),
                *_STATE,
            ),
        ),
        Kind.INSTANCE_TEMPLATE: _Shown(
            about="An instance template of Compute Engine: what each machine is. A TPUNodeGroup makes its own.",
            short_name="ttmpl",
            columns=(
                _column("Machine-Type", ".spec.machineType", "Compute Engine's machine type."),
                *_STATE,
            ),
        ),
        Kind.MANAGED_INSTANCE_GROUP: _Shown(
            about="A managed instance group of Compute Engine: the machines. A TPUNodeGroup makes its own.",
            short_name="tmig",
            columns=(
                _column("Size", ".spec.targetSize", "Machines that are wanted.", kind="integer"),
                *_STATE,
            ),
        ),
    }
)

_HINTS = {kind: get_type_hints(record) for kind, record in RECORDS.items()}
SPECS: Mapping[Kind, Struct] = {kind: struct_of(hints["spec"]) for kind, hints in _HINTS.items()}
_OF_A_RESOURCE = struct_of(ResourceStatus)
#: The address of a child's resource is called uri, but in one kind.
_OF_A_CHILD = replace(
    _OF_A_RESOURCE, fields={{"url": "uri"}.get(name, name): form for name, form in _OF_A_RESOURCE.fields.items()}
)
STATUSES: Mapping[Kind, Struct] = {
    kind: _OF_A_CHILD if kind in (Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE) else struct_of(hints["status"])
    for kind, hints in _HINTS.items()
}

#: What a kind is, in a sentence, and how kubectl knows it for short.
ABOUT: Mapping[Kind, str] = {kind: shown.about for kind, shown in _SHOWN.items()}
SHORT_NAMES: Mapping[Kind, str] = {kind: shown.short_name for kind, shown in _SHOWN.items()}


def crd(kind: Kind) -> Json:
    """Return the CustomResourceDefinition of a kind."""
    shown = _SHOWN[kind]
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
                "first and no hyphen last: Compute Engine takes no other",
            },
        ],
    }


def _longest_name(kind: Kind) -> int:
    return names.NAME_BUDGET if kind is Kind.TPU_NODE_GROUP else names.RESOURCE_NAME
