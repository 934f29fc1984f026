"""Machine code from one process to another: with the real compiler, up to the GPU's driver."""

import shutil
import sysconfig
from pathlib import Path

import pytest
import triton
from compiling import by_compiler
from fusionplan.planner.runtime.machine_code import host_code
from triton import knobs
from triton.runtime.build import compile_module_from_src

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("machine_code.py")

MODULE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "spoken", NULL, -1, methods};
PyMODINIT_FUNC PyInit_spoken(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(folder))
        file = folder / "model.plan"
        found = by_compiler(SCRIPT, "make", file)
    return folder, file, found


@pytest.fixture
def start(made, monkeypatch):
    folder, file, _ = made
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return lambda step: by_compiler(SCRIPT, step, file)


def test_a_new_process_compiles_nothing(made, start):
    before, found = made[2], start("start")
    assert before["kernels"] == 2  # for aligned buffers, and for others
    assert before["maker"]["triton"] == triton.__version__
    assert before["maker"]["ptxas"]
    assert (found["calls"], found["warned"], found["cached"]) == (0, [], [])
    assert found["told"] == before["told"]
    assert [k["capability"] for k in found["told"]] == [90, 90]
    assert found["told"][0]["cubin"] != found["told"][1]["cubin"]
    assert found["told"][0]["dependent"]
    name, cubin, _, device = found["launched"]["loaded"]
    assert (name, cubin, device) == (found["told"][0]["name"], found["told"][0]["cubin"], 0)
    # The grid, the function that the driver gave, its dependent launch, and the three buffers.
    assert found["launched"]["launch"].startswith("(32, 1, 1, 5, 77, False, True, None, None, ")
    assert found["launched"]["launch"].endswith("None, None, None, 16, 32, 48)")


def test_machine_code_of_another_version_is_not_used(start):
    found = start("other")
    assert found["calls"] == 1
    assert "the compiler was called" in found["error"]
    (warned,) = found["warned"]
    assert "its triton is" in warned
    assert "here it is 3.5.0" in warned
    assert "kernels are compiled" in warned


def test_settings_that_change_machine_code_are_told(made, monkeypatch, tmp_path):
    """Nor is what was compiled before found by them."""
    folder, file, _ = made
    by_compiler(SCRIPT, "first", tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("PTXAS_OPTIONS", "-O0")
    again, started = by_compiler(SCRIPT, "both", file, tmp_path)
    assert "the compiler was called" in again
    (warned,) = started["warned"]
    assert "its triton options is" in warned
    assert "(-O0)" in warned


def test_without_the_users_trust_nothing_is_used(made, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(AssertionError, match="not among the keys that you trust"):
        by_compiler(SCRIPT, "start", made[1])


def test_what_was_compiled_before_is_found_without_the_compiler(made, tmp_path):
    """Where it is not sound any more, the compiler is asked."""
    kernels = by_compiler(SCRIPT, "first", tmp_path)
    assert [k["cubin"] for k in kernels] == [k["cubin"] for k in made[2]["told"]]
    kept = list((tmp_path / "fusionplan").iterdir())
    assert len(kept) == 2
    assert by_compiler(SCRIPT, "again", tmp_path) == kernels
    # A loss of power leaves files without their ends, some of them without a beginning.
    cubins, told = (sorted(tmp_path.rglob(end)) for end in ("*.cubin", "fused*.json"))
    assert (len(cubins), len(told)) == (2, 2)
    cubins[0].write_bytes(cubins[0].read_bytes()[:-100])
    next(t for t in told if t.parent != cubins[0].parent).write_bytes(b"")
    assert by_compiler(SCRIPT, "first", tmp_path) == kernels
    for each in kept:
        each.write_text(each.read_text()[:-9])
    assert "the compiler was called" in by_compiler(SCRIPT, "again", tmp_path)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
def test_a_module_of_triton_is_built_once(tmp_path, monkeypatch):
    """What Triton has compiled for the host is put where it looks for it on another machine."""

    def module():
        return compile_module_from_src(MODULE, "spoken", [], [sysconfig.get_path("include")], [])

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "first"))
    with host_code.recorded() as found:
        assert module().answer() == 42
    with host_code.recorded() as again:  # from the cache
        module()
    assert found == again
    modules = host_code.taken(found)
    assert [m.name for m in modules] == [f"spoken{host_code.SUFFIX}"]
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "second"))
    host_code.put(modules)
    monkeypatch.setattr(knobs.build, "impl", lambda *_: pytest.fail("the compiler was called"))
    assert module().answer() == 42
