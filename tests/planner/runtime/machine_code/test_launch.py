"""The argument layout of Triton's C launcher, in both versions, by a launcher that records."""

import inspect
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.backends.nvidia.driver as nvidia
from fusionplan.planner.codegen.source import Buffer, KernelSource, Scalar
from fusionplan.planner.errors import DeviceError
from fusionplan.planner.runtime.machine_code import launch as launching
from fusionplan.planner.runtime.machine_code.compile import Compiled, CompileFailed, Target
from fusionplan.planner.runtime.machine_code.launch import Launcher, bind
from fusionplan.planner.tiles.descriptors import Descriptor
from triton.tools.tensor_descriptor import TensorDescriptor

METADATA = (4, 1, 1024)


class Kernel:
    """What a loaded kernel looks like to `bind`."""

    function, packed_metadata = 77, METADATA

    def __init__(self, scratch=0, **more):
        self.calls = []
        self.public = []
        self.metadata = SimpleNamespace(tensordesc_meta=None)
        self.run = SimpleNamespace(
            launch=lambda *args: self.calls.append(args),
            launch_cooperative_grid=False,
            global_scratch_size=scratch,
            profile_scratch_size=0,
            **more,
        )

    def __getitem__(self, grid):
        return lambda *args, stream: self.public.append((grid, stream, args))


@pytest.mark.parametrize("dependent", [False, True])
def test_triton_3_6(dependent):
    kernel = Kernel()
    bind(kernel, 13, "3.6.0", dependent=dependent)(5, 100, 200)
    # "iiiKKppOOOOOO" and then the kernel's own arguments: triton 3.6 nvidia/driver.py.
    base = (13, 1, 1, 5, 77, False, dependent, None, None, METADATA, None, None, None)
    assert kernel.calls == [(*base, 100, 200)]


def test_triton_3_6_with_arguments_that_are_known():
    kernel, buffers = Kernel(), [Buffer("in", i, "float32") for i in range(2)]
    launch = bind(kernel, 13, "3.6.0", buffers, [Scalar(7)])
    launch(5, 100, 200)
    assert kernel.calls == [
        (13, 1, 1, 5, 77, False, False, None, None, METADATA, None, None, None, 100, 200, 7)
    ]
    assert not launch.__code__.co_flags & inspect.CO_VARARGS, "it packs nothing"


@pytest.mark.parametrize("dependent", [False, True])
def test_triton_3_7(dependent):
    kernel = Kernel(arg_annotations=["a", "a"], kernel_signature=b"pp")
    bind(kernel, 13, "3.7.1", dependent=dependent)(5, 100, 200)
    # "iiiKKpp(iii)OOOOOOy*O": triton 3.7 nvidia/driver.c.
    base = (13, 1, 1, 5, 77, False, dependent, METADATA, None, None, None, None, None)
    assert kernel.calls == [(*base, ["a", "a"], b"pp", (100, 200))]


@pytest.mark.parametrize(
    "kernel, version",
    [
        (Kernel(), "3.9.0"),
        (Kernel(), "3.7.0"),  # no kernel_signature
        (Kernel(scratch=128), "3.6.0"),
    ],
)
def test_an_unknown_layout_goes_the_public_way(kernel, version):
    bind(kernel, 13, version)(5, 100, 200)
    assert not kernel.calls
    assert kernel.public == [((13, 1, 1), 5, (100, 200))]


SOURCE = KernelSource("k", "", (Buffer("in", 0, "float32"),), 1, 4, 2)


def test_without_cuda_and_interpreter_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(launching, "interpreted", lambda: False)
    with pytest.raises(DeviceError, match="TRITON_INTERPRET=1"):
        Launcher(SOURCE, torch.device("cpu"))


@pytest.mark.interpreter
@pytest.mark.skipif(not launching.interpreted(), reason="kernels are compiled here")
def test_the_interpreter_takes_tensors(kernel):
    launcher = Launcher(kernel("x * 2", 200), torch.device("cpu"))
    assert launcher.takes_tensors
    x, out = torch.randn(200), torch.empty(200)
    launcher.aligned(0, x, out)
    assert torch.equal(out, x * 2)
    launcher.unaligned(0, out, out)
    assert torch.equal(out, x * 4)


