"""Plans the command line of each program of the cluster, and the check whether the program is ready.

All programs listen only on 127.0.0.1, and only with TLS, except for the operators' health checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rehearsal.localcluster import recipes
from rehearsal.localcluster.api import answers
from rehearsal.localcluster.binaries import Binaries
from rehearsal.localcluster.credentials import SERVICE_NETWORK, Credentials
from rehearsal.localcluster.operators import Operator
from rehearsal.localcluster.ports import HOST, free_ports

# Controllers that workloads, programs in the cluster or joining machines may need; none creates nodes or binds volumes.
# Other controllers would take 100 MB of memory, and time at the start.
_CONTROLLERS = (
    # Signs cluster-info, which machines read before they trust the cluster.
    "bootstrap-signer-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    # Creates the ResourceClaims of pods from their templates.
    "resourceclaim-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    # Deletes expired bootstrap tokens.
    "token-cleaner-controller",
    "ttl-after-finished-controller",
)
# Client-side rate limits of controllers, high enough for hundreds of concurrent JobSets.
_CLIENT_QPS = 1000
_CLIENT_BURST = 2000
# Environment variables of this process that the programs inherit. GOGC sets how much memory Go uses to save CPU time.
_PASSED_ON = ("PATH", "TMPDIR", "TZ", "SSL_CERT_FILE", "GOGC")
_KWOK_CONFIGURATION = Path(__file__).with_name("kwok.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Directory, programs and credentials of one cluster."""

    directory: Path
    binaries: Binaries
    credentials: Credentials

    def kubeconfig(self, client: str) -> str:
        """Return the path of a component's kubeconfig."""
        return str(self.credentials.directory / f"{client}.kubeconfig")

    def log(self, name: str) -> Path:
        """Return the path of a component's log."""
        return self.directory / "logs" / f"{name}.log"

    def gates(self, name: str) -> tuple[str, ...]:
        """Return the flags that enable a Kubernetes program's feature gates."""
        gates = self.binaries.gates.get(name, ())
        return (f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}",) if gates else ()

    def write_configuration(self, name: str, *documents: dict[str, Any]) -> str:
        """Write a component's configuration file; return its path."""
        path = self.directory / "configuration" / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(documents, sort_keys=False), encoding="utf-8")
        return str(path)

    def environment(self) -> dict[str, str]:
        """Return the environment of every component, free of the user's settings and of other clusters."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return kept | {"HOME": str(self.directory)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One attempt to run a program, on ports that were free when it was planned."""

    command: tuple[str, ...]
    ready: Callable[[], bool]
    #: Returns whether the program responds, even with errors; None if it need not respond before it is ready.
    serving: Callable[[], bool] | None = None
    #: Port for clients; 0 if the program has no port for them.
    port: int = 0


