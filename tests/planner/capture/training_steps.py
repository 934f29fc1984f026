"""Training steps, compiled with a partition function: what their forward graphs save."""

import functools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fusionplan.planner.capture import saving
from fusionplan.planner.capture.capture import decompositions
from oracle import DEVICE
from torch import nn
from torch._dynamo.backends.common import aot_autograd

aten = torch.ops.aten
CONTRACTIONS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)

B, H, S, D = 2, 3, 128, 16
ROWS, CLASSES, WIDTH = 96, 1024, 32


def attention(q, k, v):
    return (q @ k.mT * D**-0.5).softmax(-1) @ v


def soft_capped(q, k, v):
    scores = 30 * torch.tanh(q @ k.mT * D**-0.5 / 30)
    i = torch.arange(q.shape[-2], device=q.device)
    return scores.masked_fill(i[None, :] > i[:, None], float("-inf")).softmax(-1) @ v


def dropped(q, k, v):
    return F.dropout((q @ k.mT * D**-0.5).softmax(-1), 0.25) @ v


def cross_entropy(h, weight, labels):
    return F.cross_entropy((h @ weight.T).float(), labels)


def wide_mlp(x, up, down):
    return F.gelu(x @ up) @ down


class Splade(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, hidden, mask):
        return (torch.log1p(F.relu(self.head(hidden))) * mask[..., None]).amax(1)


class Bert(nn.Module):
    def __init__(self, width=320, heads=10):
        super().__init__()
        self.heads, self.inner = heads, 4 * width
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, self.inner), nn.Linear(self.inner, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        p = F.dropout((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), 0.1, self.training)
        y = self.out((p @ v).transpose(1, 2).flatten(2))
        x = self.one(x + F.dropout(y, 0.1, self.training))
        return self.two(x + self.down(F.gelu(self.up(x))))


def needs_grad(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device=DEVICE).requires_grad_()


def heads(*, length=S, dtype=torch.float32):
    return [needs_grad(B, H, length, D, dtype=dtype) for _ in range(3)]


def rows(dtype=torch.float32):
    labels = torch.randint(0, CLASSES, (ROWS,), device=DEVICE)
    return needs_grad(ROWS, WIDTH, dtype=dtype), needs_grad(CLASSES, WIDTH, dtype=dtype), labels


def mlp_inputs():
    up = (torch.randn(320, 1280, device=DEVICE) / 16).requires_grad_()
    down = (torch.randn(1280, 320, device=DEVICE) / 32).requires_grad_()
    return needs_grad(64, 320), up, down


STEPS = {
    "attention": (lambda: attention, heads, B * H * S * S),
    "soft_capped": (lambda: soft_capped, heads, B * H * S * S),
    "cross_entropy": (lambda: cross_entropy, rows, ROWS * CLASSES),
    "splade": (
        lambda: Splade().to(DEVICE),
        lambda: (needs_grad(4, 64, WIDTH), torch.rand(4, 64, device=DEVICE) > 0.3),
        4 * 64 * CLASSES,
    ),
    "bert": (
        lambda: Bert().to(DEVICE).eval(),
        lambda: (needs_grad(2, 256, 320),),
        2 * 10 * 256 * 256,
    ),
    "wide_mlp": (lambda: wide_mlp, mlp_inputs, None),
    "norm": (
        lambda: lambda x, w: F.silu(F.rms_norm(x, (WIDTH,), w).to(torch.bfloat16)),
        lambda: (needs_grad(ROWS, WIDTH), needs_grad(WIDTH)),
        None,
    ),
}


@dataclass
class Partitioned:
    """One compiled step: its graphs, what the forward graph saves that is no input, no result nor
    a view of one, and the results of a call."""

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    saved: list[torch.Tensor]
    bytes: int
    results: list[torch.Tensor] = field(default_factory=list)

    def contractions(self):
        """How many the backward graph has."""
        targets = [n.target for n in self.backward.graph.nodes if n.op == "call_function"]
        return sum(getattr(t, "overloadpacket", None) in CONTRACTIONS for t in targets)

    def widest(self):
        """Elements of the largest saved value."""
        return max((t.numel() for t in self.saved), default=0)


def boxed(gm, _):
    def call(args):
        return gm(*args)

    call._boxed_call = True
    return call


def storage(value):
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def step(function, inputs, part=None, *, dynamic=False):
    """Compiles and runs the step with this partition function; None: ours, from 0 bytes on."""
    part = part or functools.partial(saving.partition, floor=0)
    found = []

    def spy(joint, joint_inputs, *, num_fwd_outputs, **more):
        both = part(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **more)
        forward = both[0].graph
        known = {storage(n.meta["val"]) for n in forward.nodes if n.op == "placeholder"}
        output = next(n for n in reversed(forward.nodes) if n.op == "output")
        known |= {storage(n.meta["val"]) for n in output.args[0][:num_fwd_outputs]}
        saved = [n.meta["val"] for n in output.args[0][num_fwd_outputs:]]
        saved = [v for v in saved if isinstance(v, torch.Tensor) and storage(v) not in known]
        found.append(Partitioned(*both, saved, saving.stored_bytes(both[0], num_fwd_outputs)))
        return both

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=boxed, partition_fn=spy, decompositions=decompositions())
    results = gradients(torch.compile(function, backend=backend, dynamic=dynamic), inputs)
    (one,) = found
    one.results = results
    return one


def gradients(function, inputs):
    """Results, then the gradients by every input and parameter that requires one."""
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(1)
    loss = sum((r.float() * torch.randn(r.shape, device=r.device)).sum() for r in results)
    leaves = [t for t in inputs if t.requires_grad]
    leaves += getattr(function, "parameters", list)()
    return [*(r.detach() for r in results), *torch.autograd.grad(loss, leaves)]


def close(got, want, rtol=1e-4, atol=1e-4):
    """Sums are in another order than eager's."""
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def accurate(got, function, inputs):
    """The error against float64 is at most twice eager's own."""
    wide = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    for one, exact, eager in zip(
        got, gradients(function, wide), gradients(function, inputs), strict=True
    ):
        error, own = [(t.double() - exact).norm() / exact.norm() for t in (one, eager)]
        assert error <= 2 * own + 1e-6
