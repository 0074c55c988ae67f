"""The shape of the source: one name for one op, small files and functions, docstrings, portable code, no leftovers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NUMERICS = ROOT / "auditkit" / "numerics"
MAX_FILE = 400  # lines
MAX_FUNCTION = 60  # lines

# Modules of numerics/ that ops are built from; every other module is an op.
HELPERS = frozenset(
    {
        "__init__",
        "angle",
        "answers",
        "arrays",
        "elementwise",
        "known_answers",
        "operand_answers",
        "known_inputs",
        "lists",
        "nonfinite",
        "operands",
        "product",
        "reference",
        "self_test",
        "wide_answers",
    }
)

# Modules of kernels/ that launchers are built from; every other module launches the kernels of one op.
_KERNEL_HELPERS = """
ahead attention_chunks attention_pipe backend compile device driver elementwise events exact_dot_choice exact_dot_planes
faults found_cupy gather host_shelf memory operands page_locked product recording returned slab source tensor_table
transfers whole_blocks wide_check zero_pages
"""
KERNEL_HELPERS = frozenset(_KERNEL_HELPERS.split())

# Kernels that are no module of the specification: digests are formats, checksums this machine's own affair, operands
# belong to exact_dot there, and one module has both passes of attention.
NO_OPS = frozenset({"attention_backward", "attention_forward", "blake3", "checksum", "quantise"})

# Vectors about several ops: which inputs have no result.
SHARED_VECTORS = frozenset({"no_result"})

# Would differ between machines, or read a file in the locale's encoding.
WITHOUT_ENCODING = frozenset({"read_text", "write_text"})

# A library's functions have no defined rounding and its float sums no defined order: numerics/ spells them out.
FUNCTIONS = frozenset(
    "average convolve cos cosh cumprod cumsum dot einsum exp exp2 expm1 fsum hypot inner linalg log log10 log1p log2 "
    "mean nansum pow power sin sinh std sum tan tanh tensordot trace var vdot".split()
)
METHODS = frozenset({"cumsum", "mean", "std", "sum", "trace", "var"})


def python_files(*folders: str) -> list[Path]:
    """All Python files of some folders of the project."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def names(paths: list[Path]) -> list[str]:
    """Their names for pytest: relative, with forward slashes."""
    return [path.relative_to(ROOT).as_posix() for path in paths]


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def stems(folder: str, pattern: str, prefix: str = "") -> set[str]:
    """The names of the ops that a folder's files are about."""
    return {path.name.split(".")[0].removeprefix(prefix) for path in (ROOT / folder).glob(pattern)} - {"__init__"}


SOURCE = python_files("auditkit", "trainer")
ALL = python_files("auditkit", "trainer", "bench", "tests", "tools")
OPS = sorted(path.stem for path in NUMERICS.glob("*.py") if path.stem not in HELPERS)


def test_the_source_was_found() -> None:
    assert len(SOURCE) > 50
    assert {"exact_dot", "exact_sum", "rms_norm", "attention", "adamw"} <= set(OPS)


def test_every_op_has_tests_and_vectors_of_its_name() -> None:
    assert not set(OPS) - stems("tests/ops", "test_*.py", "test_")
    assert not set(OPS) - stems("tests/vectors", "*")


def test_every_test_and_vector_has_an_op_of_its_name() -> None:
    known = set(OPS) | HELPERS
    assert not stems("tests/ops", "test_*.py", "test_") - known
    assert not stems("tests/vectors", "*.json") - known - SHARED_VECTORS


def test_a_kernel_and_its_launcher_have_the_name_of_their_op() -> None:
    files, modules = stems("cuda", "*.cu"), stems("auditkit/kernels", "*.py") - KERNEL_HELPERS
    assert not files - modules
    # What only sm_90 can run lies beside the op's other kernels.
    kernels, launchers = ({name.removesuffix("_sm90") for name in names} for names in (files, modules))
    assert not kernels - set(OPS) - NO_OPS
    assert not launchers - set(OPS) - NO_OPS


@pytest.mark.parametrize("path", ALL, ids=names(ALL))
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_FILE


