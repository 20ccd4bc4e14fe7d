"""What users wrote, taken out of GKE's words before these are read (`provisioner.google.echoes`). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from provisioner.google import echoes
from provisioner.model.capacity import GENERATED_NAME, NodePoolRequest


def without(text: str, values: Iterable[str]) -> str:
    """Return a text without the values and without names that GKE or the provisioner made."""
    return GENERATED_NAME.sub(echoes.GAP, echoes.without(text, values))


def of_request(request: NodePoolRequest) -> tuple[str, ...]:
    """Return all that a create says in words that may be a user's."""
    return (
        request.name,
        request.zone,
        request.machine_type,
        request.policy_name,
        request.reservation,
        request.disk_type,
        request.service_account,
        request.secondary_boot_disk,
        request.boot_disk_kms_key,
        *request.tags,
        *request.labels,
        *request.labels.values(),
        *(part for taint in request.taints for part in (taint.key, taint.value)),
        *(part for one in request.additional_networks for part in (one.network, one.subnetwork)),
    )


def of_pool(message: Any) -> tuple[str, ...]:
    """Return the same of a node pool's raw protocol buffer."""
    config = message.config
    return (
        message.name,
        *message.locations,
        message.placement_policy.policy_name,
        config.machine_type,
        config.service_account,
        *config.reservation_affinity.values,
        *config.labels,
        *config.labels.values(),
        *(part for taint in config.taints for part in (taint.key, taint.value)),
        *(
            part
            for one in message.network_config.additional_node_network_configs
            for part in (one.network, one.subnetwork)
        ),
    )
