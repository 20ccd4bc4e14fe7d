"""Node groups rehearsed: the local control plane, the controller, a simulated Compute Engine whose machines join.

Machines know of the cluster what the controller writes into their metadata, and nothing else.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from provisioner import constants
from provisioner.kube.protocol import collection_path
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.crds import crd
from provisioner.nodegroups.api.types import GROUP, VERSION, Kind
from provisioner.nodegroups.bootstrap import tokens
from rehearsal import localcluster
from rehearsal.demos.world import ControllerProcess, RehearsedCluster
from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator

API_ROOT = f"/apis/{GROUP}/{VERSION}"
#: What the DaemonSet of the device plugin runs as; its rights matter to a real one alone.
_PLUGIN_ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "tpu-device-plugin-sa", "namespace": "kube-system"},
}
#: What machines may do with their tokens, with roles that are there.
_MACHINES = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"machines-{role.rpartition(':')[2]}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": tokens.GROUP}],
    }
    for role in ("system:node-bootstrapper", "kubeadm:get-nodes")
]


class GroupRehearsal(RehearsedCluster):
    """The local cluster with the definitions of node groups, and the simulated Compute Engine."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        settings: ComputeSettings | None = None,
        progress: Callable[[str], None] = localcluster.log_progress,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        super().__init__(directory=directory, progress=progress, popen=popen)
        self.compute = ComputeSimulator(settings or ComputeSettings(machines_join=True))

    def start_rest(self) -> None:
        """Install the definitions, and start the simulated Compute Engine."""
        definitions = {"apiVersion": "v1", "kind": "List", "items": [crd(kind) for kind in Kind]}
        self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(definitions))
        named = [f"customresourcedefinition/{kind.plural}.{GROUP}" for kind in Kind]
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *named)
        for each in (_PLUGIN_ACCOUNT, *_MACHINES):
            self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(each))
        self.create_namespace(constants.DEFAULT_NAMESPACE)
        self.compute.start()

    def stop_rest(self) -> None:
        """Stop the simulated Compute Engine."""
        self.compute.stop()

    def controller(self, *, projects: Sequence[str], environment: Mapping[str, str] | None = None) -> ControllerProcess:
        """Make a controller that may spend in these projects, not started yet."""
        return self.process(
            "nodegroups",
            environment={
                "GCP_PROJECT_ID": projects[0],
                "ALLOWED_PROJECTS": ",".join(projects),
                "GCE_ENDPOINT": self.compute.url,
                **(environment or {}),
            },
        )

    def left(self) -> list[str]:
        """Name everything that is there because of node groups, in the cluster and in Compute Engine."""
        paths = [
            *((str(kind), f"{API_ROOT}/{kind.plural}", "") for kind in Kind),
            ("Node", collection_path("nodes"), ""),
            ("token", collection_path("secrets", namespace="kube-system"), names.GROUP_NAME),
        ]
        found = []
        for kind, path, label in paths:
            query = {"labelSelector": label} if label else {}
            found += [f"{kind} {raw['metadata']['name']}" for raw in self.objects(path, **query)]
        found += [f"{each.collection} {each.name}" for each in self.compute.world.resources()]
        return found + [f"machine {machine.name}" for machine in self.compute.machines]