ROWS = Descriptor((100, 72), (80, 1), (64, 32), offset=8)
DESCRIBED = (
    Buffer("in", 0, "bfloat16", ROWS),
    Buffer("in", 0, "bfloat16"),
    Buffer("out", 0, "float32", Descriptor((512,), (1,), (256,))),
)
MEANING = {"elem_type": 10, "fp4_padded": False}
METAS = [
    {"swizzle": 2, "elem_size": 2, "block_size": [64, 32], **MEANING},
    {"swizzle": 0, "elem_size": 4, "block_size": [256], **MEANING},
]


class Described(Kernel):
    """A loaded kernel of `DESCRIBED`: its launch is Triton's own wrapper around ours."""

    def __init__(self, metas=METAS, **more):
        super().__init__(**more)
        self.metadata.tensordesc_meta = metas
        kinds = ("tensordesc<bf16[64, 32]>", "*bf16", "tensordesc<fp32[256]>")
        signature = dict(zip("abc", kinds, strict=True))
        self.run.launch = nvidia.wrap_handle_tensordesc(self.run.launch, signature, metas)


@pytest.fixture
def encoded(monkeypatch):
    """What the driver was asked to encode; an encoded descriptor is its number."""
    found = []

    def encode(*asked):
        found.append(asked)
        return f"map {len(found)}"

    utils = SimpleNamespace(fill_tma_descriptor=encode, fill_tma_descriptor_tiled=encode)
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils))
    return found


GIVEN = ("map 1", 100, 72, 80, 1, 0x1000, "map 2", 512, 1)
"""A descriptor, its sizes and its strides; the pointer; the other descriptor."""


def test_descriptors_in_triton_3_6(encoded):
    kernel = Described()
    bind(kernel, 13, "3.6.0", DESCRIBED)(5, 0x1000, 0x1000, 0x2000)
    base = (13, 1, 1, 5, 77, False, False, None, None, METADATA, None, None, None)
    assert kernel.calls == [(*base, *GIVEN)]
    # Address, swizzle, bytes and type of an element, block, sizes, strides, zeros outside. The
    # driver numbers the types otherwise than the compiler: its 9 is bfloat16.
    assert encoded == [
        (0x1010, 2, 2, 9, [64, 32], [100, 72], [80, 1], 0),
        (0x2000, 0, 4, 9, [256], [512], [1], 0),
    ]


def test_descriptors_in_triton_3_7(encoded):
    kernel = Described(arg_annotations=["a"] * 9, kernel_signature=b"d")
    bind(kernel, 13, "3.7.1", DESCRIBED)(5, 0x1000, 0x1000, 0x2000)
    base = (13, 1, 1, 5, 77, False, False, METADATA, None, None, None, None, None)
    assert kernel.calls == [(*base, ["a"] * 9, b"d", GIVEN)]


@pytest.mark.parametrize("metas", [METAS, []])
def test_this_triton_itself_gives_its_launcher_the_same(encoded, metas):
    """metas: none where the device has no descriptors, and addresses go in their place."""
    kernel = Described(metas, arg_annotations=[], kernel_signature=b"")
    bind(kernel, 13, buffers=DESCRIBED)(5, 0x1000, 0x1000, 0x2000)
    ours = kernel.calls.pop()
    bases = [launching.Address(0x1010, torch.bfloat16), launching.Address(0x2000, torch.float32)]
    layouts = [(d.shape, d.stride, d.block) for d in (b.descriptor for b in DESCRIBED) if d]
    first, last = (TensorDescriptor(b, *layout) for b, layout in zip(bases, layouts, strict=True))
    given, encoded[:] = (first, 0x1000, last), []
    if triton.__version__.startswith("3.6."):
        kernel.run.launch(*ours[:13], *given)
        assert kernel.calls == [ours]
    else:
        kernel.run.launch(*ours[:-1], given)
        theirs = kernel.calls.pop()
        assert (*theirs[:-1], tuple(theirs[-1])) == ours


