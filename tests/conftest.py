"""Settings of all tests: the profiles of hypothesis, the log, how long a test may take, and which come first."""

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

# The same examples each time: what a change breaks, it breaks for everybody, and nobody else's change fails for it.
# A machine that is busy with something else must not fail a test: no time limits on examples, nor on making them.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
# `make explore` looks for examples that nobody has tried.
settings.register_profile(
    "new", settings.get_profile("same"), derandomize=False, database=None, max_examples=1000, print_blob=True
)
# Mutated code has to fail, and nobody reads with which example.
settings.register_profile("mutation", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate])
# Which tests run which lines is seen after a few examples.
settings.register_profile("mutation-map", settings.get_profile("same"), max_examples=10)

# By default structlog prints the variables of each frame with a traceback, which takes a second each time.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

#: A real control plane starts, and a test waits up to 80 s for each of a few things (`PATIENCE_SECONDS`).
_E2E_LIMIT_SECONDS = 300
#: All of these are installed on one control plane.
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
#: These play for minutes in processes of their own at a low priority, one after the other, beside what mostly waits.
_SIMULATIONS = tuple(f"tests/{folder}simulation/test_simulation.py" for folder in ("", "nodegroups/", "partitions/"))
#: End-to-end tests come next: they mostly wait, and leave the cores to the simulations. The many short tests come last,
#: so that no worker is idle at the end.
_WAITING = ("tests/deploy/", "tests/e2e/", "tests/localcluster/")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Leave logging as it was, whatever a test configures: most commands do in their process."""
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
    """Leave the catalogue as it was, whatever a test extends it by."""
    yield
    tpu.extend(())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give end-to-end tests their time limit, and put what takes longest first."""
    for item in items:
        if item.get_closest_marker("e2e") is not None and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_E2E_LIMIT_SECONDS))
    items.sort(key=_place)


class _ByWorld(LoadScopeScheduling):
    """Runs tests that share a world in one worker: those of a file, all that share an installation, all simulations.

    Otherwise each worker starts each control plane. (pytest-xdist's own groups are lost with pytest 9.2: it writes them
    to an attribute that is not there any more.)
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in _SIMULATIONS:
            return "simulations"
        return "installation" if path in _ON_ONE_INSTALLATION else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Tell workers apart by what they share."""
    return _ByWorld(config, log)


def _place(item: pytest.Item) -> int:
    if item.nodeid.startswith(_SIMULATIONS):
        return 0
    place = next((place for place, prefix in enumerate(_WAITING, 1) if item.nodeid.startswith(prefix)), 0)
    return place if place and item.get_closest_marker("e2e") else len(_WAITING) + 1
