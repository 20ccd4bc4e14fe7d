"""What all parts of one run share: chance, time and history, as in the other simulations; and the objects."""

from __future__ import annotations

from tests.simulation.store import Store
from tests.support.simulations import stage


class Stage(stage.Stage):
    """One run's surroundings, with the objects of its Kubernetes."""

    who_width = 12

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        super().__init__(seed, recording=recording)
        self.store = Store()
