"""Mutants of dagad's modules: each is one small change of the source that a test should notice."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("_kernels", "_graphs", "_sources", "_executors", "_tracing", "_rules")
COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "*", ast.Pow: "*",
    ast.BitOr: "&", ast.BitAnd: "|", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
TEXT_ONLY = ("__repr__", "__str__", "_repr_html_", "__dir__")


class Mutant(NamedTuple):
    """One change: from a position in a file to another there is other text."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    operator: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.operator}"

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        first, last = lines[self.line - 1].encode(), lines[self.end_line - 1].encode()
        changed = first[: self.column] + self.text.encode() + last[self.end_column :]
        return "".join([*lines[: self.line - 1], changed.decode(), *lines[self.end_line :]])


class Maker(ast.NodeVisitor):
    """Walks a module, and makes all mutants of what computes something; not of types, texts, errors and docs."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.made: list[Mutant] = []

    def text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ""

    def change(self, node: ast.expr | ast.stmt, text: str, operator: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        where = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        self.made.append(Mutant(self.file, *where, text, operator))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in TEXT_ONLY:
            return
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.change(node, "pass", "call deleted")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.change(node, "return None", "None returned")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC:
            sign = ARITHMETIC[type(node.op)]
            self.change(node, f"{self.text(node.target)} {sign}= {self.text(node.value)}", "arithmetic")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.change(node.test, f"not ({self.text(node.test)})", "condition negated")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.change(node.test, f"not ({self.text(node.test)})", "condition negated")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self.change(node, f"({word.join(f'({self.text(value)})' for value in node.values)})", "and, or")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.change(node, f"({self.text(node.operand)})", "sign or not removed")
        self.visit(node.operand) if not isinstance(node.operand, ast.Constant) else None

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            sign = COMPARISONS[type(node.ops[0])]
            self.change(node, f"({self.text(node.left)} {sign} {self.text(node.comparators[0])})", "comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(isinstance(end, ast.JoinedStr) or self.is_word(end) for end in (node.left, node.right))
        if type(node.op) in ARITHMETIC and not is_text:
            sign = ARITHMETIC[type(node.op)]
            self.change(node, f"(({self.text(node.left)}) {sign} ({self.text(node.right)}))", "arithmetic")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.change(node, str(not node.value), "constant")
        elif isinstance(node.value, int | float):
            self.change(node, repr(node.value + 1), "constant")

    @staticmethod
    def is_word(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_code(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def mutants_of(root: Path) -> Iterator[Mutant]:
    for folder in FOLDERS:
        for path in sorted((root / "dagad" / folder).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            maker = Maker(str(path.relative_to(root)), source)
            maker.visit(ast.parse(source))
            yield from maker.made


def drawn(root: Path, n: int, seed: int) -> list[Mutant]:
    """Draw mutants at random, each as likely as any other."""
    found = list(mutants_of(root))
    random.Random(seed).shuffle(found)
    taken: list[Mutant] = []
    for mutant in found:
        if is_code(mutant.applied((root / mutant.file).read_text(encoding="utf-8"))):
            taken.append(mutant)
        if len(taken) == n:
            break
    return taken
