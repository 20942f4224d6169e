"""One form for programs that differ in how they say something more than in what they do.

Standard library only and no import of fase_gpu: the worker process of `_reading.py` loads this file as well.

Beside definitions, a main guard, printed examples, calls of what is defined, and asserts go. `x += 1` is `x = x + 1`;
what comes after a guard is its else, and what comes after a return is gone; two branches that return are one
conditional expression; a name that is set once and read once, by the next statement, is what it was given; a loop that
only collects or adds up is a comprehension; `list()` is `[]`. Each rule is here because scores of real samples predict
their tests better with it (docs/findings.md).

A rewritten program is compared, never run, and does the same in all but unusual cases: parts may be evaluated in
another order or raise other exceptions, a loop's variable may not outlive it, and what rebinds a name such as `sum` is
not seen.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

N = TypeVar("N", bound=ast.AST)

MAX_DEPTH: Final = 150
"""Levels of nesting, guards counted, that are rewritten; a deeper program stays as it was written."""


MAX_STEPS: Final = 100_000
"""Nodes that are looked at to put values in place, which in hostile programs would take quadratic time; what is not yet
in place then stays where it is. Real samples take some hundreds."""


class TooDeepError(Exception):
    """The program is nested deeper than MAX_DEPTH. What was rewritten until then cannot be undone: parse it again."""


def canonical(tree: ast.Module) -> None:
    """Rewrite the program in place. Raises TooDeepError."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {statement.name for statement in tree.body if isinstance(statement, definitions)}
    if defined:
        tree.body = [statement for statement in tree.body if not _only_for_show(statement, defined)]
    # Twice, as what one rule leaves is what another looks for; a third time finds next to nothing in real samples.
    for _ in range(2):
        _Rewriter().rewrite(tree, 0)


def _only_for_show(statement: ast.stmt, defined: set[str]) -> bool:
    """A statement that no caller of the definitions sees: a printed example, a call of one, an assert, a main guard."""
    if isinstance(statement, ast.Expr):
        call = statement.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return call.func.id == "print" or call.func.id in defined
        return isinstance(call, ast.Constant)
    if isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.test, ast.Compare):
        sides = [statement.test.left, *statement.test.comparators]
        names = {side.id for side in sides if isinstance(side, ast.Name)}
        texts = {side.value for side in sides if isinstance(side, ast.Constant)}
        return (names, texts) == ({"__name__"}, {"__main__"}) and isinstance(statement.test.ops[0], ast.Eq)
    return isinstance(statement, ast.Assert)


class _Names:
    """How often each name is read and set in a function, the functions in it included; nothing where there is none."""

    def __init__(self, function: ast.AST | None = None) -> None:
        self.read: Counter[str] = Counter()
        self.set: Counter[str] = Counter()
        # As ast.walk, in a third of its time.
        stack = [] if function is None else [function]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Name):
                (self.read if type(node.ctx) is ast.Load else self.set)[node.id] += 1
                continue
            if isinstance(node, ast.AugAssign):
                # What it sets it reads as well, and so it stands there twice when it is rewritten.
                self.read.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                # Others see it: as if it were read once more.
                self.read.update(2 * node.names)
                continue
            for field in node._fields:
                value = getattr(node, field, None)
                if type(value) is list:
                    stack.extend([child for child in value if isinstance(child, ast.AST)])
                elif isinstance(value, ast.AST) and type(value) not in _SIMPLE:
                    stack.append(value)


