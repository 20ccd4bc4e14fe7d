"""Settings of all tests: profiles of hypothesis, logging, time-outs, and the order of tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from provisioner import tpu
from provisioner.runtime import logs

# Every run uses the same examples, so that a test fails only if a change breaks a property. There is no deadline and no
# check for slow generation, because a busy machine must not fail a test.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
# `make explore` searches for new examples.
settings.register_profile(
    "new", settings.get_profile("same"), derandomize=False, database=None, max_examples=1000, print_blob=True
)
# In mutation tests, a failure is enough, so no minimal example is searched.
settings.register_profile("mutation", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate])
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
        "guards",
        "install_page",
        "manifests",
        "node_groups",
        "partition_manifests",
        "release",
        "rights",
        "upgrade",
        "webhook",
    )
)
#: Files of simulations. They start first: they take minutes, one after the other, in processes of low priority.
_SIMULATIONS = tuple(f"tests/{folder}simulation/test_simulation.py" for folder in ("", "nodegroups/", "partitions/"))
#: Folders whose end-to-end tests start after the simulations: they mostly wait, and leave the cores to the simulations.
#: The short tests come last, so that no worker is idle at the end.
_WAITING = ("tests/deploy/", "tests/e2e/", "tests/localcluster/")
#: Paths of tests of simulators and tools, which run only at night: most faults of the tools also fail other tests.
_OF_TOOLS = (
    "tests/mutation/",
    "tests/simulators/",
    *(f"tests/localcluster/test_{name}.py" for name in ("binaries", "component", "processes", "toolchain")),
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
    """Runs related tests in one worker: tests of a file, tests of the shared installation, and simulations.

    Otherwise, each worker would start each control plane. (pytest-xdist's own groups do not work with pytest 9.2, which
    lacks the attribute in which pytest-xdist stores them.)
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in _SIMULATIONS:
            return "simulations"
        return "installation" if path in _ON_ONE_INSTALLATION else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _ByWorld(config, log)


def _place(item: pytest.Item) -> int:
    if item.nodeid.startswith(_SIMULATIONS):
        return 0
    place = next((place for place, prefix in enumerate(_WAITING, 1) if item.nodeid.startswith(prefix)), 0)
    return place if place and item.get_closest_marker("e2e") else len(_WAITING) + 1
