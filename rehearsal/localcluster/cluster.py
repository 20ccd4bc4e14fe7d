"""Starts and stops the local cluster, and creates the objects of `kubeadm init` that joining machines need.

start() returns when probes have shown that the cluster works. The cluster is for rehearsals and tests: it has single
replicas, keeps no data, and is not isolated from other users of this machine. The controller manager adds a signature
to cluster-info for each bootstrap token. Only kubeadm would read the ConfigMap kubeadm-config, so it is not created.
"""

from __future__ import annotations

import atexit
import base64
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from rehearsal.localcluster import components, operators, readiness, recipes
from rehearsal.localcluster.api import ApiClient, ApiError
from rehearsal.localcluster.binaries import Binaries, Progress, log_progress, resolve_binaries
from rehearsal.localcluster.components import Plan, Site
from rehearsal.localcluster.credentials import ADMIN, Credentials
from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.operators import JOBSET, KUBERAY, KUEUE, LWS, Operator
from rehearsal.localcluster.ports import HOST
from rehearsal.localcluster.processes import Process, stop_all, wait_until

#: Time-out in seconds for each program to become ready. On an idle machine, all together take a few seconds.
START_TIMEOUT_SECONDS = 120.0

_GRACE_SECONDS = 0.7
# The API server delays creates of a kind that it has served for less than this time, so start() waits for its end.
_NEW_KIND_SECONDS = 2.0


_ATTEMPTS = 5
_PORT_TAKEN = "address already in use"


_RBAC = "rbac.authorization.k8s.io"
_PUBLIC = "kube-public"
_INFO = "cluster-info"
#: Group of the clients that authenticate with a machine's bootstrap token.
_JOINING = "system:bootstrappers:kubeadm:default-node-token"
_REQUESTS = "system:certificates.k8s.io:certificatesigningrequests"


def install(api: ApiClient, *, server_url: str, authority_pem: bytes) -> bool:
    """Install all objects; return False if the API server does not accept one of them yet."""
    found = objects(server_url=server_url, authority_pem=authority_pem)
    return all(api.try_apply(path, json.dumps(raw).encode()).status < 300 for path, raw in found)