class _Rewriter:
    def __init__(self) -> None:
        self._scopes = [_Names()]
        self._steps = MAX_STEPS

    def rewrite(self, node: Any, depth: int) -> Any:
        """The node, or what stands for it, with everything below it rewritten."""
        if depth > MAX_DEPTH:
            raise TooDeepError
        kind = type(node)
        if kind in _LEAVES:
            return node
        scope = kind in _SCOPES
        if scope:
            # What a class sets are its attributes, which others read.
            self._scopes.append(_Names(None if kind is ast.ClassDef else node))
        for field in node._fields:
            value = getattr(node, field, None)
            if type(value) is list:
                children = [self.rewrite(child, depth + 1) if isinstance(child, ast.AST) else child for child in value]
                if children and isinstance(children[0], ast.stmt):
                    children = self._block(children, depth)
                setattr(node, field, children)
            elif isinstance(value, ast.AST):
                setattr(node, field, self.rewrite(value, depth + 1))
        if scope:
            self._scopes.pop()
        rule = _RULES.get(kind)
        return node if rule is None else rule(node)

    def _block(self, statements: list[ast.stmt], depth: int) -> list[ast.stmt]:
        """A block without what is never reached, guards nested, loops as comprehensions, single uses put in place."""
        if depth > MAX_DEPTH:
            raise TooDeepError
        done: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            kind = type(statement)
            if kind is ast.Pass and len(statements) > 1:
                continue
            if isinstance(statement, ast.If):
                rest = statements[i + 1 :]
                nested = bool(rest) and not statement.orelse and _leaves(statement.body)
                if nested:
                    statement.orelse = self._block(rest, depth + 1)
                done.append(_merged_branches(statement))
                if nested:
                    break
            elif isinstance(statement, ast.For) and done:
                comprehension = _as_comprehension(done[-1], statement)
                if comprehension is None:
                    done.append(statement)
                else:
                    done[-1] = comprehension
            else:
                done.append(statement)
            if _leaves(done[-1:]) and not any(map(_yields, statements[i + 1 :])):
                break
        return self._in_place(done) or [ast.Pass()]

    def _in_place(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Without names that are set once and read once, by the very next statement: their value stands there."""
        names = self._scopes[-1]
        i = 0
        while i < len(statements) - 1:
            statement = statements[i]
            if type(statement) is ast.Assign and len(statement.targets) == 1:
                target = statement.targets[0]
                if (
                    type(target) is ast.Name
                    and names.set[target.id] == names.read[target.id] == 1
                    and self._put(statements[i + 1], target.id, statement.value)
                ):
                    del statements[i]
                    i = max(i - 1, 0)
                    continue
            i += 1
        return statements

    def _put(self, statement: ast.stmt, name: str, value: ast.expr) -> bool:
        """Put the value where the statement's own expressions read the name; False where they do not."""
        field = {ast.If: "test", ast.For: "iter"}.get(type(statement), "value")
        expression = isinstance(getattr(statement, field, None), ast.expr)
        return expression and self._put_below(statement, (field,), name, value, 0)

    def _put_below(self, node: ast.AST, fields: tuple[str, ...], name: str, value: ast.expr, depth: int) -> bool:
        """The same for some fields of a node. Not where it would be evaluated at another time, or more than once."""
        self._steps -= 1
        if self._steps < 0 or depth > MAX_DEPTH:
            return False
        for field in fields:
            child = getattr(node, field, None)
            items = child if isinstance(child, list) else [child]
            for i, item in enumerate(items):
                if isinstance(item, ast.Name):
                    if item.id != name:
                        continue
                    if isinstance(child, list):
                        child[i] = value
                    else:
                        setattr(node, field, value)
                    if type(node) is ast.Call:
                        _called(node)  # it may now be given a comprehension, which has rules of its own
                    return True
                if isinstance(item, _COMPREHENSIONS):
                    # Of a comprehension, the first iterable is evaluated at once and once.
                    below: ast.AST = item.generators[0]
                    if self._put_below(below, ("iter",), name, value, depth + 1):
                        return True
                elif (
                    isinstance(item, ast.AST)
                    and not isinstance(item, ast.Lambda)
                    and self._put_below(item, item._fields, name, value, depth + 1)
                ):
                    return True
        return False


def _yields(statement: ast.stmt) -> bool:
    """Whether it makes its function a generator, even where it is never reached."""
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement))


def _leaves(block: list[ast.stmt]) -> bool:
    """Whether nothing after the block is reached by way of it."""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _merged_branches(statement: ast.If) -> ast.stmt:
    """Two branches that return, or set the same thing, as one statement with a conditional expression."""
    if len(statement.body) != 1 or len(statement.orelse) != 1:
        return statement
    yes, no = statement.body[0], statement.orelse[0]
    if isinstance(yes, ast.Return) and isinstance(no, ast.Return) and yes.value is not None and no.value is not None:
        return ast.Return(_conditional(ast.IfExp(statement.test, yes.value, no.value)))
    if (
        isinstance(yes, ast.Assign)
        and isinstance(no, ast.Assign)
        and len(yes.targets) == len(no.targets) == 1
        and ast.dump(yes.targets[0]) == ast.dump(no.targets[0])
    ):
        return ast.Assign(yes.targets, _conditional(ast.IfExp(statement.test, yes.value, no.value)))
    return statement


def _as_comprehension(before: ast.stmt, loop: ast.For) -> ast.Assign | None:
    """`r = []; for x in xs: r.append(e)` and the like in one assignment; None where it is another kind of loop."""
    if loop.orelse or not isinstance(before, ast.Assign) or len(before.targets) != 1:
        return None
    target = before.targets[0]
    if not isinstance(target, ast.Name):
        return None
    generators = [ast.comprehension(loop.target, loop.iter, [], 0)]
    body = loop.body
    while len(body) == 1 and isinstance(body[0], (ast.If, ast.For)) and not body[0].orelse:
        inner = body[0]
        if isinstance(inner, ast.If):
            generators[-1].ifs.append(inner.test)
        else:
            generators.append(ast.comprehension(inner.target, inner.iter, [], 0))
        body = inner.body
    value = _collected(body[0], target.id, before.value, generators) if len(body) == 1 else None
    if value is None or any(isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(value)):
        return None
    return ast.Assign(before.targets, value)