@pytest.mark.parametrize("path", ALL, ids=names(ALL))
def test_functions_are_short(path: Path) -> None:
    long = [f"{f.name}: {f.end_lineno - f.lineno + 1} lines" for f in functions(parsed(path)) if f.end_lineno]
    assert not [text for text in long if int(text.split(": ")[1].split()[0]) >= MAX_FUNCTION]


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public classes, functions and methods without a docstring; a protocol's method is described where it is made."""
    if not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))]
            yield from (f"{node.name}.{method.name}" for method in methods if needs_docstring(method))
            if not ast.get_docstring(node):
                yield node.name
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and needs_docstring(node):
            yield node.name


def needs_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is public, has a body and says nothing about itself."""
    body = node.body[0]
    is_declaration = isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and body.value.value is ...
    return not node.name.startswith("_") and not is_declaration and not ast.get_docstring(node)


@pytest.mark.parametrize("path", SOURCE, ids=names(SOURCE))
def test_everything_public_has_a_docstring(path: Path) -> None:
    if path.name == "__init__.py" and not path.read_text(encoding="utf-8").strip():
        return
    assert not list(undocumented(parsed(path)))


@pytest.mark.parametrize("path", SOURCE, ids=names(SOURCE))
def test_text_files_have_an_encoding(path: Path) -> None:
    calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    bad = [
        f"line {call.lineno}"
        for call in calls
        if opens_text(call) and not any(k.arg == "encoding" for k in call.keywords)
    ]
    assert not bad


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text: read_text, write_text, or open() in a mode without b."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in WITHOUT_ENCODING:
        return len(call.args) < 2
    if not isinstance(call.func, ast.Name) or name != "open":
        return False
    modes = [
        a.value
        for a in [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
        if isinstance(a, ast.Constant)
    ]
    return not any("b" in str(mode) for mode in modes)


ARITHMETIC = python_files("auditkit/numerics", "auditkit/model")


@pytest.mark.parametrize("path", ARITHMETIC, ids=names(ARITHMETIC))
def test_the_arithmetic_uses_no_library_sum_or_function(path: Path) -> None:
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    used = [func for func in calls if isinstance(func, ast.Attribute) and is_library_arithmetic(func)]
    assert not [f"line {func.lineno}: {ast.unparse(func)}" for func in used]


def is_library_arithmetic(node: ast.Attribute) -> bool:
    """Whether a called name is `np.exp`, `math.exp` and the like, or the method `.sum` and the like of an array."""
    if isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy", "math"):
        return node.attr in FUNCTIONS
    return node.attr in METHODS


@pytest.mark.parametrize("path", ARITHMETIC, ids=names(ARITHMETIC))
def test_a_reduction_names_its_accumulator(path: Path) -> None:
    """`np.add.reduce` is exact only over integers, or over integers held in binary64: the type must be visible."""
    calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    reductions = [c for c in calls if ast.unparse(c.func).endswith("add.reduce")]
    assert not [f"line {c.lineno}" for c in reductions if not any(k.arg == "dtype" for k in c.keywords)]


@pytest.mark.parametrize("path", ARITHMETIC, ids=names(ARITHMETIC))
def test_no_environment_variable_can_change_a_bit(path: Path) -> None:
    assert not re.findall(r"\bos\.(environ|getenv)\b", path.read_text(encoding="utf-8"))


TEXT = (".py", ".md", ".toml", ".sh", ".mjs", ".yml", ".cu", ".cuh")
FOLDERS = ("auditkit", "trainer", "bench", "tests", "tools", "docs", "cuda", ".github", ".ci")
WRITTEN = sorted(
    path
    for path in [*ROOT.glob("*"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
    if path.is_file() and (path.suffix in TEXT or path.name in ("Makefile", "run")) and path != Path(__file__)
)
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# An absolute path of somebody's own machine, but not the path of a URL.
PRIVATE_PATH = re.compile(r"(?<![\w.:/*-])/(home|root|tmp|work|Users)/\w")


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_no_leftovers_and_no_private_paths(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert not LEFTOVERS.search(line), f"line {number}: {line}"
        assert not PRIVATE_PATH.search(line), f"line {number}: {line}"
