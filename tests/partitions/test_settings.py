"""Options of the controller of partitions: defaults, formats, and errors."""

from __future__ import annotations

import pytest

from provisioner.settings import SettingsError
from provisioner.settings import read as read_options
from provisioner.settings.partitions import PartitionSettings, Server
from provisioner.settings.webhook import read_webhook_settings

SERVER = {"VIPU_SERVERS": "vipu.example.com"}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("10.0.0.1:8191", (Server("10.0.0.1", 8191, None),)),
        ("[fd00::1]", (Server("fd00::1", 8090, None),)),
        ("[fd00::1]:9000:ipu/pod=one", (Server("fd00::1", 9000, ("ipu/pod", "one")),)),
        (
            "a:8090:vipu=a, b:8090:vipu=b",
            (Server("a", 8090, ("vipu", "a")), Server("b", 8090, ("vipu", "b"))),
        ),
    ],
)
def test_servers_are_parsed_with_optional_port_and_node_label(text: str, want: tuple[Server, ...]) -> None:
    assert read_options(PartitionSettings, {"VIPU_SERVERS": text}).servers == want


def test_address_of_a_server_has_host_and_port() -> None:
    """Addresses of servers are stored in the ledger and in annotations of pods, so their form must not change."""
    effective = read_options(PartitionSettings, {"VIPU_SERVERS": "[fd00::1],a:1"})
    assert [server.address for server in effective.servers] == ["[fd00::1]:8090", "a:1"]


def test_limits_and_sizes_are_read_into_the_settings() -> None:
    effective = read_options(
        PartitionSettings,
        {
            **SERVER,
            "NAMESPACE_IPU_LIMITS": "research=32, *=16",
            "LARGEST_PARTITION": "16",
            "SERVED_NAMESPACES": "research",
            "RECONFIGURABLE_PARTITIONS": "false",
            "ORPHAN_REMOVAL_DELAY": "10m",
            "UNSCHEDULED_TIMEOUT": "0s",
        },
    )
    assert [effective.limit_of(namespace) for namespace in ("research", "other")] == [32, 16]
    assert (effective.largest_size, effective.namespaces) == (16, ("research",))
    assert (effective.reconfigurable, effective.orphan_seconds) == (False, 600.0)
    assert effective.unscheduled_seconds == 0.0


@pytest.mark.parametrize(
    ("variable", "text", "part"),
    [
        ("VIPU_SERVERS", "", "is not set"),
        ("VIPU_SERVERS", "host:0", "HOST:PORT:LABEL=VALUE"),
        ("VIPU_SERVERS", "host:99999", "HOST:PORT:LABEL=VALUE"),
        ("VIPU_SERVERS", "-x", "HOST:PORT:LABEL=VALUE"),
        ("VIPU_SERVERS", "host:8090:label", "not a label"),
        ("VIPU_SERVERS", "a:1,a:1", "twice"),
        ("VIPU_SERVERS", ",".join(f"host-{number}" for number in range(65)), "at most 64"),
        ("LARGEST_PARTITION", "48", "power of two"),
        ("LARGEST_PARTITION", "0", "whole number"),
        ("VIPU_CREATE_TIMEOUT", "1s", "less than 10s"),
        ("NAMESPACE_IPU_LIMITS", "research=many", "many"),
    ],
)
def test_invalid_option_is_reported_with_its_variable_and_format(variable: str, text: str, part: str) -> None:
    with pytest.raises(SettingsError, match=part) as caught:
        read_options(PartitionSettings, {**SERVER, variable: text})
    assert variable in str(caught.value)


@pytest.mark.parametrize("size", ["1024", "2048"])
def test_webhook_and_controller_accept_the_same_largest_size(size: str) -> None:
    """A pod that the webhook admits must be served by the controller."""
    option = {"LARGEST_PARTITION": size}
    taken = []
    for read in (lambda: read_options(PartitionSettings, {**SERVER, **option}), lambda: read_webhook_settings(option)):
        try:
            read()
            taken.append(True)
        except SettingsError:
            taken.append(False)
    assert taken == [size == "1024"] * 2
