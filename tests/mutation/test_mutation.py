"""Tests of the mutations of code, of code that is not mutated, and of the outcomes in a toy project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.__main__ import draw
from tests.mutation.coverage_map import CoverageMap
from tests.mutation.operators import Mutation, find_mutations, mutate
from tests.mutation.trying import Fate, Project, make_copy, record, try_all

# The longest test runs pytest several times.
pytestmark = pytest.mark.timeout(300)

_ROOT = Path(__file__).resolve().parents[2]


def mutants(source: str) -> list[str]:
    return [mutate(source, mutation) for mutation in find_mutations(source, "module.py")]


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param("x = a < b\n", ["x = (a <= b)\n"], id="an order moves its bound"),
        pytest.param("x = a is b\n", ["x = (a is not b)\n"], id="an identity is turned round"),
        pytest.param("x = a == b != c\n", ["x = (a != b != c)\n", "x = (a == b == c)\n"], id="each part of a chain"),
        pytest.param("x = a and b\n", ["x = (a or b)\n"], id="and becomes or"),
        pytest.param("x = not a\n", ["x = (a)\n"], id="not goes"),
        pytest.param("if a:\n    f = g\n", ["if (not (a)):\n    f = g\n"], id="a condition is negated"),
        pytest.param("if a == b:\n    f = g\n", ["if (a != b):\n    f = g\n"], id="an equality is negated once"),
        pytest.param("x = [a for a in b if a]\n", ["x = [a for a in b if (not (a))]\n"], id="a filter is negated"),
        pytest.param("x = a + b\n", ["x = (a - b)\n"], id="a sum becomes a difference"),
        pytest.param("x += b\n", ["pass\n", "x -= b\n"], id="an increment goes, or becomes a decrement"),
        pytest.param("x = 7\n", ["x = 6\n", "x = 8\n"], id="a count is one off both ways"),
        pytest.param("x = 1.5\n", ["x = 3.0\n"], id="a time is doubled"),
        pytest.param("x = True\n", ["x = False\n"], id="a truth is turned round"),
        pytest.param("x = min(a, b)\n", ["x = max(a, b)\n"], id="the least becomes the greatest"),
        pytest.param("f(a)\n", ["pass\n"], id="a call whose result nobody takes goes"),
        pytest.param("a.b = c\n", ["pass\n"], id="what is stored in an object is not"),
        pytest.param("raise E\n", ["pass\n"], id="nothing is raised"),
        pytest.param("def f():\n    return a\n", ["def f():\n    return None\n"], id="nothing is returned"),
        pytest.param("for a in b:\n    break\n", ["for a in b:\n    continue\n"], id="break becomes continue"),
        pytest.param('x = "ä", a < b\n', ['x = "ä", (a <= b)\n'], id="columns count bytes"),
        pytest.param("x = (a\n     < b)\n", ["x = ((a <= b))\n"], id="an expression of two lines"),
    ],
)
def test_each_kind_of_code_is_mutated(source: str, want: list[str]) -> None:
    assert sorted(mutants(source)) == sorted(want)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('"""A docstring."""\n', id="a docstring"),
        pytest.param('x = "text"\n', id="a string"),
        pytest.param('x = f"{1 + 2}"\n', id="what a message says"),
        pytest.param('_log.info("x", seconds=1 + 2)\n', id="what goes into the log"),
        pytest.param("__all__ = [1]\n", id="the exported names"),
        pytest.param("x: Literal[1] | None\n", id="an annotation"),
        pytest.param("def f(x: Literal[1]) -> Literal[2]: ...\n", id="annotations of a function"),
        pytest.param("@dataclass(frozen=True)\nclass C: ...\n", id="a decorator"),
        pytest.param("def f():\n    return None\n", id="None that is returned"),
        pytest.param("def f():\n    return ()\n", id="nothing that is returned"),
        pytest.param("import a\nassert a < b\n", id="imports and assertions"),
        pytest.param("if TYPE_CHECKING:\n    x = 1\n", id="what only the type checker sees"),
    ],
)
def test_code_that_tests_need_not_check_is_not_mutated(source: str) -> None:
    assert mutants(source) == []


_TOY = {
    "shop/__init__.py": "",
    "shop/prices.py": (
        "LIMIT = 3\n\n\n"
        "def price(count):\n    return count * 2\n\n\n"
        "def allowed(count):\n    return count < LIMIT\n\n\n"
        "def wait(left):\n    while left > 0:\n        left = left - 1\n    return True\n\n\n"
        "def unused(count):\n    return count + 1\n"
    ),
    "checks/test_prices.py": (
        "from shop import prices\n\n\n"
        "def test_price():\n    assert prices.price(3) == 6\n\n\n"
        "def test_allowed():\n    assert prices.allowed(1)\n    assert not prices.allowed(9)\n\n\n"
        "def test_wait():\n    assert prices.wait(2)\n"
    ),
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("toy") / "project"
    for name, text in _TOY.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return Project(root=root, packages={"shop": ("checks",)})


@pytest.fixture(scope="module")
def recorded(toy: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CoverageMap]:
    copy = make_copy(toy, tmp_path_factory.mktemp("scratch") / "copy")
    return copy, record(toy, copy)


def test_mutation_survives_only_if_no_test_detects_it(toy: Project, recorded: tuple[Path, CoverageMap]) -> None:
    copy, tests = recorded
    wanted = {"count * 2": (Fate.KILLED, 1), "count < LIMIT": (Fate.SURVIVED, 1), "count + 1": (Fate.SURVIVED, 0)}
    mutations = [mutation for mutation in toy.mutations() if mutation.old in wanted]
    results = {result.mutation.old: result for result in try_all(toy, mutations, tests, [copy])}
    assert {old: (result.fate, result.tests) for old, result in results.items()} == wanted
    assert (copy / "shop/prices.py").read_text(encoding="utf-8") == _TOY["shop/prices.py"]
    assert (toy.root / "shop/prices.py").read_text(encoding="utf-8") == _TOY["shop/prices.py"]


def a_mutation(path: str = "shop/prices.py", line: int = 5, old: str = "a < b") -> Mutation:
    return Mutation(
        path=path, line=line, column=0, end_line=line, end_column=5, operator="comparison", old=old, new="(a <= b)"
    )


def test_sample_is_balanced_over_packages_and_repeatable() -> None:
    """If a package has too few mutations, the sample has all of them, and more of the other packages."""
    project = Project(root=Path(), packages={"large": (), "small": (), "other": ()})
    mutations = [
        a_mutation(path=f"{package}/m.py", line=line)
        for package, count in (("large", 100), ("small", 4), ("other", 100))
        for line in range(count)
    ]
    drawn = draw(project, mutations, size=24, seed=1)
    counts = [sum(mutation.path.startswith(package) for mutation in drawn) for package in ("large", "small", "other")]
    assert (counts, len(set(drawn))) == ([10, 4, 10], 24)
    assert drawn == draw(project, mutations, size=24, seed=1) != draw(project, mutations, size=24, seed=2)
