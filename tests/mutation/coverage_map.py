"""Maps lines of code to the tests that run them, by one run under coverage with a context for each test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageMap:
    """Tests that run each line."""

    #: Tests by path and line; empty for a line that runs only when its module is imported.
    tests: Mapping[str, Mapping[int, frozenset[str]]]

    def tests_of(self, path: str, first_line: int, last_line: int) -> list[str]:
        """Return the tests that run any of the lines; tests that run the least code come first."""
        lines = self.tests.get(path, {})
        chosen = {test for line in range(first_line, last_line + 1) for test in lines.get(line, ())}
        return self._specific_first(chosen)

    def tests_of_file(self, path: str) -> list[str]:
        """Return the tests that run any function of a file, in the order of `tests_of`."""
        return self._specific_first({test for tests in self.tests.get(path, {}).values() for test in tests})

    def runs_on_import(self, path: str, line: int) -> bool:
        """Return whether a line runs when its module is imported, and in no test."""
        lines = self.tests.get(path, {})
        return line in lines and not lines[line]

    def _specific_first(self, tests: set[str]) -> list[str]:
        sizes: Counter[str] = Counter()
        for lines in self.tests.values():
            for line in lines.values():
                sizes.update(line & tests)
        return sorted(tests, key=lambda test: (sizes[test], test))

    def save(self, path: Path) -> None:
        tests = {
            file: {line: sorted(names) for line, names in sorted(lines.items())} for file, lines in self.tests.items()
        }
        path.write_text(json.dumps(tests), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> CoverageMap:
        read = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            tests={file: {int(line): frozenset(names) for line, names in lines.items()} for file, lines in read.items()}
        )

    @classmethod
    def of_data(cls, data_file: Path, root: Path) -> CoverageMap:
        """Return the map of a run with `--cov-context=test`, whose source is under `root`."""
        data = coverage.CoverageData(basename=str(data_file))
        data.read()
        tests = {}
        for file in sorted(data.measured_files()):
            lines = data.contexts_by_lineno(file)
            tests[Path(file).relative_to(root).as_posix()] = {
                # A context is the ID of a test and its phase, such as tests/test_x.py::test_y|run.
                line: frozenset(context.rpartition("|")[0] for context in contexts if context)
                for line, contexts in lines.items()
            }
        return cls(tests=tests)
