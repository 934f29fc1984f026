"""Models as their owners write them: inference and a training step equal eager, by our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("few_looks")

IDS = torch.tensor([[3, 11, 7, 1, 5], [2, 9, 4, 8, 6]])
Case = tuple[nn.Module, dict[str, Any]]


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.SiLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.first(x), 2)
        return self.head(self.second(x).mean((2, 3)))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.norm(x))


class Recurrent(nn.Module):
    """torch.compile leaves an LSTM, and what calls it, to eager; `head` it can compile."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = Head()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (h, _) = self.lstm(x * 2)
        return self.head(x + y), h


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, weights = self.attention(x, x, x)
        return self.norm(x + y), weights


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, {"src": torch.randn(2, 5, 32)}


PLAIN: dict[str, Callable[[], Case]] = {
    "encoder": encoder,
    "convolutional": lambda: (Convolutional(), {"x": torch.randn(2, 3, 8, 8)}),
    "recurrent": lambda: (Recurrent(), {"x": torch.randn(2, 4, 16)}),
    "attention": lambda: (Attention(), {"x": torch.randn(2, 5, 32)}),
}


def bert(t: Any) -> Case:
    config = t.BertConfig(**_TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return t.BertModel(config), {"input_ids": IDS, "attention_mask": mask}


def gpt2(t: Any) -> Case:
    config = t.GPT2Config(
        vocab_size=16,
        n_positions=8,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return t.GPT2LMHeadModel(config), {"input_ids": IDS, "labels": IDS}


def llama(t: Any) -> Case:
    config = t.LlamaConfig(**_TINY, num_key_value_heads=1, use_cache=False)
    return t.LlamaForCausalLM(config), {"input_ids": IDS, "labels": IDS}


def t5(t: Any) -> Case:
    config = t.T5Config(
        vocab_size=16,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )
    return t.T5ForConditionalGeneration(config), {"input_ids": IDS, "labels": IDS}


def vit(t: Any) -> Case:
    config = t.ViTConfig(
        **{k: v for k, v in _TINY.items() if k not in ("vocab_size", "max_position_embeddings")},
        image_size=16,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return t.ViTModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


# One layer, for the time that planning takes; the plain encoder and GPT-2 have two.
_TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 16,
    "max_position_embeddings": 8,
}
PRETRAINED: dict[str, Callable[[Any], Case]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
}


@pytest.mark.dynamo
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str, training: bool, run: Any, accurate: Any) -> None:
    module, inputs = PLAIN[name]()
    # In eval and without gradients the encoder is one call of ATen's fast path.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        done = run(module, inputs, training=training)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    accurate(done.mine, done.eager, done.exact)
    assert done.kernels > 0
    assert all(runner.calls > 0 for runner in done.runners)


# A training step has a forward pass too; both kinds of every model would take minutes more.
ONE_KIND = {"gpt2": False, "vit": False, "t5": True, "llama": True}


@pytest.mark.dynamo
@pytest.mark.parametrize(
    "name, training",
    [(n, kind) for n in PRETRAINED for kind in (False, True) if ONE_KIND.get(n, kind) is kind],
    ids=lambda value: {False: "inference", True: "training"}.get(value, value),
)
def test_transformers(name: str, training: bool, run: Any, accurate: Any) -> None:
    transformers = pytest.importorskip("transformers")
    module, inputs = PRETRAINED[name](transformers)
    done = run(module, inputs, training=training)
    accurate(done.mine, done.eager, done.exact)
    assert done.kernels > 0
    stages = len(done.runners)
    assert stages >= (2 if training else 1)
