"""Shapes from node selectors; the error about an invalid request has the nearest valid values."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import tpu
from provisioner.tpu import shapes

V5E, V6E, V4, V5P = "tpu-v5-lite-podslice", "tpu-v6e-slice", "tpu-v4-podslice", "tpu-v5p-slice"

#: Topology, chips per pod and hosts of 2-D slices, in which one pod fills one host.
FLAT = [
    ("1x1", 1, 1),
    ("2x2", 4, 1),
    ("2x4", 8, 1),
    ("2x4", 4, 2),
    ("4x4", 4, 4),
    ("4x8", 4, 8),
    ("8x8", 4, 16),
    ("8x16", 4, 32),
    ("16x16", 4, 64),
]
FLAT_FAMILIES = [(V5E, "ct5lp-hightpu"), ("tpu-v5-lite-device", "ct5l-hightpu"), (V6E, "ct6e-standard")]
OTHERS = [
    ("tpu-v3-device", "2x2", "ct3-hightpu-4t", 1),
    ("tpu-v3-slice", "32x64", "ct3p-hightpu-4t", 512),
    ("tpu-v4-lite-device", "2x2", "ct4l-hightpu-4t", 1),
    (V4, "2x2x1", "ct4p-hightpu-4t", 1),
    (V5P, "2x2x1", "ct5p-hightpu-4t", 1),
    ("tpu7x", "2x2x1", "tpu7x-standard-4t", 1),
    ("tpu7x", "16x24x24", "tpu7x-standard-4t", 2304),
    ("tpu7", "2x2x1", "tpu7-standard-4t", 1),
]
MADE = [
    *(
        pytest.param(label, topology, chips, f"{prefix}-{chips}t", hosts, id=f"{label} {topology}: {hosts} of {chips}")
        for label, prefix in FLAT_FAMILIES
        for topology, chips, hosts in FLAT
    ),
    *(
        pytest.param(label, topology, 4, machine, hosts, id=f"{label} {topology}: {hosts} of 4")
        for label, topology, machine, hosts in OTHERS
    ),
    pytest.param("tpu7x", "1x1x1", 1, "tpu7x-standard-1t", 1, id="tpu7x 1x1x1: 1 of 1"),
    pytest.param("tpu7", "1x1x1", 1, "tpu7-standard-1t", 1, id="tpu7 1x1x1: 1 of 1"),
]


@pytest.mark.parametrize(("accelerator", "topology", "chips", "machine", "hosts"), MADE)
def test_selectors_and_chips_determine_one_machine_type(
    accelerator: str, topology: str, chips: int, machine: str, hosts: int
) -> None:
    """Chips per pod distinguish 2x4 on one VM of 8 chips from 2x4 on two VMs of 4 chips."""
    shape = tpu.resolve(accelerator, topology, chips)
    assert shape.machine_type.name == machine
    assert shape.multi_host is (hosts > 1)
    assert shape.nodes(hosts) == hosts


@pytest.mark.parametrize(
    ("accelerator", "topology", "machine_type", "want"),
    [
        pytest.param(V4, "2x2x2", "", 4, id="several hosts"),
        pytest.param(V5E, "1x1", "", 1, id="one host of one chip"),
        pytest.param(V5E, "2x4", "", 8, id="one host or two: the largest"),
        pytest.param(V5E, "2x4", "ct5lp-hightpu-4t", 4, id="one host or two: the machine type decides"),
        pytest.param(V5E, "3x3", "", 1, id="no such topology"),
        pytest.param("tpu-v99", "2x2", "", 1, id="no such accelerator"),
        pytest.param(V4, "2x" * 99, "", 1, id="a text without end"),
    ],
)
def test_chips_of_a_host_are_those_of_the_largest_possible_machine_type(
    accelerator: str, topology: str, machine_type: str, want: int
) -> None:
    assert tpu.chips_of_host(accelerator, topology, machine_type) == want


#: Accelerator, maximum number of chips of a slice, and topologies smaller than a cube.
CUBIC = [
    pytest.param(V4, 4096, ["2x2x1", "2x2x2", "2x2x4", "2x4x4"], id="v4"),
    pytest.param(V5P, 8960, ["2x2x1", "2x2x2", "2x2x4", "2x4x4"], id="v5p"),
    pytest.param("tpu7x", 9216, ["1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4"], id="tpu7x"),
    pytest.param("tpu7", 256, ["1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4"], id="tpu7"),
]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("ct5lp-hightpu-8t", ("tpu-v5-lite-podslice", 8)),
        ("tpu9x-standard-4t", ("tpu9x", 4)),
        ("tpu12-ultra-net-16t", ("tpu12", 16)),
        ("ct9p-hightpu-4t", ("", 0)),
        ("tpu9x-standard-4t-metal", ("", 0)),
        ("n2-standard-4", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_machine_type_outside_of_the_table_is_read_by_its_name(name: str, want: tuple[str, int]) -> None:
    assert tpu.machine_of(name) == want


@pytest.mark.parametrize(("label", "most", "small"), CUBIC)
def test_every_topology_that_the_rule_allows_has_the_right_hosts(label: str, most: int, small: list[str]) -> None:
    """The expected topologies come from trying all sizes up to 256, not from the catalogue."""
    axis = range(4, 257, 4)
    cubes = [(a, b, c) for a in axis for b in axis for c in axis if a <= b <= c and a * b * c <= most]
    for a, b, c in cubes:
        shape = tpu.resolve(label, f"{a}x{b}x{c}", 4)
        assert shape.nodes(1) == a * b * c // 4
        assert shape.machine_type.chips == 4
    allowed = {f"{a}x{b}x{c}" for a, b, c in cubes} | set(small)
    assert {str(topology) for topology in tpu.ACCELERATORS[label].topologies()} == allowed


@pytest.mark.timeout(30)  # each error searches the nearest of thousands of topologies
@pytest.mark.parametrize(("label", "most", "small"), CUBIC)
def test_every_small_box_that_the_rule_does_not_allow_is_rejected(label: str, most: int, small: list[str]) -> None:
    """The boxes have up to 12 chips along each axis; some have no chips."""
    axis = (0, 1, 2, 3, 4, 6, 8, 12)
    for a, b, c in itertools.product(axis, axis, axis):
        text = f"{a}x{b}x{c}"
        whole = a % 4 == b % 4 == c % 4 == 0 and 0 < a <= b <= c and a * b * c <= most
        if whole or text in small:
            continue
        with pytest.raises(tpu.ShapeError, match=text):
            tpu.resolve(label, text, 4)


@pytest.mark.parametrize(
    ("label", "topology", "documented"),
    [
        pytest.param(V4, "4x4x4", True, id="a v4 cube is on the list"),
        pytest.param(V4, "16x16x16", True, id="a whole v4 pod is documented"),
        pytest.param(V4, "4x4x24", False, id="v4 4x4x24 is on no list"),
        pytest.param(V4, "4x4x12", False, id="what is listed for v5p is not for v4"),
        pytest.param(V5P, "4x4x12", True, id="v5p 4x4x12 is on the list"),
        pytest.param(V5P, "4x4x16", False, id="v5p 4x4x16 is on no list"),
        pytest.param(V5P, "16x16x24", True, id="the largest v5p slice in Google's documentation"),
        pytest.param("tpu7x", "4x4x16", True, id="tpu7x 4x4x16 is on one of two lists"),
        pytest.param("tpu7x", "4x4x148", True, id="tpu7x 4x4x148 is on the other"),
        pytest.param("tpu7x", "2x2x1", True, id="a single tpu7x host is on the list"),
        pytest.param("tpu7x", "16x16x36", False, id="tpu7x 16x16x36 is on no list"),
        pytest.param("tpu7", "4x8x8", True, id="all of tpu7 is on its list"),
        pytest.param(V6E, "2x4", True, id="2-D slices are all on the list"),
    ],
)
def test_topology_that_only_follows_the_rule_has_a_warning(*, label: str, topology: str, documented: bool) -> None:
    """The shape is valid, but GKE may reject it."""
    shape = tpu.resolve(label, topology, 4)
    assert shape.documented is documented
    if documented:
        assert shape.warning == ""
    else:
        assert f"topology {topology} for {label}" in shape.warning
        assert "GKE decides" in shape.warning


def test_slice_larger_than_in_googles_documentation_has_a_warning() -> None:
    assert "has 6,144" in tpu.resolve(V5P, "16x20x28", 4).warning


@pytest.mark.parametrize(
    ("label", "documented", "disk"),
    [
        (V4, 12, "pd-standard"),
        (V5E, 8, "pd-balanced"),
        (V5P, 96, "pd-balanced"),
        (V6E, 8, "hyperdisk-balanced"),
        ("tpu7x", 116, "hyperdisk-balanced"),
        ("tpu7", 10, "hyperdisk-balanced"),
    ],
)
def test_every_listed_topology_is_valid_and_has_a_default_disk(label: str, documented: int, disk: str) -> None:
    """Otherwise slices that Google's tools create would be rejected."""
    offer = tpu.ACCELERATORS[label]
    assert {*offer.documented_topologies} <= {str(topology) for topology in offer.topologies()}
    assert sum(map(offer.documents, offer.topologies())) == documented
    assert {machine.disk_types[0] for machine in offer.machine_types} == {disk}