def _collected(step: ast.stmt, name: str, start: ast.expr, generators: list[ast.comprehension]) -> ast.expr | None:
    """What a loop with this single step makes of `name`, which starts as `start`."""
    if _yields(step):
        return None
    if isinstance(step, ast.Expr) and isinstance(step.value, ast.Call):
        call = step.value
        method = call.func
        if not (isinstance(method, ast.Attribute) and _is_name(method.value, name) and len(call.args) == 1):
            return None
        if call.keywords or isinstance(call.args[0], ast.Starred):
            return None
        if method.attr == "append" and isinstance(start, ast.List) and not start.elts:
            return ast.ListComp(call.args[0], generators)
        if method.attr == "add" and isinstance(start, ast.Call) and _is_name(start.func, "set") and not start.args:
            return ast.SetComp(call.args[0], generators)
        return None
    if (
        isinstance(step, ast.Assign)
        and _is_name(step.targets[0], name)
        and isinstance(step.value, ast.BinOp)
        and isinstance(step.value.op, ast.Add)
        and _is_name(step.value.left, name)
        and isinstance(start, ast.Constant)
    ):
        added = ast.GeneratorExp(step.value.right, generators)
        if type(start.value) is int and start.value == 0:
            return ast.Call(ast.Name("sum", ast.Load()), [added], [])
        if start.value == "":
            return ast.Call(ast.Attribute(ast.Constant(""), "join", ast.Load()), [added], [])
    return None


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _augmented(node: ast.AugAssign) -> ast.Assign:
    read = copy.deepcopy(node.target)
    read.ctx = ast.Load()
    return ast.Assign([node.target], ast.BinOp(read, node.op, node.value))


def _negated(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ast.Compare(node.left, [_OPPOSITE[type(node.ops[0])]()], node.comparators)
    return ast.UnaryOp(ast.Not(), node)


def _conditional(node: ast.IfExp) -> ast.expr:
    """Without `True if c else False`, where the condition is true or false and nothing else."""
    if not _is_truth(node.test):
        return node
    values = [branch.value if isinstance(branch, ast.Constant) else None for branch in (node.body, node.orelse)]
    if values[0] is True and values[1] is False:
        return node.test
    return _negated(node.test) if values[0] is False and values[1] is True else node


def _is_truth(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_is_truth, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _called(node: ast.Call) -> ast.expr:
    function, args = node.func, node.args
    if node.keywords:
        return node
    if isinstance(function, ast.Attribute):
        if function.attr == "join" and len(args) == 1 and isinstance(args[0], ast.ListComp):
            args[0] = ast.GeneratorExp(args[0].elt, args[0].generators)
        return node
    if not isinstance(function, ast.Name):
        return node
    name = function.id
    if not args:
        return _EMPTY[name]() if name in _EMPTY else node
    first = args[0]
    if name == "range":
        if len(args) == 2 and isinstance(first, ast.Constant) and first.value == 0:
            del args[0]
    elif len(args) == 1 and isinstance(first, (ast.ListComp, ast.GeneratorExp)):
        if name == "set":
            return ast.SetComp(first.elt, first.generators)
        if name == "list":
            return ast.ListComp(first.elt, first.generators)
        if name in _CONSUMERS:
            args[0] = ast.GeneratorExp(first.elt, first.generators)
    return node


_SIMPLE: Final = frozenset(
    (
        ast.Load,
        ast.Store,
        ast.Del,
        ast.Constant,
        *ast.operator.__subclasses__(),
        *ast.cmpop.__subclasses__(),
        *ast.unaryop.__subclasses__(),
        *ast.boolop.__subclasses__(),
    )
)
_LEAVES: Final = _SIMPLE | {ast.Name}
_SCOPES: Final = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_EMPTY: Final[dict[str, Callable[[], ast.expr]]] = {
    "list": lambda: ast.List([], ast.Load()),
    "dict": lambda: ast.Dict([], []),
    "tuple": lambda: ast.Tuple([], ast.Load()),
    "str": lambda: ast.Constant(""),
}
_CONSUMERS: Final = frozenset(("sum", "any", "all", "max", "min", "sorted", "tuple"))
_RULES: Final[dict[type[ast.AST], Callable[[Any], ast.AST]]] = {
    ast.AugAssign: _augmented,
    ast.IfExp: _conditional,
    ast.Call: _called,
}
