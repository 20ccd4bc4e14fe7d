"""`python -m benchmarks [NAME ...]`: run all measurements, or those named, and print a line for each figure."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise

from benchmarks import admitting, deciding, deleting, listing, node_groups, packing, partitions, serving
from benchmarks.world import World, now, pause, world

_POOL_SECONDS = 20.0
_JOBSETS = 24
_CROWD = 300
#: Number of threads that create JobSets at the same time.
_HANDS = 24
_QUOTA = 5


def _say(figure: str, value: str, target: str = "") -> None:
    print(f"  {figure:<66} {value:>14}   {target}", flush=True)


def decide() -> None:
    """The pure decision."""
    deciding.measure(_say)


def http() -> None:
    """Cost of serving metrics and probes."""
    serving.measure(_say)


def gke() -> None:
    """The client of GKE: start, memory, lists of node pools."""
    listing.measure(_say)


def webhook() -> None:
    """Pods admitted by the webhook server, for clients that do nothing else."""
    admitting.measure(_say)


def ipus() -> None:
    """Pods with IPUs admitted by the webhook server, for clients that do nothing else."""
    admitting.measure_ipus(_say)


def partitions_() -> None:
    """Pods that share a V-IPU server, in virtual time."""
    partitions.measure(_say)


def packing_() -> None:
    """Share of the possible use of IPUs that the planning of partitions reaches, without any latency."""
    packing.measure(_say)


def admission() -> None:
    """Pods created on the real API server, which calls the webhook server."""
    admitting.measure_in_use(_say)


def nodegroups() -> None:
    """200 node groups of 16 machines, created at the same time."""
    node_groups.measure(_say)


def gate() -> None:
    """The proof before the delete of a pool of many hosts."""
    deleting.measure(_say)


def burst() -> None:
    """24 JobSets created at the same time, without a quota."""
    with world(NODEPOOL_DELETION_DELAY="5s") as here:
        alone = _alone(here)
        started, running, creates = _burst(here)
        together = (running - started).total_seconds()
        _say("one JobSet alone: created to all pods running", f"{alone:.1f} s")
        _say(f"{_JOBSETS} JobSets at once: created to all pods running", f"{together:.1f} s")
        _say("  ratio", f"{together / alone:.2f}", "target: 1.3, Go original: 9.9")
        spread = (creates[-1] - creates[0]).total_seconds()
        _say("  first to last create request", f"{spread:.2f} s", "target: 2 s")
        here.await_completed(120)
        here.await_empty()
        _say("  calls to GKE until nothing is left", str(here.total_calls()), "Go original: 202")
        _say("  memory of the provisioner after all this", f"{here.memory_mib():.0f} MiB")
        _say("  its largest memory until then", f"{here.memory_mib('VmHWM'):.0f} MiB", "target: 100 MiB")


def crowd() -> None:
    """300 JobSets created at the same time: time of the creates after the last leader was found unschedulable."""
    for frozen in (False, True):
        with world(NODEPOOL_DELETION_DELAY="600s") as here:
            _crowd(here, frozen=frozen)


def _crowd(here: World, *, frozen: bool) -> None:
    # No pool becomes ready during the measurement, which must not include the work for nodes.
    here.rehearsal.gke.set(create_seconds=3600.0)
    if frozen:
        here.provisioner.send(signal.SIGSTOP)
    started = _create_at_once(here, {f"crowd-{index}": "1h" for index in range(_CROWD)})
    if frozen:
        here.wait(lambda: len(here.unschedulable_since()) >= _CROWD, "all leaders are unschedulable", 600)
        resumed = now()
        here.provisioner.send(signal.SIGCONT)
    here.wait(lambda: len(here.calls("nodePools.create")) >= _CROWD, "all creates are sent", 600)
    last = max(here.calls("nodePools.create"))
    if frozen:
        _say("  with a provisioner frozen until then: resumed to last create", f"{_seconds(resumed, last):.1f} s")
    else:
        leaders = here.unschedulable_since()
        _say(
            f"{_CROWD} JobSets at once: created to last leader unschedulable",
            f"{_seconds(started, max(leaders)):.1f} s",
        )
        _say("  last leader unschedulable to last create", f"{_seconds(max(leaders), last):.1f} s", "target: 10 s")
        _say("  leaders unschedulable", str(len(leaders)))


def quota() -> None:
    """24 JobSets created at the same time, while GKE runs at most five operations."""
    with world(NODEPOOL_DELETION_DELAY="600s") as here:
        here.rehearsal.gke.set(create_seconds=_POOL_SECONDS, operations_quota=_QUOTA)
        here.create(*(f"quota-{index}" for index in range(_JOBSETS)), run_for="1h")
        here.await_running(_JOBSETS, 400)
        used, wall = _slots_used(here.create_operations())
        calls = here.rehearsal.gke.call_counts()["nodePools.create"]
        _say(
            f"quota of {_QUOTA} operations: share of it used until the last create", f"{used:.1%}", "target: all of it"
        )
        least = -(-_JOBSETS // _QUOTA) * _POOL_SECONDS
        _say("  first create to last pool ready", f"{wall:.1f} s", f"less than this is impossible: {least:.0f} s")
        _say("  creates that GKE rejected for the quota", str(calls.get("429", 0)))


def latency() -> None:
    """From the creation of one JobSet on a quiet cluster to the create request at GKE."""
    with world(NODEPOOL_DELETION_DELAY="0s", NODE_MIN_LIFESPAN="0s") as here:
        here.rehearsal.gke.set(create_seconds=1.0, delete_seconds=0.5, node_stagger_seconds=0.1)
        seconds = []
        for index in range(20):
            here.rehearsal.gke.reset_calls()
            started = here.create(f"latency-{index}", run_for="1h")
            here.wait(lambda: here.calls("nodePools.create"), "a create", 10)
            seconds.append((here.calls("nodePools.create")[0] - started).total_seconds())
            here.clear()
            pause(1.0)
        ordered = sorted(seconds)
        _say("JobSet created to create request: median", f"{statistics.median(ordered):.3f} s")
        _say("  95th percentile of 20", f"{ordered[18]:.3f} s", "target: 0.3 s, Go original: 0.09 to 0.18 s")


def deletion() -> None:
    """From a completed JobSet to the delete request."""
    delay = 10.0
    with world(NODEPOOL_DELETION_DELAY=f"{delay:.0f}s") as here:
        here.rehearsal.gke.set(create_seconds=2.0)
        late = []
        for index in range(5):
            here.rehearsal.gke.reset_calls()
            here.create(f"deletion-{index}", run_for="3s")
            completed = here.await_completed(60)
            here.wait(lambda: here.calls("nodePools.delete"), "a delete", 60)
            late.append((here.calls("nodePools.delete")[0] - completed).total_seconds() - delay)
            here.clear()
        _say(
            f"JobSet completed to delete request, beyond the delay of {delay:.0f} s: worst of 5",
            f"{max(late):.2f} s",
            "target: 1 s",
        )


def idle() -> None:
    """Calls to GKE with nothing to do."""
    with world() as here:
        pause(5.0)
        here.rehearsal.gke.reset_calls()
        pause(180.0)
        _say("idle: calls to GKE a minute", f"{here.total_calls() / 3:.1f}", "target: 2, Go original: 4")


def swap() -> None:
    """12 JobSets of one shape with run times of 30 to 85 s."""
    with world(NODEPOOL_DELETION_DELAY="5s") as here:
        here.rehearsal.gke.set(create_seconds=_POOL_SECONDS)
        _create_at_once(here, {f"swap-{index}": f"{30 + 5 * index}s" for index in range(12)})
        here.await_completed(300)
        restarts = sum(jobset["status"].get("restarts", 0) for jobset in here.jobsets())
        pods = here.rehearsal.objects("/api/v1/pods", labelSelector="jobset.sigs.k8s.io/jobset-name")
        here.await_empty()
        swapped = _swapped(here)
        _say("12 JobSets of one shape: jobs that ran on another job's pool", str(swapped))
        started_again = restarts + max(0, len(pods) - 24)
        _say("  pods killed or jobs restarted", str(started_again), "target: 0, Go original: 6 kills")


def _alone(here: World) -> float:
    here.rehearsal.gke.set(create_seconds=_POOL_SECONDS)
    started = here.create("alone", run_for="5s")
    seconds = (here.await_running(1, 120) - started).total_seconds()
    here.await_completed(60)
    here.clear()
    here.rehearsal.gke.reset_calls()
    return seconds


def _create_at_once(here: World, run_times: dict[str, str]) -> datetime:
    """Create JobSets in several threads, because a single thread would take too long; return the time of the start."""
    started = now()
    with ThreadPoolExecutor(_HANDS) as hands:
        list(hands.map(lambda item: here.create(item[0], run_for=item[1]), run_times.items()))
    return started


def _seconds(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()


def _burst(here: World) -> tuple[datetime, datetime, list[datetime]]:
    started = _create_at_once(here, {f"burst-{index}": "60s" for index in range(_JOBSETS)})
    running = here.await_running(_JOBSETS, 300)
    return started, running, sorted(here.calls("nodePools.create"))


def _slots_used(spans: list[tuple[datetime, datetime]]) -> tuple[float, float]:
    """Return the share of the quota in use between the first and the last create, and the whole time in seconds."""
    begin, last = min(start for start, _ in spans), max(start for start, _ in spans)
    moments = sorted({begin, last, *(moment for span in spans for moment in span if begin <= moment <= last)})
    busy = sum(
        (after - before).total_seconds() * sum(start <= before < end for start, end in spans)
        for before, after in pairwise(moments)
    )
    end = max(end for _, end in spans)
    return busy / ((last - begin).total_seconds() * _QUOTA), (end - begin).total_seconds()


def _swapped(here: World) -> int:
    owners = {}
    swapped = 0
    for record in here.provisioner.records():
        if record.get("event") != "node_pool.phase_changed":
            continue
        if record["new"] == "wanted":
            owners[record["node_pool"]] = record.get("slice")
        elif record["new"] == "in_use":
            swapped += owners.get(record["node_pool"]) != record.get("slice")
    return swapped


_ALL: dict[str, Callable[[], None]] = {
    "decide": decide,
    "nodegroups": nodegroups,
    "gate": gate,
    "http": http,
    "gke": gke,
    "webhook": webhook,
    "ipus": ipus,
    "partitions": partitions_,
    "packing": packing_,
    "admission": admission,
    "burst": burst,
    "crowd": crowd,
    "quota": quota,
    "latency": latency,
    "deletion": deletion,
    "idle": idle,
    "swap": swap,
}


def main() -> int:
    """Run the measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*_ALL, []], metavar="NAME", help=f"of {', '.join(_ALL)}")
    names = parser.parse_args().names or list(_ALL)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    for name in names:
        print(f"{name}: {(_ALL[name].__doc__ or '').strip()}", flush=True)
        _ALL[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
