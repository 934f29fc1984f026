"""Compilation for an H200 with no GPU at hand. The real compiler needs a process of its own,
because the interpreter is on in this one."""

import tempfile
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from compiling import by_compiler
from fusionplan.planner.codegen.source import Scalar
from fusionplan.planner.runtime.machine_code import compile as compiling
from fusionplan.planner.runtime.machine_code.compile import (
    CompileFailed,
    Target,
    code_key_of,
    compile_kernel,
    interpreted,
    jit_function,
)
from fusionplan.planner.runtime.machine_code.compile_ahead import side_by_side
from fusionplan.planner.runtime.machine_code.mending import Mark, mended
from fusionplan.planner.runtime.machine_code.residency import fewer_registers
from fusionplan.planner.runtime.machine_code.resources import KernelResources
from fusionplan.planner.runtime.machine_code.wgmma_waits import awaited
from triton import knobs
from triton.runtime.errors import PTXASError

READER = "fusionplan.planner.runtime.machine_code.resources"

HAZARD = """$L__BB0_1:
\tselp.b32 %r1, 0, %r8, %p3;
\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r90}, {%r1}, %rd1, %p1, 1, 1, 0;
\twgmma.commit_group.sync.aligned;
\twgmma.wait_group.sync.aligned 1;
\t@%p2 bra $L__BB0_1;
"""


HELPER = "@triton.jit\ndef helper(x):\n    return tl.load(x)\n\n"
WAIT = "    tl.extra.cuda.gdc_wait()\n"
EARLY = f"{HELPER}@triton.jit\ndef f(x):\n    a = tl.load(x)\n{WAIT}    b = tl.sum(a)\n"
LATE = f"{HELPER}@triton.jit\ndef f(x):\n{WAIT}    b = tl.sum(tl.load(x))\n"


@pytest.fixture(scope="module")
def found():
    return by_compiler(Path(__file__).with_name("real_compiler.py"))


@pytest.mark.process
def test_registers_and_spills_are_read_with_no_gpu(found):
    assert not found["interpreted"]
    assert 100 < found["rows"]["registers"] <= 255
    assert found["rows"]["spill_bytes"] == 0
    assert found["rows"]["shared_bytes"] > 0
    assert found["rows"]["cubin_bytes"] > 1000
    assert found["one_warp"]["spill_bytes"] > 1000


@pytest.mark.process
def test_kernels_are_compiled_side_by_side_and_found_when_they_are_loaded(found):
    assert found["ahead"] == [3, 0, [True, True]]


def test_a_thread_compiles_while_another_does():
    both = threading.Barrier(2)
    sources = [SimpleNamespace(name=str(i)) for i in range(2)]
    assert side_by_side(sources, lambda source: both.wait(10) >= 0 and source) == sources
    assert side_by_side(sources[:1], pytest.fail) == []


@pytest.mark.process
def test_the_compiler_does_not_give_up_registers_for_what_it_spills(found):
    (few, spilled), (registers, bytes_left) = found["given_up"]
    if few > 200:
        pytest.skip("this ptxas does not give up")
    assert registers == 255
    assert bytes_left < 0.7 * spilled


class Kernel(SimpleNamespace):
    """Unlike its base, one to which there may be weak references."""


def used(registers, spill_bytes):
    return KernelResources(registers, spill_bytes, 0, 0)


@pytest.mark.process
@pytest.mark.parametrize(
    "first, told, kept",
    [
        (used(32, 4000), used(255, 600), "told"),
        (used(32, 4000), used(255, 4000), "first"),  # It spills no less.
        (used(32, 4000), None, "first"),  # The compiler does not take it.
        (used(255, 4000), used(255, 600), "first"),  # All that a thread can have.
        (used(32, 64), used(255, 0), "first"),  # To keep an SM full.
        (None, used(255, 0), "first"),  # Nobody can read what it uses.
    ],
)
def test_a_kernel_is_compiled_again_where_that_spares_spills(
    kernel, monkeypatch, first, told, kept
):
    resources = {"first": first, "told": told}

    def built(source, wanted, aligned, registers=None):
        assert registers in (None, 255)
        name = "first" if registers is None else "told"
        if name == "told" and told is None:
            raise CompileFailed("no")
        return Kernel(name=name, asm={"ttgir": "", "ptx": ""}, metadata_group={})

    def read(source, made):
        if resources[made.name] is None:
            raise CompileFailed("cuobjdump does not run")
        return resources[made.name]

    monkeypatch.setattr(compiling, "interpreted", lambda: False)
    monkeypatch.setattr(compiling, "_built", built)
    monkeypatch.setattr(compiling, "_resources", read)
    monkeypatch.setattr(compiling, "_KEPT", OrderedDict())
    made = compile_kernel(replace(kernel("x", 128), grid=4096), Target())
    assert made.kernel.name == kept


