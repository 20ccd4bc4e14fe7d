"""Finds mutations of Python source: small changes, each of which a test should detect. Pure.

A mutation replaces a range of text, and all other lines stay the same. Code that tests need not check is not mutated,
such as docstrings, annotations, decorators, strings, log calls, assertions, and `__all__`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
#: Operators that _COMPARISONS replaces by their negation. A `not` before the comparison would be the same mutation.
_NEGATED_BY_SWAP = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGER = "_log"
#: Integers from this one on are doubled instead of changed by one, because they are usually amounts.
_COUNTED = 10


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mutation:
    """Replaces the text between two positions of a file; columns count bytes of UTF-8 from 0, lines from 1."""

    #: Path relative to the root of the project.
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    operator: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} [{self.operator}] {_brief(self.old)} -> {_brief(self.new)}"


def find_mutations(source: str, path: str) -> list[Mutation]:
    """Return all mutations of a module, in the order of the text. Raises SyntaxError if it is not Python."""
    found = {
        Mutation(
            path=path,
            line=node.lineno,
            column=node.col_offset,
            end_line=node.end_lineno or node.lineno,
            end_column=node.end_col_offset or node.col_offset,
            operator=operator,
            old=ast.unparse(node),
            new=new,
        )
        for node, operator, new in _mutate(ast.parse(source))
    }
    return sorted(found)


def mutate(source: str, mutation: Mutation) -> str:
    lines = source.encode().splitlines(keepends=True)
    first, last = mutation.line - 1, mutation.end_line - 1
    text = lines[first][: mutation.column] + mutation.new.encode() + lines[last][mutation.end_column :]
    return b"".join((*lines[:first], text, *lines[last + 1 :])).decode()


_Change = tuple["ast.expr | ast.stmt", str, str]


def _mutate(node: ast.AST) -> Iterator[_Change]:
    """Yield the possible changes of a node and its descendants, each as node, operator and new text."""
    if _is_left_alone(node):
        return
    match node:
        case ast.stmt():
            yield from _of_statement(node)
        case ast.expr():
            yield from _of_expression(node)
    for test in _tests(node):
        if not _is_negated_elsewhere(test):
            yield test, "negate", f"(not ({ast.unparse(test)}))"
    for child in _children(node):
        yield from _mutate(child)


def _of_statement(node: ast.stmt) -> Iterator[_Change]:
    match node:
        case ast.Break():
            yield node, "break-continue", "continue"
        case ast.Continue():
            yield node, "break-continue", "break"
        case ast.Return(value=None) | ast.Raise() | ast.Delete() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield node, "drop-statement", "pass"
        case ast.Assign(targets=targets) if any(isinstance(place, ast.Attribute | ast.Subscript) for place in targets):
            yield node, "drop-statement", "pass"
        case ast.Return(value=value) if value is not None and not _is_empty(value):
            yield node, "return-none", "return None"
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        new = ast.AugAssign(target=node.target, op=_ARITHMETIC[type(node.op)](), value=node.value)
        yield node, "arithmetic", ast.unparse(new)


def _of_expression(node: ast.expr) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for index, operator in enumerate(ops):
                swapped = [*ops[:index], _COMPARISONS[type(operator)](), *ops[index + 1 :]]
                new = ast.Compare(left=left, ops=swapped, comparators=comparators)
                yield node, "comparison", f"({ast.unparse(new)})"
        case ast.BoolOp(op=operator, values=values):
            other: ast.boolop = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield node, "and-or", f"({ast.unparse(ast.BoolOp(op=other, values=values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "drop-not", f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            if not (_is_text(left) or _is_text(right)):
                new_operation = ast.BinOp(left=left, op=_ARITHMETIC[type(operator)](), right=right)
                yield node, "arithmetic", f"({ast.unparse(new_operation)})"
        case ast.Constant(value=bool(value)):
            yield node, "constant", str(not value)
        case ast.Constant(value=int(value)) if value < _COUNTED:
            yield node, "constant", str(value + 1)
            if value > 0:
                yield node, "constant", str(value - 1)
        case ast.Constant(value=int(value) | float(value)):
            # Large numbers are often times: tests need not detect one second more, but should detect a doubled time.
            yield node, "constant", str(value * 2 or 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield node, "min-max" if name in ("min", "max") else "any-all", _renamed(node, _CALLS[name])


def _renamed(call: ast.Call, name: str) -> str:
    return ast.unparse(ast.Call(func=ast.Name(id=name), args=call.args, keywords=call.keywords))


def _tests(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.comprehension(ifs=tests):
            return tests
        case ast.match_case(guard=ast.expr() as guard):
            return [guard]
    return []


def _is_negated_elsewhere(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ops=[operator]):
            return isinstance(operator, _NEGATED_BY_SWAP)
        case ast.UnaryOp(op=ast.Not()) | ast.Constant():
            return True
    return False


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Assert() | ast.pattern():
            return True
        case ast.Expr(value=ast.Constant()) | ast.keyword(arg="strict"):
            return True
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id=name)))
            | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))))
        ):
            return name == _LOGGER
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node, without decorators, annotations and base classes."""
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _is_empty(value: ast.expr) -> bool:
    """Return whether a value is false: most callers treat it like None, so returning None would not be detected."""
    match value:
        case ast.Constant(value=constant):
            return not constant
        case ast.Tuple(elts=[]) | ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _brief(text: str, longest: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}..."
