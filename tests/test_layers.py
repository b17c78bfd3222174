"""A layer imports only from layers above it, and the mathematics knows nothing of files or the command line."""

import ast
import re
from pathlib import Path

import pytest

import autogp

# From the top: a module may import what stands before it, and its own package.
LAYERS = [
    "linalg",
    "distances",
    "parameters",
    "kernels",
    "likelihoods",
    "moments",
    "posteriors",
    "model",
    "objectives",
    "printing",
    "storage",
    "data",
    "features",
    "training",
    "datasets",
    "metrics",
    "persistence",
    "estimators",
    "report",
    "experiments",
    "demo",
    "cli",
    "__main__",
]
MATHEMATICS = LAYERS[: LAYERS.index("objectives") + 1]
ALLOWED_IN_MATHEMATICS = {"autogp", "torch", "numpy"} | {
    "abc",
    "collections",
    "copy",
    "dataclasses",
    "functools",
    "logging",
    "math",
    "numbers",
    "operator",
    "types",
    "typing",
}
ROOT = Path(autogp.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_layer_imports_only_from_layers_above_it(path: Path) -> None:
    if path == ROOT / "__init__.py":
        return  # the package's face may show any layer
    own = LAYERS.index(layer(path))
    reached = {name.split(".")[1] for name in imports(path) if name.startswith("autogp.")}
    below = {name for name in reached if name not in LAYERS[: own + 1]}
    assert not below, f"{path.relative_to(ROOT)} reaches down to {below}"


@pytest.mark.parametrize("name", MATHEMATICS)
def test_the_mathematics_imports_no_files_estimators_or_command_line(name: str) -> None:
    for path in MODULES:
        if layer(path) == name:
            roots = {module.split(".")[0] for module in imports(path)}
            assert roots <= ALLOWED_IN_MATHEMATICS, f"{path.relative_to(ROOT)} imports {roots - ALLOWED_IN_MATHEMATICS}"


def test_contributing_lists_the_layers_in_this_order() -> None:
    page = Path(__file__).parents[1] / "CONTRIBUTING.md"
    listed = re.findall(r"^    (\w+) {2,}\S", page.read_text().partition("## Adding a kernel")[0], flags=re.MULTILINE)
    assert listed == LAYERS
