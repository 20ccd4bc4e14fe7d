"""Tests of `tpu-provisioner drain`, which lists the node pools that are left and why, and of its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from provisioner import constants
from provisioner.cli import drain, main
from provisioner.kube import errors
from provisioner.kube.fields import format_micro_time
from provisioner.kube.protocol import LEASES_ROOT, object_path
from provisioner.model.capacity import FailureKind, NodePool, PoolName, PoolStatus
from provisioner.nodegroups.reading import API_ROOT
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from tests.support.controller import CERTIFICATE, NAMESPACE, OTHER_CERTIFICATE, World, jobset_of, jobset_path
from tests.support.objects import raw_foreign_pod

_OWN = "tpu-provisioner-system"
_LEASE = object_path("leases", constants.LEASE_NAME, namespace=_OWN, root=LEASES_ROOT)


@dataclass
class Drained:
    """Exit code and output of the command."""

    code: int
    text: str
    seconds: float = 0.0


@dataclass
class Person:
    """User who runs the command, and performs the next of `meanwhile` whenever the command waits."""

    world: World
    #: Actions, one for each pause of the command. If pools remain after the last action, the command times out.
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    certificate: bytes = CERTIFICATE

    def look(self) -> drain.Look:
        world = self.world
        return drain.Look(
            settings=world.settings,
            api=world.kube,
            supplier=GkeSupplier(gke=world.gke, clock=world.time),
            identity=ClusterProof(
                get_cluster=world.gke.get_cluster,
                api=world.kube,
                trusted_ca_pem=self.certificate,
                assume=False,
                clock=world.time,
            ),
            now=world.time,
        )

    def __call__(self, *, patience_seconds: float = 0.0) -> Drained:
        """Run the command with the time-out `patience_seconds`; with 0, the command does not wait."""
        world, lines = self.world, list[str]()
        began, steps = world.clock(), list(self.meanwhile)

        def wait(seconds: float) -> None:
            world.clock.advance(seconds)
            if steps:
                steps.pop(0)()

        left = drain.drain(self.look(), patience_seconds, say=lines.append, wait=wait, monotonic=world.clock)
        return Drained(int(any(left)), "\n".join(lines), world.clock() - began)


def _lead(world: World, *, holder: str = "pod_1", age_seconds: float = 1.0) -> None:
    world.clock.advance(age_seconds)
    renewed = format_micro_time(world.clock.now().replace(microsecond=0))
    world.clock.advance(age_seconds)
    world.kube.put_object(_LEASE, {"spec": {"holderIdentity": holder, "renewTime": renewed}})


@pytest.fixture
def world() -> World:
    world = World(pause_creation=False)
    _lead(world)
    return world


def _paused(world: World) -> World:
    world.settings = replace(world.settings, pause_creation=True)
    return world


def test_drain_returns_the_pools_that_it_reported(world: World) -> None:
    """In the past, `-o json` read the pools again after the wait, so the output could contradict the exit code."""
    world.put_jobset()
    world.round()
    (pool,) = world.gke.pools
    left = drain.drain(
        Person(world).look(),
        0.0,
        say=lambda _: world.gke.remove_pool(pool),
        wait=world.clock.advance,
        monotonic=world.clock,
    )
    assert list(left.pools) == [pool]


def test_drain_without_pools_exits_with_0(world: World) -> None:
    """Pools that the provisioner did not create do not count."""
    world.gke.set_pool(NodePool(name=PoolName("default-pool"), status=PoolStatus.RUNNING))
    done = Person(_paused(world))()
    assert (done.code, done.text) == (0, "No node pool of the provisioner is left in project-1/us-central2/test.")


def test_pool_of_a_living_jobset_is_reported_with_the_jobset(world: World) -> None:
    """The command only reports the pool and its user; it never deletes a pool."""
    pool = world.run_to_use()
    done = Person(_paused(world))()
    assert done.code == 1
    assert done.text == (
        f"1 node pool is left in project-1/us-central2/test:\n"
        f"  {pool}  JobSet {NAMESPACE}/train needs it; delete the JobSet, or let it end"
    )
    assert [call.method for call in world.gke.calls if call.method == "delete_node_pool"] == []
    pools, messages = Person(_paused(world)).look().left()
    assert (pools, messages) == ({pool: f"JobSet {NAMESPACE}/train needs it; delete the JobSet, or let it end"}, [])


def test_pool_kept_for_a_suspended_jobset_is_reported_with_the_setting() -> None:
    """Without the setting, the controller would delete the pool of the suspended JobSet."""
    world = World(keep_suspended=True)
    pool = world.run_to_use()
    world.remove_leader()
    world.change_jobset(spec={"suspend": True})
    done = Person(_paused(world))()
    assert done.code == 1
    why = "is suspended and keeps it; delete the JobSet, or unset KEEP_POOLS_OF_SUSPENDED_JOBSETS"
    assert f"  {pool}  JobSet {NAMESPACE}/train {why}" in done.text
    world.settings = replace(world.settings, keep_suspended=False)
    assert f"not needed (it was created for JobSet {NAMESPACE}/train)" in Person(_paused(world))().text


def test_drain_waits_until_the_last_pool_is_deleted(world: World) -> None:
    world.run_to_use()

    def end_the_jobset() -> None:
        world.vanish()

    person = Person(
        _paused(world), [end_the_jobset, world.round, lambda: world.rounds(2, every_seconds=31), world.finish_deletes]
    )
    _lead(world)
    done = person(patience_seconds=1800)
    assert done.code == 0
    assert done.text.count("needs it") == 1
    assert f"not needed (it was created for JobSet {NAMESPACE}/train)" in done.text
    assert "being deleted" in done.text
    assert done.text.endswith("No node pool of the provisioner is left in project-1/us-central2/test.")


def test_drain_times_out_with_code_1_if_a_pool_is_left(world: World) -> None:
    """The command waits for exactly the time-out, and repeats an unchanged report after a minute."""
    world.run_to_use()
    done = Person(_paused(world))(patience_seconds=95)
    assert done.code == 1
    assert done.seconds == 95
    assert done.text.endswith("Gave up waiting after 95 s.")
    assert done.text.count("needs it") == 2


def test_pool_with_another_workloads_pod_is_reported_with_the_pod(world: World) -> None:
    """The controller keeps a pool with another workload's pod on it, even if no JobSet needs the pool."""
    pool = world.run_to_use()
    world.vanish()
    guest = raw_foreign_pod("notebook", f"gke-test-{pool}-0")
    world.kube.put_object("/api/v1/namespaces/other/pods/notebook", guest)
    done = Person(_paused(world))()
    assert done.code == 1
    assert "Pod other/notebook needs it" in done.text
    # A user removes the label with the node's pool. GKE's annotation on the node still names the pool.
    recorded = {constants.APPLIED_LABELS: f"{constants.NODE_POOL}={pool}"}
    edited = {"metadata": {"labels": {constants.NODE_POOL: None}, "annotations": recorded}}
    world.kube.patch(f"/api/v1/nodes/gke-test-{pool}-0", edited)
    assert "Pod other/notebook needs it" in Person(_paused(world))().text
    world.kube.fail("GET", "pods", errors.Unavailable("down"))
    assert "cannot tell who needs it" in Person(_paused(world))().text


