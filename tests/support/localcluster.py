"""Fakes of Go and its modules, and a client of the real local cluster."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from rehearsal import localcluster
from rehearsal.localcluster.recipes import RECIPES

_FAKE_GO = """\
#!/bin/sh
# Answers as the go command does; every call is a line in $FAKE_GO_CALLS.
echo "$*" >> "$FAKE_GO_CALLS"
case "$1" in
  env) echo "{version}" ;;
  mod) echo '{{"Dir": "{sources}"}}' ;;
  build)
    for argument in "$@"; do
      if [ "$previous" = "-o" ]; then output=$argument; fi
      previous=$argument
    done
    {build}
    ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoHome:
    """A home directory with a fake `go` on PATH."""

    root: Path
    said: list[str] = field(default_factory=list)

    @property
    def cache(self) -> Path:
        return self.root / "cache" / "tpu-provisioner"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.root),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "FAKE_GO_CALLS": str(self.root / "calls"),
        }

    def install_go(
        self, *, version: str = "go1.26.3", build: str = 'echo built > "$output"; chmod +x "$output"'
    ) -> Path:
        return self.write_go(self.root / "bin" / "go", version=version, build=build)

    def write_go(self, path: Path, *, version: str, build: str = 'echo built > "$output"; chmod +x "$output"') -> Path:
        """Write a fake `go` to a path, and manifests to the folder that it prints for every module."""
        for recipe in RECIPES:
            for part in ("crd", "webhook") if recipe.manifests else ():
                manifests = self.root / "sources" / recipe.manifests / part
                manifests.mkdir(parents=True, exist_ok=True)
                (manifests / f"{recipe.name}.yaml").write_text("kind: Something\n")
            for place in filter(None, (recipe.borrowed[1], f"{recipe.manifests}/crd/bases/own.yaml")):
                file = self.root / "sources" / place
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("kind: Something\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_FAKE_GO.format(version=version, sources=self.root / "sources", build=build))
        path.chmod(0o755)
        return path

    def resolve(self, *, optional: Sequence[str] = (), **more: str) -> localcluster.Binaries:
        return localcluster.resolve_binaries(
            optional=optional,
            progress=self.said.append,
            environment=self.environment | more,
            heartbeat_seconds=0.05,
        )

    def builds(self) -> list[str]:
        calls = self.root / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line.rpartition("-o ")[2].split()[0].rpartition("/")[2] for line in lines if line.startswith("build")]


class Kube:
    """Client of an API server for raw calls; it needs only a kubeconfig."""

    def __init__(self, kubeconfig: Path, scratch: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url = cluster["server"]
        files = {"ca": cluster["certificate-authority-data"]}
        files |= {"crt": user["client-certificate-data"], "key": user["client-key-data"]}
        for name, data in files.items():
            (scratch / name).write_bytes(base64.b64decode(data))
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = str(scratch / "ca")
        self._session.cert = (str(scratch / "crt"), str(scratch / "key"))

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_seconds: float = 20
    ) -> requests.Response:
        return self._session.request(method, self.url + path, json=body, timeout=timeout_seconds)

    def get(self, path: str) -> dict[str, Any]:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = self.call("POST", path, body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def merge(self, path: str, change: Mapping[str, Any]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = self._session.patch(self.url + path, json=change, headers=headers, timeout=20)
        assert answer.status_code == 200, answer.text

    def close(self) -> None:
        self._session.close()