def objects(*, server_url: str, authority_pem: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each object that joining machines need, with its path."""
    cluster = {"server": server_url, "certificate-authority-data": base64.b64encode(authority_pem).decode("ascii")}
    # The kubeconfig has no user, because machines read and use it anonymously before they join.
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
    yield (
        f"/api/v1/namespaces/{_PUBLIC}/configmaps/{_INFO}",
        _named("v1", "ConfigMap", _INFO, data={"kubeconfig": yaml.safe_dump(kubeconfig)}),
    )
    reads_info = "kubeadm:bootstrap-signer-clusterinfo"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [_INFO], "verbs": ["get"]}
    yield _rbac("Role", reads_info, namespace=_PUBLIC, rules=[rule])
    yield _rbac(
        "RoleBinding",
        reads_info,
        namespace=_PUBLIC,
        roleRef=_reference("Role", reads_info),
        subjects=[{"apiGroup": _RBAC, "kind": "User", "name": "system:anonymous"}],
    )
    yield _rbac(
        "ClusterRole", "kubeadm:get-nodes", rules=[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    )
    for name, role, group in (
        ("kubeadm:get-nodes", "kubeadm:get-nodes", _JOINING),
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", _JOINING),
        ("kubeadm:node-autoapprove-bootstrap", f"{_REQUESTS}:nodeclient", _JOINING),
        ("kubeadm:node-autoapprove-certificate-rotation", f"{_REQUESTS}:selfnodeclient", "system:nodes"),
    ):
        yield _rbac(
            "ClusterRoleBinding",
            name,
            roleRef=_reference("ClusterRole", role),
            subjects=[{"apiGroup": _RBAC, "kind": "Group", "name": group}],
        )


def _rbac(kind: str, name: str, *, namespace: str = "", **parts: Any) -> tuple[str, dict[str, Any]]:
    place = f"namespaces/{namespace}/" if namespace else ""
    path = f"/apis/{_RBAC}/v1/{place}{kind.lower()}s/{name}"
    return path, _named(f"{_RBAC}/v1", kind, name, **parts)


def _named(api_version: str, kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **parts}


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": _RBAC, "kind": kind, "name": name}


class Component:
    """A program of the cluster, and the plan of its last start."""

    def __init__(self, name: str, site: Site, plan: Callable[[Site], Plan], *, timeout_seconds: float) -> None:
        self.name = name
        self._site = site
        self._make_plan = plan
        self._timeout_seconds = timeout_seconds
        self._plan: Plan | None = None
        self._process: Process | None = None

    @property
    def log(self) -> Path:
        """The file of the program's output."""
        return self._site.log(self.name)

    @property
    def port(self) -> int:
        """The port for clients, 0 before the first start. It is final when the program is ready."""
        return self._plan.port if self._plan is not None else 0

    @property
    def process(self) -> Process:
        """Process of the last start. Raises LocalClusterError if the program was never started."""
        if self._process is None:
            raise LocalClusterError(f"{self.name} was not started.", advice="Start the cluster with it.")
        return self._process

    @property
    def started(self) -> bool:
        """Whether the program was ever started."""
        return self._process is not None

    def start(self) -> None:
        """Start the program on ports that are free now. await_ready() tries others if they are taken by then."""
        self._plan = self._make_plan(self._site)
        self._process = Process(self.name, self._plan.command, log=self.log, environment=self._site.environment())
        self._process.start()

    def await_serving(self) -> None:
        """Wait until the program listens. If another program took its port, start it again on other ports."""
        for _ in range(_ATTEMPTS - 1):
            try:
                self._wait(early=True)
            except LocalClusterError:
                if self.process.running or not any(_PORT_TAKEN in line for line in self.process.last_lines(20)):
                    raise
                self.start()
            else:
                return
        self._wait(early=True)

    def await_ready(self) -> None:
        """Wait until the program is ready. If another program took its port, start it again on other ports."""
        self.await_serving()
        self._wait()

    def start_again(self) -> None:
        """Start the ended program with the same command (same ports, same data), and wait until it is ready."""
        self.process.start()
        self._wait()

    def _wait(self, *, early: bool = False) -> None:
        plan = self._plan
        if plan is not None:
            wait_until(
                plan.serving if early and plan.serving is not None else plan.ready,
                what=f"{self.name} to become ready",
                timeout_seconds=self._timeout_seconds,
                processes=(self.process,),
            )


class LocalCluster:
    """A Kubernetes control plane on this machine; created by start(), ended by stop() or as a context manager."""

    def __init__(
        self,
        directory: Path,
        binaries: Binaries,
        *,
        operators: Iterable[Operator],
        temporary: bool,
        timeout_seconds: float,
    ) -> None:
        self.directory = directory
        self.binaries = binaries
        self.kubeconfig = directory / "kubeconfig"
        self._temporary = temporary
        self._timeout_seconds = timeout_seconds
        for part in ("logs", "configuration"):
            (directory / part).mkdir()
        credentials = Credentials.create(directory / "credentials")
        self._credentials = credentials
        self._site = components.Site(directory=directory, binaries=binaries, credentials=credentials)
        self._operators = tuple(operators)
        component = self._new_component
        etcd = component(recipes.ETCD, components.etcd)

        def plan_apiserver(site: components.Site) -> components.Plan:
            return components.kube_apiserver(site, etcd_port=etcd.port)

        # The components are in the order of their start.
        self._components = {
            one.name: one
            for one in (
                etcd,
                component(recipes.KUBE_APISERVER, plan_apiserver),
                component(recipes.KUBE_CONTROLLER_MANAGER, components.kube_controller_manager),
                component(recipes.KUBE_SCHEDULER, components.kube_scheduler),
                component(recipes.KWOK, components.kwok),
                *(self._new_operator(one) for one in self._operators),
            )
        }

    def _new_component(self, name: str, plan: Callable[[components.Site], components.Plan]) -> Component:
        return Component(name, self._site, plan, timeout_seconds=self._timeout_seconds)

    def _new_operator(self, operator: Operator) -> Component:
        return self._new_component(operator.name, partial(components.operator, operator=operator))

    @property
    def server_url(self) -> str:
        """URL of the API server."""
        return f"https://{HOST}:{self._components[recipes.KUBE_APISERVER].port}"

    @property
    def ca_certificate_pem(self) -> bytes:
        """The CA certificate that the kubeconfig trusts."""
        return self._credentials.authority_pem

    @property
    def component_names(self) -> tuple[str, ...]:
        """The names that restart(), send() and logs() accept."""
        return tuple(self._components)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all programs, within 3 seconds; delete the directory if start() created it. May be called repeatedly."""
        atexit.unregister(self.stop)
        started = {name: one.process for name, one in self._components.items() if one.started}
        # Stop clients before servers, so that no client spends its grace period waiting for a stopped server.
        servers = [started.pop(name) for name in (recipes.KUBE_APISERVER, recipes.ETCD) if name in started]
        stop_all(list(started.values()), grace_seconds=_GRACE_SECONDS)
        for server in servers:
            stop_all([server], grace_seconds=_GRACE_SECONDS)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def restart(self, name: str, *, down_seconds: float = 0) -> None:
        """Kill a program, as a crash would, and start it again on the same ports and data; wait until it is ready."""
        component = self._component(name)
        component.process.kill()
        time.sleep(down_seconds)
        component.start_again()

    def send(self, name: str, signal_number: int) -> None:
        """Send a signal to a program."""
        self._component(name).process.send(signal_number)

    def logs(self, name: str, *, last_lines: int = 50) -> str:
        """Return the end of a program's log, which covers all its starts."""
        return "\n".join(self._component(name).process.last_lines(last_lines))

    def check(self) -> None:
        """Raise LocalClusterError if a program has ended without stop()."""
        for component in self._components.values():
            if component.process.exit_code is not None:
                raise LocalClusterError(
                    f"{component.name} ended with exit code {component.process.exit_code}.",
                    output=component.process.last_lines(20),
                    advice="The cluster cannot be used any more: stop it and start another.",
                )

    def add(self, operator: Operator, *, progress: Progress = log_progress) -> None:
        """Install another operator in the running cluster and wait until it works; do nothing if it is installed.

        The operator is built on first use. Kubernetes' garbage collector notices the new kinds within 30 s.
        """
        if operator.name in self._components:
            return
        self.binaries = resolve_binaries(optional={operator.name, *self.binaries.programs}, progress=progress)
        self._site = replace(self._site, binaries=self.binaries)
        started = time.monotonic()
        api = self._api()
        self._install_crds(api, operator)
        served_since = time.monotonic()
        component = self._components[operator.name] = self._new_operator(operator)
        component.start()
        component.await_ready()
        self._install_webhooks(api, operator)
        for what, condition in readiness.operator_conditions(api, operator):
            self._wait(what, condition)
        time.sleep(max(0.0, served_since + _NEW_KIND_SECONDS - time.monotonic()))
        progress(f"{operator.title} works after {time.monotonic() - started:.1f} s")

    def _component(self, name: str) -> Component:
        try:
            return self._components[name]
        except KeyError:
            known = ", ".join(self._components)
            raise LocalClusterError(f"This cluster has no component {name!r}.", advice=f"It has: {known}.") from None

    def _start(self, progress: Progress) -> None:
        started = time.monotonic()
        etcd, apiserver = self._components[recipes.ETCD], self._components[recipes.KUBE_APISERVER]
        etcd.start()
        etcd.await_ready()
        apiserver.start()
        apiserver.await_serving()
        trust = self._credentials
        for client in trust.clients:
            path = self.kubeconfig if client == ADMIN else trust.directory / f"{client}.kubeconfig"
            trust.write_kubeconfig(path, client=client, server_url=self.server_url)
        api = self._api()
        for operator in self._operators:
            # CRDs are installed first: the API server delays the first creates of a new kind, and JobSet looks for
            # its CRD only at its start and ten seconds later.
            self._install_crds(api, operator)
        served_since = time.monotonic()
        apiserver.await_ready()
        progress(f"the API server answers at {self.server_url} after {time.monotonic() - started:.1f} s")
        self._wait(
            "the API server to take what machines join by",
            partial(install, api, server_url=self.server_url, authority_pem=trust.authority_pem),
        )
        others = [one for one in self._components.values() if one not in {etcd, apiserver}]
        for component in others:
            component.start()
        for component in others:
            component.await_ready()
        for operator in self._operators:
            self._install_webhooks(api, operator)
        for what, condition in readiness.conditions(api):
            self._wait(what, condition)
        for operator in self._operators:
            for what, condition in readiness.operator_conditions(api, operator):
                self._wait(what, condition)
        if self._operators:
            time.sleep(max(0.0, served_since + _NEW_KIND_SECONDS - time.monotonic()))
        progress(f"the local cluster works after {time.monotonic() - started:.1f} s")

    def _api(self) -> ApiClient:
        keys = self._credentials.directory
        return ApiClient(
            self._components[recipes.KUBE_APISERVER].port,
            authority=keys / "ca.crt",
            certificate=keys / "admin.crt",
            key=keys / "admin.key",
        )

    def _install_crds(self, api: ApiClient, operator: Operator) -> None:
        manifests = self.binaries.manifests[operator.name]
        self._wait(
            f"the API server to take the CRDs of {operator.title}",
            partial(operators.install_crds, api, operator, manifests),
        )
        self._wait(
            f"the CRDs of {operator.title} to be established",
            partial(operators.established, api, operator, manifests),
        )

    def _install_webhooks(self, api: ApiClient, operator: Operator) -> None:
        operators.install_webhooks(
            api,
            operator,
            self.binaries.manifests[operator.name],
            port=self._components[operator.name].port,
            authority_pem=self._credentials.authority_pem,
        )

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        processes = [one.process for one in self._components.values() if one.started]
        try:
            wait_until(condition, what=what, timeout_seconds=self._timeout_seconds, processes=processes)
        except (ApiError, OSError) as error:
            raise LocalClusterError(
                f"Waiting for {what} failed: {error}.",
                output=self._components[recipes.KUBE_APISERVER].process.last_lines(20),
                advice="Start the cluster again; if this persists, the programs and the manifests may be incompatible.",
            ) from error


def start(
    directory: Path | None = None,
    *,
    progress: Progress = log_progress,
    jobset: bool = True,
    lws: bool = False,
    kueue: bool = False,
    kuberay: bool = False,
    timeout_seconds: float = START_TIMEOUT_SECONDS,
) -> LocalCluster:
    """Start a cluster and wait until it works.

    The directory must be new or empty, and is kept; without one, a temporary directory is created, and stop() deletes
    it. Programs are built on first use, which takes minutes. Raises LocalClusterError.
    """
    choices = ((JOBSET, jobset), (LWS, lws), (KUEUE, kueue), (KUBERAY, kuberay))
    chosen = tuple(operator for operator, wanted in choices if wanted)
    binaries = resolve_binaries(optional=[operator.name for operator in chosen], progress=progress)
    home = _home(directory)
    cluster = LocalCluster(
        home, binaries, operators=chosen, temporary=directory is None, timeout_seconds=timeout_seconds
    )
    # Stop at exit as well: callers may forget stop(), and on some systems children outlive their parent.
    atexit.register(cluster.stop)
    try:
        cluster._start(progress)  # noqa: SLF001 - start() is the constructor's second half
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _home(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="tpu-provisioner-"))
    home = directory.absolute()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise LocalClusterError(
            f"The directory {home} is not empty.",
            advice="Specify one that is new or empty: a cluster can't be started again from its files.",
        )
    return home