def test_waiting_pods_prevent_success_unless_creation_is_paused(world: World) -> None:
    """While creation is not paused, the controller may create a pool for the waiting JobSet after the command ends."""
    world.put_jobset()
    done = Person(world)()
    assert done.code == 1
    assert f"Pods that wait for a node pool: {NAMESPACE}/train-workers-0-0" in done.text
    assert "Creation is not paused" in done.text
    assert f"kubectl --namespace={_OWN} create configmap tpu-provisioner-pause" in done.text
    pause = object_path("configmaps", "tpu-provisioner-pause", namespace=_OWN)
    there = {"name": "tpu-provisioner-pause", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.kube.put_object(pause, {"metadata": there})
    assert Person(world)().code == 0
    world.kube.remove_object(pause)
    assert Person(_paused(world))().code == 0


@pytest.mark.parametrize(("serve_pods", "code"), [("all", 1), ("none", 0)])
def test_waiting_pod_without_workload_prevents_success_only_if_it_is_served(
    world: World, serve_pods: str, code: int
) -> None:
    world.settings = replace(world.settings, serve_pods=serve_pods)
    waiting = raw_foreign_pod("notebook", "", phase="Pending", nodeSelector={"a": "b"})
    world.kube.put_object("/api/v1/namespaces/other/pods/notebook", waiting)
    assert Person(world)().code == code


def test_pool_with_a_pod_of_a_daemonset_is_reported_with_the_pod(world: World) -> None:
    """In the past, the message was "Pod other/ needs it"."""
    pool = world.run_to_use()
    world.vanish()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "probe", "uid": "probe", "controller": True}
    guest = raw_foreign_pod("probe-x", f"gke-test-{pool}-0", metadata={"ownerReferences": [owner]})
    world.kube.put_object("/api/v1/namespaces/other/pods/probe-x", guest)
    assert f"{pool}  pod other/probe-x requests chips and runs on it" in Person(_paused(world))().text


def test_failed_pool_is_reported_as_failed(world: World) -> None:
    world.put_jobset()
    world.round()
    (pool,) = world.gke.pools
    world.gke.fail_pool(pool, FailureKind.STOCKOUT)
    done = Person(_paused(world))()
    assert done.code == 1
    assert f"{pool}  failed; the controller deletes it" in done.text