@pytest.mark.parametrize(
    ("pods", "chips", "nodes"), [(0, 4, 1), (1, 4, 1), (2, 4, 1), (3, 4, 2), (5, 2, 2), (8, 1, 1), (9, 1, 2), (3, 8, 3)]
)
def test_single_host_pool_has_the_nodes_that_its_pods_fill(pods: int, chips: int, nodes: int) -> None:
    """Several pods may share a VM, and several VMs may be in one pool."""
    assert tpu.resolve(V6E, "2x4", chips, "ct6e-standard-8t").nodes(pods) == nodes


def test_ultranet_machine_type_is_used_only_if_selected() -> None:
    """Google's autoscaler also uses ultranet machines only on explicit request."""
    assert tpu.resolve("tpu7x", "2x2x2", 4, "tpu7x-ultranet-4t").machine_type.name == "tpu7x-ultranet-4t"
    assert tpu.resolve("tpu7x", "2x2x2", 4).machine_type.name == "tpu7x-standard-4t"


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "machine", "words"),
    [
        pytest.param(
            "tpu-v4",
            "2x2x2",
            4,
            "",
            ["'tpu-v4'", "did you mean tpu-v4-lite-device or tpu-v4-podslice?", "valid are tpu-v3-device"],
            id="half a label",
        ),
        pytest.param("v6e", "2x4", 4, "", ["'v6e'", "did you mean tpu-v6e-slice?"], id="a generation"),
        pytest.param("tpu-v6e-slices", "2x4", 4, "", ["did you mean tpu-v6e-slice?"], id="a slip"),
        pytest.param("", "2x2x2", 4, "", ["no TPU accelerator ''", "valid are tpu-v3-device"], id="no label"),
        pytest.param("nvidia-h100", "2x2x2", 4, "", ["'nvidia-h100'", "; valid are"], id="a GPU"),
        pytest.param(V4, "", 4, "", ["''", "AxB", "nearest valid: 2x2x1"], id="no topology"),
        pytest.param(V4, "2x2x2 ", 4, "", ["'2x2x2 '", "AxB", "nearest valid: 2x2x2"], id="a blank at the end"),
        pytest.param(V4, "2x2x2\n", 4, "", ["'2x2x2\\n'"], id="a line break at the end"),
        pytest.param(V4, "4X4X4", 4, "", ["'4X4X4'", "nearest valid: 4x4x4"], id="capitals"),
        pytest.param(V4, "+4x4x4", 4, "", ["'+4x4x4'", "nearest valid: 4x4x4"], id="a sign"),
        pytest.param(V5E, "04x4", 4, "", ["'04x4'", "nearest valid: 4x4"], id="a leading zero"),
        pytest.param(V4, "0x2x2", 4, "", ["'0x2x2'", "whole numbers"], id="a dimension of nothing"),
        pytest.param(V4, "\u0664x\u0664x\u0664", 4, "", ["\u0664", "AxB"], id="digits of another script"),
        pytest.param(V4, "16", 4, "", ["'16'", "AxB", "nearest valid: 2x2x4"], id="a number of chips"),
        pytest.param("tpu7x", "2x4x4x4", 4, "", ["'2x4x4x4'", "AxBxC", "nearest valid: 4x4x8"], id="four dimensions"),
        pytest.param(V4, "2x2", 4, "", ["2x2", "3 dimensions", "nearest valid: 2x2x1"], id="two dimensions for v4"),
        pytest.param(V5E, "2x2x2", 4, "", ["2 dimensions", "nearest valid: 2x4"], id="three dimensions for v5e"),
        pytest.param(V4, "4x2x2", 4, "", ["ascending", "nearest valid: 2x2x4"], id="out of order"),
        pytest.param(V5E, "4x2", 4, "", ["ascending", "nearest valid: 2x4"], id="out of order in two dimensions"),
        pytest.param(
            V4, "1x2x2", 4, "", ["Google offers 2x2x1", "nearest valid: 2x2x1"], id="the flat one on its side"
        ),
        pytest.param(V4, "4x4x6", 4, "", ["multiples of 4", "nearest valid: 4x4x4, 4x4x8"], id="no multiple of 4"),
        pytest.param(V5P, "4x4x260", 4, "", ["4x4x260", "up to 256"], id="too long an axis"),
        pytest.param(
            V4, "16x16x20", 4, "", ["largest", "4096 chips", "5120", "nearest valid: 16x16x16"], id="more than a v4 pod"
        ),
        pytest.param("tpu7x", "16x24x28", 4, "", ["9216 chips", "10752"], id="more than a tpu7x pod"),
        pytest.param("tpu7", "4x4x20", 4, "", ["256 chips", "320", "nearest valid: 4x4x16"], id="more than tpu7 gets"),
        pytest.param(V5E, "2x8", 4, "", ["not among the sizes", "nearest valid: 4x4"], id="no such rectangle"),
        pytest.param(V5E, "16x32", 4, "", ["256 chips", "512", "nearest valid: 16x16"], id="more than a v5e pod"),
        pytest.param(V5E, "8x32", 4, "", ["not among the sizes"], id="no such rectangle of all chips"),
        pytest.param(V5E, "1x2", 1, "", ["1x2", "nearest valid: 1x1"], id="two chips"),
        pytest.param(V4, "2x2x2", 3, "", ["3 chips", "nearest valid: 4 chips per pod"], id="three chips a pod"),
        pytest.param(V4, "2x2x2", 0, "", ["0 chips", "4 chips per pod"], id="no chips a pod"),
        pytest.param(V4, "2x2x2", -4, "", ["-4 chips", "4 chips per pod"], id="chips below zero"),
        pytest.param(V5E, "4x4", 8, "", ["8 chips", "nearest valid: 4 chips per pod"], id="eight chips on many hosts"),
        pytest.param(V6E, "2x4", 5, "", ["5 chips", "nearest valid: 4, "], id="five chips a pod"),
        pytest.param(V4, "9" * 64, 4, "", ["has 64 characters, and at most 63 are read"], id="a long topology"),
        pytest.param("v" * 64, "2x2x2", 4, "", ["has 64 characters, and at most 63"], id="a long accelerator"),
        pytest.param(V4, "2x2x2", 4, "c" * 64, ["has 64 characters, and at most 63"], id="a long machine type"),
        pytest.param(V4, "2x2x2", 4, "ct9z", ["'ct9z'", "ct4p-hightpu-4t"], id="a machine type that there is not"),
        pytest.param(
            V5E,
            "4x4",
            4,
            "ct5lp-hightpu-8t",
            ["4x4", "cannot consist of ct5lp-hightpu-8t, only of ct5lp-hightpu-4t"],
            id="a machine type that does not make it",
        ),
        pytest.param(
            V4, "2x2x2", 4, "ct5p-hightpu-4t", ["no machine type 'ct5p-hightpu-4t'"], id="another family's machine type"
        ),
    ],
)
def test_invalid_request_is_rejected_with_the_nearest_valid_values(
    accelerator: str, topology: str, chips: int, machine: str, words: list[str]
) -> None:
    with pytest.raises(tpu.ShapeError) as caught:
        tpu.resolve(accelerator, topology, chips, machine)
    for word in words:
        assert word in str(caught.value)


