"""From selectors to machine type and hosts; what Google does not sell is refused with the nearest that it does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import tpu

V5E, V6E, V4, V5P = "tpu-v5-lite-podslice", "tpu-v6e-slice", "tpu-v4-podslice", "tpu-v5p-slice"


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "machine", "nodes", "multi_host"),
    [
        (V5E, "1x1", 1, "ct5lp-hightpu-1t", 1, False),
        (V5E, "2x2", 4, "ct5lp-hightpu-4t", 1, False),
        (V5E, "2x4", 8, "ct5lp-hightpu-8t", 1, False),
        (V5E, "2x4", 4, "ct5lp-hightpu-4t", 2, True),
        (V5E, "4x4", 4, "ct5lp-hightpu-4t", 4, True),
        (V5E, "4x8", 4, "ct5lp-hightpu-4t", 8, True),
        (V5E, "8x8", 4, "ct5lp-hightpu-4t", 16, True),
        (V5E, "8x16", 4, "ct5lp-hightpu-4t", 32, True),
        (V5E, "16x16", 4, "ct5lp-hightpu-4t", 64, True),
        (V6E, "1x1", 1, "ct6e-standard-1t", 1, False),
        (V6E, "2x4", 8, "ct6e-standard-8t", 1, False),
        (V6E, "2x4", 4, "ct6e-standard-4t", 2, True),
        (V6E, "16x16", 4, "ct6e-standard-4t", 64, True),
        (V4, "2x2x1", 4, "ct4p-hightpu-4t", 1, False),
        (V4, "2x2x2", 4, "ct4p-hightpu-4t", 2, True),
        (V4, "2x2x4", 4, "ct4p-hightpu-4t", 4, True),
        (V4, "2x4x4", 4, "ct4p-hightpu-4t", 8, True),
        (V4, "16x16x16", 4, "ct4p-hightpu-4t", 1024, True),
        (V5P, "16x20x28", 4, "ct5p-hightpu-4t", 2240, True),
        ("tpu7x", "1x1x1", 1, "tpu7x-standard-1t", 1, False),
        ("tpu7x", "2x2x1", 4, "tpu7x-standard-4t", 1, False),
        ("tpu7x", "16x24x24", 4, "tpu7x-standard-4t", 2304, True),
        ("tpu7", "4x8x8", 4, "tpu7-standard-4t", 64, True),
        ("tpu-v3-device", "2x2", 4, "ct3-hightpu-4t", 1, False),
        ("tpu-v3-slice", "4x4", 4, "ct3p-hightpu-4t", 4, True),
        ("tpu-v3-slice", "32x64", 4, "ct3p-hightpu-4t", 512, True),
        ("tpu-v4-lite-device", "2x2", 4, "ct4l-hightpu-4t", 1, False),
        ("tpu-v5-lite-device", "2x4", 8, "ct5l-hightpu-8t", 1, False),
    ],
)
def test_a_selector_and_a_chip_count_name_one_machine_type(
    *, accelerator: str, topology: str, chips: int, machine: str, nodes: int, multi_host: bool
) -> None:
    """Chips a pod tell 2x4 on one 8-chip VM from 2x4 on two 4-chip VMs."""
    shape = tpu.resolve(accelerator, topology, chips)
    assert shape.machine_type.name == machine
    assert shape.multi_host is multi_host
    assert shape.nodes(nodes) == nodes


@pytest.mark.parametrize(
    ("pods", "chips", "nodes"), [(0, 4, 1), (1, 4, 1), (2, 4, 1), (3, 4, 2), (5, 2, 2), (8, 1, 1), (9, 1, 2), (3, 8, 3)]
)
def test_a_single_host_pool_has_as_many_nodes_as_its_pods_fill(pods: int, chips: int, nodes: int) -> None:
    """Several pods may share a VM, several VMs one pool."""
    assert tpu.resolve(V6E, "2x4", chips, "ct6e-standard-8t").nodes(pods) == nodes


def test_a_multi_host_pool_has_its_hosts_whatever_the_number_of_pods() -> None:
    """The slice is bought whole."""
    assert tpu.resolve(V4, "2x2x4", 4).nodes(1) == 4


def test_a_machine_type_is_used_that_only_a_pod_may_ask_for() -> None:
    """The autoscaler too takes ultranet machines on explicit request only."""
    assert tpu.resolve("tpu7x", "2x2x2", 4, "tpu7x-ultranet-4t").machine_type.name == "tpu7x-ultranet-4t"
    assert tpu.resolve("tpu7x", "2x2x2", 4).machine_type.name == "tpu7x-standard-4t"


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "machine", "words"),
    [
        ("tpu-v4", "2x2x2", 4, "", ["'tpu-v4'", "did you mean tpu-v4-", "tpu-v5p-slice"]),
        ("", "2x2x2", 4, "", ["no TPU accelerator ''", "valid are tpu-v3-device"]),
        ("nvidia-h100", "2x2x2", 4, "", ["'nvidia-h100'", "valid are"]),
        (V4, "", 4, "", ["''", "AxB", "nearest valid: 2x2x1"]),
        (V4, "2x2x2 ", 4, "", ["'2x2x2 '", "AxB"]),
        (V4, "0x2x2", 4, "", ["'0x2x2'", "whole numbers"]),
        (V4, "2x2", 4, "", ["2x2", "3 dimensions", "nearest valid: 2x2x1"]),
        (V5E, "2x2x2", 4, "", ["2 dimensions", "nearest valid: 2x4"]),
        (V4, "4x2x2", 4, "", ["ascending", "nearest valid: 2x2x4"]),
        (V4, "4x4x6", 4, "", ["multiples of 4", "nearest valid: 4x4x4, 4x4x8"]),
        (V4, "16x16x20", 4, "", ["largest", "4096 chips", "5120", "nearest valid: 16x16x16"]),
        (V5E, "2x8", 4, "", ["not among the sizes", "nearest valid: 4x4"]),
        (V5E, "1x2", 1, "", ["1x2", "nearest valid: 1x1"]),
        (V4, "2x2x2", 3, "", ["3 chips", "nearest valid: 4 chips a pod"]),
        (V4, "2x2x2", 0, "", ["0 chips", "4 chips a pod"]),
        (V4, "2x2x2", -4, "", ["-4 chips", "4 chips a pod"]),
        (V5E, "4x4", 8, "", ["8 chips", "nearest valid: 4 chips a pod"]),
        (V6E, "2x4", 5, "", ["5 chips", "nearest valid: 4, "]),
        (V4, "2x2x2", 4, "ct9z", ["'ct9z'", "ct4p-hightpu-4t"]),
        (V5E, "4x4", 4, "ct5lp-hightpu-8t", ["4x4", "cannot be made of ct5lp-hightpu-8t"]),
    ],
)
def test_what_google_does_not_sell_is_refused_with_the_nearest_that_it_does(
    accelerator: str, topology: str, chips: int, machine: str, words: list[str]
) -> None:
    """The message names the value, says why, and gives the way out."""
    with pytest.raises(tpu.ShapeError) as caught:
        tpu.resolve(accelerator, topology, chips, machine)
    for word in words:
        assert word in str(caught.value)


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
def test_any_request_is_a_shape_that_divides_exactly_or_an_explained_refusal(
    accelerator: str, topology: str, chips: int, machine: str
) -> None:
    """No text that a pod may hold raises anything else."""
    try:
        shape = tpu.resolve(accelerator, topology, chips, machine)
    except tpu.ShapeError as error:
        words = str(error)
        assert len(words) > 20
        return
    per_vm = shape.machine_type.chips
    assert str(shape.topology) == topology
    assert shape.topology.chips == (shape.nodes(1) * per_vm if shape.multi_host else per_vm)
    assert per_vm % shape.chips_per_pod == 0


@given(st.text(max_size=20))
def test_any_text_is_a_topology_that_prints_as_it_was_or_a_topology_error(text: str) -> None:
    """Parsing loses nothing."""
    try:
        parsed = tpu.Topology.parse(text)
    except tpu.TopologyError as error:
        words = str(error)
        assert repr(text) in words
        return
    assert str(parsed) == text
