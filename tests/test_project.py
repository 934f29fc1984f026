"""The project's own shape: layers, entry points, packaging, and a name that collides with nothing.

Needs no GPU. The package must be importable as ``fusionplan``, as scripts/test sees to.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from fusionplan.db import Store

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_PACKAGES = ("tests", "examples", "scripts", "docs", "build", "dist")


def run_python(
    *arguments: str | Path, cwd: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter in ``cwd``; ``path`` comes first on its import path."""
    environment = dict(os.environ)
    if path is not None:
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), inherited]))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package in a folder of its import name, so that its parent is importable."""
    target = tmp_path / "copy" / "fusionplan"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", *NOT_PACKAGES)
    shutil.copytree(ROOT, target, ignore=ignored)
    return target


# Layers


def lint_imports(package: Path) -> subprocess.CompletedProcess[str]:
    call = "from importlinter.cli import lint_imports_command as lint; lint()"
    arguments = ("--no-cache", "--no-logo", "--config", package / "pyproject.toml")
    return run_python("-P", "-c", call, *arguments, cwd=package.parent, path=package.parent)


def test_imports_point_down(copy: Path) -> None:
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    "folder, line, contract",
    [
        ("planner", "from .. import db", "planner decides"),
        ("planner", "from ..tuner import planted", "Imports point down"),
        ("planner/graph", "from ..costs import planted", "Folders of the planner point down"),
        ("tuner/trial", "from ..search import planted", "Folders of the tuner point down"),
        ("db", "import torch.nn", "db holds plain records"),
        ("api", "import optuna", "Only tuner imports optuna"),
    ],
)
def test_an_import_that_points_up_is_caught(
    copy: Path, folder: str, line: str, contract: str
) -> None:
    for above in ("tuner", "tuner/search", "planner/costs"):
        (copy / above / "planted.py").touch()
    place = copy / folder / "planted.py" if (copy / folder).is_dir() else copy / f"{folder}.py"
    with place.open("a") as file:  # inside a function, where it would be easiest to hide
        file.write(f"\n\ndef planted():\n    {line}\n")
    result = lint_imports(copy)
    assert result.returncode != 0
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert any(row.startswith(contract) for row in broken), result.stdout + result.stderr


# Entry points


def test_entry_points_are_declared_as_in_pyproject() -> None:
    declared = {("console_scripts", *point) for point in PROJECT["project"]["scripts"].items()}
    for group, points in PROJECT["project"]["entry-points"].items():
        declared |= {(group, *point) for point in points.items()}
    installed = metadata.distribution("fusionplan").entry_points
    assert {(point.group, point.name, point.value) for point in installed} == declared


@pytest.mark.parametrize("group", ["console_scripts", "torch_dynamo_backends"])
def test_entry_points_resolve(group: str) -> None:
    (point,) = metadata.distribution("fusionplan").entry_points.select(group=group, name="planner")
    assert callable(point.load())


# Packaging


def test_every_package_is_listed() -> None:
    """Folder X is fusionplan.X: the list in pyproject.toml follows the tree."""
    folders = [
        init.parent.relative_to(ROOT)
        for init in ROOT.rglob("__init__.py")
        if not any(part.startswith(".") for part in init.relative_to(ROOT).parts)
        and init.relative_to(ROOT).parts[0] not in NOT_PACKAGES
    ]
    found = sorted(".".join(("fusionplan", *folder.parts)) for folder in folders)
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == found


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as build, sys; build.build_wheel(sys.argv[1])"
    result = run_python("-c", build, tmp_path, cwd=copy)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = tmp_path.glob("fusionplan-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fusionplan", f"fusionplan-{PROJECT['project']['version']}.dist-info"}
    assert {"fusionplan/py.typed", "fusionplan/db/migrations/env.py"} <= set(names)
    assert not [
        name for name in names if name.startswith(("fusionplan/tests", "fusionplan/pyproj"))
    ]


def test_imports_beside_modules_of_the_same_names(tmp_path: Path) -> None:
    """A user's db.py, tuner.py and planner.py stay theirs, and ours stay ours."""
    own = ("api", "backend", "cli", "db", "planner", "tuner", "tuning")
    for name in own:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    lines = ["from pathlib import Path"]
    for name in own:
        lines.append(f"import {name}, fusionplan.{name} as theirs_{name}")
        lines.append(f"assert {name}.MINE and not hasattr(theirs_{name}, 'MINE')")
        lines.append(f"print(Path(theirs_{name}.__file__).resolve())")
    (tmp_path / "model.py").write_text("\n".join(lines) + "\n")
    result = run_python("model.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    files = result.stdout.split()
    assert len(files) == len(own)
    assert all(Path(file).is_relative_to(ROOT) for file in files)


def test_the_root_is_imported_under_one_name() -> None:
    """pytest must not import the root, which has an __init__.py, as a package named after it."""
    init = ROOT / "__init__.py"
    names = [
        name
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and Path(file).resolve() == init
    ]
    assert set(names) <= {"fusionplan"}


def test_running_plans_imports_no_search_no_migrations_and_no_inductor(tmp_path: Path) -> None:
    """What a process that only loads plans would wait for; what it has to import is imported
    while the garbage collector waits."""
    script = """
import gc, sys, torch, fusionplan
collected = []
class Look:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch._dynamo", "torch._functorch.aot_autograd") and gc.isenabled():
            collected.append(name)
sys.meta_path.insert(0, Look())
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
with torch.no_grad():
    fast = fusionplan.load(model, store=sys.argv[1], baseline="eager")
    assert "fusionplan.planner.capture.aot_front" not in sys.modules
    fast(torch.randn(2, 4))
slow = ["optuna", "alembic", "fusionplan.bundles.contents", "networkx.classes"]
slow += [f"torch._inductor.{name}" for name in ("compile_fx", "pattern_matcher", "scheduler")]
print([name for name in slow if name in sys.modules], collected)
assert "torch._functorch.aot_autograd" in sys.modules
"""
    location = tmp_path / "plans.db"
    Store.open(location).close()  # made once, by alembic
    done = run_python("-W", "ignore", "-c", script, location, cwd=tmp_path)
    assert done.stdout.strip() == "[] []", done.stdout + done.stderr
