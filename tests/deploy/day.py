"""A day of a controller, scraped every two minutes: what Prometheus would have of it.

Jobs come and go; in between capacity is out of stock, GKE refuses deletes and takes no further operation, a watch
hangs, and the controller crashes at noon.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from provisioner.kube.protocol import collection_path, object_path
from provisioner.kube.quantities import format_time
from provisioner.model.capacity import FailureKind, PoolName, PoolStatus
from provisioner.settings import parse_prices
from provisioner.slices.metrics import Metrics
from provisioner.slices.suppliers.gke.supplier import Calls
from tests.support.controller import NAMESPACE, World, jobset_path

SCRAPE_SECONDS = 120
SCRAPES = 24 * 3600 // SCRAPE_SECONDS
#: Rounds are so far apart; an idle controller makes four a minute.
_ROUND_SECONDS = 60
_ROUNDS_PER_SCRAPE = SCRAPE_SECONDS // _ROUND_SECONDS
#: A pool comes up, and goes, within these.
_CREATE_ROUNDS = 3
_DELETE_ROUNDS = 2
#: Samples in a row that are not there, in promtool's notation.
_MISSING = "_"


@dataclass(slots=True)
class _Scraped:
    """Samples by series: which scrape, and what it had."""

    series: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def scrape(self, number: int, metrics: Metrics, target: Mapping[str, str]) -> None:
        """Take what a replica exports."""
        for family in metrics.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    labels = ",".join(f'{name}="{value}"' for name, value in {**sample.labels, **target}.items())
                    self.series[f"{sample.name}{{{labels}}}"].append((number, sample.value))

    def input_series(self) -> list[dict[str, str]]:
        """Return them as promtool's tests have them."""
        return [{"series": name, "values": _values(samples)} for name, samples in self.series.items()]


def _values(samples: Iterable[tuple[int, float]]) -> str:
    words: list[str] = []
    for number, value in samples:
        if number > len(words):
            words += [_MISSING] * (number - len(words))
        words.append("Inf" if math.isinf(value) else repr(value))
    return " ".join(words)


