"""Starts the local control plane, the simulated GKE and controllers, and gives access to them.

Each controller runs as a separate process, as a user would start it, so that tests can kill it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from provisioner import constants
from provisioner.kube.api import connect
from provisioner.kube.errors import Conflict
from provisioner.kube.live import list_all
from rehearsal import localcluster
from rehearsal.localcluster.api import answers
from rehearsal.localcluster.ports import HOST, free_ports
from rehearsal.localcluster.processes import Process
from rehearsal.simulators.gke.app import Simulator
from rehearsal.simulators.gke.settings import SimulatorSettings

_POLL_SECONDS = 0.05
#: Maximum interval in seconds between two checks of a condition, and interval as a share of the time waited. Short
#: intervals are costly: most conditions list objects from the API server, which takes 7 ms of CPU time.
_LONGEST_POLL_SECONDS = 0.25
_POLL_SHARE = 0.1
_STOP_SECONDS = 35.0
#: Names of the rehearsed cluster, the only cluster that the simulated GKE serves.
PROJECT, LOCATION, ZONE, CLUSTER = "rehearsal-project", "us-central2", "us-central2-b", "rehearsal"
_TITLES = {
    "run": "provisioner",
    "nodegroups": "controller of node groups",
    "partitions": "controller of partitions",
    "webhook": "webhook server",
}


@dataclass(slots=True, kw_only=True)
class Times:
    """Time at which a resource first reached each step, in seconds of one clock."""

    name: str
    entered: dict[str, float] = field(default_factory=dict)

    def enter(self, step: str, now: float) -> bool:
        """Record the time of a step if the step is new; return whether it is new."""
        if step in self.entered:
            return False
        self.entered[step] = now
        return True

    def seconds(self, start: str, end: str) -> float | None:
        """Return the seconds from one step to another, None if one of them was not reached."""
        if start not in self.entered or end not in self.entered:
            return None
        return self.entered[end] - self.entered[start]


class RehearsalError(Exception):
    """A rehearsal failed. The message names the expected result that is missing, and describes the state."""


class ControllerProcess(Process):
    """A command of `tpu-provisioner` that runs until it is stopped and writes its log as JSON lines to a file."""

    def __init__(
        self,
        command: str,
        *,
        kubeconfig: Path,
        log: Path,
        environment: Mapping[str, str],
        arguments: Iterable[str] = (),
    ) -> None:
        metrics_port, self.probe_port = free_ports(2)
        self.metrics_url = f"http://{HOST}:{metrics_port}/metrics"
        self.page_url = f"http://{HOST}:{self.probe_port}/"
        self.ready_url = f"{self.page_url}readyz"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("GCP_", "GKE_", "GCE_"))}
        super().__init__(
            _TITLES[command],
            [
                sys.executable,
                "-m",
                "provisioner",
                command,
                f"--metrics-bind-address={HOST}:{metrics_port}",
                f"--health-probe-bind-address={HOST}:{self.probe_port}",
                f"--kubeconfig={kubeconfig}",
                *arguments,
            ],
            log=log,
            environment={**inherited, **environment},
        )

    def launch(self) -> None:
        """Start the process without waiting until it is ready, because in some tests it never becomes ready."""
        super().start()

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Start the process and wait until it is ready."""
        self.launch()
        self._await(lambda: answers(self.probe_port, "/readyz"), "is ready", timeout_seconds)

    def _await(self, condition: Callable[[], bool], does: str, timeout_seconds: float) -> None:
        def holds() -> bool:
            self.check()
            return condition()

        wait_for(holds, f"the {self.name} {does}", timeout_seconds, self.tail)

    def stop(self) -> int | None:
        """Stop the process with SIGTERM; return its exit code, None if it had to be killed."""
        self.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        while self.running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        code = self.exit_code
        if code is None:
            self.kill()
        return code

    def check(self) -> None:
        """Raise RehearsalError if the process has ended."""
        if not self.running:
            raise RehearsalError(f"the {self.name} ended with exit code {self.exit_code}\n{self.tail()}")

    def records(self) -> list[dict[str, Any]]:
        """Return all log lines so far that are JSON objects."""
        return list(read_records(self.log, 0)[0])

    def tail(self, *, lines: int = 15) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.last_lines(lines)) or "(no log)"


