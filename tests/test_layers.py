"""Imports go downwards. The order of the rooms stands here once; exceptions may only become fewer.

Imports inside functions and of types alone count too.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "reweigh"
# From bottom to top. Worlds, adapters, theory, paper and testing stand beside the road: nothing on
# it needs them, and they may use all of it.
ORDER = (
    "errors", "system", "kernels", "log", "policy", "sums", "estimate", "trust", "show",
    "evaluation", "decide", "worlds", "adapters", "theory", "paper", "testing", "cli",
)  # fmt: skip
# (module, room that it imports). Take a line out when its import is gone; add none.
EXCEPTIONS: set[tuple[str, str]] = set()


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, at any place."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return {name for name in found if name.startswith("reweigh.")}


def upward() -> set[tuple[str, str]]:
    """(module, room) of every import of a room above the module's own."""
    wrong = set()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts in (("__init__",), ("__main__",)):  # the public names are those of all rooms
            continue
        rooms = {name.split(".")[1] for name in imports(path)} & set(ORDER)
        level = ORDER.index(parts[0])
        wrong |= {("/".join(parts), room) for room in rooms if ORDER.index(room) > level}
    return wrong


def test_every_room_has_its_place() -> None:
    rooms = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(ORDER)


def test_imports_go_downwards() -> None:
    new = upward() - EXCEPTIONS
    assert not new, "\n".join(f"{module} imports {room}" for module, room in sorted(new))


def test_exceptions_that_are_gone_are_not_listed() -> None:
    assert not EXCEPTIONS - upward()