class Day(World):
    """The world, and what happens in it."""

    def __init__(self) -> None:
        super().__init__(
            metered=True,
            max_chips=8,
            max_chips_per_namespace=(("*", 64),),
            max_creates_per_hour=100,
            prices=parse_prices("tpu7x=1"),
        )
        self.pod = "a"
        self.scraped = _Scraped()
        self.round_number = 0
        #: Of pools that change their state: since which round they are in it.
        self._since: dict[tuple[PoolName, PoolStatus], int] = {}
        #: What happens at which round.
        self._agenda: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._stuck_creates = False

    def calls_to_gke(self) -> Calls:
        """Measure the calls to GKE."""
        return Calls(observe=self.metrics.observe_gke_call, monotonic=self.clock)

    def at(self, minute: float, *things: Callable[[], None]) -> None:
        """Let things happen at a minute of the day."""
        self._agenda[int(minute * 60) // _ROUND_SECONDS] += things

    def live(self) -> list[dict[str, str]]:
        """Live the day; return its series."""
        for number in range(SCRAPES):
            for _ in range(_ROUNDS_PER_SCRAPE):
                self._live_round()
            self.scraped.scrape(number, self.metrics, {"namespace": "tpu-system", "cluster": "c", "pod": self.pod})
        return self.scraped.input_series()

    def begin(self, name: str) -> None:
        """Create a JobSet whose leader waits from now on."""
        self.put_jobset(name)
        path = object_path("pods", f"{name}-workers-0-0", namespace=NAMESPACE)
        raw = self.kube.object(path)
        assert raw is not None
        now = format_time(self.clock.now())
        raw["metadata"]["creationTimestamp"] = now
        raw["status"]["conditions"][0]["lastTransitionTime"] = now
        self.kube.put_object(path, raw)

    def end(self, name: str) -> None:
        """Delete a JobSet and its pod."""
        self.kube.remove_object(jobset_path(name))
        self.remove_leader(name)

    def crash(self) -> None:
        """Let another replica lead, with other prices."""
        self.pod = "b"
        self.metrics = Metrics(version="test")
        self.settings = replace(self.settings, prices=parse_prices("tpu-v4-podslice=3.6"))
        self.start()

    def silence(self, *, silent: bool) -> None:
        """Let the watch of pods hang, or go on."""
        self.pods.synced = not silent

    def hold_creates(self, *, held: bool) -> None:
        """Let creates take for ever, or end."""
        self._stuck_creates = held

    def _live_round(self) -> None:
        for thing in self._agenda.pop(self.round_number, ()):
            thing()
        self._let_gke_work()
        self._bind()
        for watch in (self.jobsets, self.pods, self.nodes):
            watch.last_contact_monotonic = time.monotonic()
        self.round(after_seconds=_ROUND_SECONDS)
        self.metrics.observe_round(seconds=0.01, result="ok", ended_at_seconds=self.clock.now().timestamp())
        self.metrics.observe_loop_lag(seconds=0.001)
        self.round_number += 1

    def _let_gke_work(self) -> None:
        for pool in list(self.gke.pools.values()):
            since = self._since.setdefault((pool.name, pool.status), self.round_number)
            for_rounds = self.round_number - since
            if pool.status is PoolStatus.PROVISIONING and for_rounds >= _CREATE_ROUNDS and not self._stuck_creates:
                self.gke.finish_create(pool.name)
                self.put_nodes(pool.name)
            elif pool.status is PoolStatus.STOPPING and for_rounds >= _DELETE_ROUNDS:
                self.gke.finish_delete(pool.name)
                self.remove_nodes(pool.name)

    def _bind(self) -> None:
        """Bind each waiting leader to a node that is free."""
        pods = self.kube.objects(collection_path("pods"))
        taken = {raw["spec"].get("nodeName") for raw in pods}
        up = (pool.name for pool in self.gke.pools.values() if pool.status is PoolStatus.RUNNING)
        free = [name for name in (f"gke-test-{pool}-0" for pool in up) if name not in taken]
        for raw in pods:
            if free and not raw["spec"].get("nodeName"):
                self.put_leader(raw["metadata"]["name"].removesuffix("-workers-0-0"), node=free.pop())


#: Nobody takes the pool that GKE does not delete.
_QUIET_HOURS = {4, 5}


def a_day() -> list[dict[str, str]]:
    """Return the series of a day in which everything happens that a query asks for."""
    day = Day()
    for hour in set(range(24)) - _QUIET_HOURS:
        day.at(60 * hour, lambda hour=hour: day.begin(f"job-{hour}"))
        day.at(60 * hour + 40, lambda hour=hour: day.end(f"job-{hour}"))
    # More than the limit allows.
    for index in range(3):
        day.at(65, lambda index=index: day.begin(f"extra-{index}"))
        day.at(115, lambda index=index: day.end(f"extra-{index}"))
    day.at(182, lambda: day.gke.fail_pool(_making(day), FailureKind.STOCKOUT))
    day.at(215, lambda: day.gke.fail_always("delete_node_pool", FailureKind.PERMISSION))
    day.at(355, day.gke.heal)
    # One create that takes long, and GKE takes no second. The limit is known in every other round: when it is scraped.
    day.at(419, lambda: day.hold_creates(held=True))
    day.at(424, lambda: day.gke.fail_always("create_node_pool", FailureKind.TOO_MANY_OPERATIONS))
    day.at(424, lambda: day.begin("second"))
    day.at(455, day.gke.heal, lambda: day.hold_creates(held=False))
    day.at(470, lambda: day.end("second"))
    day.at(610, lambda: day.silence(silent=True))
    day.at(630, lambda: day.silence(silent=False))
    day.at(725, day.crash)
    # A leader that waits for forty minutes.
    day.at(775, lambda: day.gke.fail_always("create_node_pool", FailureKind.STOCKOUT))
    day.at(850, day.gke.heal)
    return day.live()


def _making(day: Day) -> PoolName:
    return next(name for name, pool in day.gke.pools.items() if pool.status is PoolStatus.PROVISIONING)
