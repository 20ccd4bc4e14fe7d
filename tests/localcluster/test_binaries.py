"""Tests of finding and building programs; a half-built program is never used."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rehearsal.localcluster import LocalClusterError, resolve_binaries
from tests.support.localcluster import GoHome
from tests.support.processes import is_over
from tests.support.waiting import wait_for

#: Long time-out, because these tests start processes that build.
pytestmark = pytest.mark.timeout(60)

ALL = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "jobset"]


def _assets(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("given")
        (folder / name).chmod(0o755)
    return folder


def test_programs_are_built_once_and_then_taken_from_the_cache(go_home: GoHome) -> None:
    go_home.install_go()
    first = go_home.resolve()
    assert go_home.builds() == ALL
    assert {path.read_text() for path in first.programs.values()} == {"built\n"}
    assert (first.manifests["jobset"] / "crd" / "jobset.yaml").is_file()
    (go_home.root / "bin" / "go").unlink()
    assert go_home.resolve() == first


def test_assets_have_priority_and_missing_programs_are_built(go_home: GoHome, tmp_path: Path) -> None:
    go_home.install_go()
    assets = _assets(tmp_path / "assets", "etcd", "kube-apiserver", "kubectl")
    binaries = go_home.resolve(KUBEBUILDER_ASSETS=str(assets))
    assert go_home.builds() == ["kube-controller-manager", "kube-scheduler", "kwok", "jobset"]
    assert binaries["etcd"] == assets / "etcd"
    assert binaries["kwok"].is_relative_to(go_home.cache)
    assert go_home.said[0] == f"etcd, kube-apiserver, kubectl: from {assets} ($KUBEBUILDER_ASSETS)"
    assert "building 4 programs from source, once: kube-controller-manager, kube-sch" in go_home.said[1]
    assert "It takes 5 to 15 minutes" in go_home.said[1]
    go_home.resolve()
    assert go_home.builds()[4:] == ["etcd", "kube-apiserver", "kubectl"]


def test_assets_that_are_no_folder_raise_an_error(go_home: GoHome) -> None:
    with pytest.raises(LocalClusterError, match=r"KUBEBUILDER_ASSETS is '/no/such/folder'.*\n.*unset") as caught:
        go_home.resolve(KUBEBUILDER_ASSETS="/no/such/folder")
    assert caught.value.output == ()


def test_failed_build_reports_the_reason_and_keeps_built_programs(go_home: GoHome) -> None:
    """The error has the last lines of Go, except names of packages. The next call builds only the missing programs."""
    go_home.install_go(
        build='case "$output" in *kwok) echo sigs.k8s.io/kwok/pkg; echo half > "$output"; '
        'echo "x.go:1: no such thing"; exit 1;; esac; echo built > "$output"'
    )
    with pytest.raises(LocalClusterError) as caught:
        go_home.resolve()
    assert caught.value.output == ("x.go:1: no such thing",)
    assert "building kwok (6/7) failed" in caught.value.what
    assert "Go 1.26.3" in caught.value.what
    assert not list(go_home.cache.rglob("kwok"))
    go_home.install_go()
    assert go_home.resolve()["kwok"].read_text() == "built\n"
    assert go_home.builds()[6:] == ["kwok", "jobset"]


def test_killed_build_leaves_no_usable_program(go_home: GoHome) -> None:
    """A program gets its final name only when it is complete, and the go command ends with its builder."""
    go_home.install_go(build='echo half > "$output"; echo $$ > "$HOME/pid"; exec sleep 600')
    builder = subprocess.Popen(
        [sys.executable, "-c", "from rehearsal.localcluster import resolve_binaries; resolve_binaries()"],
        env=go_home.environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
    )
    pid_file = go_home.root / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text().strip(), what="the build to be under way")
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    if sys.platform == "linux":
        go = int(pid_file.read_text())
        wait_for(lambda: is_over(go), what="the go command to end")
    go_home.install_go()
    binaries = go_home.resolve()
    assert {path.read_text() for path in binaries.programs.values()} == {"built\n"}
    assert not list(go_home.cache.rglob(".building-*"))


def test_an_interrupted_build_ends_the_go_command(go_home: GoHome) -> None:
    go_home.install_go(build='sleep 600 & echo $! > "$HOME/pid"; wait')
    pid_file = go_home.root / "pid"

    def interrupt(text: str) -> None:
        if "so far" in text and pid_file.exists() and pid_file.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_binaries(progress=interrupt, environment=go_home.environment, heartbeat_seconds=0.05)
    wait_for(lambda: is_over(int(pid_file.read_text())), what="the compiler to end")
    assert not list(go_home.cache.rglob(".building-*"))


def test_two_builders_build_each_program_once(go_home: GoHome) -> None:
    go_home.install_go(build='sleep 0.1; echo built > "$output"')
    threads = [threading.Thread(target=go_home.resolve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert go_home.builds() == ALL
    assert any("another process is building" in line for line in go_home.said)
