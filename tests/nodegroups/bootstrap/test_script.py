"""The startup script, run by bash with fake commands."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from provisioner.nodegroups.api import names
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.bootstrap.metadata import Join, changed_items, startup_script, with_users_script
from tests.support.machine import Machine

TOKEN, OTHER = "abcdef.0123456789abcdef", "ghijkl.0123456789abcdef"
HASH = "sha256:" + "0a" * 32
CONTAINERD = """\
version = 2
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
          ShimCgroup = ""
"""
LABELS = {"cloud.google.com/gke-tpu-accelerator": "tpu7x", "cloud.google.com/gke-tpu-topology": "2x2x2"}


def items(
    token: str = TOKEN, api_server: str = "10.0.0.2:6443", ca_hash: str = HASH, version: str = "1.34"
) -> dict[str, str]:
    join = Join(token=token, api_server=api_server, ca_hash=ca_hash, kubernetes_version=version)
    return changed_items({}, labels=LABELS, join=join) or {}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, startup_script())
    made.tokens(TOKEN)
    made.attributes(items())
    return made


def test_script_passes_shellcheck(tmp_path: Path) -> None:
    check(tmp_path, startup_script("https://mirror.example.com/it's"))


def check(tmp_path: Path, text: str) -> None:
    """Fail if shellcheck finds a mistake. Skip the test if shellcheck is missing, but fail in CI."""
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        missing = "shellcheck is needed: apt-get install shellcheck"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    script = tmp_path / "startup.sh"
    script.write_text(text)

    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("users", "said"),
    [
        pytest.param('#!/bin/bash\necho "hello $1, it\'s me"\n', "hello , it's me", id="a script of bash"),
        pytest.param("echo without", "without", id="one that names no program and has no last newline"),
        pytest.param("#!/bin/bash\ncat << EOF\n$HOME `true` \\x\nEOF\n", "  \\x", id="one with a document in it"),
        pytest.param("#!/bin/bash\nexit 3\n", "the startup-script of the metadata ended with 3", id="one that fails"),
        pytest.param("#!/bin/nothing\n", "the startup-script of the metadata ended with 12", id="one of no program"),
        pytest.param('#!/bin/bash\ncat; rm "$0"\nset -eu\ncd /\n', "has joined", id="one that reads, goes and sets"),
    ],
)
def test_users_script_runs_first_at_each_boot_and_the_machine_joins_anyway(
    machine: Machine, users: str, said: str
) -> None:
    machine.script = with_users_script(startup_script(), users)
    for _ in range(2):
        assert said in machine.boot()
        assert machine.has_joined
        assert list((machine.path / "tmp").iterdir()) == []
    assert len(machine.joins) == 1


def test_script_with_a_users_script_passes_shellcheck(tmp_path: Path) -> None:
    check(tmp_path, with_users_script(startup_script(), "#!/bin/bash\necho it's $1\n"))


def test_script_without_a_users_script_is_unchanged() -> None:
    assert with_users_script("#!/bin/bash\n", "") == "#!/bin/bash\n"


def test_script_fits_into_the_metadata_of_a_template() -> None:
    assert len(startup_script().encode()) < 256 * 1024


def test_first_boot_installs_configures_and_joins(machine: Machine) -> None:
    machine.boot()
    assert machine.has_joined
    assert machine.slept_seconds == []
    assert machine.joins == [
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "JoinConfiguration",
            "discovery": {
                "bootstrapToken": {
                    "token": TOKEN,
                    "apiServerEndpoint": "10.0.0.2:6443",
                    "caCertHashes": [HASH],
                }
            },
            "timeouts": {"discovery": "2m0s"},
            "nodeRegistration": {
                "name": "g-mig-x1b2",
                "criSocket": "unix:///run/containerd/containerd.sock",
                "kubeletExtraArgs": [
                    {
                        "name": "node-labels",
                        "value": "cloud.google.com/gke-tpu-accelerator=tpu7x,cloud.google.com/gke-tpu-topology=2x2x2",
                    },
                    {"name": "provider-id", "value": "gce://p/us-central1-a/g-mig-x1b2"},
                    {"name": "register-with-taints", "value": "google.com/tpu=present:NoSchedule"},
                ],
            },
        }
    ]
    files = {
        "etc/containerd/config.toml": CONTAINERD,
        "etc/apt/keyrings/kubernetes-apt-keyring.asc": (
            "key of https://pkgs.k8s.io/core:/stable:/v1.34/deb/Release.key\n"
        ),
        "etc/apt/sources.list.d/kubernetes.list": (
            "deb [signed-by=/etc/apt/keyrings/kubernetes-apt-keyring.asc] "
            "https://pkgs.k8s.io/core:/stable:/v1.34/deb/ /\n"
        ),
        "etc/modules-load.d/tpu-provisioner.conf": "overlay\nbr_netfilter\n",
        "etc/sysctl.d/90-tpu-provisioner.conf": (
            "net.bridge.bridge-nf-call-iptables = 1\nnet.bridge.bridge-nf-call-ip6tables = 1\nnet.ipv4.ip_forward = 1\n"
        ),
    }
    assert {path: (machine.root / path).read_text() for path in files} == files
    assert machine.calls[-1] == "systemctl enable --now kubelet"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("", id="without the key, as containerd 2.1.0 to 2.1.4"),
        pytest.param("  SystemdCgroup = true\n", id="with systemd"),
        pytest.param("  # SystemdCgroup = true\n  SystemdCgroup = false\n", id="with a comment"),
    ],
)
def test_containerd_uses_systemd_cgroups_with_any_default(machine: Machine, lines: str) -> None:
    """In an earlier version, the machine joined without the option if containerd's default configuration lacked it."""
    machine.containerd_options(lines)
    machine.boot()
    options = [
        line.strip()
        for line in (machine.root / "etc/containerd/config.toml").read_text().splitlines()
        if "Systemd" in line
    ]
    assert [line for line in options if not line.startswith("#")] == ["SystemdCgroup = true"]
    assert "systemctl restart containerd" in machine.calls


