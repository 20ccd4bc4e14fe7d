"""One program of the cluster: started on free ports, started again on the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rehearsal.localcluster.components import Plan, Site
from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.processes import Process, wait_until

_ATTEMPTS = 5
_PORT_TAKEN = "address already in use"


class Component:
    """A program and its current plan."""

    def __init__(self, name: str, site: Site, plan: Callable[[Site], Plan], *, timeout_seconds: float) -> None:
        self.name = name
        self._site = site
        self._make_plan = plan
        self._timeout_seconds = timeout_seconds
        self._plan: Plan | None = None
        self._process: Process | None = None

    @property
    def log(self) -> Path:
        """The file that its output goes to."""
        return self._site.log(self.name)

    @property
    def port(self) -> int:
        """The port that others reach it at; final once it was ready."""
        return self._plan.port if self._plan is not None else 0

    @property
    def process(self) -> Process:
        """The process of the last start."""
        if self._process is None:
            raise LocalClusterError(f"{self.name} was not started.", advice="Start the cluster with it.")
        return self._process

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._process is not None

    def start(self) -> None:
        """Start it on ports that are free now; await_ready() sees whether they still were."""
        self._plan = self._make_plan(self._site)
        self._process = Process(self.name, self._plan.command, log=self.log, environment=self._site.environment())
        self._process.start()

    def await_serving(self) -> None:
        """Wait until it has its port, starting it on other ports where another program was quicker."""
        for _ in range(_ATTEMPTS - 1):
            try:
                self._wait(early=True)
            except LocalClusterError:
                if self.process.running or not any(_PORT_TAKEN in line for line in self.process.tail(20)):
                    raise
                self.start()
            else:
                return
        self._wait(early=True)

    def await_ready(self) -> None:
        """Wait until it is ready, starting it on other ports where another program was quicker."""
        self.await_serving()
        self._wait()

    def start_again(self) -> None:
        """Start the ended program with the same command: same ports, same data; wait until it is ready."""
        self.process.start()
        self._wait()

    def _wait(self, *, early: bool = False) -> None:
        plan = self._plan
        if plan is not None:
            wait_until(
                plan.serving if early and plan.serving is not None else plan.ready,
                what=f"{self.name} to become ready",
                timeout_seconds=self._timeout_seconds,
                processes=(self.process,),
            )