@pytest.mark.process
def test_loads_that_operands_are_made_of_lie_in_shared_memory_ahead(found):
    """Those behind a sum, and those of a loop whose inner loop has one turn."""
    for used, judged in found["loaded_for_operands"]:
        assert used <= judged <= used + 1024


LOOP = "for r0 in tl.range(0, 49):"


@pytest.mark.parametrize(
    "changes, registers",
    [
        ({}, 255),
        ({"num_warps": 16}, 128),
        ({"grid": 4096}, None),  # Others run on the same SM.
        ({"scalars": (Scalar(64),)}, None),  # It may be more programs at other sizes.
        ({"text": "tl.load(x)"}, None),
        ({"text": f"{LOOP} tl.dot(a, b)"}, None),
    ],
)
def test_registers_are_told_where_no_other_program_needs_them(kernel, changes, registers):
    source = replace(kernel("x", 128), **{"grid": 64, "text": LOOP, **changes})
    assert compiling._allowed(source) == registers
    keys = [code_key_of(replace(source, grid=n), Target(), True) for n in (source.grid, 8192)]
    assert (keys[0] != keys[1]) == (registers is not None)


@pytest.mark.process
def test_the_compiler_is_told_at_its_first_run(kernel, monkeypatch):
    told = []

    def built(source, wanted, aligned, registers=None):
        told.append(registers)
        return Kernel(asm={"ttgir": "", "ptx": ""}, metadata_group={})

    monkeypatch.setattr(compiling, "interpreted", lambda: False)
    monkeypatch.setattr(compiling, "_built", built)
    monkeypatch.setattr(compiling, "_KEPT", OrderedDict())
    compile_kernel(replace(kernel("x", 128), grid=64, text=f"# told\n{LOOP}"), Target())
    assert told == [255]


@pytest.mark.process
@pytest.mark.parametrize("missing", ["tool", "folder"])
def test_no_kernel_needs_the_tool_that_reads_what_it_uses(monkeypatch, missing):
    if missing == "tool":
        monkeypatch.setattr(f"{READER}.cuobjdump", lambda: "/nowhere/cuobjdump")
    else:
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    made = SimpleNamespace(asm={"cubin": missing.encode()}, metadata=SimpleNamespace(shared=0))
    with pytest.raises(CompileFailed, match="cuobjdump does not run"):
        compiling._resources(SimpleNamespace(name="any"), made)
    source = SimpleNamespace(name="any", num_warps=4)
    assert compiling._told(source, made, Target(), True) == (made, None)


@pytest.mark.parametrize(
    "used, warps, shared, programs, told",
    [
        (72, 16, 0, 100, (64, 32)),
        (92, 8, 1024, 100, (80, 32)),
        (60, 8, 0, 100, None),  # 32 warps in four programs are enough
        (64, 16, 0, 100, (40, 0)),  # not in two that each wait for all of their threads,
        (42, 32, 0, 100, (32, 0)),  # and not in one
        (32, 32, 0, 100, None),  # no more warps have room
        (72, 16, 0, 1, None),  # no other program is there
        (72, 16, 120 << 10, 100, None),  # or it has no room in shared memory
        (128, 16, 0, 100, None),  # half of the registers are too few
    ],
)
def test_one_program_more_lies_on_an_sm(used, warps, shared, programs, told):
    assert fewer_registers(used, warps, shared, programs) == told


