"""Prove that commits change only comments and docstrings: python -m tests.support.same_code OLD [NEW] [--renames].

Compares the syntax trees of all Python files of two revisions, without docstrings. With --renames, names of functions
that start with `test_` may differ as well. Prints each file whose code differs, and then exits with 1.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of(source: str, *, renames: bool = False) -> str:
    """Return the code of a module without comments, docstrings, line breaks and, with `renames`, names of tests."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, _WITH_DOCSTRING):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        # A function whose docstring was its only statement is equal to one with `pass` or `...`.
        node.body = [line for line in node.body if not _is_empty(line)]
        if renames and isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            node.name = "test_"
    return ast.dump(tree)


def _is_empty(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value is ...
    return isinstance(statement, ast.Pass)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed(old: str, new: str, *, renames: bool = False) -> list[str]:
    """Return the paths of Python files whose code differs between two revisions; an empty `new` is the work tree."""
    names = _git("diff", "--name-only", "--no-renames", old, *([new] if new else []), "--", "*.py").splitlines()

    def code_at(revision: str, name: str) -> str | None:
        if not revision:
            return code_of((ROOT / name).read_text("utf-8"), renames=renames) if (ROOT / name).exists() else None
        if not _git("ls-tree", "--name-only", revision, "--", name):
            return None
        return code_of(_git("show", f"{revision}:{name}"), renames=renames)

    return [name for name in names if code_at(old, name) != code_at(new, name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="", help="the work tree if left out")
    parser.add_argument("--renames", action="store_true", help="allow other names of tests")
    options = parser.parse_args()
    names = changed(options.old, options.new, renames=options.renames)
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return bool(names)


if __name__ == "__main__":
    raise SystemExit(main())
