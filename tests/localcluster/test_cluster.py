"""Tests of failures of `localcluster.start`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rehearsal import localcluster
from rehearsal.localcluster import cluster
from rehearsal.localcluster.recipes import RECIPES


@pytest.fixture
def broken_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace all programs by a script that prints an error and ends; return the folder for temporary directories."""
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


def test_failed_start_names_the_program_and_leaves_no_files(broken_etcd: Path) -> None:
    with pytest.raises(localcluster.LocalClusterError, match="etcd ended with exit code 7") as caught:
        localcluster.start(progress=lambda _: None)
    assert caught.value.output == ("data directory is from the future",)
    assert list(broken_etcd.iterdir()) == []


@pytest.mark.usefixtures("broken_etcd")
def test_directory_that_is_not_empty_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(localcluster.LocalClusterError, match=r"mine is not empty"):
        localcluster.start(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