def test_containerd_without_options_of_runc_is_not_configured(machine: Machine) -> None:
    machine.installed("1.34")
    containerd = (machine.path / "bin/containerd").read_text()
    (machine.path / "bin/containerd").write_text(containerd.replace("runtimes.runc", "runtimes.other"))
    machine.at_sleep(2, 'cp "$FAKE/packages/containerd" "$FAKE/bin/containerd"')
    said = machine.boot()
    assert "has no options of runc; install another version of containerd" in said
    assert (machine.root / "etc/containerd/config.toml").read_text() == CONTAINERD
    assert len(machine.slept_seconds) == 2


def test_kubeadm_of_the_image_that_shadows_the_installed_one_is_reported(machine: Machine) -> None:
    machine.installed("1.33")
    kubeadm = machine.path / "bin/kubeadm"
    kubeadm.write_text(kubeadm.read_text().replace('v$(cat "$FAKE/version").4', "v1.33.4"))
    (machine.path / "packages/kubeadm").rename(machine.path / "package")
    machine.at_sleep(1, 'mv "$FAKE/package" "$FAKE/bin/kubeadm"')
    assert "kubeadm is not of version 1.34 although its package is installed" in machine.boot()
    assert machine.has_joined


def test_kubeadm_before_1_31_gets_a_v1beta3_configuration(machine: Machine) -> None:
    machine.attributes(items(version="1.30"))
    machine.boot()
    (join,) = machine.joins
    assert join["apiVersion"] == "kubeadm.k8s.io/v1beta3"
    assert join["discovery"]["timeout"] == "2m0s"
    assert "timeouts" not in join
    assert join["nodeRegistration"]["kubeletExtraArgs"] == {
        "node-labels": "cloud.google.com/gke-tpu-accelerator=tpu7x,cloud.google.com/gke-tpu-topology=2x2x2",
        "provider-id": "gce://p/us-central1-a/g-mig-x1b2",
        "register-with-taints": "google.com/tpu=present:NoSchedule",
    }


@pytest.mark.parametrize("api_server", ["api.example.com:443", "10.0.0.2:8443"])
def test_machine_joins_at_the_address_and_with_the_cas_in_its_metadata(machine: Machine, api_server: str) -> None:
    """During a rotation, the machine accepts both CAs."""
    other = "sha256:" + "0b" * 32
    machine.attributes(items(api_server=api_server, ca_hash=f"{HASH},{other}"))
    machine.boot()
    (join,) = machine.joins
    token = join["discovery"]["bootstrapToken"]
    assert (token["apiServerEndpoint"], token["caCertHashes"]) == (api_server, [HASH, other])


def test_packages_are_installed_from_the_mirror(machine: Machine) -> None:
    machine.script = startup_script("https://mirror.example.com/it's/")
    machine.boot()
    sources = (machine.root / "etc/apt/sources.list.d/kubernetes.list").read_text()
    assert sources.endswith(" https://mirror.example.com/it's/core:/stable:/v1.34/deb/ /\n")