def test_long_topology_is_rejected_without_being_cached() -> None:
    before = shapes._outcome.cache_info().currsize
    with pytest.raises(tpu.ShapeError) as caught:
        tpu.resolve(V4, "9" * 50_000, 4)
    assert len(str(caught.value)) < 200
    assert shapes._outcome.cache_info().currsize == before


def test_error_of_an_invalid_shape_is_cached() -> None:
    """Each round resolves the same invalid requests again, so their errors are cached as well."""
    for _ in range(3):
        with pytest.raises(tpu.ShapeError, match="2x2x5"):
            tpu.resolve(V5P, "2x2x5", 4)
    assert shapes._outcome.cache_info().hits >= 2


_TEXTS = st.one_of(
    st.sampled_from(sorted({str(t) for a in tpu.ACCELERATORS.values() for t in a.topologies()[:40]})),
    st.builds("x".join, st.lists(st.integers(-1, 300).map(str), min_size=1, max_size=4)),
    st.text(max_size=12),
)


@given(
    st.one_of(st.sampled_from(sorted(tpu.ACCELERATORS)), st.text(max_size=20)),
    _TEXTS,
    st.one_of(st.sampled_from([1, 2, 4, 8]), st.integers()),
    st.one_of(st.just(""), st.sampled_from(["ct4p-hightpu-4t", "ct6e-standard-8t"]), st.text(max_size=20)),
)
def test_any_request_gives_a_divisible_shape_or_an_explained_error(
    accelerator: str, topology: str, chips: int, machine: str
) -> None:
    try:
        shape = tpu.resolve(accelerator, topology, chips, machine)
    except tpu.ShapeError as error:
        words = str(error)
        named = (repr(accelerator), repr(topology), f"topology {topology} ", f"{chips} chips", repr(machine))
        assert any(value in words for value in named)
        return
    per_vm = shape.machine_type.chips
    assert str(shape.topology) == topology
    assert shape.topology.chips == (shape.nodes(1) * per_vm if shape.multi_host else per_vm)
    assert per_vm % shape.chips_per_pod == 0


@given(_TEXTS)
def test_any_text_is_an_equal_topology_or_raises_topology_error(text: str) -> None:
    try:
        parsed = tpu.Topology.parse(text)
    except tpu.TopologyError as error:
        words = str(error)
        assert repr(text) in words
        return
    assert str(parsed) == text