_NOBODY = (
    ("Lease without holder", "", 1.0, f"No process has held Lease {_OWN}/tpu-provisioner"),
    ("holder that stopped renewing", "pod_1", 300.0, f"No process has held Lease {_OWN}/tpu-provisioner since "),
)


@pytest.mark.parametrize(("name", "holder", "age_seconds", "words"), _NOBODY, ids=[case[0] for case in _NOBODY])
def test_missing_controller_is_reported_with_the_command_that_starts_it(
    name: str, holder: str, age_seconds: float, words: str, world: World
) -> None:
    """Only a running controller deletes pools, so the command prints how to start a controller."""
    world.run_to_use()
    _lead(world, holder=holder, age_seconds=age_seconds)
    done = Person(_paused(world))()
    assert words in done.text
    assert "scale deployment/tpu-provisioner --replicas=1" in done.text
    assert "with high-availability, --replicas=2" in done.text


def test_missing_lease_is_reported_and_unreadable_lease_is_not(world: World) -> None:
    """A missing Lease means that no controller runs. If the read is forbidden, this is unknown."""
    world.run_to_use()
    world.kube.remove_object(_LEASE)
    assert "No process has held" in Person(_paused(world))().text
    world.kube.fail("GET", "leases", errors.Forbidden("no", status=403))
    assert "scale deployment" not in Person(_paused(world))().text


def test_drain_with_a_kubeconfig_of_another_cluster_exits_with_1(world: World) -> None:
    """GCP_CLUSTER is not the cluster of the kubeconfig, so an empty list of its node pools proves nothing."""
    done = Person(_paused(world), certificate=OTHER_CERTIFICATE)()
    assert done.code == 1
    assert "No node pool" not in done.text


def test_drain_while_gke_is_unavailable_waits_and_never_reports_success(world: World) -> None:
    """Without a list of pools it is unknown whether pools are left."""
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="down")
    assert Person(_paused(world))().code == 1
    done = Person(_paused(world), [world.gke.heal])(patience_seconds=60)
    assert done.code == 0
    assert "GKE does not list the node pools" in done.text


def test_pools_and_waiting_pods_that_cannot_be_checked_are_reported_as_unknown(world: World) -> None:
    world.kube.fail("GET", "pods", errors.Forbidden("pods: no", status=403))
    done = Person(world)()
    assert done.code == 1
    assert "Pods that wait for a node pool: unknown: pods: no" in done.text
    assert Person(_paused(world))().code == 0
    pool = world.run_to_use()
    world.kube.fail("GET", "jobsets", errors.Forbidden("jobsets: no", status=403))
    done = Person(_paused(world))()
    assert done.code == 1
    assert f"{pool}  cannot tell who needs it (it was created for JobSet {NAMESPACE}/train): jobsets: no" in done.text


def test_pool_of_a_recreated_jobset_is_needed_only_while_its_pods_are_on_it(world: World) -> None:
    pool = world.run_to_use()
    world.kube.put_object(jobset_path("train"), jobset_of("train", uid="another"))
    assert f"{pool}  JobSet {NAMESPACE}/train needs it" in Person(_paused(world))().text
    world.remove_leader()
    assert f"{pool}  not needed (it was created for JobSet {NAMESPACE}/train)" in Person(_paused(world))().text


def _install_node_groups(world: World, *places: str) -> None:
    world.kube.put_object(API_ROOT, {})
    for place in places:
        namespace, name = place.split("/")
        path = object_path("tpunodegroups", name, namespace=namespace, root=API_ROOT)
        world.kube.put_object(path, {"metadata": {"namespace": namespace, "name": name}})


def test_drain_with_a_node_group_exits_with_1_and_names_the_group(world: World) -> None:
    """If a user then uninstalled the controller of node groups, no process would delete the machines."""
    _install_node_groups(_paused(world), "research/big")
    done = Person(world)()
    assert done.code == 1
    assert "TPUNodeGroups are left, and their machines cost money: research/big. Delete them" in done.text


def test_drain_waits_until_the_last_node_group_is_deleted(world: World) -> None:
    _install_node_groups(_paused(world), "research/big")
    path = object_path("tpunodegroups", "big", namespace="research", root=API_ROOT)
    assert Person(world, [lambda: world.kube.delete(path)])(patience_seconds=1800).code == 0


def test_drain_exits_with_1_if_node_groups_cannot_be_listed(world: World) -> None:
    _install_node_groups(_paused(world))
    world.kube.fail("GET", "tpunodegroups", errors.Forbidden("no right", status=403), times=9)
    done = Person(world)()
    assert (done.code, "TPUNodeGroups cannot be listed: no right" in done.text) == (1, True)


def test_invalid_duration_exits_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["drain", "--timeout=30"])
    assert error.value.code == 2
    assert "is not a duration" in capsys.readouterr().err
