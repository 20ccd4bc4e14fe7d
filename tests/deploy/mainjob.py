"""Runs a provisioner with only the rights and settings of manifests, from the create of a JobSet to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioner.kube.protocol import collection_path, object_path
from provisioner.slices.messages.notices import EventReason
from rehearsal.demos import ProvisionerProcess, Rehearsal, RehearsalError
from rehearsal.demos.world import wait_for
from tests.deploy.kit import (
    NAMESPACE,
    SERVICE_ACCOUNT,
    Recorder,
    Right,
    environment_of,
    flags_of,
    granted_by,
    kubeconfig_of_service_account,
    provisioner_as,
    rights,
)
from tests.e2e.kit import EAGER, PATIENCE_SECONDS, Ground, logged


def do_the_main_job(
    rehearsal: Rehearsal, ground: Ground, documents: list[dict[str, Any]], recorder: Recorder, directory: Path
) -> tuple[ProvisionerProcess, Path]:
    """Run a provisioner with the manifests' settings for one JobSet; return the stopped process, and its kubeconfig."""
    kubeconfig = kubeconfig_of_service_account(rehearsal, directory / "kubeconfig", server=recorder.url)
    process = provisioner_as(
        rehearsal,
        kubeconfig,
        directory / "provisioner.log",
        arguments=flags_of(documents),
        environment=environment_of(documents) | EAGER,
    )
    ground.provisioners.append(process)
    process.start()
    ground.apply("least", run_for="1s")
    ground.await_completed("least")
    ground.await_gone()
    assert "NodePoolCreationStarted" in ground.reasons("Pod", "least-")
    ground.wait(
        lambda: EventReason.DELETION_SUCCEEDED in ground.reasons("JobSet", "least") | ground.reasons("Node"),
        "an Event tells of the end of the pool",
    )
    assert process.stop() == 0
    assert [record for record in process.records() if record.get("severity") in ("ERROR", "CRITICAL")] == []
    assert not logged(process, "event.dropped")
    return process, kubeconfig


def used_rights(recorder: Recorder, documents: list[dict[str, Any]]) -> set[Right]:
    """Return the granted rights that requests used. Fails if a request had no right, or got the status 401 or 403."""
    refused = [(str(right), status) for right, status in recorder.answers if status in (401, 403)]
    assert refused == []
    granted = rights(documents)
    used = {right: granted_by(granted, right) for right, _ in recorder.answers}
    assert [str(right) for right, grant in used.items() if grant is None] == []
    return {grant for grant in used.values() if grant is not None}


@contextmanager
def uninstalled(rehearsal: Rehearsal, overlay: Path) -> Iterator[None]:
    """Uninstall the overlay; at the end, delete objects with the same names, and install the overlay again."""
    rehearsal.kubectl("delete", "-k", str(overlay), "--wait")
    try:
        yield
    finally:
        rehearsal.kubectl("delete", "-k", str(overlay), "--ignore-not-found", "--wait")
        install(rehearsal, overlay)


def install(rehearsal: Rehearsal, overlay: Path) -> None:
    """Apply an overlay, and wait until the API server uses its roles and its policy on nodes."""
    rehearsal.kubectl("apply", "--server-side", "-k", str(overlay))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "of-nobody"}}
    rehearsal.api.post(collection_path("nodes"), node)
    account = f"--as=system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"

    def is_guarded() -> bool:
        try:
            rehearsal.kubectl("label", "node", "of-nobody", "a=b", "--dry-run=server", account)
        except RehearsalError as refused:
            return "tpu-provisioner may" in str(refused)
        return False

    try:
        wait_for(is_guarded, "the policy on nodes is in force", PATIENCE_SECONDS)
    finally:
        rehearsal.api.delete(object_path("nodes", "of-nobody"))