@pytest.mark.process
@pytest.mark.parametrize(
    "spilled, text, kept",
    [
        (32, "tl.sum(", 1),
        (40, "tl.sum(", 0),
        (0, "", 0),
        (0, EARLY, 0),
        (0, LATE, 1),
    ],
)
def test_a_kernel_of_fewer_registers_is_kept_where_it_spills_little(
    kernel, monkeypatch, spilled, text, kept
):
    """And reduces rows: of others none was timed. One that loads before it waits for the kernel
    before keeps what it has loaded."""

    def built(source, wanted, aligned, registers=None):
        return Kernel(asm={"ttgir": "", "ptx": str(registers)}, metadata_group={})

    def used(source, kernel):
        told = kernel.asm["ptx"] == "80"
        return KernelResources(80 if told else 92, spilled * told, 0, 0)

    monkeypatch.setattr(compiling, "interpreted", lambda: False)
    monkeypatch.setattr(compiling, "_built", built)
    monkeypatch.setattr(compiling, "_resources", used)
    monkeypatch.setattr(compiling, "_KEPT", OrderedDict())
    source = replace(kernel("x", 256), grid=5000, text=f"# {spilled}\n{text}")
    found = compile_kernel(source, Target()).kernel
    assert found.asm["ptx"] == ("80" if kept else "None")


@pytest.mark.process
def test_a_filters_rows_as_turns_of_a_loop_leave_registers(found):
    """A copy of the weights, and the taps; written out they took 239."""
    copy, taps = found["filter_rows"]
    assert copy[0] <= 64
    assert taps[0] <= 168
    assert copy[1] == taps[1] == 0


@pytest.mark.process
def test_only_aligned_pointers_get_wide_loads(found):
    assert found["rows"]["vector"]
    assert not found["unaligned"]["vector"]


@pytest.mark.process
def test_failures_say_what_is_wrong(found):
    assert "power of 2" in found["not_a_power_of_2"]
    assert "rsqrt is not defined" in found["unknown_name"]
    assert "rsqrt is not defined" in found["inner_name"]
    assert "x * root(total + 1e-6)" in found["inner_name"]
    assert "no module" in found["no_module"]
    assert "columns" in found["other_name"]
    assert "takes 2 arguments" in found["buffers"]
    assert "complex64" in found["dtype"]


@pytest.mark.process
def test_a_tile_that_the_pipeline_would_write_over_is_found(found):
    """Triton's fault, not the text's: without a GPU nothing else shows it."""
    assert "compiled it incorrectly: 2 buffers" in found["spoilt"]
    assert "3 buffers" in found["spoilt_deep"]
    assert found["sound"] == [""] * 4


@pytest.mark.process
def test_an_operand_that_is_stored_too_has_a_tile_of_its_own(found):
    for reason, loads, beyond in found["operand_stored"]:
        assert reason == ""
        assert loads == 3
        assert 0 <= beyond <= 1024  # of shared memory, barriers


@pytest.mark.process
def test_shared_memory_of_what_a_loop_stores_lies_beside_its_operands(found):
    for used, judged in found["stored_within"]:
        assert judged <= used <= judged + 1024  # barriers


@pytest.mark.process
def test_sums_by_ones_are_of_groups_of_warps_as_their_product_is(found):
    assert [reason for reason, _ in found["summed_beside"]] == [""] * 8
    assert [ones for _, ones in found["summed_beside"]] == [2, 2, 1, 1, 1, 1, 2, 2]


@pytest.mark.process
def test_a_sum_of_products_is_no_product_of_matrices_in_tf32(found):
    """Triton takes some for one, whichever axis they are summed along."""
    *ours, turned = found["sums_of_products"]
    assert ours == ["", ""]
    assert "it computes a sum of products of float32 in TF32" in turned


@pytest.mark.process
def test_no_product_is_under_way_when_its_left_operand_is_computed_again(found):
    assert found["left_computed"] == [[4, "0x0"], [4, "0x0"]]


@pytest.mark.process
def test_a_left_operand_that_turns_share_stays_what_it_was(found):
    """ptxas gives its registers to another product of the loop, where there are too few."""
    assert found["kept_left_operand"] == [[True, True], [False, False]]


@pytest.mark.process
def test_functions_keep_the_least_numbers_unless_only_sums_see_them(found):
    *kept, _, _, _, flushed = found["flushing"]
    assert kept == [[]] * 8
    assert flushed == ["ex2.approx.ftz"]


