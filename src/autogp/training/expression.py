"""Kernels written as text, such as `rbf(age) * categorical(country) + linear + periodic(month, period=12)`."""

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

from autogp.kernels import Kernel, Product, Sum

__all__ = ["Term", "build", "terms_of"]

OPERATORS = {ast.Add: Sum, ast.Mult: Product}
STATIONARY = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
# Where training starts them; a variance is that of the function where targets are scaled to variance 1.
OPTIONS = {"periodic": ("period", "variance"), **dict.fromkeys(STATIONARY, ("lengthscale", "variance"))}


class Term(NamedTuple):
    """A kernel by its name, the columns it is of (none: all), and its options."""

    name: str
    columns: tuple[str, ...]
    options: dict[str, float]


def terms_of(text: str, names: Sequence[str]) -> list[Term]:
    """All kernels of an expression whose kernels are among `names`; what is wrong with it is one error.

    >>> terms_of("rbf(age) + periodic(month, period=12)", ["rbf", "periodic"])[1]
    Term(name='periodic', columns=('month',), options={'period': 12.0})
    """
    found: list[Term] = []

    def keep(term: Term) -> Kernel:
        found.append(term)
        return Kernel()

    build(text, names, keep)
    return found


def build(text: str, names: Sequence[str], make: Callable[[Term], Kernel]) -> Kernel:
    """The kernel of an expression, with `make` for each of its terms."""
    return _walk(_parsed(text), text, names, make)


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _error(text, "it cannot be read") from None


def _walk(node: ast.expr, text: str, names: Sequence[str], make: Callable[[Term], Kernel]) -> Kernel:
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            return OPERATORS[type(operator)](*(_walk(side, text, names, make) for side in (left, right)))
        case ast.Name(name):
            return make(_term(name, [], {}, text, names))
        case ast.Call(ast.Name(name), arguments, keywords):
            columns = [_column(each, text) for each in arguments]
            options = {str(each.arg): _number(each.value, text) for each in keywords}
            return make(_term(name, columns, options, text, names))
    raise _error(text, f"{ast.unparse(node)!r} is neither a kernel nor a sum or product of kernels")


def _term(name: str, columns: list[str], options: dict[str, float], text: str, names: Sequence[str]) -> Term:
    if name not in names:
        raise _error(text, f"there is no kernel {name!r}; those by name are {', '.join(names)}")
    for option in options:
        if option not in OPTIONS.get(name, ()):
            raise _error(text, f"{name} has no option {option!r}")
    return Term(name, tuple(columns), options)


def _column(node: ast.expr, text: str) -> str:
    match node:
        case ast.Name(name) | ast.Constant(str(name)):
            return name
    raise _error(text, f"{ast.unparse(node)!r} is no name of a column; a name with other characters stands in quotes")


def _number(node: ast.expr, text: str) -> float:
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
    raise _error(text, f"{ast.unparse(node)!r} is no positive number")


def _error(text: str, what: str) -> ValueError:
    return ValueError(f'kernel={text!r}: {what}. An example: kernel="rbf(age) * categorical(country) + linear"')