def test_image_with_all_packages_installs_nothing(machine: Machine) -> None:
    machine.installed("1.34")
    machine.boot()
    assert machine.has_joined
    assert not [call for call in machine.calls if call.startswith("apt")]


def test_image_with_another_kubernetes_version_gets_the_clusters_version(machine: Machine) -> None:
    machine.installed("1.33")
    machine.boot()
    installs = [call for call in machine.calls if call.startswith("apt-get") and " install " in call]
    assert [call.partition(" install ")[2].split()[-3:] for call in installs] == [["kubelet", "kubeadm", "kubectl"]]
    assert machine.has_joined


_LABELS = (
    *("a=b", "example.com/a.b_c=", "kubernetes.io/os=linux", "mykubernetes.io/mine=1"),
    *("node.kubernetes.io/instance-type=y", "topology.kubernetes.io/zone=z"),
)
_BAD_LABELS = (
    *("app.kubernetes.io/name=x", "x.k8s.io/z=1", "kubernetes.io/role=x"),
    *("a", "a=b=c", "-a=b", f"a={'b' * 64}", "/="),
)
_TAINTS = ("tpu-provisioner.cloud.google.com/held=true:NoSchedule", "a:NoExecute", "b=:PreferNoSchedule")
_BAD_TAINTS = (
    *("c=d", "c=d:Never", "-c=d:NoSchedule", "/c:NoSchedule"),
    *("c=d=e:NoSchedule", "*:NoSchedule", "c=d e:NoSchedule"),
)
_TWICE = ("google.com/tpu:NoSchedule", "a:NoSchedule")


@pytest.mark.parametrize(
    ("key", "good", "bad", "message"),
    [
        pytest.param(names.KUBE_LABELS, _LABELS, _BAD_LABELS, " {} is no", id="labels"),
        pytest.param(names.KUBE_TAINTS, _TAINTS, _BAD_TAINTS, " {} is no taint", id="taints"),
        # The kubelet does not start with two taints of the same key and effect.
        pytest.param(names.KUBE_TAINTS, ("a=b:NoSchedule", "a=b:NoExecute"), _TWICE, "a taint {} already", id="twice"),
    ],
)
def test_labels_and_taints_that_a_kubelet_rejects_are_left_out_and_reported(
    machine: Machine, key: str, good: tuple[str, ...], bad: tuple[str, ...], message: str
) -> None:
    machine.attributes({**items(), key: ", ".join((*good, *bad))})
    said = machine.boot()
    (join,) = machine.joins
    given = {argument["name"]: argument["value"] for argument in join["nodeRegistration"]["kubeletExtraArgs"]}
    if key == names.KUBE_LABELS:
        assert given["node-labels"] == ",".join(good)
    else:
        assert given["register-with-taints"] == ",".join(("google.com/tpu=present:NoSchedule", *good))
    assert [entry for entry in bad if message.format(entry) not in said] == []


@pytest.mark.parametrize(
    "labels",
    [pytest.param(None, id="none"), pytest.param('a="b": c', id="none that could be labels")],
)
def test_machine_without_valid_labels_joins(machine: Machine, labels: str | None) -> None:
    given = {key: value for key, value in items().items() if key != names.KUBE_LABELS}
    machine.attributes(given if labels is None else {**given, names.KUBE_LABELS: labels})
    machine.boot()
    (join,) = machine.joins
    arguments = join["nodeRegistration"]["kubeletExtraArgs"]
    assert [argument["name"] for argument in arguments] == ["provider-id", "register-with-taints"]


def test_machine_joins_only_after_its_taints_could_be_read(machine: Machine) -> None:
    """A node that registers without its taints would get pods too early."""
    machine.attributes({**items(), names.KUBE_TAINTS: "a=b:NoSchedule"})
    machine.hide_list()
    machine.at_sleep(2, 'rm "$FAKE/no-list"')
    machine.boot()
    (join,) = machine.joins
    assert join["nodeRegistration"]["kubeletExtraArgs"][-1]["value"].endswith(",a=b:NoSchedule")


def test_reboot_after_the_join_only_starts_the_kubelet(machine: Machine) -> None:
    machine.boot()
    machine.attributes({key: value for key, value in items().items() if key != metadata.TOKEN})
    machine.boot()
    assert len(machine.joins) == 1
    assert machine.slept_seconds == []
    assert {call.split()[0] for call in machine.calls} == {"swapoff", "modprobe", "sysctl", "systemctl"}
    assert machine.calls[-1] == "systemctl enable --now kubelet"


