"""Mutants of a source file, made by cosmic-ray's operators, and a seeded sample of them."""

from __future__ import annotations

import ast
import difflib
import random
from dataclasses import dataclass

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

_NEED_ARGUMENTS = ("core/VariableInserter", "core/VariableReplacer")


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    name: str
    line: int
    before: str
    after: str
    code: str


def places(source: str) -> list[tuple[str, int]]:
    """Every operator and occurrence that changes a file."""
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name in sorted(cosmic_ray.plugins.operator_names()):
        if name not in _NEED_ARGUMENTS:
            operator = cosmic_ray.plugins.get_operator(name)()
            count = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            found += [(name, occurrence) for occurrence in range(count)]
    return found


def sample(file: str, source: str, most: int, seed: int) -> list[Mutant]:
    """A random sample without replacement of the mutants that can matter, in the order of lines.

    Passed over are mutants that differ in annotations, docstrings, texts of errors or sizes of
    caches alone, and those that are no Python.
    """
    everything = places(source)
    meaning = _meaning(source)
    found: dict[str, Mutant] = {}
    for name, occurrence in random.Random(seed).sample(everything, len(everything)):
        if len(found) == most:
            break
        code = mutate_code(source, cosmic_ray.plugins.get_operator(name)(), occurrence)
        if code is not None and code not in found and _meaning(code) not in (meaning, None):
            short = f"{name.removeprefix('core/')}#{occurrence}"
            found[code] = Mutant(file, short, *_difference(source, code), code)
    return sorted(found.values(), key=lambda each: (each.line, each.name))


class _Bare(ast.NodeTransformer):
    """Removes what no result depends on."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc.args = [
                ast.Constant("") if isinstance(each, ast.JoinedStr) else each
                for each in node.exc.args
            ]
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg == "maxsize":
            node.value = ast.Constant(None)
        return self.generic_visit(node)


def _meaning(source: str) -> str | None:
    """What is left of a file; None where it is no Python, so that no test is needed."""
    try:
        return ast.dump(_Bare().visit(ast.parse(source)))
    except SyntaxError:
        return None


def _difference(source: str, code: str) -> tuple[int, str, str]:
    """The first line that differs, and both versions of what differs."""
    old, new = source.splitlines(), code.splitlines()
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    for tag, low, high, start, end in matcher.get_opcodes():
        if tag != "equal":
            return low + 1, _joined(old[low:high]), _joined(new[start:end])
    raise ValueError("the mutant does not differ")


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)
