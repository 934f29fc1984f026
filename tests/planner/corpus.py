"""Functions as users write them, with inputs of real sizes that hold no data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.parse import parse
from torch._dynamo.backends.common import aot_autograd

EXAMPLES = sorted(
    path
    for path in (Path(__file__).resolve().parents[2] / "examples").glob("*.py")
    if "def get_inputs" in path.read_text(encoding="utf-8")
)
"""The examples that are a model and its inputs; the others are programs."""
Function = Callable[..., object]
HALF = torch.bfloat16


def tensor(*shape: int, dtype: torch.dtype = torch.float32, device: str = "meta") -> torch.Tensor:
    """A tensor with no data behind it."""
    return torch.empty(shape, dtype=dtype, device=device)


def graph_of(function: Function, inputs: Sequence[torch.Tensor]) -> Graph:
    """The graph of a function's forward pass, captured as the backend captures it; nothing is
    computed."""
    found: list[Graph] = []

    def compiler(gm: torch.fx.GraphModule, _: object) -> Function:
        found.append(capture(gm).graph)
        output = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
        values = [None if n is None else n.meta["val"] for n in output.args[0]]

        def run(_: list[torch.Tensor]) -> list[torch.Tensor | None]:
            return [
                v
                if v is None
                else torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device)
                for v in values
            ]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, decompositions=decompositions())
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=False)(*inputs)
    (only,) = found
    return only


def example(name: str) -> tuple[Function, list[torch.Tensor]]:
    """The model of a file in examples/ and its inputs, without their data."""
    spec = importlib.util.spec_from_file_location(
        f"example_{name}", EXAMPLES[0].with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = (
        module.get_model()
        if hasattr(module, "get_model")
        else module.Model(*module.get_init_inputs())
    )
    return model.to("meta"), module.get_inputs("meta")


def layer_norm_residual(x, r, w, b):
    total = x + r
    return F.layer_norm(total, (total.shape[-1],), w, b), total


def bert_embeddings(ids, kinds, words, places, types, w, b):
    total = F.embedding(ids, words) + F.embedding(
        torch.arange(ids.shape[1], device=ids.device), places
    )
    return F.layer_norm(total + F.embedding(kinds, types), (words.shape[1],), w, b, 1e-12)


BERT_EMBEDDINGS = [
    *(torch.empty(32, 512, dtype=torch.int64, device="meta") for _ in range(2)),
    *(
        torch.empty(shape, dtype=torch.bfloat16, device="meta")
        for shape in ((30522, 1024), (512, 1024), (2, 1024), (1024,), (1024,))
    ),
]


def group_norm_silu(x, w, b):
    return F.silu(F.group_norm(x, 8, w, b))


def batch_norm_relu(x, w, b):
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def mlp(x, w1, b1, w2):
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2) + x


def around_a_matmul(x, y):
    return torch.sigmoid((torch.relu(x) * 2) @ y) + 1


def attention(x, wq, wk, wv, g):
    x = F.rms_norm(x, (x.shape[-1],), g)
    q, k, v = (F.linear(x, w).unflatten(-1, (8, 64)).transpose(1, 2) for w in (wq, wk, wv))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.silu(mixed.transpose(1, 2).flatten(-2))


def rotary(q, cos, sin):
    left, right = q.chunk(2, -1)
    return q * cos + torch.cat((-right, left), -1) * sin


CORPUS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "softmax": (lambda x: torch.softmax(x * 0.125, -1), [tensor(8192, 1024)]),
    "layer_norm_residual": (
        layer_norm_residual,
        [tensor(*shape, dtype=HALF) for shape in ((4096, 4096), (4096, 4096), (4096,), (4096,))],
    ),
    "group_norm_silu": (group_norm_silu, [tensor(16, 64, 32, 32), tensor(64), tensor(64)]),
    "batch_norm_relu": (batch_norm_relu, [tensor(32, 256, 28, 28), tensor(256), tensor(256)]),
    "mlp": (
        mlp,
        [
            tensor(4096, 1024, dtype=HALF),
            tensor(4096, 1024, dtype=HALF),
            tensor(4096, dtype=HALF),
            tensor(1024, 4096, dtype=HALF),
        ],
    ),
    "around_a_matmul": (around_a_matmul, [tensor(2048, 2048), tensor(2048, 2048)]),
    # sdpa is one vendor call on a CPU or a GPU, but opened for tensors without a device.
    "attention": (
        attention,
        [
            tensor(4, 1024, 512, device="cpu"),
            *(tensor(512, 512, device="cpu") for _ in range(3)),
            tensor(512, device="cpu"),
        ],
    ),
    "several_outputs": (
        lambda x: (torch.relu(x), x.sum(-1), torch.exp(x).amax(-1)),
        [tensor(8192, 1024)],
    ),
    "siblings": (
        lambda x: (torch.exp(x), torch.sin(x) * 2, x.mean(-1)),
        [tensor(8192, 1024)],
    ),
    "diamond": (
        lambda x: torch.sigmoid(x + 1) * torch.tanh(x + 1),
        [tensor(4096, 4096)],
    ),
    "with_own_transpose": (lambda x: torch.relu(x + x.t()), [tensor(4096, 4096)]),
    "does_not_factor": (
        lambda x, y: torch.exp(x).reshape(4, 3, 1 << 20) + torch.exp(y),
        [tensor(3, 1 << 22), tensor(4, 3, 1 << 20)],
    ),
    "slice_of_a_reduction": (
        lambda x: torch.exp(x.sum(-1)[1024:]) + 1,
        [tensor(8192, 1024)],
    ),
    "two_axes": (
        # No row fits a program, and they have no 128 parts.
        lambda x: (torch.exp(x).sum(0), torch.exp(x).sum(1)),
        [tensor(20016, 20016)],
    ),
    "opaque": (
        lambda x, i, w: F.embedding(i, w).exp().digamma().mul(2).sort(-1).values + x,
        [tensor(4096, 512), tensor(4096, dtype=torch.int64), tensor(30000, 512)],
    ),
    "rotary": (
        rotary,
        [tensor(*shape, dtype=HALF) for shape in ((8, 32, 4096, 128), (4096, 128), (4096, 128))],
    ),
}


GRAPHS = Path(__file__).resolve().parents[1] / "corpus"
"""The graphs of all these, and of the examples, as text. To write what capture gives today:

    pytest tests/planner/capture/test_corpus.py --accept-goldens
"""


def corpus_names() -> list[str]:
    return [*CORPUS, *(f"examples/{file.stem}" for file in EXAMPLES)]


def corpus_file(name: str) -> Path:
    return GRAPHS / f"{name.replace('/', '_')}.graph"


def corpus_graph(name: str) -> Graph:
    """The graph of a name, read from its text."""
    return parse(corpus_file(name).read_text())


def captured_graph(name: str) -> Graph:
    """The same, captured now."""
    folder, _, stem = name.rpartition("/")
    return graph_of(*(example(stem) if folder else CORPUS[name]))
