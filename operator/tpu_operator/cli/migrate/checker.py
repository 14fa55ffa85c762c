"""Finds idioms of torch_xla in a program, by its syntax tree alone: nothing of it is imported or run."""

from __future__ import annotations

import ast
from collections import ChainMap
from typing import TYPE_CHECKING, Final

import msgspec

from tpu_operator.cli.migrate import idioms
from tpu_operator.cli.migrate.idioms import PACKAGE, Idiom, Kind
from tpu_operator.cli.migrate.source import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from tpu_operator.cli.migrate.source import Source

Names = ChainMap[str, str]
"""What names of a scope stand for, as far as that is of torch_xla."""
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef

GROUPS: Final = frozenset({"init_process_group", "new_group", "init_backend"})
"""Functions whose texts name backends of torch.distributed."""
STAR: Final = Idiom(
    f"{PACKAGE}.{idioms.ANYTHING}",
    note="names that come by `import *` cannot be followed: import the module, and check again",
)


class Finding(msgspec.Struct, frozen=True):
    """An idiom at a place.

    Attributes:
        file: the program.
        line: counted from 1 on; in the cell, in a notebook.
        column: counted from 1 on.
        found: what is written there.
        name: the same with its module written out.
        instead: what takes its place, as code; empty where nothing does.
        note: what else there is to know.
        gone: it goes without anything in its place.
        cell: of a notebook, counted from 1 on over cells of all kinds.
    """

    file: str
    line: int
    column: int
    found: str
    name: str
    instead: str = ""
    note: str = ""
    gone: bool = False
    cell: int | None = None


def check(source: Source) -> list[Finding]:
    """The idioms of a program, in the order in which they are written.

    Raises:
        UnreadableError: it is not Python.
    """
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # notebooks may await
    try:
        tree = compile(source.text, source.name, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UnreadableError(_wrong(source, error)) from error
    assert isinstance(tree, ast.Module)
    walk = _Walk(source)
    walk.visit(tree)
    return sorted(walk.found, key=lambda one: (one.cell or 0, one.line, one.column))


def _wrong(source: Source, error: SyntaxError | ValueError) -> str:
    if not isinstance(error, SyntaxError) or error.lineno is None:
        return f"it is not Python: {error}"
    cell, line = source.place(error.lineno)
    where = f"cell {cell}, line {line}" if cell else f"line {line}"
    return f"it is not Python: {error.msg} ({where})"


class _Walk(ast.NodeVisitor):
    """Goes through a program with what names stand for at each place of it."""

    def __init__(self, source: Source) -> None:
        self.found: list[Finding] = []
        self._source = source
        self._lines = source.text.splitlines()
        self._names: Names = ChainMap()
        self._torch = False
        self._kind = Kind.ARGUMENT

    def visit_Module(self, node: ast.Module) -> None:
        """Look at a program."""
        self._torch = any(
            name.partition(".")[0].startswith("torch") for each in ast.walk(node) for name in _modules(each)
        )
        self._inside(node)

    def _inside(self, node: Scope) -> None:
        """Look at what is in a scope, whose imports hold in all of it."""
        self._names = self._names.new_child(dict(_bound(node, self._names)))
        self.generic_visit(node)
        self._names = self._names.parents

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _inside  # noqa: N815

    def visit_Import(self, node: ast.Import) -> None:
        """Look at an import."""
        for alias in node.names:
            if _ours(alias.name):
                self._add(node, alias.name, idioms.imported(alias.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Look at an import of names."""
        module = node.module or ""
        if not node.level and _ours(module):
            star = any(alias.name == idioms.ANYTHING for alias in node.names)
            self._add(node, module, STAR if star else _imported(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Look at a name with dots, as a whole."""
        if not self._name(node):
            self._question(node)
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Look at a name without."""
        if not self._name(node):
            self._question(node)

    def _name(self, node: ast.Attribute | ast.Name) -> bool:
        """Whether a name is of torch_xla."""
        name = _resolve(node, self._names)
        if name is None:
            return False
        idiom = idioms.lookup(name)
        if idiom is not None and isinstance(node.ctx, ast.Load):
            self._add(node, name, idiom)
        return True

    def visit_Call(self, node: ast.Call) -> None:
        """Look at a call: what texts mean depends on the function."""
        before, self._kind = self._kind, Kind.BACKEND if _last(node.func) in GROUPS else Kind.ARGUMENT
        self.generic_visit(node)
        self._kind = before

    def visit_Constant(self, node: ast.Constant) -> None:
        """Look at a text."""
        text = node.value
        if not self._torch or not isinstance(text, str):
            return
        kinds = (self._kind, Kind.VARIABLE, Kind.ARGUMENT, Kind.BACKEND)
        found = [idiom for kind in kinds if (idiom := idioms.named(kind).get(text))]
        if found:
            self._add(node, text, found[0])

    def _question(self, node: ast.Attribute | ast.Name) -> None:
        name = _last(node)
        idiom = idioms.named(Kind.QUESTION).get(name)
        if idiom is not None and isinstance(node.ctx, ast.Load):
            self._add(node, name, idiom)

    def _add(self, node: ast.stmt | ast.expr, name: str, idiom: Idiom) -> None:
        cell, line = self._source.place(node.lineno)
        column = len(self._lines[node.lineno - 1].encode()[: node.col_offset].decode()) + 1
        written = " ".join(ast.unparse(node).split())
        self.found.append(
            Finding(
                self._source.name, line, column, written, name, idiom.instead, idiom.note, idiom.gone, cell
            )
        )


def _ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _imported(node: ast.ImportFrom) -> Idiom:
    """The idiom of `from MODULE import NAMES`: of a module that is imported by it, or of imports."""
    found = [idioms.imported(f"{node.module}.{alias.name}") for alias in node.names]
    plain = idioms.imported(node.module or "")
    return next((one for one in found if one.found != PACKAGE), plain)


def _modules(node: ast.AST) -> Iterator[str]:
    """Modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module or ""


def _bound(scope: Scope, outer: MutableMapping[str, str]) -> Iterator[tuple[str, str]]:
    """What names mean in a scope: imports, names given to them, and arguments, which hide others."""
    arguments = getattr(scope, "args", None)
    if isinstance(arguments, ast.arguments):
        yield from ((one.arg, "") for one in ast.walk(arguments) if isinstance(one, ast.arg))
    here: dict[str, str] = {}
    for node in _own(scope):
        for name, meaning in _binding(node, ChainMap(here, outer)):
            here[name] = meaning
            yield name, meaning


def _own(scope: Scope) -> Iterator[ast.AST]:
    """All nodes of a scope, in order, without those of scopes in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, Scope):
            waiting[:0] = ast.iter_child_nodes(node)


def _binding(node: ast.AST, known: MutableMapping[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _ours(alias.name):
                yield (alias.asname, alias.name) if alias.asname else (PACKAGE, PACKAGE)
    elif isinstance(node, ast.ImportFrom) and not node.level and _ours(node.module or ""):
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute | ast.Name):
        meaning = _resolve(node.value, ChainMap(dict(known)))
        if meaning is not None:
            yield from ((target.id, meaning) for target in node.targets if isinstance(target, ast.Name))


def _resolve(node: ast.expr, names: Names) -> str | None:
    """The name that is meant, with its module written out; None if it is not of torch_xla."""
    if isinstance(node, ast.Name):
        return names.get(node.id) or None
    if isinstance(node, ast.Attribute):
        base = _resolve(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None


def _last(node: ast.expr) -> str:
    """The last part of the name of a function."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