def etcd(site: Site) -> Plan:
    """Plan etcd, which does not wait for the disk: its data need not survive a crash of the machine."""
    client, peer = free_ports(2)
    url = f"https://{HOST}:{client}"
    peer_url = f"https://{HOST}:{peer}"
    trust, keys = site.credentials, site.credentials.directory
    # The certificates prevent a client from using the etcd of another cluster that took the port first.
    tls = [
        flag
        for prefix in ("", "peer-")
        for flag in (
            f"--{prefix}cert-file={keys}/etcd.crt",
            f"--{prefix}key-file={keys}/etcd.key",
            f"--{prefix}client-cert-auth",
            f"--{prefix}trusted-ca-file={keys}/ca.crt",
        )
    ]
    return Plan(
        command=(
            str(site.binaries[recipes.ETCD]),
            "--name=local",
            f"--data-dir={site.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=local={peer_url}",
            *tls,
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
        ready=partial(answers, client, "/health", context=trust.etcd_context()),
        port=client,
    )


def kube_apiserver(site: Site, *, etcd_port: int) -> Plan:
    """Plan the API server with RBAC and restricted kubelets. Like GKE, it lets pods tolerate google.com/tpu."""
    (port,) = free_ports(1)
    trust, keys = site.credentials, site.credentials.directory
    gates = site.gates(recipes.KUBE_APISERVER)
    return Plan(
        command=(
            str(site.binaries[recipes.KUBE_APISERVER]),
            f"--etcd-servers=https://{HOST}:{etcd_port}",
            f"--etcd-cafile={keys}/ca.crt",
            f"--etcd-certfile={keys}/etcd.crt",
            f"--etcd-keyfile={keys}/etcd.key",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={port}",
            f"--tls-cert-file={keys}/server.crt",
            f"--tls-private-key-file={keys}/server.key",
            f"--client-ca-file={keys}/clients.crt",
            # As with kubeadm, machines join with tokens, and each may write only its own Node (NodeRestriction).
            "--authorization-mode=Node,RBAC",
            "--enable-bootstrap-token-auth=true",
            # Privileged pods are allowed because GKE allows them, and manifests of TPU workloads often use them.
            "--allow-privileged=true",
            "--enable-admission-plugins=ExtendedResourceToleration,NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={keys}/service-accounts.pub",
            f"--service-account-signing-key-file={keys}/service-accounts.key",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            # Endpoints must not contain a loopback address, the only address of this API server, so it writes none.
            "--endpoint-reconciler-type=none",
            "--max-requests-inflight=1000",
            "--max-mutating-requests-inflight=500",
            "--profiling=false",
            *gates,
            # The gates add beta kinds, which are not served by default.
            *(("--runtime-config=api/beta=true",) if gates else ()),
        ),
        ready=partial(answers, port, "/readyz", context=trust.tls_context()),
        serving=partial(answers, port, "/readyz", context=trust.tls_context(), with_any_status=True),
        port=port,
    )


def kube_controller_manager(site: Site) -> Plan:
    """Plan the controller manager."""
    (port,) = free_ports(1)
    trust, keys = site.credentials, site.credentials.directory
    return Plan(
        command=(
            str(site.binaries[recipes.KUBE_CONTROLLER_MANAGER]),
            f"--kubeconfig={site.kubeconfig('kube-controller-manager')}",
            f"--bind-address={HOST}",
            f"--secure-port={port}",
            f"--tls-cert-file={keys}/server.crt",
            f"--tls-private-key-file={keys}/server.key",
            f"--root-ca-file={keys}/ca.crt",
            f"--service-account-private-key-file={keys}/service-accounts.key",
            f"--cluster-signing-kubelet-client-cert-file={keys}/kubelets.crt",
            f"--cluster-signing-kubelet-client-key-file={keys}/kubelets.key",
            # Each controller has its own account with few rights, as on a real cluster.
            "--use-service-account-credentials=true",
            f"--controllers={','.join(_CONTROLLERS)}",
            "--leader-elect=false",
            f"--kube-api-qps={_CLIENT_QPS}",
            f"--kube-api-burst={_CLIENT_BURST}",
            "--concurrent-job-syncs=20",
            "--node-monitor-period=1s",
            "--profiling=false",
            *site.gates(recipes.KUBE_CONTROLLER_MANAGER),
        ),
        ready=partial(answers, port, "/healthz", context=trust.tls_context()),
        port=port,
    )


def kube_scheduler(site: Site) -> Plan:
    """Plan the scheduler. Its back-off has the default values, as in users' clusters."""
    (port,) = free_ports(1)
    trust, keys = site.credentials, site.credentials.directory
    configuration = site.write_configuration(
        recipes.KUBE_SCHEDULER,
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": site.kubeconfig("kube-scheduler"),
                "qps": _CLIENT_QPS,
                "burst": _CLIENT_BURST,
            },
            "leaderElection": {"leaderElect": False},
            "enableProfiling": False,
        },
    )
    return Plan(
        command=(
            str(site.binaries[recipes.KUBE_SCHEDULER]),
            f"--config={configuration}",
            f"--bind-address={HOST}",
            f"--secure-port={port}",
            f"--tls-cert-file={keys}/server.crt",
            f"--tls-private-key-file={keys}/server.key",
            *site.gates(recipes.KUBE_SCHEDULER),
        ),
        ready=partial(answers, port, "/readyz", context=trust.tls_context()),
        port=port,
    )


def kwok(site: Site) -> Plan:
    """Plan kwok. It listens on no port, so only a node that becomes ready proves that it works."""
    return Plan(
        command=(
            str(site.binaries[recipes.KWOK]),
            f"--kubeconfig={site.kubeconfig('kwok')}",
            f"--config={_KWOK_CONFIGURATION}",
        ),
        ready=lambda: True,
    )


def operator(site: Site, *, operator: Operator) -> Plan:
    """Plan an operator; `Plan.port` is the port of its webhooks."""
    webhooks, health = free_ports(2)
    flags = [flag.format(health=f"{HOST}:{health}") for flag in operator.flags]
    if operator.configuration:
        flags.append(f"--config={_configuration(site, operator, webhooks=webhooks, health=health)}")
    return Plan(
        command=(
            str(site.binaries[operator.name]),
            f"--kubeconfig={site.kubeconfig(operator.name)}",
            *flags,
            "--zap-devel=false",
        ),
        ready=partial(answers, health, "/readyz"),
        port=webhooks,
    )


def _configuration(site: Site, operator: Operator, *, webhooks: int, health: int) -> str:
    gates = site.binaries.gates.get(operator.name, ())
    return site.write_configuration(
        operator.name,
        {
            "apiVersion": operator.configuration,
            "kind": "Configuration",
            "webhook": {"host": HOST, "port": webhooks, "certDir": str(site.credentials.directory / "webhooks")},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": _CLIENT_QPS, "burst": _CLIENT_BURST},
            **operator.settings,
            # Only some operators have this field.
            **({"featureGates": dict.fromkeys(gates, True)} if gates else {}),
        },
    )
