"""The argument layout of Triton's C launcher, in both versions, by a launcher that records."""

from types import SimpleNamespace

import pytest
import torch
from fusionplan.planner.codegen.source import Buffer, KernelSource
from fusionplan.planner.errors import DeviceError
from fusionplan.planner.runtime import launch as launching
from fusionplan.planner.runtime.launch import Launcher, bind

METADATA = (4, 1, 1024)


class Kernel:
    """What a loaded kernel looks like to `bind`."""

    function, packed_metadata = 77, METADATA

    def __init__(self, scratch=0, **more):
        self.calls = []
        self.public = []
        self.run = SimpleNamespace(
            launch=lambda *args: self.calls.append(args),
            launch_cooperative_grid=False,
            launch_pdl=False,
            global_scratch_size=scratch,
            profile_scratch_size=0,
            **more,
        )

    def __getitem__(self, grid):
        return lambda *args, stream: self.public.append((grid, stream, args))


def test_triton_3_6():
    kernel = Kernel()
    bind(kernel, 13, "3.6.0")(5, 100, 200)
    # "iiiKKppOOOOOO" and then the kernel's own arguments: triton 3.6 nvidia/driver.py.
    base = (13, 1, 1, 5, 77, False, False, None, None, METADATA, None, None, None)
    assert kernel.calls == [(*base, 100, 200)]


def test_triton_3_7():
    kernel = Kernel(arg_annotations=["a", "a"], kernel_signature=b"pp")
    bind(kernel, 13, "3.7.1")(5, 100, 200)
    # "iiiKKpp(iii)OOOOOOy*O": triton 3.7 nvidia/driver.c.
    base = (13, 1, 1, 5, 77, False, False, METADATA, None, None, None, None, None)
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


def test_the_interpreter_takes_tensors(kernel):
    launcher = Launcher(kernel("x * 2", 200), torch.device("cpu"))
    assert launcher.takes_tensors
    x, out = torch.randn(200), torch.empty(200)
    launcher.aligned(0, x, out)
    assert torch.equal(out, x * 2)
    launcher.unaligned(0, out, out)
    assert torch.equal(out, x * 4)
