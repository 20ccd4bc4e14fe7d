"""What start() does when something is wrong, and JobSet's webhooks without a Service."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import pytest

from rehearsal import localcluster
from rehearsal.localcluster import cluster
from rehearsal.localcluster.operators import JOBSET, webhook_configurations
from rehearsal.localcluster.recipes import RECIPES

WEBHOOKS = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating-webhook-configuration}
webhooks:
- name: vjobset.kb.io
  clientConfig: {service: {name: s, namespace: n, path: /validate-jobset}}
- name: vpod.kb.io
  clientConfig: {service: {name: s, namespace: n, path: /validate-pod}}
---
apiVersion: v1
kind: Service
metadata: {name: webhook-service}
"""
PATCH = """
- op: replace
  path: /webhooks/1
  value:
    name: vpod.kb.io
    clientConfig: {service: {name: s, namespace: n, path: /validate-pod}}
    objectSelector: {matchExpressions: [{key: jobset-name, operator: Exists}]}
"""


@pytest.fixture
def broken_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have every program be one that complains and ends; return where temporary directories are made."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'data directory is from the future'\nexit 7\n")
    program.chmod(0o755)
    binaries = localcluster.Binaries(
        programs={recipe.name: program for recipe in RECIPES}, manifests={"jobset": tmp_path / "manifests"}
    )
    monkeypatch.setattr(cluster, "resolve_binaries", lambda *, optional, progress: binaries)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


def test_a_start_that_fails_says_which_program_failed_and_leaves_nothing(broken_etcd: Path) -> None:
    """Name, exit code, last words; the temporary directory is gone."""
    with pytest.raises(localcluster.LocalClusterError, match="etcd ended with exit code 7") as caught:
        localcluster.start(progress=lambda _: None)
    assert caught.value.output == ("data directory is from the future",)
    assert list(broken_etcd.iterdir()) == []


@pytest.mark.usefixtures("broken_etcd")
def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(localcluster.LocalClusterError, match=r"mine is not empty"):
        localcluster.start(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("patches", ["patches", "."])
def test_webhooks_are_called_by_address_and_only_for_pods_of_jobsets(tmp_path: Path, patches: str) -> None:
    """The patches of JobSet and LeaderWorkerSet are applied wherever they lie, and Services give way to addresses."""
    folder = tmp_path / "webhook"
    (folder / patches).mkdir(parents=True)
    (folder / "manifests.yaml").write_text(WEBHOOKS)
    (folder / patches / "validating-patch.yaml").write_text(PATCH)
    (found,) = webhook_configurations(JOBSET, tmp_path, port=1234, authority_pem=b"pem")
    assert found["metadata"]["name"] == "jobset-validating-webhook-configuration"
    assert [webhook["clientConfig"] for webhook in found["webhooks"]] == [
        {"url": f"https://127.0.0.1:1234/{path}", "caBundle": base64.b64encode(b"pem").decode()}
        for path in ("validate-jobset", "validate-pod")
    ]
    assert ["objectSelector" in webhook for webhook in found["webhooks"]] == [False, True]
