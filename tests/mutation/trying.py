"""Tries mutations: applies each to a copy of the project, and runs the tests of its lines, which should fail.

Each worker has its own copy, and the working tree is never changed.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.coverage_map import CoverageMap
from tests.mutation.operators import Mutation, find_mutations, mutate

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".mutation", ".hypothesis", ".coverage*", "*_cache", "__pycache__", "*.egg-info", "dist", "build"
)
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header")
#: Time-out of one test, more than ten times the duration of any test, so that only a test that hangs exceeds it.
_TEST_TIMEOUT_SECONDS = 120
_TESTS_FAILED = 1
_NOTHING_COLLECTED = 5


class Fate(enum.Enum):
    """Outcome of a mutation."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"

    @property
    def is_killed(self) -> bool:
        return self is not Fate.SURVIVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Packages to mutate, and the tests that should detect mutations."""

    root: Path
    #: Folders and files of tests by the folder of the package that they test.
    packages: Mapping[str, tuple[str, ...]]
    pytest_options: tuple[str, ...] = ()
    #: pytest options for the run that records the lines of each test, instead of `pytest_options`.
    recording_options: tuple[str, ...] = ()
    #: Arguments of the Python interpreter for a command that should detect a mutation if no test does.
    last_resort: tuple[str, ...] = ()
    #: Value of `last_resort` for single packages, by folder.
    last_resorts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Time-out in seconds of all tests of one mutation and of the last resort, together.
    timeout_seconds: float = 600.0

    def package_of(self, path: str) -> str:
        return max((package for package in self.packages if path.startswith(f"{package}/")), key=len)

    def last_resort_of(self, path: str) -> tuple[str, ...]:
        return self.last_resorts.get(self.package_of(path), self.last_resort)

    def mutations(self) -> list[Mutation]:
        files = {file for package in self.packages for file in (self.root / package).rglob("*.py")}
        return [
            mutation
            for file in sorted(files)
            for mutation in find_mutations(file.read_text(encoding="utf-8"), file.relative_to(self.root).as_posix())
        ]

    def fingerprint(self) -> str:
        """Return a digest of all code and tests that determine the fate of mutations."""
        digest = hashlib.sha256()
        folders = {*self.packages, *(folder for folders in self.packages.values() for folder in folders)}
        tops = sorted({folder.partition("/")[0] for folder in folders})
        for file in sorted(file for top in tops for file in (self.root / top).rglob("*.py")):
            digest.update(f"{file.relative_to(self.root)}\0".encode() + file.read_bytes() + b"\0")
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of one mutation."""

    mutation: Mutation
    fate: Fate
    seconds: float
    tests: int


class BrokenSuiteError(Exception):
    """The tests fail without any mutation, or no test is found."""


def make_copy(project: Project, to: Path) -> Path:
    """Copy the project without its caches; return the path of the copy."""
    return Path(shutil.copytree(project.root, to, ignore=_LEFT_OUT))


def record(project: Project, copy: Path) -> CoverageMap:
    """Run all tests in a copy; return which tests run which lines. Raises BrokenSuiteError if a test fails twice."""
    data_file, config = copy / ".coverage", copy / ".coveragerc.mutation"
    sources = "\n  ".join(str(copy / package) for package in project.packages)
    config.write_text(f"[run]\ndata_file = {data_file}\nsource =\n  {sources}\n", encoding="utf-8")
    folders = dict.fromkeys(folder for folders in project.packages.values() for folder in folders)
    pytest = (sys.executable, "-m", "pytest", "-q", "--no-header", *project.recording_options)
    coverage_options = ("--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=")
    run = _run_clean((*pytest, *coverage_options, *folders), copy)
    if run.returncode == _TESTS_FAILED:
        # Only failed tests are repeated, because a test may time out on a busy machine and a whole run takes long.
        run = _run_clean((*pytest, "--last-failed", *folders), copy)
    if run.returncode != 0:
        raise BrokenSuiteError(f"the tests do not pass without a mutation:\n{run.stdout[-5000:]}{run.stderr[-2000:]}")
    return CoverageMap.of_data(data_file, copy)


def _run_clean(command: tuple[str, ...], copy: Path) -> subprocess.CompletedProcess[str]:
    environment = _environment(copy, writes_bytecode=True)
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def try_all(
    project: Project, mutations: Iterable[Mutation], tests: CoverageMap, copies: list[Path]
) -> Iterator[Result]:
    """Try mutations, one at a time in each copy; yield each result as soon as it is known."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def attempt(mutation: Mutation) -> Result:
        copy = free.get()
        try:
            return try_one(project, mutation, tests, copy)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(max_workers=len(copies)) as pool:
        futures = [pool.submit(attempt, mutation) for mutation in mutations]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def try_one(project: Project, mutation: Mutation, tests: CoverageMap, copy: Path) -> Result:
    started = time.monotonic()
    chosen = choose_tests(project, mutation, tests)
    file = copy / mutation.path
    original, stat = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(mutate(original, mutation), encoding="utf-8")
    try:
        fate = _fate(project, chosen, copy, project.last_resort_of(mutation.path))
    finally:
        file.write_text(original, encoding="utf-8")
        # The old modification time makes the compiled module of the original text valid again.
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return Result(mutation=mutation, fate=fate, seconds=time.monotonic() - started, tests=len(chosen))


def choose_tests(project: Project, mutation: Mutation, tests: CoverageMap) -> list[str]:
    """Return the tests that run a mutation's lines; all tests of file and package if only an import runs them."""
    chosen = tests.tests_of(mutation.path, mutation.line, mutation.end_line)
    if not tests.runs_on_import(mutation.path, mutation.line):
        return chosen
    return [*tests.tests_of_file(mutation.path), *project.packages[project.package_of(mutation.path)]]


def _fate(project: Project, tests: list[str], copy: Path, last_resort: tuple[str, ...]) -> Fate:
    deadline = time.monotonic() + project.timeout_seconds
    # Failing examples of an earlier mutation are deleted, because Hypothesis would try them first.
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    chosen = copy / ".mutation-tests"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    commands: list[tuple[str, ...]] = []
    if tests:
        timeout = f"--timeout={_TEST_TIMEOUT_SECONDS}"
        commands.append((*_PYTEST, "-x", "--tb=no", timeout, *project.pytest_options, f"@{chosen}"))
    if last_resort:
        commands.append(last_resort)
    for command in commands:
        code = _run(command, copy, seconds=deadline - time.monotonic())
        if code is None:
            return Fate.TIMED_OUT
        if code == _NOTHING_COLLECTED:
            raise BrokenSuiteError(f"no test was found in {tests[:3]}")
        if code != 0:
            return Fate.KILLED
    return Fate.SURVIVED


def _run(arguments: tuple[str, ...], copy: Path, *, seconds: float) -> int | None:
    """Run Python in a copy with the given arguments; return the exit code, None after the time-out."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=copy,
        env=_environment(copy, writes_bytecode=False),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Killing the process group also ends processes that the tests have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(copy: Path, *, writes_bytecode: bool) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    # PYTHONHASHSEED fixes the order of sets of strings. PYTHONPATH puts the copy before installed packages.
    environment |= {"PYTHONHASHSEED": "0", "PYTHONPATH": str(copy)}
    return environment if writes_bytecode else environment | {"PYTHONDONTWRITEBYTECODE": "1"}