def test_an_address_is_encoded_once(encoded):
    kernel = Described()
    call = bind(kernel, 13, "3.6.0", DESCRIBED)
    for out in (0x2000, 0x3000, 0x2000, 0x3000):
        call(5, 0x1000, 0x1000, out)
    assert [asked[0] for asked in encoded] == [0x1010, 0x2000, 0x3000]
    assert [args[-3] for args in kernel.calls] == ["map 2", "map 3", "map 2", "map 3"]


def test_few_descriptors_are_kept(encoded):
    kernel = Described()
    call = bind(kernel, 13, "3.6.0", DESCRIBED)
    for i in range(65):
        call(5, 0x1000, 0x1000, 0x10000 + 16 * i)
    assert len(encoded) == 1 + 65
    call(5, 0x1000, 0x1000, 0x10000 + 16 * 64)
    assert len(encoded) == 1 + 65
    call(5, 0x1000, 0x1000, 0x10000)  # the oldest
    assert encoded[-1][0] == 0x10000
    assert len(encoded) == 1 + 66


@pytest.mark.parametrize("wrapped, version", [(True, "3.9.0"), (False, "3.6.0")])
def test_an_unknown_layout_gets_descriptor_objects(encoded, wrapped, version):
    kernel = Described()
    if not wrapped:
        kernel.run.launch = print
    bind(kernel, 13, version, DESCRIBED)(5, 0x1000, 0x1000, 0x2000)
    ((grid, stream, (first, pointer, last)),) = kernel.public
    assert (grid, stream, pointer) == ((13, 1, 1), 5, 0x1000)
    assert (first.base.data_ptr(), last.base.data_ptr()) == (0x1010, 0x2000)
    assert (first.shape, first.strides, first.block_shape) == ([100, 72], [80, 1], [64, 32])
    assert first.padding == "zero"
    assert not encoded


PLAIN = KernelSource("plain", "", (Buffer("out", 0, "float32"), DESCRIBED[1]), 3, 4, 2)


@pytest.fixture
def kernels(monkeypatch, encoded):
    """The kernels that a launcher compiles, by name."""
    found = {}

    def compiled(source, target=None, aligned=True):
        kernel = Described() if source.buffers == DESCRIBED else Kernel()
        found[source.name] = SimpleNamespace(kernel=kernel, aligned=aligned)
        return Compiled(source, kernel, Target(), aligned)

    monkeypatch.setattr(launching, "interpreted", lambda: False)
    monkeypatch.setattr(launching, "compile_kernel", compiled)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(launching, "bind", partial(bind, version="3.6.0"))
    return found


def test_unaligned_pointers_go_to_the_plain_kernel_in_its_order(kernels):
    source = KernelSource("described", "", DESCRIBED, 5, 4, 2, PLAIN)
    launcher = Launcher(source, torch.device("cuda"), launching.compile_kernel)
    launcher.aligned(9, 0x1000, 0x1000, 0x2000)
    assert list(kernels) == ["described"]
    (call,) = kernels["described"].kernel.calls
    assert (call[0], call[3], call[13:]) == (5, 9, GIVEN)
    for _ in range(2):
        launcher.unaligned(9, 0x1001, 0x1001, 0x2000)
    assert not kernels["plain"].aligned
    first, second = kernels["plain"].kernel.calls
    assert first == second
    assert (first[0], first[3], first[13:]) == (3, 9, (0x2000, 0x1001))


def test_without_a_plain_kernel_unaligned_pointers_are_refused(kernels):
    source = KernelSource("described", "", DESCRIBED, 5, 4, 2)
    launcher = Launcher(source, torch.device("cuda"), launching.compile_kernel)
    with pytest.raises(CompileFailed, match="described: takes tensor descriptors"):
        launcher.unaligned(9, 0x1001, 0x1001, 0x2000)


def test_a_plain_kernel_with_descriptors_is_refused(kernels):
    source = KernelSource("described", "", DESCRIBED, 5, 4, 2)
    launcher = Launcher(
        replace(source, plain=source), torch.device("cuda"), launching.compile_kernel
    )
    with pytest.raises(CompileFailed, match="described: takes tensor descriptors"):
        launcher.unaligned(9, 0x1001, 0x1001, 0x2000)
