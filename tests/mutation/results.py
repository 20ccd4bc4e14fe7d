"""Stores the results of mutations in a file, so that an interrupted run can continue, and summarizes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.mutation.operators import Mutation
from tests.mutation.trying import Fate, Project, Result


class Results:
    """Results in a file of JSON lines; the first line has the fingerprint of the code and tests."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, fingerprint: str | None = None) -> list[Result]:
        """Return the results in the file; empty if their fingerprint differs from `fingerprint`."""
        if not self._path.exists():
            return []
        first, *lines = self._path.read_text(encoding="utf-8").splitlines()
        if fingerprint not in (None, json.loads(first)["fingerprint"]):
            return []
        return [_from_json(line) for line in lines]

    def begin(self, fingerprint: str) -> list[Result]:
        """Prepare the file for results with a fingerprint; return the results that the file already has."""
        known = self.read(fingerprint)
        if not known:
            self._path.write_text(json.dumps({"fingerprint": fingerprint}) + "\n", encoding="utf-8")
        return known

    def add(self, result: Result) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_to_json(result) + "\n")


def find_again(old: Iterable[Mutation], mutations: Sequence[Mutation]) -> Iterator[Mutation]:
    """For each old mutation, yield the nearest mutation of the current code with the same text, if there is any."""
    for mutation in old:
        alike = [new for new in mutations if _kind(new) == _kind(mutation)]
        if alike:
            yield min(alike, key=lambda new: abs(new.line - mutation.line))


def summary(project: Project, results: Sequence[Result]) -> list[str]:
    """Return lines with the killed share of each package and of all packages, and then with each survivor."""
    lines = [f"{'package':<28} {'tried':>6} {'killed':>7} {'share':>7}"]
    for name, some in (
        *(
            (package, [result for result in results if project.package_of(result.mutation.path) == package])
            for package in project.packages
        ),
        ("all", list(results)),
    ):
        if some:
            killed = sum(result.fate.is_killed for result in some)
            lines.append(f"{name:<28} {len(some):>6} {killed:>7} {100 * killed / len(some):>5.0f} %")
    survivors = sorted((result for result in results if not result.fate.is_killed), key=lambda result: result.mutation)
    if survivors:
        lines += ["", f"{len(survivors)} survived:"]
        lines += [f"  {survivor.mutation}{'' if survivor.tests else ' (no test runs it)'}" for survivor in survivors]
    return lines


def killed_percent(results: Sequence[Result]) -> float:
    return 100.0 * sum(result.fate.is_killed for result in results) / len(results) if results else 100.0


def _kind(mutation: Mutation) -> tuple[str, str, str, str]:
    return mutation.path, mutation.operator, mutation.old, mutation.new


def _to_json(result: Result) -> str:
    return json.dumps(
        {
            "mutation": dataclasses.asdict(result.mutation),
            "fate": result.fate.value,
            "seconds": round(result.seconds, 1),
            "tests": result.tests,
        }
    )


def _from_json(line: str) -> Result:
    read = json.loads(line)
    return Result(
        mutation=Mutation(**read["mutation"]), fate=Fate(read["fate"]), seconds=read["seconds"], tests=read["tests"]
    )
