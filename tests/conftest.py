"""Settings of all tests: profiles of hypothesis, logging, time-outs, and the order of tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from provisioner import tpu
from provisioner.runtime import logs

# Every run uses the same examples, so that a test fails only if a change breaks a property. `make explore` tries many
# more. There is no deadline and no check for slow generation, because a busy machine must not fail a test.
settings.register_profile(
    "same", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
# `make explore` searches for new examples.
settings.register_profile(
    "new", settings.get_profile("same"), derandomize=False, database=None, max_examples=1000, print_blob=True
)
# In mutation tests, a failure is enough, so no minimal example is searched.
settings.register_profile(
    "mutation", settings.get_profile("same"), max_examples=100, phases=[Phase.explicit, Phase.generate]
)
# A few examples suffice to record which tests run which lines.
settings.register_profile("mutation-map", settings.get_profile("same"), max_examples=10)

# By default, structlog prints the variables of each frame with a traceback, which takes a second each time.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

#: Time-out of an end-to-end test in seconds: a control plane starts, and each wait may take 80 s (`PATIENCE_SECONDS`).
_E2E_LIMIT_SECONDS = 300
#: Files of tests that share one installation on one control plane.
_ON_ONE_INSTALLATION = frozenset(
    f"tests/deploy/test_{name}.py"
    for name in (
        "chart",
        "gitops",
        "guards",
        "install_page",
        "manifests",
        "node_groups",
        "partition_manifests",
        "partition_rights",
        "release",
        "rights",
        "tenants",
        "upgrade",
        "webhook",
    )
)
#: Maximum number of workers that run files of tests/e2e. Each of these workers starts a control plane and keeps it.
_MAX_E2E_WORKERS = 2
#: Files of simulations. They start first: they take minutes, one after the other, in processes of low priority.
_SIMULATIONS = tuple(f"tests/{folder}simulation/test_simulation.py" for folder in ("", "nodegroups/", "partitions/"))
#: Folders that start after the simulations: their tests mostly wait, and leave the cores to the simulations. The short
#: tests come last, so that no worker is idle at the end.
_E2E, _PAGE = "tests/e2e/", "tests/page/"
_WAITING = ("tests/deploy/", _E2E, "tests/localcluster/", _PAGE)
#: Paths of tests of simulators, demos and tools, which run only at night: most of their faults also fail other tests.
_OF_TOOLS = (
    "tests/e2e/test_demo.py",
    "tests/mutation/",
    "tests/simulation/test_demo_page.py",
    "tests/simulators/",
    *(f"tests/localcluster/test_{name}.py" for name in ("binaries", "component", "e2e", "processes", "toolchain")),
)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restore the logging after each test: most commands configure logging in the process of the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    libraries = [logging.getLogger(name) for name in logs._CHATTY]
    loggers = structlog.get_config()
    before = [(library.level, library.propagate) for library in libraries]
    yield
    logging.captureWarnings(False)
    structlog.configure(**loggers)
    root.handlers[:] = handlers
    root.setLevel(level)
    for library, (old_level, old_propagate) in zip(libraries, before, strict=True):
        library.setLevel(old_level)
        library.propagate = old_propagate


@pytest.fixture
def catalogue() -> Iterator[None]:
    """Restore the built-in TPU catalogue after a test that extends it."""
    yield
    tpu.extend(())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import nightly files for `-m 'not nightly'`: some import libraries for seconds, in each worker."""
    path = collection_path.relative_to(config.rootpath).as_posix() if collection_path.suffix == ".py" else ""
    return True if path.startswith(_OF_TOOLS) and "not nightly" in config.option.markexpr else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the time-out of end-to-end tests, mark tests of tools as nightly, and move the longest tests to the start."""
    for item in items:
        if item.nodeid.startswith(_OF_TOOLS):
            item.add_marker(pytest.mark.nightly)
        if item.get_closest_marker("e2e") is not None and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_E2E_LIMIT_SECONDS))
    items.sort(key=_place)


class _ByWorld(LoadScopeScheduling):
    """Runs related tests in one worker: tests of a file, of the shared installation, of the page, and simulations.

    Otherwise, each worker would start each control plane and browser. (pytest-xdist's own groups do not work with
    pytest 9.2, which lacks the attribute in which pytest-xdist stores them.)
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        #: Workers that have been given a file of tests/e2e.
        self._e2e_workers: set[WorkerController] = set()

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give the worker the next file, unless the file is of tests/e2e and enough other workers run such files."""
        next_scope = next((scope for scope in self.workqueue if self._may_run(node, scope)), next(iter(self.workqueue)))
        if next_scope.startswith(_E2E):
            self._e2e_workers.add(node)
        self.workqueue.move_to_end(next_scope, last=False)
        super()._assign_work_unit(node)

    def _may_run(self, node: WorkerController, scope: str) -> bool:
        if not scope.startswith(_E2E):
            return True
        return node in self._e2e_workers or len(self._e2e_workers) < _MAX_E2E_WORKERS

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in _SIMULATIONS:
            return "simulations"
        if path.startswith(_PAGE):
            return "browser"
        return "installation" if path in _ON_ONE_INSTALLATION else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _ByWorld(config, log)


def _place(item: pytest.Item) -> int:
    if item.nodeid.startswith(_SIMULATIONS):
        return 0
    waiting = (place for place, prefix in enumerate(_WAITING, 1) if item.nodeid.startswith(prefix))
    return next(waiting, len(_WAITING) + 1)
