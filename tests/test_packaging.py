"""What is shipped: the wheel against the folders, its metadata, what importing it costs, and who may import whom."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import fase_gpu

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

LAYERS = (
    {"config", "results", "errors"},
    {"backends", "kernels"},
    {"distance", "mst", "density", "cluster", "entropy", "partitions", "structural", "batching", "inputs", "streaming"}
    | {"encode", "files"},
    {"executor", "triton_executor", "reference", "samples"},
    {"pipeline", "ops", "scorer"},
    {"offline", "evaluation", "llm", "probing", "distributed"},
    {"cli", "__main__"},
)
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}
ASSETS = {".html", ".css", ".js"}
HEAVY = {"transformers", "tokenizers", "triton", "pyarrow", "sklearn", "scipy", "matplotlib", "pandas", "ray", "cupy"}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building leaves nothing in it and sees nothing of an older build."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        known = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")(folder, names)
        return known | {name for name in names if Path(folder, name, "pyvenv.cfg").exists()}

    copy = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(ROOT, copy, ignore=left_out)
    return copy


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """The sdist, the wheel that is built from it, and what the build printed; without the network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    log = run(command, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel, log


@pytest.fixture(scope="session")
def metadata(built: tuple[Path, Path, str]) -> Message:
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="session")
def installed(built: tuple[Path, Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, installed into a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--target", str(target)]
    run([sys.executable, "-m", "pip", "install", *options, str(built[1])], cwd=target)
    return target


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """What the command prints; its error output is in the failure where it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "COV_"))}
    done = subprocess.run(
        command, cwd=cwd, env=clean | environment, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def sources(root: Path) -> set[str]:
    """Every module of the package as the wheel has to hold it: kernels/ is installed as fase_gpu/kernels."""
    own = {path.relative_to(root).as_posix() for path in (root / "fase_gpu").rglob("*.py")}
    return own | {f"fase_gpu/{path.relative_to(root).as_posix()}" for path in (root / "kernels").rglob("*.py")}


def test_the_wheel_holds_the_package_and_nothing_else(source: Path, built: tuple[Path, Path, str]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if not re.match(r"fase_gpu-[^/]+\.dist-info/", name)}
    package = source / "fase_gpu"
    assets = {f"fase_gpu/{path.relative_to(package)}" for path in package.rglob("*.*") if path.suffix in ASSETS}
    assert names == sources(source) | assets | {"fase_gpu/py.typed"}
    assert "fase_gpu/evaluation/report/page.html" in assets
    assert {"fase_gpu/__init__.py", "fase_gpu/kernels/__init__.py", "fase_gpu/encode/neural.py"} <= names


def test_every_folder_with_modules_is_a_package(source: Path) -> None:
    names = sources(source)
    assert {f"{name.rpartition('/')[0]}/__init__.py" for name in names} <= names


def test_the_sdist_holds_what_the_wheel_is_built_from(source: Path, built: tuple[Path, Path, str]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    folders = (source / "fase_gpu", source / "kernels")
    modules = {path.relative_to(source).as_posix() for folder in folders for path in folder.rglob("*.py")}
    assert modules | {"pyproject.toml", "setup.py", "LICENSE", "README.md", "fase_gpu/py.typed"} <= names


def test_the_tests_are_in_the_sdist_complete_or_not_at_all(source: Path, built: tuple[Path, Path, str]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    tests = {path.relative_to(source).as_posix() for path in (source / "tests").rglob("*") if path.is_file()}
    assert tests & names in (set(), tests)


def test_the_build_has_nothing_to_complain_of(built: tuple[Path, Path, str]) -> None:
    assert [line for line in built[2].splitlines() if re.search(r"warning|deprecat|cannot be found", line, re.I)] == []


def test_the_metadata_is_that_of_the_project(metadata: Message) -> None:
    assert metadata["Name"] == "fase-gpu"
    assert metadata["Version"] == fase_gpu.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    extras = PROJECT["optional-dependencies"]
    assert {"encode", "eval", "pandas", "dev"} <= set(extras)
    assert set(metadata.get_all("Provides-Extra", [])) == set(extras)
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.split(r"[^\w-]", line)[0] for line in core} == {"torch", "numpy", "triton", "pyarrow", "typer", "rich"}


def test_the_description_is_the_readme(source: Path, metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == (source / "README.md").read_text(encoding="utf-8").strip()


def test_every_extra_that_an_error_names_exists(source: Path) -> None:
    named = {
        node.args[1].value
        for path in (source / "fase_gpu").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "MissingExtraError"
        and isinstance(node.args[1], ast.Constant)
    }
    assert {"pandas", "encode", "eval"} <= named <= set(PROJECT["optional-dependencies"])


def test_the_command_runs_from_the_wheel(built: tuple[Path, Path, str], installed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        (entries,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert wheel.read(entries).decode().split() == ["[console_scripts]", "fase-gpu", "=", "fase_gpu.cli:main"]
    for command in ([str(installed / "bin" / "fase-gpu")], [sys.executable, "-m", "fase_gpu"]):
        assert "score" in run([*command, "--help"], tmp_path, PYTHONPATH=str(installed))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import fase_gpu", {"torch", "numpy", *HEAVY}),
        ("import fase_gpu; dir(fase_gpu); fase_gpu.InputError", {"torch", "numpy", *HEAVY}),
        ("import fase_gpu.cli", {"torch", *HEAVY}),
        ("import fase_gpu.files", {"torch", *HEAVY}),
        ("import fase_gpu; [getattr(fase_gpu, name) for name in fase_gpu.__all__]", HEAVY),
        ("import fase_gpu, torch; fase_gpu.score_embeddings(torch.ones(2, 3, 4))", HEAVY),
    ],
)
def test_an_import_from_the_wheel_costs_no_more_than_it_must(
    installed: Path, tmp_path: Path, statement: str, absent: set[str]
) -> None:
    script = f"import sys; {statement}; print(fase_gpu.__file__); print(*sys.modules)"
    lines = run([sys.executable, "-c", script], tmp_path, PYTHONPATH=str(installed)).splitlines()
    assert lines[0] == str(installed / "fase_gpu" / "__init__.py")
    assert {name for name in lines[1].split() if name in absent} == set()


def test_kernels_of_the_wheel_lie_in_the_package(installed: Path, tmp_path: Path) -> None:
    script = "import fase_gpu.kernels; print(fase_gpu.kernels.__file__)"
    found = run([sys.executable, "-c", script], tmp_path, PYTHONPATH=str(installed))
    assert found.strip() == str(installed / "fase_gpu" / "kernels" / "__init__.py")


def test_kernels_of_the_checkout_have_one_name() -> None:
    path = importlib.import_module("fase_gpu.kernels").__file__
    assert path is not None
    assert Path(path).resolve() == ROOT / "kernels" / "__init__.py"


@pytest.mark.parametrize("text", ["import kernels\n", "from kernels import cosine\n", "import kernels.cosine\n"])
@pytest.mark.parametrize("path", ["fase_gpu/cluster.py", "tests/test_mst.py", "benchmarks/run.py"])
def test_the_linter_bans_kernels_from_the_root(text: str, path: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", path, "-"]
    done = subprocess.run(command, cwd=ROOT, input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "TID251" in done.stdout


def test_the_public_names_resolve_and_are_listed() -> None:
    assert len(set(fase_gpu.__all__)) == len(fase_gpu.__all__)
    for name in fase_gpu.__all__:
        value = getattr(fase_gpu, name)
        assert value.__name__ == name
        assert value.__module__.startswith("fase_gpu.")
        assert value.__doc__
    assert set(dir(fase_gpu)) == {*fase_gpu.__all__, "__version__"}
    star: dict[str, Any] = {}
    exec("from fase_gpu import *", star)
    assert {name for name in star if not name.startswith("__")} == set(fase_gpu.__all__)
    with pytest.raises(AttributeError, match=r"^module 'fase_gpu' has no attribute 'score_embedding'$"):
        _ = fase_gpu.score_embedding


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse((ROOT / "fase_gpu" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    seen = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == sorted(fase_gpu.__all__)


def imports(tree: ast.Module, module: str, package: bool) -> Iterator[tuple[str, bool]]:
    """Full names of what a module imports, and whether it does so when it is itself imported."""
    late = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for inner in ast.walk(node)
    }
    here = module if package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), here)
            yield from ((f"{base}.{alias.name}", node not in late) for alias in node.names)


def wrongs(text: str, name: str) -> list[str]:
    """What a module at this place in the wheel imports against the rules of the layout."""
    module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    _, _, own = module.partition(".")
    own = own.partition(".")[0]
    found = []
    for target, early in imports(ast.parse(text), module, name.endswith("__init__.py")):
        top, _, rest = target.partition(".")
        part = rest.partition(".")[0]
        if own == "kernels":
            if top not in {"torch", "triton", *sys.stdlib_module_names} and (top, part) != ("fase_gpu", "kernels"):
                found.append(f"{name}: kernels import torch, triton and siblings, not {target}")
        elif top == "fase_gpu" and part != "__version__":
            if part not in LEVEL:
                found.append(f"{name}: imports {target}, which has no place in LAYERS")
            elif own and LEVEL.get(own, -1) < LEVEL[part]:
                found.append(f"{name}: imports {target}, which is above it")
            elif not own and early:
                found.append(f"{name}: the package itself imports {target} at once")
        elif top in HEAVY and early:
            found.append(f"{name}: imports {target} where it is imported, not where it is used")
    return found


@pytest.mark.parametrize("name", sorted(sources(ROOT)))
def test_no_module_imports_what_is_above_it(name: str) -> None:
    path = ROOT / (name.removeprefix("fase_gpu/") if name.startswith("fase_gpu/kernels/") else name)
    own = name.removeprefix("fase_gpu/").removesuffix(".py").partition("/")[0]
    assert own in {*LEVEL, "__init__"}, f"give {own} a place in LAYERS"
    assert wrongs(path.read_text(), name) == []


@pytest.mark.parametrize(
    ("text", "name", "wrong"),
    [
        ("from fase_gpu import executor", "fase_gpu/mst.py", True),
        ("def f():\n    from fase_gpu.pipeline import score_samples", "fase_gpu/encode/neural.py", True),
        ("from fase_gpu import score_samples", "fase_gpu/cli/score.py", True),
        ("from ..cli import main", "fase_gpu/files/scores.py", True),
        ("from fase_gpu.unheard_of import f", "fase_gpu/cli/score.py", True),
        ("from fase_gpu.pipeline import score_samples", "fase_gpu/__init__.py", True),
        ("import pyarrow.parquet as pq", "fase_gpu/files/scores.py", True),
        ("import numpy", "fase_gpu/kernels/cosine.py", True),
        ("from fase_gpu.distance import Tile", "fase_gpu/kernels/cosine.py", True),
        ("from ..results import Status", "fase_gpu/kernels/cosine.py", True),
        ("import triton.language as tl\nfrom . import boruvka\nimport math", "fase_gpu/kernels/cosine.py", False),
        ("from fase_gpu import __version__, errors", "fase_gpu/files/scores.py", False),
        ("def f():\n    import pyarrow", "fase_gpu/files/scores.py", False),
        ("if TYPE_CHECKING:\n    import pandas", "fase_gpu/results.py", False),
        ("from . import _reading\nfrom ..config import FaseConfig", "fase_gpu/encode/neural.py", False),
    ],
)
def test_the_import_rules_find_what_breaks_them(text: str, name: str, wrong: bool) -> None:
    assert bool(wrongs(text, name)) == wrong