@pytest.mark.parametrize("key", [metadata.TOKEN, metadata.ADDRESS, metadata.CA_HASH, metadata.VERSION])
def test_fault_7_script_waits_longer_than_150_seconds_for_metadata(machine: Machine, key: str) -> None:
    machine.attributes({name: value for name, value in items().items() if name != key})
    machine.at_sleep(9, f"echo '{items()[key]}' > \"$FAKE/metadata/instance/attributes/{key}\"")
    machine.boot()
    assert machine.has_joined
    assert machine.slept_seconds == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert len(machine.joins) == 1


def test_fault_7_join_uses_the_new_token_after_the_old_one_expired(machine: Machine) -> None:
    machine.tokens(OTHER)
    machine.at_sleep(3, f'echo {OTHER} > "$FAKE/metadata/instance/attributes/{metadata.TOKEN}"')
    machine.boot()
    assert machine.has_joined
    tokens = [join["discovery"]["bootstrapToken"]["token"] for join in machine.joins]
    assert tokens == [TOKEN, TOKEN, TOKEN, OTHER]


def test_fault_7_reboot_before_the_join_starts_from_the_beginning(machine: Machine) -> None:
    for path, content in {
        "etc/apt/keyrings/kubernetes-apt-keyring.asc": "half a k",
        "etc/apt/sources.list.d/kubernetes.list": "deb of another version",
        "etc/kubernetes/bootstrap-kubelet.conf": "of the join that was cut off",
    }.items():
        (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / path).write_text(content)
    machine.boot()
    assert machine.has_joined
    assert (machine.root / "etc/apt/keyrings/kubernetes-apt-keyring.asc").read_text().startswith("key of https://")
    assert len(machine.joins) == 2


def test_join_that_failed_twice_is_tried_a_third_time(machine: Machine) -> None:
    machine.fail_joins(2)
    machine.boot()
    assert machine.has_joined
    assert machine.slept_seconds == [2, 4]
    resets = [call for call in machine.calls if call.startswith("kubeadm reset")]
    assert resets == ["kubeadm reset --force --cri-socket unix:///run/containerd/containerd.sock"] * 2


def test_installation_waits_for_a_lock_of_apt(machine: Machine) -> None:
    machine.lock_apt(5)
    machine.boot()
    assert machine.has_joined
    assert machine.slept_seconds == [2, 4, 8, 16, 32]


def test_keyring_is_unchanged_if_the_repository_fails(machine: Machine) -> None:
    keyring = machine.root / "etc/apt/keyrings/kubernetes-apt-keyring.asc"
    keyring.parent.mkdir(parents=True)
    keyring.write_text("a good one")
    machine.at_sleep(1, f'cp "{keyring}" "$FAKE/keyring-then"; mv "$FAKE/curl" "$FAKE/bin/curl"')
    good = machine.path / "bin/curl"
    shutil.copy(good, machine.path / "curl")
    good.write_text(good.read_text().replace("*/Release.key)", "*/Release.key) echo '<html>'; exit 22;;\n  nothing)"))
    machine.boot()
    assert (machine.path / "keyring-then").read_text() == "a good one"
    assert machine.has_joined


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (metadata.TOKEN, 'x"\n    evil: "y'),
        (metadata.ADDRESS, '10.0.0.2"; reboot; "'),
        (metadata.CA_HASH, "md5:00"),
        (metadata.VERSION, "1.34/../../x"),
    ],
)
def test_malformed_metadata_is_not_used(machine: Machine, key: str, value: str) -> None:
    machine.attributes({**items(), key: value})
    machine.at_sleep(2, f"echo '{items()[key]}' > \"$FAKE/metadata/instance/attributes/{key}\"")
    said = machine.boot()
    assert f"{key} in the metadata cannot be read" in said
    assert machine.slept_seconds == [2, 4]
    assert len(machine.joins) == 1


def test_token_is_not_stored_on_a_disk_or_logged(machine: Machine) -> None:
    machine.fail_joins(1)
    said = machine.boot()
    secret = TOKEN.partition(".")[2]
    assert secret not in said
    assert secret not in "\n".join(machine.calls)
    kept = [path for path in machine.root.rglob("*") if path.is_file() and secret in path.read_text()]
    assert kept == []
    assert (machine.root / "run/tpu-provisioner").stat().st_mode & 0o077 == 0


def test_second_run_during_the_first_does_nothing(machine: Machine) -> None:
    work = machine.root / "run/tpu-provisioner"
    work.mkdir(parents=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        machine.boot()
    assert machine.calls == []
    assert not machine.has_joined
