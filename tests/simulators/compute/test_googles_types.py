"""States and fields of the simulator exist in the message types of Google's client library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import pytest
from google.cloud import compute_v1

from rehearsal.simulators.compute import faults, records, schema

#: Long time-out, because the import of the library takes seconds.
pytestmark = pytest.mark.timeout(60)

T = compute_v1.types


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (records.MachineStatus, T.Instance.Status),
        (records.MachineStatus, T.ManagedInstance.InstanceStatus),
        (records.Action, T.ManagedInstance.CurrentAction),
        (records.OperationStatus, T.Operation.Status),
        (faults.PROVISIONING_MODELS, T.Scheduling.ProvisioningModel),
        (("CREATING", "READY", "DELETING"), T.ResourcePolicy.Status),
        (
            ("ACTIVE", "ACTIVATING", "INCOMPLETE", "DEACTIVATING"),
            T.InstanceGroupManagerStatusAcceleratorTopology.State,
        ),
    ],
)
def test_states_are_values_of_googles_enums(values: Iterable[str], known: type[Enum]) -> None:
    """Google's library would fail on an unknown state."""
    assert {str(value) for value in values} <= {item.name for item in known}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (schema.RESOURCE_POLICY, T.ResourcePolicy),
        (schema.INSTANCE_TEMPLATE, T.InstanceTemplate),
        (schema.INSTANCE_GROUP_MANAGER, T.InstanceGroupManager),
        (schema.METADATA, T.Metadata),
    ],
)
def test_fields_are_fields_of_googles_messages(fields: Mapping[str, Any], kind: Any) -> None:
    assert_fields(fields, kind.pb(kind()).DESCRIPTOR, kind.__name__)


def assert_fields(fields: Mapping[str, Any], descriptor: Any, path: str) -> None:
    known = {field.json_name: field for field in descriptor.fields}
    for name, value in fields.items():
        assert name in known, f"{path}.{name}"
        inner = value[0] if isinstance(value, list) else value
        if isinstance(inner, dict):
            assert_fields(inner, known[name].message_type, f"{path}.{name}")
        if isinstance(inner, schema.Choice):
            enums = [item for item in descriptor.enum_types if item.name.lower() == name.lower()]
            assert not enums or {*inner.values} <= {item.name for item in enums[0].values}, f"{path}.{name}"
