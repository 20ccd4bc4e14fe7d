"""`tpu-provisioner drain`: which node pools are left and why, before the provisioner is taken away.

It changes nothing. The controller that runs deletes the pools, a pause keeps it from making new ones, and pools
under living workloads stay until their owners end them. What it reads is what the controller reads, judged by the same
decision, so the two cannot disagree about what is needed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from provisioner import constants, kube, settings
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import Command, kubeconfig_option
from provisioner.cli.output import refuse
from provisioner.cli.start import prepare
from provisioner.kube.protocol import LEASES_ROOT, object_path
from provisioner.kube.quantities import parse_timestamp
from provisioner.model.capacity import PoolName
from provisioner.model.snapshot import Snapshot
from provisioner.runtime import logs
from provisioner.settings import Settings
from provisioner.slices.observe import PoolList, Watches, hidden, make_watches, take_snapshot
from provisioner.slices.planning.decide import decide
from provisioner.slices.planning.memory.state import Memory, Phase
from provisioner.slices.planning.ownership import is_ours
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.supplier import IdentityCheck, PoolRules
from provisioner.slices.suppliers.choice import choose
from provisioner.slices.suppliers.gke.decorators import RetryingGke
from provisioner.workloads import live

_LOOK_SECONDS = 10.0
#: While it waits it says something this often: connections on which nothing comes are closed on the way.
_REMIND_SECONDS = 60.0
#: The first lists of a large cluster take some seconds.
_SYNC_SECONDS = 30.0
#: The Lease is renewed every five seconds and lasts for thirty.
_LEASE_SECONDS = 60.0
_PAUSE = f"kubectl --namespace={{}} create configmap {constants.PAUSE_CONFIGMAP_NAME}"


class Duration(click.ParamType[float]):
    """A duration in Go's form, as the settings have it; its value is in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, float):
            return value
        try:
            return settings.go_duration_seconds(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


@click.command(
    cls=Command,
    examples=(
        "{prog} drain                         # what is left, and why",
        "{prog} drain --wait --timeout 30m    # before an uninstall",
    ),
)
@click.option("--wait", is_flag=True, help="wait until no node pool is left")
@click.option(
    "--timeout",
    "patience_seconds",
    type=Duration(),
    default=0.0,
    metavar="DURATION",
    help='give up waiting after this time, such as "30m" (default: never)',
)
@kubeconfig_option
def command(kubeconfig: str | None, *, wait: bool, patience_seconds: float) -> int:
    """List the node pools that are left and why, or wait until none is left.

    It changes nothing: the controller deletes the pools. Exit code 0 only when none is left.
    """
    try:
        start = prepare(kubeconfig, os.environ)
    except settings.SettingsError as error:
        return refuse(str(error))
    # What it finds it prints; the log is for what nobody expects.
    logs.configure("error", stream=sys.stderr)
    clock, changed = _now, threading.Event()
    chosen = choose(start.settings, start.api, RetryingGke(start.gke) if start.gke is not None else None, clock)
    watches = make_watches(start.api, start.settings, changed.set)
    look = Look(
        settings=start.settings,
        api=start.api,
        watches=watches,
        pools=PoolList(supplier=chosen.supplier, clock=clock),
        identity=chosen.identity,
        clock=clock,
    )
    for watch in watches.named().values():
        watch.start()
    try:
        _await_lists(watches, changed)
        patience = (patience_seconds or float("inf")) if wait else 0.0
        return drain(look, patience_seconds=patience, say=_say, wait=time.sleep, monotonic=time.monotonic)
    finally:
        for watch in watches.named().values():
            watch.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one look came to."""

    #: Pools, or slices that will get one, with why they are there; by name.
    left: tuple[tuple[str, str], ...] = ()
    #: Why it cannot be told what is left; empty: it can.
    problem: str = ""
    #: What somebody should do.
    advice: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it is certain that nothing is left."""
        return not self.left and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Looks at the cluster and its node pools, as the controller does."""

    settings: Settings
    api: kube.Api
    watches: Watches
    pools: PoolList
    identity: IdentityCheck
    clock: Callable[[], datetime]

    @property
    def place(self) -> str:
        """The cluster, for people."""
        return str(self.settings.cluster_name)

    def __call__(self) -> Finding:
        """Look once: one list of node pools."""
        # Nothing is left in another cluster, either.
        if not self.identity.proven and not self.identity.attempt():
            return Finding(problem=self.identity.problem)
        if not self.pools.fetch():
            return Finding(problem=self.pools.problem)
        snapshot = take_snapshot(self.watches, self.pools)
        left = find_left(
            snapshot,
            self.identity.adapted(self.settings),
            self.pools.supplier.rules,
            self.clock(),
            lambda pool: self._guest(snapshot, pool),
        )
        problem = ""
        unseen = (*snapshot.not_synced, *hidden(self.watches))
        paused = self.settings.pause_creation or snapshot.paused_since is not None
        if unseen and not left and not paused:
            # A workload that nobody can see may be about to get a pool.
            problem = f"cannot tell whether a workload waits for a node pool: {'; '.join(unseen)}"
        return Finding(left=left, problem=problem, advice=self._advice(paused=paused) if left or problem else ())

    def _guest(self, snapshot: Snapshot, pool: PoolName) -> str:
        """Name a pod that keeps a pool which no workload needs: the controller looks for such before each delete."""
        try:
            for node in snapshot.nodes:
                if node.pool_name == pool:
                    for pod in live.list_pods_on_node(self.api, node.name):
                        if pod.chips and not pod.finished:
                            return f"{pod.namespace}/{pod.name}"
        except kube.ClusterError:
            # The controller finds it out in its time.
            pass
        return ""

    def _advice(self, *, paused: bool) -> tuple[str, ...]:
        namespace = self.settings.own_namespace
        advice = []
        if not paused:
            advice.append(
                "Creation is not paused: the controller continues to create node pools. To pause it: "
                f"{_PAUSE.format(namespace)}"
            )
        idle = _why_nobody_leads(self.api, namespace, self.clock())
        if idle:
            advice.append(
                f"{idle}. Unless a controller runs without --leader-elect, nothing deletes node pools. To start it: "
                f"kubectl --namespace={namespace} scale deployment/tpu-provisioner --replicas=1"
            )
        return tuple(advice)


def find_left(
    snapshot: Snapshot, effective: Settings, rules: PoolRules, now: datetime, guest: Callable[[PoolName], str]
) -> tuple[tuple[str, str], ...]:
    """Name what is left of our node pools, and why; also what is about to be made.

    `guest` names a pod that asks for chips on a pool that no workload needs; empty: there is none.
    """
    if snapshot.not_synced:
        # The pools are known, the work on them is not.
        ours = sorted(pool.name for pool in snapshot.pools if is_ours(pool))
        why = f"cannot tell who needs it: {'; '.join(snapshot.not_synced)}"
        return tuple((name, why) for name in ours)
    plan = decide(snapshot, Memory(), effective, rules, now)
    return tuple(
        (state.name, _why(state, guest))
        for state in sorted(plan.pools, key=lambda state: state.name)
        # What a limit, or a pause, is in the way of is not there and will not be.
        if state.phase is not Phase.BLOCKED
    )


def _why(state: PoolState, guest: Callable[[PoolName], str]) -> str:
    kind = state.workload_kind
    workload = f"{kind} {state.namespace}/{state.workload_name}"
    if state.phase is Phase.WANTED:
        return f"not created yet: {workload} waits for it"
    if state.phase is Phase.DELETING:
        return "being deleted"
    if state.phase is Phase.FAILED:
        return "failed; the controller deletes it"
    if state.phase is Phase.IDLE:
        if pod := guest(state.name):
            return f"pod {pod} requests chips and runs on it; delete the pod, or let it end"
        if state.unwatched:
            return f"created for {workload}, which is not watched; the controller deletes it once the {kind} has ended"
        return f"not needed (it was created for {workload}); the controller deletes it"
    if state.workload is None:
        return f"pods that request chips run on it (it was created for {workload}); delete them, or let them end"
    if state.workload.suspended:
        return f"{workload} is suspended and keeps it; delete the {kind}, or unset KEEP_POOLS_OF_SUSPENDED_JOBSETS"
    return f"{workload} needs it ({state.phase.value.replace('_', ' ')}); delete the {kind}, or let it end"


def drain(
    look: Look,
    *,
    patience_seconds: float,
    say: Callable[[str], None],
    wait: Callable[[float], None],
    monotonic: Callable[[], float],
) -> int:
    """Look until nothing is left, or the patience is over; return 0 only when nothing is left."""
    began = monotonic()
    last, said_at = None, began
    while True:
        finding = look()
        if finding.empty:
            say(f"No node pool of the provisioner is left in {look.place}.")
            return ExitCode.OK
        if finding != last or monotonic() - said_at >= _REMIND_SECONDS:
            _tell(finding, look.place, say)
            last, said_at = finding, monotonic()
        left_seconds = patience_seconds - (monotonic() - began)
        if left_seconds <= 0:
            if patience_seconds:
                say(f"Gave up waiting after {patience_seconds:.0f} s.")
            return ExitCode.ERROR
        wait(min(_LOOK_SECONDS, left_seconds))


def _tell(finding: Finding, place: str, say: Callable[[str], None]) -> None:
    if finding.problem:
        say(finding.problem)
    if finding.left:
        count = len(finding.left)
        say(f"{count} node pool{'s are' if count > 1 else ' is'} left in {place}:")
        width = max(len(name) for name, _ in finding.left)
        for name, why in finding.left:
            say(f"  {name.ljust(width)}  {why}")
    for line in finding.advice:
        say(line)


def _why_nobody_leads(api: kube.Api, namespace: str, now: datetime) -> str:
    """Say why no controller seems to run; empty: one does, or it cannot be told."""
    lease = f"Lease {namespace}/{constants.LEASE_NAME}"
    try:
        raw = api.get(object_path("leases", constants.LEASE_NAME, namespace=namespace, root=LEASES_ROOT))
    except kube.NotFound:
        return f"{lease} does not exist"
    except kube.ClusterError:
        return ""
    spec = raw.get("spec")
    if not isinstance(spec, dict) or not spec.get("holderIdentity"):
        return f"no process holds {lease}"
    renewed = parse_timestamp(spec.get("renewTime"))
    if renewed is not None and (now - renewed).total_seconds() > _LEASE_SECONDS:
        return f"{lease} was last renewed at {renewed:%Y-%m-%d %H:%M:%S} UTC"
    return ""


def _await_lists(watches: Watches, changed: threading.Event) -> None:
    """Wait for the first lists; what did not come by then is told as what cannot be seen."""
    deadline = time.monotonic() + _SYNC_SECONDS
    while time.monotonic() < deadline:
        # One that has a problem, such as a kind that is not installed, is not waited for; the others are.
        if all(watch.synced or watch.problem for watch in watches.named().values()):
            return
        changed.wait(0.2)
        changed.clear()


def _say(line: str) -> None:
    # At once: whoever waits for it reads along through a pipe.
    print(line, flush=True)


def _now() -> datetime:
    return datetime.now(UTC)
