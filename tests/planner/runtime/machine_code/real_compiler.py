"""Run by test_compile.py with the real compiler; prints what it found as JSON."""

import itertools
import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "planner"))

from corpus import graph_of
from fusionplan.planner.codegen.source import Buffer, KernelSource
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.costs.work import shared_bytes
from fusionplan.planner.lower import lower, schedule_of
from fusionplan.planner.runtime.machine_code.compile import (
    CompileFailed,
    Target,
    _built,
    _resources,
    compile_kernel,
    interpreted,
    kernel_of,
    resources,
)
from fusionplan.planner.runtime.machine_code.compile_ahead import missing, side_by_side
from fusionplan.planner.runtime.machine_code.kept_operands import (
    overwritten_operand,
    shared_by_turns,
)
from fusionplan.planner.runtime.machine_code.launch import Launcher
from fusionplan.planner.runtime.machine_code.resources import listing
from fusionplan.planner.space.space import space_of
from oracle import whole_group
from triton import knobs

TEXT = """
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, out_ptr):
    i = tl.program_id(0) * 16384 + tl.arange(0, 16384)
    x = tl.load(x_ptr + i)
    total = tl.sum(x * x, 0)
    tl.store(out_ptr + i, x * tl.rsqrt(total + 1e-6) + tl.max(x, 0) * tl.exp(x))
"""
INNER = """

@triton.jit
def root(x):
    return rsqrt(x)
"""
BUFFERS = (Buffer("in", 0, "float32"), Buffer("out", 0, "float32"))
ROWS = KernelSource("rows", TEXT, BUFFERS, 128, 4, 2)


def usage(source, **options):
    compiled = compile_kernel(source, Target(), **options)
    found = resources(compiled)
    vector = "ld.global.v4" in compiled.kernel.asm["ptx"]
    return {**{n: getattr(found, n) for n in found.__dataclass_fields__}, "vector": vector}


def ahead():
    """Kernels compiled side by side: how many were missing, before and after; and whether
    loading those finds just what came of it."""
    short = TEXT.replace("16384", "64")
    good = [replace(ROWS, text=short.replace("1e-6", f"{i}e-7")) for i in (3, 5)]
    bad = replace(ROWS, text=short.replace("tl.rsqrt", "rsqrt"))
    sources = [*good, bad, replace(good[0], grid=7 * ROWS.grid)]
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        before = len(missing(sources, Target()))
        made = side_by_side(sources[:3], lambda source: kernel_of(source, Target()))
        after = len(missing(sources, Target()))
    loaded = [compile_kernel(each, Target()).kernel for each in good]
    return before, after, [a is b for a, b in zip(made, loaded, strict=True)]


def given_up():
    """[told nothing, as compiled] of a kernel that keeps more than a thread has registers for."""
    text = TEXT.replace("16384", "8192").replace(
        "tl.store(", "y, z = tl.load(x_ptr + 2**24 + i), tl.load(x_ptr + 2**25 + i)\n    tl.store("
    )
    text = text.replace("tl.exp(x)", "y * tl.sum(y * z, 0) * z")
    source = replace(ROWS, text=text, num_warps=2, num_stages=1)
    told_nothing = _resources(source, _built(source, Target(), True))
    return [
        [r.registers, r.spill_bytes]
        for r in (told_nothing, resources(compile_kernel(source, Target())))
    ]


def failure(source):
    try:
        compile_kernel(source, Target())
    except CompileFailed as error:
        return str(error)
    return ""


def on_gpu():
    """Both variants, and another stream; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    launcher = Launcher(ROWS, device)
    memory = torch.randn(128 * 16384 + 1, device=device)
    good = []
    for x, launch in ((memory[:-1], launcher.aligned), (memory[1:], launcher.unaligned)):
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            out = torch.empty(128, 16384, device=device)
            rows = x.view(128, 16384)
            torch.cuda.synchronize()
            launch(stream.cuda_stream, x.data_ptr(), out.data_ptr())
            torch.cuda.synchronize()
            scale = torch.rsqrt((rows * rows).sum(1, keepdim=True) + 1e-6)
            want = rows * scale + rows.amax(1, keepdim=True) * rows.exp()
            good.append(bool(torch.allclose(out, want, rtol=1e-4, atol=1e-4)))
    return good


# A persistent kernel as the emitter writes one: few programs walk over many rows.
WALK = """
    for turn in tl.range(tl.program_id(0), 4096, 132, flatten=True{stages}):
        i = turn * 4096 + tl.arange(0, 4096)
        x = tl.load(x_ptr + i)
        tl.store(out_ptr + i, x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6))
