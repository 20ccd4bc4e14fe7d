"""Whatever clients, faults and losses come, in whatever order: rules always hold, and everything can be deleted."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.simulators.compute.app import inventory
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.records import Loss, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings
from tests.support.clock import FakeClock
from tests.support.compute import (
    GROUPS,
    INSTANCES,
    POLICIES,
    TEMPLATES,
    Compute,
    broken_invariants,
    group,
    policy,
    template,
)

MODELS = ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")
ROOM = 6
RESERVED = 5
#: What a VM may become, by what it is; "" is not there.
NEXT = {
    "": {"PROVISIONING"},
    "PROVISIONING": {"STAGING", "STOPPING", "REPAIRING", "TERMINATED", ""},
    "STAGING": {"RUNNING", "STOPPING", "REPAIRING", "TERMINATED", ""},
    "RUNNING": {"STOPPING", "REPAIRING", "TERMINATED", ""},
    "REPAIRING": {"STAGING", "STOPPING", ""},
    "STOPPING": {"TERMINATED", "REPAIRING", "STAGING", ""},
    "TERMINATED": {"STOPPING", ""},
}


class History:
    """What became of every VM."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, int], list[str]] = {}

    def changed(self, machine: MachineView) -> None:
        seen = self.statuses.setdefault((machine.name, machine.number), [""])
        if seen[-1] != machine.status:
            seen.append(machine.status)


class Life:
    """A world that is driven by chance, with a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        clock = FakeClock()
        world = World(
            ComputeSettings(
                capacity={"us-east5-a/ct6e-standard-4t": ROOM},
                reservations={"us-east5-a/res": {"machine_type": "ct6e-standard-4t", "count": RESERVED}},
                machine_jitter_seconds=3,
                operations_kept_seconds=100,
            ),
            clock=clock.now,
            rng=random.Random(seed),
        )
        self.compute = Compute(world, clock)
        self.history = History()
        world.attach(self.history)
        self.compute.do("POST", POLICIES, policy())
        for model in MODELS:
            name = model.lower().replace("_", "-")
            self.compute.do("POST", TEMPLATES, template(name, model=model))
        self.steps: tuple[Callable[[], None], ...] = (
            self.insert,
            self.insert,
            self.delete,
            self.set_metadata,
            self.lose,
            self.lose,
            self.break_something,
            self.mend,
        )

    def call(self, method: str, path: str, body: Any = None) -> None:
        """Make a call, whatever comes of it."""
        status, answer = self.compute(method, path, body)
        assert status in (200, 400, 404, 409, 412), answer

    def a_group(self) -> str:
        """Return the name of a group that may be there."""
        return self.rng.choice("abc")

    def insert(self) -> None:
        mode, policy = self.rng.choice([("BULK", "policy"), ("INDIVIDUAL", None), ("BULK", None)])
        model = self.rng.choice(MODELS).lower().replace("_", "-")
        repairs = self.rng.choice(["REPAIR", "DO_NOTHING"])
        link = f"global/instanceTemplates/{model}"
        lifecycle = {"defaultActionOnFailure": repairs}
        body = group(self.a_group(), 4, mode, policy, instanceTemplate=link, instanceLifecyclePolicy=lifecycle)
        self.call("POST", GROUPS, body)

    def delete(self) -> None:
        self.call("DELETE", f"{GROUPS}/{self.a_group()}")

    def set_metadata(self) -> None:
        machines = self.compute.world.machines()
        if machines:
            path = f"{INSTANCES}/{self.rng.choice(machines).name}"
            self.call("POST", f"{path}/setMetadata", self.compute.get(path)["metadata"])

    def lose(self) -> None:
        machines = self.compute.world.machines()
        if machines:
            self.compute.world.lose(self.rng.choice(machines).name, self.rng.choice(list(Loss)))

    def break_something(self) -> None:
        kinds = [kind for kind in FaultKind if kind not in (FaultKind.HTTP_ERROR, FaultKind.HANG)]
        self.compute.world.faults.add(Fault(kind=self.rng.choice(kinds), count=self.rng.choice([1, 3, None])))

    def mend(self) -> None:
        self.compute.world.faults.clear()
        self.compute.world.release()

    def live(self, steps: int) -> None:
        """Let chance act, and look at the rules after each step."""
        for _ in range(steps):
            self.rng.choice(self.steps)()
            self.compute.pass_seconds(self.rng.choice([0.3, 1, 3, 10]))
            self.check()

    def check(self) -> None:
        """Check what must always hold."""
        assert broken_invariants(self.compute.world) == []
        machines = [machine for machine in self.compute.world._store.machines() if machine.holds_capacity]
        bound = sum(bool(machine.template.terms.reservation) for machine in machines)
        assert bound <= RESERVED
        assert len(machines) - bound <= ROOM
        for statuses in self.history.statuses.values():
            assert all(after in NEXT[before] for before, after in pairwise(statuses)), statuses

    def end(self) -> None:
        """Take all faults back and delete everything; nothing may be left."""
        self.mend()
        self.compute.pass_seconds(30)
        for name in "abc":
            self.call("DELETE", f"{GROUPS}/{name}")
        self.compute.pass_seconds(30)
        assert {item.collection for item in inventory(self.compute.world)} == {"instanceTemplates", "resourcePolicies"}
        assert all(statuses[-1] == "" for statuses in self.history.statuses.values())
        assert all(operation.is_done for operation in self.compute.world.all_operations())


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_rules_hold_and_everything_can_be_deleted(seed: int) -> None:
    """At every moment of a random life, and at its end."""
    life = Life(seed)
    life.live(40)
    life.end()
