"""`tpu-provisioner nodegroups`: runs the controller of TPUNodeGroups in the foreground."""

import os
from dataclasses import replace

import click
import structlog

from provisioner import settings
from provisioner.cli.frame import command_with, kubeconfig_option, observation_options
from provisioner.cli.output import refuse
from provisioner.controller.process import Addresses
from provisioner.google import metadata
from provisioner.kube.api import connect
from provisioner.nodegroups import app
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.compute.records import ComputeError
from provisioner.runtime import logs
from provisioner.settings.nodegroups import NodeGroupSettings

_log = structlog.get_logger(__name__)

_PROJECT = "GCP_PROJECT_ID"


@command_with("{prog} nodegroups", "{prog} nodegroups --dry-run --kubeconfig=FILE")
@observation_options(metrics=":8080")
@click.option("--leader-elect", is_flag=True, help="elect one leader among several replicas, by a Lease")
@click.option("--dry-run", is_flag=True, help="change nothing, and log what would be done")
@kubeconfig_option
def command(
    metrics_bind_address: str,
    health_probe_bind_address: str,
    leader_elect: bool,  # noqa: FBT001 - click hands over by name
    dry_run: bool,  # noqa: FBT001 - as above
    kubeconfig: str | None,
) -> int:
    """Run the controller of TPUNodeGroups, for clusters on Compute Engine without GKE.

    Each TPUNodeGroup becomes a workload policy, an instance template and a managed instance group,
    whose machines join the cluster.

    Other settings come from the environment; see docs/settings.md.
    """
    metadata_values = {} if os.environ.get(_PROJECT, "").strip() else metadata.read_surroundings(os.environ)
    inferred = {_PROJECT: metadata_values.get("project", "")} if metadata_values else {}
    effective = settings.read(NodeGroupSettings, os.environ, inferred=inferred)
    api = connect(kubeconfig)
    try:
        compute = ComputeClient(endpoint=effective.gce_endpoint or None)
    except ComputeError as error:
        return refuse(str(error))
    if dry_run:
        effective = replace(effective, dry_run=True)
    logs.configure(effective.log_level)
    _log.info("settings.read", **settings.readable(effective))
    addresses = Addresses(metrics=metrics_bind_address, probes=health_probe_bind_address, leader_elect=leader_elect)
    return app.run(effective, addresses, api, compute)
