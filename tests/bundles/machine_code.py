"""Run by test_machine_code.py, each step in a process of its own with the real compiler and an
empty cache of Triton's; prints what it found as JSON.

make FILE: bundle the kernels of a plan for compute capability 9.0. start FILE: use them, where the
compiler fails. other FILE: the same, of another version of Triton. first CACHE: compile them with
this cache. again CACHE: use them from it, where the compiler fails. both FILE CACHE: again, start.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import triton
from fusionplan.bundles import making, using
from fusionplan.bundles.contents import Contents, write
from fusionplan.bundles.signing import private_key
from fusionplan.db import Snapshot
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType, key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.machine_code import launch, ready
from fusionplan.planner.runtime.machine_code.compile import CompileFailed, Target, compile_kernel
from triton import knobs

X = TensorType((64, 128), (128, 1), "float32")
GRAPH = Graph(
    (
        Node(0, "x", INPUT, type=X),
        Node(1, "b", INPUT, type=TensorType((128,), (1,), "float32")),
        Node(2, "add", "aten.add.Tensor", (Ref(0), Ref(1)), type=X),
        Node(3, "relu", "aten.relu.default", (Ref(2),), type=X),
    ),
    (3,),
)
CONFIG = Config((("x0", 2), ("x1", 128)), num_warps=4, num_stages=1)
GROUP = GroupPlan((2, 3), "triton", "a" * 32, CONFIG)
PLAN = Plan(key(GRAPH), "h200", (), "measured", (GROUP,), overlaps=True)


def compiled():
    """What each variant of the plan's kernels is, by the runtime's own ways."""
    (source,) = making.kernels(GRAPH, PLAN)
    return [compile_kernel(source, Target(), aligned) for aligned in (True, False)]


def told(kernels):
    return [
        {
            "cubin": ready.hashlib.sha256(k.kernel.asm["cubin"]).hexdigest(),
            "name": k.kernel.metadata.name,
            "packed": list(k.kernel.packed_metadata),
            "warps": k.kernel.metadata.num_warps,
            "capability": k.kernel.metadata.target.arch,
            "dependent": k.dependent,
            "arguments": list(k.kernel.src.signature.values()),
        }
        for k in kernels
    ]


def make(file):
    code = making.code_of([(GRAPH, PLAN)], Target())
    write(file, Contents(Snapshot(), code), private_key())
    return {"kernels": len(code.kernels), "maker": dict(code.maker), "told": told(compiled())}


def start(file):
    calls = []

    def failing(*_args, **_options):
        calls.append(1)
        raise RuntimeError("the compiler was called")

    triton.compile = failing
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        using.use(file)
    try:
        kernels = compiled()
    except CompileFailed as error:
        return {
            "error": str(error),
            "calls": len(calls),
            "warned": [str(w.message) for w in warned],
        }
    found = {"told": told(kernels), "calls": len(calls), "warned": [str(w.message) for w in warned]}
    return found | {"launched": launched(kernels[0]), "cached": sorted(cached())}


def launched(kernel):
    """What Triton's driver is given: a driver that records stands in for the GPU's."""
    given = {}

    def load_binary(name, cubin, shared, device):
        given["loaded"] = [name, ready.hashlib.sha256(cubin).hexdigest(), shared, device]
        return 1, 77, 16, 0, 1024

    run = SimpleNamespace(
        launch=lambda *args: given.setdefault("launch", repr(args)),
        launch_cooperative_grid=False,
        global_scratch_size=0,
        profile_scratch_size=0,
        arg_annotations=[],
        kernel_signature=b"",
    )
    active = SimpleNamespace(
        get_current_device=lambda: 0,
        launcher_cls=lambda src, metadata: run,
        utils=SimpleNamespace(
            load_binary=load_binary,
            get_device_properties=lambda device: {"max_shared_mem": 232448},
        ),
        get_current_target=lambda: SimpleNamespace(warp_size=32),
    )
    triton.runtime.driver.set_active(active)
    source = kernel.source
    launch.bind(kernel.kernel, source.grid, "3.6.0", dependent=kernel.dependent)(5, 16, 32, 48)
    return given


def cached():
    return [str(p.name) for p in Path(knobs.cache.dir).rglob("*.cubin")]


def other(file):
    ready.triton = SimpleNamespace(__version__="3.5.0")
    return start(file)


def first(cache):
    knobs.cache.dir = str(cache)
    return told(compiled())


def again(cache):
    def failing(*_args, **_options):
        raise RuntimeError("the compiler was called")

    triton.compile = failing
    try:
        return first(cache)
    except CompileFailed as error:
        return str(error)


def both(file, cache):
    return [again(cache), start(file)]


STEPS = {"make": make, "start": start, "other": other, "first": first, "again": again, "both": both}

if __name__ == "__main__":
    step, *places = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        print(json.dumps(STEPS[step](*map(Path, places))))
