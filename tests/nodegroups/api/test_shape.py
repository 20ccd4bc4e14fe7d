"""The shape is derived from topology, machine type, count and mode; a contradiction is reported with valid values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import tpu
from provisioner.nodegroups.api import shape
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.specs import SizePolicyMode, TpuNodeGroupSpec
from provisioner.nodegroups.api.statuses import TpuNodeGroupStatus

BULK, INDIVIDUAL = SizePolicyMode.BULK, SizePolicyMode.INDIVIDUAL
V7X, V6E = "tpu7x-standard-4t", "ct6e-standard-4t"


def _spec(topology: str = "", count: int | None = None, mode: SizePolicyMode | None = None) -> TpuNodeGroupSpec:
    return TpuNodeGroupSpec(
        project="my-project",
        node_location="us-central1-c",
        topology=topology,
        node_count=count,
        target_size_policy_mode=mode,
    )


@pytest.mark.parametrize(
    ("spec", "machine_type", "want"),
    [
        pytest.param(_spec("2x2x2", 2, BULK), V7X, ("tpu7x", "2x2x2", 4, 2, BULK), id="all is given"),
        pytest.param(_spec("2x2x2"), V7X, ("tpu7x", "2x2x2", 4, 2, BULK), id="count and mode of a slice are derived"),
        pytest.param(_spec("4x4x4", 16), V7X, ("tpu7x", "4x4x4", 4, 16, BULK), id="the mode of a slice is derived"),
        pytest.param(_spec("4x4", None, BULK), V6E, ("tpu-v6e-slice", "4x4", 4, 4, BULK), id="its count is derived"),
        pytest.param(_spec("2x4"), V6E, ("tpu-v6e-slice", "2x4", 4, 2, BULK), id="eight chips on two machines"),
        pytest.param(
            _spec("2x4"),
            "ct6e-standard-8t",
            ("tpu-v6e-slice", "2x4", 8, 1, INDIVIDUAL),
            id="eight chips on one machine",
        ),
        pytest.param(_spec("2x2x1"), V7X, ("tpu7x", "2x2x1", 4, 1, INDIVIDUAL), id="one machine"),
        pytest.param(_spec("2x2x1", 3), V7X, ("tpu7x", "2x2x1", 4, 3, INDIVIDUAL), id="three slices of one machine"),
        pytest.param(_spec(), V7X, ("tpu7x", "2x2x1", 4, 1, INDIVIDUAL), id="nothing is given: one machine"),
        pytest.param(_spec("", 1), V7X, ("tpu7x", "2x2x1", 4, 1, INDIVIDUAL), id="the topology of one is derived"),
        pytest.param(
            _spec("", 5, INDIVIDUAL),
            "ct6e-standard-1t",
            ("tpu-v6e-slice", "1x1", 1, 5, INDIVIDUAL),
            id="the topology of machines that are a slice each is derived",
        ),
        pytest.param(
            _spec("4x4x4"), "tpu7-standard-4t", ("tpu7", "4x4x4", 4, 16, BULK), id="the generation without an x"
        ),
    ],
)
def test_shape_is_derived_from_a_valid_spec(
    spec: TpuNodeGroupSpec, machine_type: str, want: tuple[str, str, int, int, SizePolicyMode]
) -> None:
    accelerator, topology, chips, count, mode = want
    assert shape.resolve(spec, machine_type) == GroupShape(
        accelerator=accelerator, topology=topology, chips_per_machine=chips, node_count=count, mode=mode
    )


@pytest.mark.parametrize(
    ("topology", "count", "mode", "chips"),
    [
        ("2x2x2", 2, BULK, 4),
        ("8x8", 8, BULK, 8),
        ("2x4", 3, INDIVIDUAL, 8),
        ("1x1x1", 1, INDIVIDUAL, 1),
        ("2x4", None, BULK, None),
        ("2x4", 0, BULK, None),
        ("2x4", 2, None, None),
        ("", 2, BULK, None),
    ],
)
def test_shape_of_a_status_has_all_but_the_accelerator(
    topology: str, count: int | None, mode: SizePolicyMode | None, chips: int | None
) -> None:
    status = TpuNodeGroupStatus(topology=topology, node_count=count, target_size_policy_mode=mode)
    found = shape.of_status(status)
    if chips is None:
        assert found is None
    else:
        want = (topology, count, mode, chips, "")
        assert found is not None
        assert (found.topology, found.node_count, found.mode, found.chips_per_machine, found.accelerator) == want


@pytest.mark.parametrize(
    ("spec", "machine_type", "want"),
    [
        pytest.param(
            _spec("2x2x2", 3),
            V7X,
            "nodeCount 3 does not go with topology 2x2x2: it has 8 chips, and tpu7x-standard-4t has 4; set 2, or leave "
            "it out",
            id="a count that no slice has",
        ),
        pytest.param(
            _spec("2x2x2", 4),
            V7X,
            "nodeCount 4 does not go with topology 2x2x2: it has 8 chips, and tpu7x-standard-4t has 4; set 2, or leave "
            "it out; topologies of that size: 2x2x4",
            id="a count that another topology has",
        ),
        pytest.param(
            _spec("2x2x2", 2, INDIVIDUAL),
            V7X,
            "targetSizePolicyMode INDIVIDUAL makes machines that are a slice each, of topology 2x2x1 with "
            "tpu7x-standard-4t, and topology 2x2x2 is one slice of 2; set BULK, or leave it out",
            id="machines of one slice that would not be wired",
        ),
        pytest.param(
            _spec("2x2x1", 2, BULK),
            V7X,
            "targetSizePolicyMode BULK is for slices of several machines, and topology 2x2x1 is one tpu7x-standard-4t; "
            "set INDIVIDUAL, or leave it out; topologies of that size: 2x2x2",
            id="a slice of one machine in bulk",
        ),
        pytest.param(
            _spec("", 2),
            V7X,
            "topology is missing: it says how the machines of one slice are wired; topologies of that size: 2x2x2; for "
            "machines that are a slice each set targetSizePolicyMode INDIVIDUAL",
            id="several machines, and nobody knows whether they are one slice",
        ),
        pytest.param(
            _spec("", None, BULK),
            V7X,
            "topology is missing: it says how the machines of one slice are wired; for machines that are a slice each "
            "set targetSizePolicyMode INDIVIDUAL",
            id="a slice without a topology",
        ),
        pytest.param(
            _spec("2x2x3"),
            V7X,
            "topology 2x2x3 is not valid for tpu7x: Google offers 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4, and above those "
            "only slices with dimensions that are multiples of 4, up to 256, in ascending order; nearest valid: 2x2x2, "
            "2x2x4, 2x2x1",
            id="a topology that Google does not sell",
        ),
        pytest.param(
            _spec("2x2x2"),
            "tpu7x-standard-1t",
            "topology 2x2x2 of tpu7x cannot consist of tpu7x-standard-1t, only of tpu7x-standard-4t, tpu7x-ultranet-4t",
            id="a machine type that makes no slices with others",
        ),
        pytest.param(
            _spec("2x2x2"),
            "tpu7x-standard-2t",
            "there is no machine type 'tpu7x-standard-2t' that a TPUNodeGroup can have; nearest valid: "
            "tpu7x-standard-4t, tpu7x-standard-1t, tpu7-standard-4t",
            id="a machine type that Google does not sell",
        ),
        pytest.param(
            _spec("2x2x2"),
            "ct5p-hightpu-4t",
            "there is no machine type 'ct5p-hightpu-4t' that a TPUNodeGroup can have; valid are: ct6e-standard-1t, "
            "ct6e-standard-4t, ct6e-standard-8t, tpu7x-standard-1t, tpu7x-standard-4t, tpu7x-ultranet-4t, "
            "tpu7-standard-1t, tpu7-standard-4t",
            id="a machine type of an older generation",
        ),
    ],
)
def test_contradictory_spec_is_refused_with_valid_values(spec: TpuNodeGroupSpec, machine_type: str, want: str) -> None:
    with pytest.raises(tpu.ShapeError) as refused:
        shape.resolve(spec, machine_type)
    assert str(refused.value) == want


def test_undocumented_topology_that_follows_the_rule_is_valid_with_a_warning() -> None:
    assert shape.resolve(_spec("2x2x2"), V7X).warning == ""
    assert shape.resolve(_spec("4x4x256"), V7X).warning == (
        "topology 4x4x256 for tpu7x is not on Google's lists; it follows the rule for slices of whole 4x4x4 cubes, and "
        "Compute Engine decides whether it creates the slice"
    )


MACHINES = [
    machine.name
    for offer in tpu.ACCELERATORS.values()
    for machine in offer.machine_types
    if machine.name.startswith(shape.MACHINE_TYPE_PREFIXES)
]
TOPOLOGIES = ("", "1x1", "2x2", "2x4", "4x4", "8x8", "1x1x1", "2x2x1", "2x2x2", "2x4x4", "4x4x8", "3x3x3", "4X4")


@given(
    st.sampled_from(TOPOLOGIES),
    st.none() | st.sampled_from((1, 2, 3, 4, 8, 16, 32)),
    st.none() | st.sampled_from(SizePolicyMode),
    st.sampled_from(MACHINES),
)
def test_derived_shape_is_consistent_and_is_valid_as_a_spec(
    topology: str, count: int | None, mode: SizePolicyMode | None, machine_type: str
) -> None:
    spec = _spec(topology, count, mode)
    try:
        found = shape.resolve(spec, machine_type)
    except tpu.ShapeError:
        return
    chips = tpu.Topology.parse(found.topology).chips
    slices = 1 if found.one_slice else found.node_count
    assert found.node_count * found.chips_per_machine == chips * slices
    assert found.one_slice is (found.mode is BULK)
    assert (topology or found.topology, count or found.node_count, mode or found.mode) == (
        found.topology,
        found.node_count,
        found.mode,
    )
    written = replace(spec, topology=found.topology, node_count=found.node_count, target_size_policy_mode=found.mode)
    assert shape.resolve(written, machine_type) == found
    assert found.node_count > 1 or found.mode is INDIVIDUAL


@given(st.text(max_size=20), st.text(max_size=80), st.none() | st.integers())
def test_any_spec_is_resolved_or_refused_with_a_short_message(
    topology: str, machine_type: str, count: int | None
) -> None:
    words = "resolved"
    try:
        shape.resolve(_spec(topology, count), machine_type)
    except tpu.ShapeError as error:
        words = str(error)
    assert 0 < len(words) < 1000
