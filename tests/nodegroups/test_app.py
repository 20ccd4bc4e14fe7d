"""The assembled controller: leadership, probes, dry run, and its settings."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from provisioner.controller.process import Addresses, Controller
from provisioner.nodegroups import app
from provisioner.nodegroups.act import Actor, DryActor
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.bootstrap.metadata import startup_script
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.device_plugin import version_of
from provisioner.settings import read as read_options
from provisioner.settings.nodegroups import NodeGroupSettings
from tests.support.clock import FakeClock
from tests.support.nodegroup_world import GroupKube, kind_path, raw_kind
from tests.support.waiting import wait_for

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tpu-provisioner-system/leases/tpu-provisioner-nodegroups"
_NOT_READ = "what machines have to know of the cluster is not read yet"
SETTINGS = NodeGroupSettings(project_id="research-project", device_plugin_image="plugin")


class Kube(GroupKube):
    """A fake API server with the attributes `server` and `context_name` of a connection."""

    server = "https://kube.example.com"
    context_name = "test"


class Process:
    """A controller that records its exit codes."""

    def __init__(self, settings: NodeGroupSettings = SETTINGS, **addresses: Any) -> None:
        self.kube, self.compute, self.clock = Kube(), ComputeClient(endpoint="http://127.0.0.1:1"), FakeClock()
        self.kube.put_cluster()
        self.exit_codes: list[int] = []
        self.exited = threading.Event()
        self.controller: Controller = app.build(
            settings,
            Addresses(**{"metrics": "0", "probes": "0", "leader_elect": True, **addresses}),
            self.kube,  # type: ignore[arg-type]
            self.compute,
            exit_process=self.exit,
            lease_clock=self.clock,
        )

    def exit(self, code: int) -> None:
        self.exit_codes.append(code)
        self.exited.set()

    def end(self) -> None:
        self.controller.stop()
        if self.controller.replica.elector is not None:
            self.controller.replica.elector.stop()
        for watch in self.controller.loop.watches.named().values():
            watch.stop()
        self.controller.replica.recorder.stop()
        self.controller.server.stop()
        for threads in (self.controller.loop.actor.executor, self.controller.loop.actor.write_executor):
            threads.shutdown(wait=True)


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.end()


def test_only_candidate_leads_with_its_own_lease(process: Process) -> None:
    loop = process.controller.loop
    assert (loop.is_leader(), process.controller.loop.actor.lease_seconds()) == (False, 0.0)
    process.controller.start()
    wait_for(loop.is_leader)
    assert process.kube.object(LEASE) is not None
    assert 0 < process.controller.loop.actor.lease_seconds() <= 30


def test_probes_and_metrics_are_served() -> None:
    process = Process(metrics="127.0.0.1:0", probes="127.0.0.1:0")
    process.controller.start()
    wait_for(lambda: process.controller.loop.problems() == (_NOT_READ,))
    try:
        (port,) = process.controller.server.ports
        bodies = {}
        for path in ("/metrics", "/healthz", "/readyz"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            bodies[path] = connection.getresponse().read().decode()
            connection.close()
        assert "tpu_provisioner_nodegroups_leader" in bodies["/metrics"]
        assert bodies["/readyz"] == f"{_NOT_READ}\n"
        assert bodies["/healthz"] in ("ok\n", "the loop has stopped making rounds\n")
    finally:
        process.end()


def test_dry_run_replaces_the_actor(process: Process) -> None:
    """A dry run needs no Lease, so that it can run next to the leader."""
    assert type(process.controller.loop.actor) is Actor
    dry = Process(replace(SETTINGS, dry_run=True))
    assert isinstance(dry.controller.loop.actor, DryActor)
    assert dry.controller.replica.elector is None
    assert dry.controller.loop.is_leader()
    dry.end()


def test_settings_reach_decisions_cluster_reader_and_watches() -> None:
    environment = {
        "GCP_PROJECT_ID": "research-project",
        "ALLOWED_PROJECTS": "one-project,two-project",
        "SERVED_NAMESPACES": "a,b",
        "REPAIR_AFTER": "10m",
        "REPAIRS_PER_DAY": "1",
        "JOIN_TIMEOUT": "20m",
        "DRAIN_TIMEOUT": "5m",
        "GCE_CALLS_PER_SECOND": "7",
        "KUBERNETES_PACKAGES": "https://mirror.example.com",
        "API_SERVER_ADDRESS": "lb.example.com",
        "KUBERNETES_VERSION": "1.30",
        "CONCURRENCY": "3",
    }
    process = Process(read_options(NodeGroupSettings, environment))
    loop = process.controller.loop
    plugin = app.device_plugin_of(read_options(NodeGroupSettings, environment))
    assert plugin is not None
    assert loop.settings == app.planning_settings(read_options(NodeGroupSettings, environment), plugin)
    assert loop.settings.startup_script == startup_script("https://mirror.example.com")
    assert loop.settings.device_plugin_version == version_of(plugin)
    assert loop.settings.api_server == "lb.example.com:6443"
    assert loop.cluster.kubernetes_version == "1.30"
    process.kube.put_object(kind_path(Kind.TPU_NODE_GROUP), raw_kind(Kind.TPU_NODE_GROUP))
    loop.watches.groups.step()
    (unserved,) = loop.watches.groups.records().values()
    assert unserved.spec.instance_config is None
    process.end()


def test_device_plugin_that_is_not_managed_has_no_version() -> None:
    """An empty version means that no manifest is applied."""
    settings = read_options(NodeGroupSettings, {"GCP_PROJECT_ID": "research-project", "DEVICE_PLUGIN_IMAGE": "none"})
    plugin = app.device_plugin_of(settings)
    assert plugin is None
    assert app.planning_settings(settings, plugin).device_plugin_version == ""
