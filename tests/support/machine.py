"""Machine that runs its startup script in bash, with fake commands; its files are below `root`.

PATH has two folders: `tools` with real programs of this computer, and `bin` with fakes that record their calls. `sleep`
returns immediately, and runs the actions that a test planned with `at_sleep`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_TOOLS = (
    "ls",
    "bash",
    "sh",
    "cat",
    "cp",
    "chmod",
    "flock",
    "grep",
    "mkdir",
    "mktemp",
    "mv",
    "rm",
    "sed",
    "timeout",
    "touch",
)
#: Commands that are only recorded.
_SILENT = ("swapoff", "modprobe", "sysctl", "dpkg", "systemctl", "apt-mark")
_LOG = 'echo "${0##*/} $*" >> "$FAKE/calls"\n'

_FAKES = {
    **dict.fromkeys(_SILENT, ""),
    "sleep": """
n=$(cat "$FAKE/sleeps"); n=$((n + 1)); echo $n > "$FAKE/sleeps"
[ $n -lt 80 ] || { touch "$FAKE/endless"; kill $PPID; }
[ ! -e "$FAKE/at-sleep-$n" ] || . "$FAKE/at-sleep-$n"
""",
    # `curl` responds like the metadata server, which requires a header, and like the repository of packages.
    "curl": """
for url; do :; done
case $url in
  http://metadata.google.internal/computeMetadata/v1/*)
    case "$*" in *"--header Metadata-Flavor: Google"*) ;; *) exit 22 ;; esac
    path=$FAKE/metadata/${url#*/computeMetadata/v1/}
    case $path in
      */) [ ! -e "$FAKE/no-list" ] && exec ls "$path" || exit 22 ;;
      *) exec cat "$path" 2> /dev/null ;;
    esac ;;
  */Release.key) echo "key of $url" ;;
  *) exit 6 ;;
esac
""",
    "apt-get": """
n=$(cat "$FAKE/apt-locked")
[ $n -le 0 ] || {
  echo $((n - 1)) > "$FAKE/apt-locked"
  echo "E: Could not get lock /var/lib/dpkg/lock-frontend" >&2
  exit 100
}
case " $* " in
  *" install "*)
    for package; do
      [ ! -e "$FAKE/packages/$package" ] || cp "$FAKE/packages/$package" "$FAKE/bin/$package"
    done
    list=$ROOT/etc/apt/sources.list.d/kubernetes.list
    case " $* " in *" kubeadm "*) sed -n 's,.*/v\\(1[.0-9]*\\)/deb.*,\\1,p' "$list" > "$FAKE/version" ;; esac ;;
esac
""",
}
_PACKAGES = {
    # Default configuration of containerd 1.7, shortened. "$FAKE/containerd-lines" replaces the options of runc.
    "containerd": """
echo 'version = 2'
echo '        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]'
if [ -e "$FAKE/containerd-lines" ]; then cat "$FAKE/containerd-lines"; else echo '          SystemdCgroup = false'; fi
echo '          ShimCgroup = ""'
""",
    "conntrack": "",
    "kubelet": "",
    "kubectl": "",
    # Like kubeadm, reject the join if an earlier attempt has left its files.
    "kubeadm": """
conf=$ROOT/etc/kubernetes
case $1 in
  version) echo "v$(cat "$FAKE/version").4" ;;
  reset) rm -rf "$conf" ;;
  join)
    n=$(cat "$FAKE/joins"); n=$((n + 1)); echo $n > "$FAKE/joins"
    cp "$3" "$FAKE/join-$n.yaml"
    [ ! -e "$conf/bootstrap-kubelet.conf" ] || { echo "bootstrap-kubelet.conf already exists" >&2; exit 1; }
    mkdir -p "$conf"; touch "$conf/bootstrap-kubelet.conf"
    f=$(cat "$FAKE/join-failures")
    [ $f -le 0 ] || { echo $((f - 1)) > "$FAKE/join-failures"; exit 1; }
    grep -qf "$FAKE/good-tokens" "$3" || { echo "could not find a JWS signature" >&2; exit 1; }
    rm "$conf/bootstrap-kubelet.conf"; echo conf > "$conf/kubelet.conf" ;;
