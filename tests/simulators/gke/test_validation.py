"""Tests of the pools that the simulated GKE rejects or accepts."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.gke.validation import check_pool
from tests.support.simulator import reserved

POLICIES = {"tpu-provisioner-4x4x4": "4x4x4", "small": "2x2x2", "one": "2x2x1", "v6e": "4x4", "shapeless": ""}
ZONAL = ClusterName("proj", "us-east5-a", "main")
REGIONAL = ClusterName("proj", "us-east5", "main")

SINGLE_HOST_TEXT = (
    "TPU topology can't be specified with single-host TPU slice pool; please remove the tpu_topology from the node "
    "pool creation request if the node pool is intented to run with single-host TPU slice nodes."
)
NAME_TEXT = (
    'Invalid value for field "node_pool.name": "{}". Must be a match of regex '
    "'(?:[a-z](?:[-a-z0-9]{{0,38}}[a-z0-9])?)' (only lowercase alphanumerics and '-' allowed, must start with a letter "
    "and end with an alphanumeric, and must be no longer than 40 characters)."
)


def pool(machine: str = "ct5lp-hightpu-4t", topology: str = "4x4", count: int = 4, **rest: Any) -> dict[str, Any]:
    """Return a multi-host slice; an empty topology leaves the placement out."""
    placement = {"placementPolicy": {"type": "COMPACT", "tpuTopology": topology}} if topology else {}
    config = {"machineType": machine, **rest.pop("config", {})}
    return {"name": "p", "initialNodeCount": count, "config": config, **placement, **rest}


def single(machine: str = "ct5lp-hightpu-4t", **config: Any) -> dict[str, Any]:
    return pool(machine, topology="", count=1, config=config)


def flex(**changes: Any) -> dict[str, Any]:
    """Return a flex-start slice that GKE accepts, with changes of its config or its other fields."""
    config = {"flexStart": True, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
    body = {"autoscaling": {"enabled": True, "maxNodeCount": 4, "locationPolicy": "ANY"}}
    return pool(count=0, config={**config, **changes.pop("config", {})}, **{**body, **changes})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param({**pool(), "name": "X"}, NAME_TEXT.format("X"), id="an upper-case name"),
        pytest.param({**pool(), "name": "a" * 41}, NAME_TEXT.format("a" * 41), id="a name of 41 characters"),
        pytest.param(pool(machine="ct9z-4t"), 'Machine type with name "ct9z-4t" does not exist', id="unknown machine"),
        *(
            pytest.param(single(**config), words, id=words)
            for config, words in (
                ({"diskSizeGb": 9}, "config.disk_size_gb"),
                ({"bootDisk": {"sizeGb": "50"}, "diskType": "pd-ssd"}, "config.boot_disk"),
                ({"imageType": "WINDOWS_LTSC"}, "WINDOWS_LTSC"),
                ({"resourceLabels": {"Team": "a"}}, "Team=a"),
                ({"resourceLabels": {"team": "A.b"}}, "team=A.b"),
                ({"resourceLabels": {f"l{number}": "" for number in range(65)}}, "At most 64 labels"),
                ({"tags": ["Not-A-Tag"]}, "Not-A-Tag"),
                ({"tags": [f"t{number}" for number in range(65)]}, "config.tags"),
                ({"kubeletConfig": {"podPidsLimit": "1023"}}, "podPidsLimit"),
                ({"kubeletConfig": {"cpuManagerPolicy": "dynamic"}}, "cpuManagerPolicy"),
                ({"kubeletConfig": {"topologyManager": {"scope": "node"}}}, "topologyManager.scope"),
                ({"kubeletConfig": {"imageGcLowThresholdPercent": 85}}, "image_gc_low"),
                ({"kubeletConfig": {"cpuCfsQuotaPeriod": "2s"}}, "cpu_cfs_quota_period"),
                ({"kubeletConfig": {"containerLogMaxSize": "1Gi"}}, "container_log_max_size"),
                ({"linuxNodeConfig": {"sysctls": {"net.core.made_up": "1"}}}, "net.core.made_up"),
                ({"linuxNodeConfig": {"sysctls": {"vm.swappiness": "a"}}}, "sysctls[vm.swappiness]"),
                ({"linuxNodeConfig": {"sysctls": {"net.ipv4.tcp_rmem": "1"}}}, "sysctls[net.ipv4.tcp_rmem]"),
                ({"linuxNodeConfig": {"hugepages": {"hugepageSize2m": 100_000}}}, "Exceeds the memory"),
                ({"machine": "ct4p-hightpu-4t", "linuxNodeConfig": {"hugepages": {"hugepageSize1g": 1}}}, "1 GiB"),
                ({"sandboxConfig": {"type": "GVISOR"}, "imageType": "UBUNTU_CONTAINERD"}, "Requires image type"),
                ({"machine": "tpu7x-standard-4t", "sandboxConfig": {"type": "GVISOR"}}, "machine type tpu7x"),
            )
        ),
        pytest.param(pool(topology="2x2", count=1), SINGLE_HOST_TEXT, id="topology on a single-host pool"),
        pytest.param(pool(topology="2x3"), 'invalid TPU topology "2x3"', id="a shape that is not sold"),
        pytest.param(
            pool("ct3p-hightpu-4t", "", 4),
            "doesn't support single host topology",
            id="multi-host machine without topology",
        ),
        pytest.param(
            pool("tpu7x-standard-4t", "", 2, placementPolicy={"tpuTopology": "2x2x2"}),
            "requires a workload policy",
            id="tpu7x slice without a policy",
        ),
        pytest.param(
            pool("ct5p-hightpu-4t", "", 2, placementPolicy={"policyName": "small"}),
            "Required field 'resource.requestedRunDuration' not specified",
            id="workload policy on v5p",
        ),
        pytest.param(
            pool("tpu7x-standard-4t", "", 2, placementPolicy={"policyName": "tpu-provisioner-2x2x2"}),
            'Resource policy "tpu-provisioner-2x2x2" is not found in the project and region of the node pool.',
            id="a workload policy that does not exist",
        ),
        pytest.param(
            pool("tpu7x-standard-4t", "", 2, placementPolicy={"policyName": "small", "tpuTopology": "4x4x4"}),
            'TPU topology "4x4x4" differs from the workload policy\'s topology "2x2x2"',
            id="a topology that is not the policy's",
        ),
        pytest.param(
            pool(config={"taints": [{"key": "a", "value": "b"}]}), "has no effect", id="a taint without effect"
        ),
        pytest.param(
            pool(config={"spot": True, **reserved("a")}), "Spot VMs can't consume", id="spot with a reservation"
        ),
        pytest.param(
            pool(count=0, autoscaling={"enabled": True}),
            "Maximum node count 0 is not a valid size of TPU pod slice with topology 4x4",
            id="autoscaled without a maximum",
        ),
        pytest.param(flex(config={"spot": True}), "can't be combined with Spot", id="flex-start and spot"),
        pytest.param(
            flex(management={"autoRepair": True, "autoUpgrade": True}),
            "auto-repair to be disabled",
            id="flex-start and repair",
        ),
        pytest.param(flex(autoscaling={}), "autoscaling to be enabled", id="flex-start of a fixed size"),
        pytest.param(
            flex(upgradeSettings={"strategy": "SURGE"}), "only the SHORT_LIVED", id="flex-start with surge upgrades"
        ),
        pytest.param(flex(config={"maxRunDuration": "60s"}), "between 600s and 604800s", id="flex-start for a minute"),
        pytest.param(
            {**flex(config={"machineType": "ct4p-hightpu-4t"})}, "Flex-start is not supported", id="flex-start on v4"
        ),
        pytest.param(pool(config={"maxRunDuration": "29s"}), "between 30s and 10368000s", id="on demand for 29 s"),
        pytest.param(
            pool(config=reserved("r/reservationSubBlocks/s")), "is not the name of a reservation", id="a lone sub-block"
        ),
        pytest.param(pool("n2-standard-4"), "can't be specified with machine type n2-standard-4", id="no chips"),
    ],
)
def test_invalid_pool_is_rejected_with_the_message_of_gke(body: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_pool(body, ZONAL, SimulatorSettings(), POLICIES)

    assert caught.value.status == "INVALID_ARGUMENT"
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("body", "hosts", "topology"),
    [
        pytest.param(pool(), 4, "4x4", id="a v5e slice"),
        pytest.param(
            pool("ct6e-standard-4t", "", 4, placementPolicy={"policyName": "v6e", "tpuTopology": "4x4"}),
            4,
            "4x4",
            id="v6e with a policy and a topology",
        ),
        pytest.param(flex(), 0, "4x4", id="flex-start begins empty"),
        pytest.param(pool(config={"maxRunDuration": "3600s"}), 4, "4x4", id="a slice for an hour"),
        pytest.param(
            pool(
                "tpu7x-standard-4t",
                "",
                16,
                placementPolicy={"policyName": "tpu-provisioner-4x4x4", "tpuTopology": "4x4x4"},
            ),
            16,
            "4x4x4",
            id="tpu7x with policy and topology and no type, as a pool that came up on real GKE",
        ),
        pytest.param(
            pool(config=reserved("projects/p/reservations/r/reservationBlocks/b/reservationSubBlocks/s")),
            4,
            "4x4",
            id="a sub-block of a shared reservation",
        ),
    ],
)
def test_valid_pool_gets_a_plan_with_hosts_and_topology(body: dict[str, Any], hosts: int, topology: str | None) -> None:
    plan = check_pool(body, ZONAL, SimulatorSettings(), POLICIES)

    assert (hosts, topology, None) == (plan.hosts_per_zone, plan.topology, plan.failure)


EXCLUDED = {"exclusionUntilEndOfSupport": {"enabled": True}}


@pytest.mark.parametrize(
    ("channel", "body", "text"),
    [
        pytest.param(None, {}, "", id="without a channel everything by default"),
        pytest.param(None, {"management": {"autoRepair": True}}, "", id="without a channel auto-upgrade may be off"),
        pytest.param("REGULAR", {}, "", id="on a channel everything by default"),
        pytest.param(
            "REGULAR",
            {"management": {"autoRepair": True}},
            "Auto_upgrade cannot be false when release_channel REGULAR is set.",
            id="on a channel auto-upgrade may not be left out of management, for that is off",
        ),
        pytest.param(
            None,
            {"management": {"autoUpgrade": True}, "maintenancePolicy": EXCLUDED},
            "requires a release channel",
            id="the exclusion without a channel",
        ),
    ],
)
def test_auto_upgrade_is_required_only_on_a_release_channel(
    channel: str | None, body: dict[str, Any], text: str
) -> None:
    """On a release channel, GKE rejects pools without auto-upgrade."""
    settings = SimulatorSettings(release_channel=channel)
    assert SimulatorSettings().release_channel == "REGULAR"
    if text:
        with pytest.raises(ApiError, match=text):
            check_pool(pool(**body), ZONAL, settings, {})
    else:
        assert check_pool(pool(**body), ZONAL, settings, {}).topology == "4x4"


def test_pool_of_a_regional_cluster_has_three_zones_but_a_slice_needs_one() -> None:
    assert len(check_pool(pool("e2-medium", "", 1), REGIONAL, SimulatorSettings(), POLICIES).zones) == 3
    with pytest.raises(ApiError, match="exactly one zone"):
        check_pool(pool(), REGIONAL, SimulatorSettings(), POLICIES)
