"""How large the package is. The aim: 17,000 statements and a twentieth for each new capability."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "reweigh"
MOST_STATEMENTS, MOST_MODULES, MOST_COMPILED_LINES = 34_250, 213, 1_900
LINES_OF_A_MODULE, LINES_OF_A_FUNCTION = 450, 80
COMPILED = {"compiled", "inlined"}  # the decorators of kernels/common.py

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}


def functions() -> list[tuple[Path, ast.FunctionDef]]:
    return [
        (path, node)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]


def length(node: ast.FunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_statements() -> None:
    count = sum(isinstance(node, ast.stmt) for tree in TREES.values() for node in ast.walk(tree))
    assert count <= MOST_STATEMENTS


def test_modules() -> None:
    assert len(TREES) <= MOST_MODULES
    lines = {
        str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8").count("\n")
        for path in TREES
    }
    assert not {name: n for name, n in lines.items() if n > LINES_OF_A_MODULE}


def test_functions() -> None:
    long = {f"{p.relative_to(SOURCE)}:{f.name}": length(f) for p, f in functions()}
    assert not {name: n for name, n in long.items() if n > LINES_OF_A_FUNCTION}


def test_compiled_code() -> None:
    lines = sum(
        length(function)
        for _, function in functions()
        if COMPILED & {d.id for d in function.decorator_list if isinstance(d, ast.Name)}
    )
    assert lines <= MOST_COMPILED_LINES
