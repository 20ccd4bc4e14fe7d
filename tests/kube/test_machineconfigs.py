"""Tests of reading TPUs from MachineConfigs. An unreadable MachineConfig does not affect other MachineConfigs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioner import tpu
from provisioner.kube.fields import MalformedObject
from provisioner.kube.machineconfigs import extend_catalogue, parse_machine_config
from tests.support.machineconfigs import raw_machine, raw_machine_config


def _parsed(raw: Any) -> tuple[tpu.Accelerator, ...]:
    found = parse_machine_config(raw)
    assert found is not None
    return found


def test_all_known_fields_are_read() -> None:
    """The default disk type is first. A machine type without disk types has those of the newest generations."""
    disks = {"types": ["hyperdisk-extreme", "hyperdisk-balanced"], "defaultType": "hyperdisk-balanced"}
    asked = raw_machine("tpu9x-rare-1t", "tpu9x", 1, "1x1", napDisabled=True, bootDiskConfig=disks)
    other = raw_machine("n9-standard-4", "nvidia-b900")
    plain: dict[str, Any] = {"name": "n9-standard-2", "resources": {"cpus": 2, "memory": 8192}}
    machines = [raw_machine("tpu9x-standard-4t", "tpu9x"), asked, other, plain]
    (offer,) = _parsed(raw_machine_config(machines=machines, topologies=["4x4", "4x8"]))
    assert offer == tpu.Accelerator(
        label="tpu9x",
        generation="tpu9x",
        machine_types=(
            tpu.MachineType("tpu9x-standard-4t", 4, "2x2", 64, 512, ("hyperdisk-balanced",), arch=""),
            tpu.MachineType(
                "tpu9x-rare-1t",
                1,
                "1x1",
                64,
                512,
                ("hyperdisk-balanced", "hyperdisk-extreme"),
                only_on_request=True,
                arch="",
            ),
        ),
        listed_topologies=("4x4", "4x8", "2x2", "1x1"),
        workload_policy=True,
    )
    # Only generations before tpu7 have labels of the form tpu-vN-slice; they have no workload policies.
    assert not _parsed(raw_machine_config("tpu-v9-slice"))[0].workload_policy


def test_missing_property_of_a_machine_type_is_taken_from_its_family() -> None:
    defaults = {
        "systemArchitecture": "ARM64",
        "bootDiskConfig": {"types": ["hyperdisk-ml", "hyperdisk-extreme"], "defaultType": "hyperdisk-extreme"},
        "napDisabled": True,
    }
    own = {
        "systemArchitecture": "amd64",
        "bootDiskConfig": {"types": ["pd-ssd"], "defaultType": "pd-ssd"},
        "napDisabled": False,
    }
    machines = [
        raw_machine("tpu8i-standard-4t", "tpu8i"),
        raw_machine("tpu8i-empty-4t", "tpu8i", **dict.fromkeys(own)),
        raw_machine("tpu8i-own-4t", "tpu8i", **own),
        raw_machine("tpu8i-odd-4t", "tpu8i", systemArchitecture="riscv64"),
    ]
    (offer,) = _parsed(raw_machine_config("tpu8i", machines=machines, defaultProperties=defaults))
    inherited = (("hyperdisk-extreme", "hyperdisk-ml"), True, "arm64")
    assert [(type_.disk_types, type_.only_on_request, type_.arch) for type_ in offer.machine_types] == [
        inherited,
        inherited,
        (("pd-ssd",), False, "amd64"),
        (*inherited[:2], ""),
    ]


@pytest.mark.parametrize(("mode", "used"), [("Legacy", False), ("WeightsOnly", False), ("PropertiesOnly", True)])
def test_family_is_ignored_in_the_modes_that_the_autoscaler_ignores(mode: str, *, used: bool) -> None:
    assert (parse_machine_config(raw_machine_config(usagePolicy={"mode": mode})) is not None) is used


@pytest.mark.parametrize(
    "raw",
    [
        raw_machine_config(provider="nvidia"),
        raw_machine_config(accelerators=[{"name": "tpu9x", "topologies": ["2x2"]}]),
        {"spec": {}},
        {"spec": {"machineFamily": {}}},
    ],
)
def test_machine_config_without_tpus_is_none(raw: Any) -> None:
    assert parse_machine_config(raw) is None


def _spoil(*path: str | int, value: Any = None) -> Callable[[Any], None]:
    def change(raw: Any) -> None:
        for key in path[:-1]:
            raw = raw[key]
        if value is None:
            del raw[path[-1]]
        else:
            raw[path[-1]] = value

    return change


_FAMILY = ("spec", "machineFamily")
_MACHINE = (*_FAMILY, "machineTypes", 0)
_CHIPS = (*_MACHINE, "resources", "accelerator")


@pytest.mark.parametrize(
    "spoil",
    [
        _spoil("spec"),
        _spoil("spec", value=[]),
        _spoil(*_FAMILY, value="tpu9x"),
        _spoil(*_FAMILY, "usagePolicy", value="Legacy"),
        _spoil(*_FAMILY, "defaultProperties", value=["arm64"]),
        _spoil(*_FAMILY, "accelerators", 0, value="tpu9x"),
        _spoil(*_FAMILY, "accelerators", 0, "name", value={"a": "b"}),
        _spoil(*_FAMILY, "accelerators", 0, "topologies", value=["4x4", "all"]),
        _spoil(*_FAMILY, "accelerators", 0, "topologies", value=[44]),
        _spoil(*_MACHINE, "name"),
        _spoil(*_MACHINE, "resources"),
        _spoil(*_MACHINE, "properties", value="none"),
        _spoil(*_MACHINE, "resources", "cpus", value=-1),
        _spoil(*_MACHINE, "resources", "memory", value="1Gi"),
        _spoil(*_MACHINE, "resources", "memory", value=float("inf")),
        _spoil(*_CHIPS, "fixedCount"),
        _spoil(*_CHIPS, "fixedCount", value=1000),
        _spoil(*_CHIPS, "tpuConfig", "singleHostTopology", value="2x4"),
    ],
)
def test_unreadable_machine_config_is_named_in_the_error(spoil: Callable[[Any], None]) -> None:
    raw = raw_machine_config()
    spoil(raw)
    with pytest.raises(MalformedObject, match=r"^MachineConfig tpu9x cannot be read: "):
        parse_machine_config(raw)


@pytest.mark.usefixtures("catalogue")
def test_contradiction_is_logged() -> None:
    machine = raw_machine("ct6e-standard-8t", "tpu-v6e-slice", 4)
    with capture_logs() as logs:
        extend_catalogue({("", "v6e"): _parsed(raw_machine_config("tpu-v6e-slice", machines=[machine]))}, {})
    (told,) = [log["problem"] for log in logs if log["event"] == "machineconfigs.contradiction"]
    assert told.startswith("ct6e-standard-8t is listed as 4 chips of tpu-v6e-slice, 2x2 alone, and used as 8 chips ")


@pytest.mark.usefixtures("catalogue")
def test_machine_type_is_kept_when_its_machine_config_is_deleted() -> None:
    """In the past, requests were rejected as invalid while an upgrade of the CRD recreated the objects."""
    listed = extend_catalogue({("", "tpu9x"): _parsed(raw_machine_config())}, {})
    assert extend_catalogue({}, listed) is listed
    both = extend_catalogue({("", "tpu8y"): _parsed(raw_machine_config("tpu8y"))}, listed)
    assert both.keys() == {("", "tpu9x"), ("", "tpu8y")}
    assert {"tpu9x", "tpu8y"} <= tpu.ACCELERATORS.keys()