@pytest.mark.process
def test_two_numbers_are_rounded_by_one_instruction(found) -> None:
    """One alone is rounded an eighth as fast."""
    conversions, elements = found["rounded"]
    assert conversions == ["F2FP.BF16.F32.PACK_AB"] * (elements // 2)


def test_other_threads_compile_as_ever_meanwhile(monkeypatch):
    """Triton has one hook for all."""
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *_: ("theirs", "1"))
    with mended(Mark.WAITS, awaited), ThreadPoolExecutor(1) as other:
        hook = knobs.runtime.add_stages_inspection_hook
        assert other.submit(hook).result() == ("theirs", "1")
        ours = hook()[0]
        stages, own = {"ptx": lambda *_: HAZARD}, {"ptx": lambda *_: HAZARD}
        other.submit(hook, None, stages).result()
        hook(None, own)
    assert ours.startswith("theirs")
    assert ours != "theirs"
    assert stages["ptx"](None, None) == HAZARD
    assert own["ptx"](None, None) == awaited(HAZARD) != HAZARD
    assert knobs.runtime.add_stages_inspection_hook() == ("theirs", "1")


@pytest.mark.process
def test_launches_on_a_gpu(found):
    if found["gpu"] is None:
        pytest.skip("no GPU")
    assert found["gpu"] == [True] * 4


@pytest.mark.process
def test_loads_are_begun_ahead_only_where_the_loop_says_so(found):
    assert found["begins_ahead"] == [False, True]


@pytest.mark.process
def test_a_weight_is_prefetched_before_the_wait(found):
    assert found["fetches"] == ["prefetch.global.L2", "griddepcontrol.wait", "cp.async.cg"]


@pytest.mark.process
def test_a_later_kernel_is_launched_before_the_last_has_ended(found):
    hopper, ampere = found["meets"]
    words = ["launch_dependents", "wait"]
    assert hopper == [[words, False], [words, True]]
    assert ampere == [[[], False], [[], False]]


@pytest.mark.process
@pytest.mark.skipif(not interpreted(), reason="kernels are compiled, for a GPU")
def test_nothing_compiles_in_the_interpreter(kernel):
    with pytest.raises(CompileFailed, match="TRITON_INTERPRET"):
        compile_kernel(kernel("x", 128))


def test_kernels_that_differ_in_comments_are_one(kernel):
    source = kernel("x * 2", 1000)
    text = source.text.replace("\n    tl.store", "  # add_7\n    tl.store", 1)
    assert text != source.text
    assert jit_function(replace(source, text=text)) is jit_function(source)


# --- where machine code is kept -------------------------------------------------------------------


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Triton's compiler as far as its cache goes, with a cache in a folder that cannot be made."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def written(*arguments, **options):
        Path(knobs.cache.dir, "key").mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(asm={}, kept=knobs.cache.dir)

    monkeypatch.setattr(compiling, "ASTSource", lambda *arguments, **options: None)
    monkeypatch.setattr(compiling.triton, "compile", written)
    return tmp_path


def test_a_cache_that_cannot_be_written_is_replaced(kernel, cached):
    with pytest.warns(UserWarning, match="cannot be kept in .*TRITON_CACHE_DIR"):
        kept = Path(compiling._built(kernel("x", 128), Target(), True).kept)
    assert kept.parent == cached
    assert kept.stat().st_mode & 0o777 == 0o700
    again = compiling._built(kernel("x", 128), Target(), True)  # with no other warning
    assert again.kept == str(kept)


def test_a_folder_of_somebody_else_is_no_cache(kernel, cached):
    with pytest.warns(UserWarning, match="cannot be kept"):
        first = Path(compiling._built(kernel("x", 128), Target(), True).kept)
    first.chmod(0o777)
    knobs.cache.dir = str(cached / "file" / "cache")
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert Path(compiling._built(kernel("x", 128), Target(), True).kept) != first


@pytest.mark.parametrize(
    "error, said",
    [
        (OSError(28, "No space left on device"), "No space left on device.*TRITON_CACHE_DIR"),
        (MemoryError(), "out of memory"),
        (PTXASError("`ptxas` failed with error code -9"), "error code -9"),
    ],
)
@pytest.mark.filterwarnings("ignore:fusionplan")
def test_want_of_memory_or_disk_is_no_fault_of_the_kernel(kernel, cached, monkeypatch, error, said):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(compiling.triton, "compile", fail)
    with pytest.raises(CompileFailed, match=said) as caught:
        compiling._built(kernel("x", 128), Target(), True)
    assert caught.value.transient


def test_other_failures_are_the_kernels(kernel, cached, monkeypatch):
    def fail(*arguments, **options):
        raise PTXASError("`ptxas` failed with error code 1")

    monkeypatch.setattr(compiling.triton, "compile", fail)
    with pytest.raises(CompileFailed) as caught:
        compiling._built(kernel("x", 128), Target(), True)
    assert not caught.value.transient