esac
""",
}


@dataclass(slots=True)
class Machine:
    """A machine, which keeps its files from one boot to the next."""

    path: Path
    script: str

    def __post_init__(self) -> None:
        for folder in ("bin", "tools", "packages", "root", "tmp", "metadata/instance/attributes", "metadata/project"):
            (self.path / folder).mkdir(parents=True)
        for tool in _TOOLS:
            found = shutil.which(tool)
            assert found is not None, f"{tool} is needed"
            (self.path / "tools" / tool).symlink_to(found)
        for name, body in _FAKES.items():
            self._program("bin", name, body)
        for name, body in _PACKAGES.items():
            self._program("packages", name, body)
        for counter in ("sleeps", "joins", "apt-locked", "join-failures"):
            self._set(counter, "0")
        self._set("calls", "")
        self._set("good-tokens", "")
        self.metadata("instance/name", "g-mig-x1b2")
        self.metadata("instance/zone", "projects/12345/zones/us-central1-a")
        self.metadata("project/project-id", "p")

    @property
    def root(self) -> Path:
        return self.path / "root"

    def metadata(self, path: str, value: str) -> None:
        (self.path / "metadata" / path).write_text(value)

    def attributes(self, items: Mapping[str, str]) -> None:
        folder = self.path / "metadata/instance/attributes"
        for old in folder.iterdir():
            old.unlink()
        for key, value in items.items():
            (folder / key).write_text(value)

    def hide_list(self) -> None:
        """Make lists of attributes fail until a test deletes the file "no-list" in the folder "$FAKE"."""
        self._set("no-list", "")

    def at_sleep(self, number: int, command: str) -> None:
        """Run shell code at the n-th sleep of each boot; "$FAKE" is the folder of this machine."""
        with (self.path / f"at-sleep-{number}").open("a") as file:
            file.write(f"{command}\n")

    def tokens(self, *good: str) -> None:
        self._set("good-tokens", "".join(f"{token}\n" for token in good))

    def lock_apt(self, times: int) -> None:
        """Make the next `times` calls of apt fail because its lock is held."""
        self._set("apt-locked", str(times))

    def containerd_options(self, lines: str) -> None:
        self._set("containerd-lines", lines)

    def fail_joins(self, times: int) -> None:
        self._set("join-failures", str(times))

    def installed(self, version: str) -> None:
        """Install all packages, with a minor version of Kubernetes such as "1.34"."""
        for name in _PACKAGES:
            shutil.copy(self.path / "packages" / name, self.path / "bin" / name)
        self._set("version", version)

    def boot(self) -> str:
        """Run the script, which must succeed; return its output."""
        self._set("sleeps", "0")
        self._set("calls", "")
        done = subprocess.run(
            [self.path / "tools/bash", "-c", self.script],
            env={
                "PATH": f"{self.path}/bin:{self.path}/tools",
                "FAKE": str(self.path),
                "ROOT": str(self.root),
                "TMPDIR": str(self.path / "tmp"),
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        said = done.stdout + done.stderr
        assert not (self.path / "endless").exists(), f"it slept without end:\n{said[-2000:]}"
        assert done.returncode == 0, said
        return said

    @property
    def calls(self) -> list[str]:
        lines = (self.path / "calls").read_text().splitlines()
        return [line for line in lines if "computeMetadata" not in line]

    @property
    def slept_seconds(self) -> list[int]:
        return [int(line.split()[1]) for line in self.calls if line.startswith("sleep ")]

    @property
    def joins(self) -> list[Any]:
        count = int((self.path / "joins").read_text())
        return [yaml.safe_load((self.path / f"join-{n}.yaml").read_text()) for n in range(1, count + 1)]

    @property
    def has_joined(self) -> bool:
        return (self.root / "etc/kubernetes/kubelet.conf").exists()

    def _set(self, name: str, value: str) -> None:
        (self.path / name).write_text(value)

    def _program(self, folder: str, name: str, body: str) -> None:
        program = self.path / folder / name
        program.write_text(f"#!{self.path}/tools/sh\n{_LOG}{body}")
        program.chmod(0o755)