"""


def begins_ahead(stages):
    """Whether the loads of a persistent kernel's next rows are begun while it works on one."""
    text = TEXT.split("    i = ", maxsplit=1)[0].rstrip() + WALK.format(stages=stages)
    source = KernelSource("rows", text, BUFFERS, 132, 8, 3)
    return "cp.async" in compile_kernel(source, Target()).kernel.asm["ptx"]


def fetches():
    """In the order of the machine's text, what a stream of a weight does before it waits and what
    it waits with."""
    product = whole_group(graph_of(lambda x, w: x @ w.t(), [half(8, 2048), half(1024, 2048)])).graph
    weight = next(i for i, n in enumerate(product.inputs) if product.nodes[n].type.shape[0] == 1024)
    config = Config((("r0", 128), ("x0", 16), ("x1", 64)), num_stages=4, reduction="loop")
    (source,) = lower(product, config, unwritten=frozenset({weight})).kernels
    ptx = compile_kernel(source, Target()).kernel.asm["ptx"]
    return list(
        dict.fromkeys(re.findall(r"prefetch\.global\.L2|griddepcontrol\.wait|cp\.async\.cg", ptx))
    )


def half(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def meets(capability):
    """Of the two kernels of a split sum: what begins or waits in the code of each, and whether it
    is launched before the last has ended."""
    config = Config((("x0", 1), ("y0", 64)), num_warps=4, num_stages=1, split=8)
    inputs = [torch.empty(64, 65536, device="meta")]
    program = lower(whole_group(graph_of(lambda x: x.sum(-1), inputs)).graph, config)
    found = []
    for source in program.kernels:
        compiled = compile_kernel(source, Target(capability=capability))
        words = re.findall(r"griddepcontrol\.(\w+)", compiled.kernel.asm["ptx"])
        found.append([words, compiled.dependent])
    return found


# A product whose left operand is stored too, by the tile of the product or by one of its own.
SHARED = """
import triton
import triton.language as tl


@triton.jit
def mixed(a_ptr, b_ptr, out_ptr, copy_ptr):
    m = tl.arange(0, 128)
    total = tl.full([128, 128], 0.0, tl.float32)
    for block in tl.range(0, 16, num_stages=STAGES):
        place = m[:, None] * 1024 + (block * 64 + tl.arange(0, 64))[None, :]
        a = tl.load(a_ptr + place)
        total = tl.dot(a, tl.trans(tl.load(b_ptr + place)), total)
        tl.store(copy_ptr + place, STORED)
    tl.store(out_ptr + m[:, None] * 128 + m[None, :], total.to(tl.bfloat16))
"""


def mixed(stored, stages="3", warps=4):
    buffers = [Buffer("in", n, "bfloat16") for n in (0, 1)]
    buffers += [Buffer("out", n, "bfloat16") for n in (0, 1)]
    text = SHARED.replace("STORED", stored).replace("STAGES", stages)
    return KernelSource("mixed", text, tuple(buffers), 1, warps, 1)


def operand_stored():
    """The compiler's word on kernels of ours that store an operand of their product."""

    def function(x, weight):
        turned = x.transpose(0, 1).contiguous()
        return turned, turned @ weight

    inputs = [torch.empty(256, 1024, device="meta", dtype=torch.bfloat16) for _ in range(2)]
    inputs[1] = torch.empty(256, 512, device="meta", dtype=torch.bfloat16)

    def other_way(x, weight):
        turned, product = function(x, weight)
        return turned, product.T.contiguous()

    blocks = (("r0", 64), ("x0", 128), ("x1", 128))
    narrow = (("r0", 64), ("x0", 128), ("x1", 32))  # rows of tensor cores, and columns
    cases = [
        (function, Config(blocks, 8, stages, reduction="loop", access=access))
        for access, stages in itertools.product(("pointer", "descriptor"), (2, 3, 4))
    ]
    cases += [(other_way, Config(narrow, 4, 3, reduction="loop"))]
    found = []
    for each, config in cases:
        graph = whole_group(graph_of(each, inputs)).graph
        program = lower(graph, config)
        (kernel,) = program.kernels
        judged = space_of(graph, builtin("h200")).judge(config)
        loads = len(re.findall(r"tl\.load\(|\.load\(", kernel.text))
        found.append([failure(kernel), loads, usage(kernel)["shared_bytes"] - judged.shared_bytes])
    return found


def stored_within():
    """The compiler's word on kernels of ours that store a product, and a residual's sum with it,
    while they load the operands of the next turn: shared memory beyond what the model counts."""

    def summed(x, weight, residual):
        total = x @ weight.T + residual
        return total, total.float().sum(1)

    inputs = [torch.empty(1024, 1024, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    graph = whole_group(graph_of(summed, inputs)).graph
    inputs = [torch.empty(512, 512, device="meta") for _ in range(3)]
    exact = whole_group(graph_of(summed, inputs)).graph
    cases = [
        (graph, {"x0": 128, "r0": 256, "r1": 64}, 8, 2, "descriptor"),
        (graph, {"x0": 128, "r0": 256, "r1": 64}, 8, 3, "pointer"),
        (graph, {"x0": 128, "r0": 128, "r1": 32}, 4, 1, "descriptor"),
        (exact, {"x0": 128, "r0": 64, "r1": 16}, 8, 4, "descriptor"),
        (exact, {"x0": 128, "r0": 32, "r1": 16}, 8, 3, "pointer"),
    ]
    found = []
    for group, blocks, warps, stages, access in cases:
        named = tuple(sorted(blocks.items()))
        config = Config(named, warps, stages, reduction="nested", flatten=True, access=access)
        (kernel,) = lower(group, config).kernels
        judged = space_of(group, builtin("h200"))
        seen = shared_bytes(judged.schedules[config.layout].kernels[0].nest, config)
        found.append([usage(kernel)["shared_bytes"], seen])
    return found


def loaded_for_operands():
    """Shared memory of kernels whose products wait for loads that are no operands of theirs, and
    what the model counts."""

    def mixed(shares, values, weight):
        """A sum of products in each turn of the loop of another product."""
        return (shares @ values).transpose(1, 2).reshape(2, 16, 384) @ weight.t()

    def attention(q, k, v, bias):
        """Heads of one block: the inner loop has one turn."""
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v

    cases = [
        (
            mixed,
            [(2, 12, 16, 16), (2, 12, 16, 32), (384, 384)],
            Config((("r0", 64), ("x0", 1), ("x1", 16)), 4, 3, reduction="loop"),
        ),
        (
            attention,
            [(8, 196, 16), (8, 196, 16), (8, 196, 64), (8, 196, 196)],
            Config(
                (("r0", 128), ("r1", 16), ("x0", 1), ("x1", 64)),
                4,
                4,
                reduction="nested",
                flatten=True,
            ),
        ),
    ]
    found = []
    for function, shapes, config in cases:
        graph = whole_group(graph_of(function, [half(*shape) for shape in shapes])).graph
        (kernel,) = lower(graph, config).kernels
        (judged,) = schedule_of(graph, config).kernels
        found.append([usage(kernel)["shared_bytes"], shared_bytes(judged.nest, config)])
    return found


def summed_beside():
    """The compiler's word on products beside sums of both operands, by ones where they can be."""

    def function(x, y):
        return x.T @ y, x.sum(0), y.sum(0)

    inputs = [torch.empty(512, 256, device="meta", dtype=torch.bfloat16) for _ in range(2)]
    graph = whole_group(graph_of(function, inputs)).graph
    found = []
    for (rows, columns), access in itertools.product(
        ((128, 64), (64, 32), (32, 64), (32, 32)), ("pointer", "descriptor")
    ):
        blocks = (("r0", 64), ("x0", rows), ("x1", columns))
        (kernel,) = lower(graph, Config(blocks, 4, 3, reduction="loop", access=access)).kernels
        found.append([failure(kernel), len(re.findall(r"_ones = ", kernel.text))])
    return found


def left_computed():
    """Products whose left operand is computed in registers: how many there are in the machine code,
    and what the last instruction that waits in their loop leaves under way."""

    def function(x, weight):
        return torch.relu(x) @ weight

    shapes = ((256, 1024), (1024, 512))
    inputs = [torch.empty(*shape, device="meta", dtype=torch.bfloat16) for shape in shapes]
    graph = whole_group(graph_of(function, inputs)).graph
    found = []
    for warps, rows, access in ((4, 64, "descriptor"), (8, 128, "pointer")):
        blocks = (("r0", 64), ("x0", rows), ("x1", 128))
        (kernel,) = lower(graph, Config(blocks, warps, 3, reduction="loop", access=access)).kernels
        found.append(left_under_way(machine_code(kernel)))
    return found


def kept_left_operand():
    """[turns share a left operand, it is written over] of what Triton makes of two products in a
    loop with that before it, beside a residual; and of the kernel that is used."""

    def function(x, residual, first, up, down):
        start = residual + x @ first
        centred = start.float() - start.float().mean(1, keepdim=True)
        rows = (centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-6)).bfloat16()
        end = start + torch.relu(rows @ up).square() @ down
        other = end.float() - end.float().mean(1, keepdim=True)
        return end, (other * torch.rsqrt((other * other).mean(1, keepdim=True) + 1e-6)).bfloat16()

    shapes = ((50176, 256), (50176, 128), (256, 128), (128, 512), (512, 128))
    inputs = [torch.empty(*shape, device="meta", dtype=torch.bfloat16) for shape in shapes]
    inputs[2:] = [torch.empty(*s[::-1], device="meta", dtype=torch.bfloat16).T for s in shapes[2:]]
    graph = whole_group(graph_of(function, inputs)).graph
    config = Config((("r0", 128), ("x0", 64)), 4, 1, reduction="loop", access="descriptor")
    (source,) = lower(graph, replace(config, group=8)).kernels
    found = []
    for kernel in (_built(source, Target(), True), kernel_of(source, Target())):
        shared = bool(shared_by_turns(kernel.asm["ptx"]))
        found.append([shared, overwritten_operand(listing(kernel.asm["cubin"])) is not None])
    return found


def summed(x, y):
    return (x[:, :, None] * y[None, :, :]).sum(2)


def multiplied_twice(x, weight, other):
    hidden = (x - x.sum(1, keepdim=True)) @ weight
    return hidden.relu() @ other, hidden.sum(0)


def sums_of_products():
    """Of tiles of 16 x n x 16: what is wrong with the kernels, then with the first as it was
    printed before, the factors the other way round."""
    cases = [
        (summed, [(16, 16)] * 2, Config((("x0", 16), ("x1", 16)), 1, 1)),
        (multiplied_twice, [(16, 8), (8, 16), (16, 8)], Config((), 1, 1)),
    ]
    found, kernels = [], []
    for function, shapes, config in cases:
        inputs = [torch.empty(shape, device="meta") for shape in shapes]
        (kernel,) = lower(whole_group(graph_of(function, inputs)).graph, config).kernels
        assert re.search(r"v\d+\[None, :, :\] \* v\d+\[:, :, None\]", kernel.text)
        found.append(failure(kernel))
        kernels.append(kernel)
    factors = r"(v\d+\[None, :, :\]) \* (v\d+\[:, :, None\])"
    other = replace(kernels[0], text=re.sub(factors, r"\2 * \1", kernels[0].text))
    return [*found, failure(other)]


def functions(x):
    return torch.log1p(torch.rsqrt(x)) + torch.exp(x), x.sqrt().log()


def softmax_and_logarithm(x):
    return (p := x.softmax(-1)), p.log()


def only_summed(x):
    return (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def flushing(function, dtype, numerics="fast"):
    """Which instructions of functions take numbers below 2**-126 for 0, in PTX; that of
    `exp_below_one` does not count, which sees 2**24 times as much."""
    x = torch.empty(64, 1024, device="meta", dtype=dtype)
    graph = whole_group(graph_of(function, [x])).graph
    graph = replace(graph, numerics=numerics)
    (kernel,) = lower(graph, Config((("x0", 1),), 4, 1)).kernels
    ptx = compile_kernel(kernel, Target()).kernel.asm["ptx"]
    found = set(re.findall(r"\b[a-z][a-z0-9.]*[.]ftz\b", ptx))
    own = kernel.text.partition(f"def {kernel.name}(")[2]
    if "exp_below_one(" in own and "fast_exp" not in own:
        found.discard("ex2.approx.ftz")
    return sorted(found)


def machine_code(kernel):
    """Address and text of each instruction."""
    found = listing(compile_kernel(kernel, Target()).kernel.asm["cubin"])
    return [(int(a, 16), b) for a, b in re.findall(r"/\*([0-9a-f]{4})\*/\s+(.*?);", found)]


def rounded():
    """The conversions of a kernel that rounds to bfloat16 on its way, and how many elements a
    thread has."""
    x = torch.empty(64, 1024, dtype=torch.bfloat16, device="meta")
    graph = whole_group(graph_of(lambda x, w: (x.float() * 2.5).bfloat16().float() * w, [x, x]))
    (kernel,) = lower(graph.graph, Config((("x0", 1024),), 4, 1)).kernels
    assert "as_bfloat16(" in kernel.text
    names = [text.split()[0] for _, text in machine_code(kernel)]
    return [name for name in names if name.startswith("F2F")], 1024 // 128


def left_under_way(code):
    products = [at for at, text in code if re.search(r"HGMMA\S* R\d+, R\d+, gdesc", text)]
    back = [(int(m[1], 16), at) for at, text in code if (m := re.search(r"BRA 0x(\w+)", text))]
    begin, end = next((a, b) for a, b in back if a < products[0] <= products[-1] < b)
    waits = [
        re.search(r"WARPGROUP.DEPBAR.LE gsb0, (0x\d+)", t) for at, t in code if begin < at < end
    ]
    return [len(products), [wait[1] for wait in waits if wait][-1]]


again = 'tl.load(a_ptr + place, cache_modifier=".ca")'


def filter_rows():
    """[registers, bytes spilled] of each kernel of a depthwise convolution of 7 x 7 taps."""
    image, weight = (
        torch.empty(s, dtype=torch.bfloat16) for s in ((64, 384, 14, 14), (384, 1, 7, 7))
    )
    image = image.contiguous(memory_format=torch.channels_last)
    convolve = torch.nn.functional.conv2d
    inputs = [image, weight]
    graph = whole_group(graph_of(lambda x, w: convolve(x, w, padding=3, groups=384), inputs)).graph
    config = next(iter(space_of(graph, builtin("h100")).enumerate()))
    used = [resources(compile_kernel(k, Target())) for k in lower(graph, config).kernels]
    return [[each.registers, each.spill_bytes] for each in used]


json.dump(
    {
        "filter_rows": filter_rows(),
        "spoilt": failure(mixed("a")),
        "spoilt_deep": failure(mixed("a", stages="4", warps=8)),
        "sound": [
            failure(each)
            for each in (
                mixed(again),
                mixed(again, stages="4", warps=8),
                mixed("a", stages="1"),
                mixed("a", warps=2),  # No group of warps: they read it before they go on.
            )
        ],
        "operand_stored": operand_stored(),
        "stored_within": stored_within(),
        "loaded_for_operands": loaded_for_operands(),
        "summed_beside": summed_beside(),
        "sums_of_products": sums_of_products(),
        "left_computed": left_computed(),
        "kept_left_operand": kept_left_operand(),
        "flushing": [
            flushing(function, dtype, numerics)
            for function in (functions, softmax_and_logarithm, only_summed)
            for dtype in (torch.float32, torch.bfloat16)
            for numerics in ("eager", "fast")
        ],
        "fetches": fetches(),
        "rounded": rounded(),
        "meets": [meets(90), meets(80)],
        "begins_ahead": [begins_ahead(""), begins_ahead(", num_stages=3")],
        "interpreted": interpreted(),
        "rows": usage(ROWS),
        "unaligned": usage(ROWS, aligned=False),
        "given_up": given_up(),
        "ahead": ahead(),
        "one_warp": usage(replace(ROWS, num_warps=1)),
        "not_a_power_of_2": failure(
            replace(ROWS, text=TEXT.replace("arange(0, 16384)", "arange(0, 9)"))
        ),
        "unknown_name": failure(replace(ROWS, text=TEXT.replace("tl.rsqrt", "rsqrt"))),
        "inner_name": failure(replace(ROWS, text=TEXT.replace("tl.rsqrt", "root") + INNER)),
        "no_module": failure(replace(ROWS, text="def rows(:")),
        "other_name": failure(replace(ROWS, name="columns")),
        "buffers": failure(replace(ROWS, buffers=BUFFERS[:1])),
        "dtype": failure(replace(ROWS, buffers=(Buffer("in", 0, "complex64"), BUFFERS[1]))),
        "gpu": on_gpu(),
    },
    sys.stdout,
)