class ProvisionerProcess(ControllerProcess):
    """`tpu-provisioner run` with the simulated GKE."""

    def __init__(
        self,
        *,
        kubeconfig: Path,
        gke_endpoint: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
    ) -> None:
        super().__init__(
            "run",
            kubeconfig=kubeconfig,
            log=log,
            environment={
                "GCP_PROJECT_ID": PROJECT,
                "GCP_CLUSTER_LOCATION": LOCATION,
                "GCP_ZONE": ZONE,
                "GCP_CLUSTER": CLUSTER,
                "GKE_ENDPOINT": gke_endpoint,
                **(environment or {}),
            },
            arguments=arguments,
        )

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Start the process and wait until it leads and its cluster is proven."""
        lines = len(self.records())
        self.launch()
        self._await(
            lambda: any(record.get("event") == "cluster.proven" for record in self.records()[lines:]),
            "proves its cluster",
            timeout_seconds,
        )


class RehearsedCluster(ABC):
    """The local cluster and access to it. Subclasses add simulated services in `start_rest` and `stop_rest`."""

    def __init__(
        self,
        *,
        directory: Path | None,
        progress: Callable[[str], None],
        kueue: bool = False,
    ) -> None:
        self._directory = directory
        self._kueue = kueue
        self._progress = progress
        self._controllers: list[ControllerProcess] = []

    def start(self) -> None:
        """Start the cluster and the simulated services. The first start on a machine takes minutes for a build."""
        self.cluster = localcluster.start(self._directory, progress=self._progress, kueue=self._kueue)
        try:
            self.api = connect(str(self.cluster.kubeconfig))
            self.start_rest()
        except BaseException:
            self.cluster.stop()
            raise

    @abstractmethod
    def start_rest(self) -> None:
        """Start the simulated services."""

    @abstractmethod
    def stop_rest(self) -> None:
        """Stop the simulated services."""

    def stop(self) -> None:
        """Stop all controllers, the simulated services and the cluster."""
        for controller in self._controllers:
            controller.kill()
        self.stop_rest()
        self.api.close()
        self.cluster.stop()

    def check(self) -> None:
        """Raise RehearsalError or LocalClusterError if a process has ended."""
        for controller in self._controllers:
            controller.check()
        self.cluster.check()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def process(
        self, command: str, *, environment: Mapping[str, str], arguments: Iterable[str] = ()
    ) -> ControllerProcess:
        """Create a process that runs a command, but do not start it. The process is killed when the cluster stops."""
        made = ControllerProcess(
            command,
            kubeconfig=self.cluster.kubeconfig,
            log=self.cluster.directory / f"{command}-{len(self._controllers)}.log",
            environment=environment,
            arguments=arguments,
        )
        self._controllers.append(made)
        return made

    def create_namespace(self, name: str, *, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace unless it exists."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}
        try:
            self.api.post("/api/v1/namespaces", body)
        except Conflict:
            return

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the control plane's own kubectl; return its output. Raises RehearsalError if it fails."""
        done = subprocess.run(
            [str(self.cluster.binaries["kubectl"]), f"--kubeconfig={self.cluster.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RehearsalError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def objects(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a collection, all pages."""
        return list_all(self.api, path, query, lambda raw: raw)


class Rehearsal(RehearsedCluster):
    """The local cluster and the simulated GKE. Provisioners are started as needed."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        settings: SimulatorSettings | None = None,
        gke_port: int = 0,
        progress: Callable[[str], None] = localcluster.log_progress,
        kueue: bool = False,
    ) -> None:
        super().__init__(directory=directory, progress=progress, kueue=kueue)
        self._settings = settings or SimulatorSettings(project=PROJECT, location=LOCATION, cluster=CLUSTER)
        self._gke_port = gke_port

    def start_rest(self) -> None:
        """Start the simulated GKE."""
        self.gke = Simulator(self._settings, kubeconfig=self.cluster.kubeconfig, port=self._gke_port)
        self.gke.start()
        self.create_namespace(constants.DEFAULT_NAMESPACE)

    def stop_rest(self) -> None:
        """Stop the simulated GKE."""
        self.gke.stop()

    def provisioner(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
        name: str = "provisioner",
        kubeconfig: Path | None = None,
    ) -> ProvisionerProcess:
        """Create a provisioner process, but do not start it. `kubeconfig` may have other rights, or use a proxy."""
        made = ProvisionerProcess(
            kubeconfig=kubeconfig or self.cluster.kubeconfig,
            gke_endpoint=self.gke.url,
            log=self.cluster.directory / f"{name}-{len(self._controllers)}.log",
            environment=environment,
            arguments=arguments,
        )
        self._controllers.append(made)
        return made


def wait_for(
    condition: Callable[[], object],
    what: str,
    timeout_seconds: float,
    picture: Callable[[], str] = str,
    *,
    longest_poll_seconds: float = _LONGEST_POLL_SECONDS,
) -> None:
    """Wait until the condition holds; raise RehearsalError with the text of `picture` after the time-out.

    The condition is checked at intervals of a tenth of the time waited, from 0.05 s to `longest_poll_seconds`.
    """
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        if waited > timeout_seconds:
            raise RehearsalError(f"timed out after {timeout_seconds:.0f} s, waiting for: {what}\n{picture()}")
        time.sleep(min(max(waited * _POLL_SHARE, _POLL_SECONDS), longest_poll_seconds))


def read_records(log: Path, offset: int) -> tuple[Iterator[dict[str, Any]], int]:
    """Return the lines of a log after an offset in bytes that are JSON objects, and the offset of the next line."""
    if not log.exists():
        return iter(()), offset
    with log.open("rb") as file:
        file.seek(offset)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return _parse(whole), offset + len(whole)


def _parse(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
