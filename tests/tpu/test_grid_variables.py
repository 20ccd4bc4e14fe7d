"""Variables of the chip grid, against the tests of GKE's device plugin and a second implementation of its rules."""

from __future__ import annotations

import pytest

from provisioner import tpu
from provisioner.environment.variables import GENERATIONS, topology_in_use, topology_variables
from provisioner.tpu import Topology

V4, V5E, V5P, V6E = "tpu-v4-podslice", "tpu-v5-lite-podslice", "tpu-v5p-slice", "tpu-v6e-slice"


def variables(accelerator: str, topology: str, chips: int = 4, host_chips: int = 4, *, resilient: bool = True):
    return topology_variables(
        accelerator, Topology.parse(topology), container_chips=chips, host_chips=host_chips, resilient=resilient
    )


def test_slice_of_four_hosts_has_all_variables():
    assert variables(V5E, "4x4") == {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434",
        "TPU_TOPOLOGY": "4x4",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_HOST_BOUNDS": "2,2,1",
        "HOST_BOUNDS": "2,2,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "WRAP": "false,false,false",
        "TPU_TOPOLOGY_ALT": "false",
        "ALT": "false",
    }


@pytest.mark.parametrize(
    ("accelerator", "topology", "expected"),
    [
        (V4, "2x2x2", "v4-16"),
        (V5P, "2x2x1", "v5p-8"),
        (V6E, "2x2", "v6e-4"),
        ("tpu-v4-lite-device", "2x2", "v4lite-4"),
        ("tpu-v3-slice", "4x4", "v3-32"),
        ("tpu7x", "2x2x1", "tpu7x-8"),
        # From the log of a v4-256 slice.
        (V4, "4x4x8", "v4-256"),
    ],
)
def test_cores_are_counted_in_the_accelerator_type(accelerator: str, topology: str, expected: str):
    assert variables(accelerator, topology)["TPU_ACCELERATOR_TYPE"] == expected


@pytest.mark.parametrize(
    ("topology", "chips", "hosts", "in_host"),
    [
        ("2x2x2", 1, "2,2,2", "1,1,1"),
        ("2x2x2", 2, "2,1,2", "1,2,1"),
        ("4x4x4", 4, "2,2,4", "2,2,1"),
        ("8x8x8", 8, "4,2,8", "2,4,1"),
        ("4x4x8", 4, "2,2,8", "2,2,1"),
    ],
)
def test_bounds_follow_the_chips_that_a_container_requests(topology: str, chips: int, hosts: str, in_host: str):
    found = variables(V4, topology, chips)
    assert (found["TPU_HOST_BOUNDS"], found["TPU_CHIPS_PER_HOST_BOUNDS"]) == (hosts, in_host)


def test_a_number_of_chips_without_a_grid_has_no_bounds():
    assert "TPU_HOST_BOUNDS" not in variables(V4, "4x4x4", 3)


def test_device_accelerators_have_no_bounds():
    assert not {"TPU_HOST_BOUNDS", "TPU_TOPOLOGY_WRAP"} & variables("tpu-v5-lite-device", "2x4", 8, 8).keys()


@pytest.mark.parametrize(
    ("accelerator", "topology", "resilient", "expected"),
    [
        (V4, "4x4x4", True, "true"),
        (V4, "4x4x4", False, "false"),
        (V5P, "4x4x8", True, "true"),
        ("tpu7x", "4x4x4", True, "true"),
        (V4, "2x4x4", True, None),
        (V6E, "16x16", True, None),
    ],
)
def test_links_are_resilient_in_whole_cubes(accelerator: str, topology: str, resilient: bool, expected: str | None):
    assert variables(accelerator, topology, resilient=resilient).get("ENABLE_ICI_RESILIENCY") == expected


def test_tpu7x_has_two_metrics_ports_for_each_chip():
    assert variables("tpu7x", "2x2x1", 4)["TPU_RUNTIME_METRICS_PORTS"] == "8431,8432,8433,8434,8435,8436,8437,8438"


def test_metrics_ports_are_for_all_chips_of_the_host_not_only_of_the_container():
    assert variables(V6E, "2x4", 1, 8)["TPU_RUNTIME_METRICS_PORTS"].count(",") == 7


@pytest.mark.parametrize(
    ("part", "expected"),
    [("2x2", "2x2"), ("", "4x4"), ("4x8", "4x4"), ("2x2x1", "4x4"), ("3x3", "4x4"), ("2x2 ", "4x4"), ("x" * 99, "4x4")],
)
def test_part_of_a_slice_is_used_unless_it_is_invalid(part: str, expected: str):
    assert str(topology_in_use(Topology.parse("4x4"), part)) == expected


def by_hand(label: str, topology: str, chips: int) -> dict[str, str]:
    """Return the main variables by the documented rules, implemented independently of the provisioner."""
    dims = [int(size) for size in topology.split("x")]
    dims += [1] * (3 - len(dims))
    x, y, z = dims
    lite = "lite" in label or "v6e" in label
    host = {1: [1, 1, 1], 2: [1, 2, 1], 4: [2, 2, 1], 8: [2, 4, 1]}[chips]
    wrap = [dim == 16 for dim in dims] if lite else [x > 3 and y > 3 and z > 3] * 3
    return {
        "TPU_TOPOLOGY": topology,
        "TPU_ACCELERATOR_TYPE": f"{GENERATIONS.get(label, label)}-{x * y * z * (1 if lite else 2)}",
        "TPU_HOST_BOUNDS": ",".join(str(dim // own) for dim, own in zip(dims, host, strict=True)),
        "TPU_CHIPS_PER_HOST_BOUNDS": ",".join(map(str, host)),
        "TPU_TOPOLOGY_WRAP": ",".join("true" if is_wrapped else "false" for is_wrapped in wrap),
    }


def test_every_multi_host_slice_agrees_with_a_second_implementation():
    seen = 0
    for label, offer in tpu.ACCELERATORS.items():
        if label.endswith("-device"):
            continue
        for grid in offer.topologies():
            for shape in tpu.shapes_of(offer, grid):
                if not shape.multi_host:
                    continue
                found = variables(label, str(grid), shape.chips_per_pod, shape.machine_type.chips)
                expected = by_hand(label, str(grid), shape.chips_per_pod)
                assert {key: found[key] for key in expected} == expected
                bounds = [int(size) for size in found["TPU_HOST_BOUNDS"].split(",")]
                assert bounds[0] * bounds[1] * bounds[2] == shape.nodes(0)
                seen += 1
    assert seen > 1000
