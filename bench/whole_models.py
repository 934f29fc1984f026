"""Whole models with random weights, their inputs, and what a call and a training step of them is.

Most are those of transformers and timm, which need not be installed for the others. Dropout is
off, so that eager and a plan compute the same. Of each there are four sizes: as it is known, with
a small batch ("whole") or one that fills a GPU ("large"), with one layer of each kind ("block"),
and "tiny", narrow and for a rehearsal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

ModelKind = Literal["inference", "training"]
ModelSize = Literal["whole", "large", "block", "tiny"]
ModelCase = tuple[nn.Module, dict[str, Any]]

LIMIT = 0.02
"""Relative root mean square from eager in bfloat16; or twice eager's own from float32."""


def _ids(
    size: ModelSize, words: int, small: tuple[int, int], large: tuple[int, int], tiny: int = 16
) -> torch.Tensor:
    """Words of a batch of rows. small, large: rows and their length."""
    shape = {"tiny": (2, tiny), "large": large}.get(size, small)
    return torch.randint(0, 1000 if size == "tiny" else words, shape)


def _image(size: ModelSize) -> torch.Tensor:
    batch = 64 if size == "large" else 4
    return torch.randn(4, 3, 32, 32) if size == "tiny" else torch.randn(batch, 3, 224, 224)


def _of(size: ModelSize, block: dict[str, Any], tiny: dict[str, Any]) -> dict[str, Any]:
    """What differs from the model as it is known."""
    return {"block": block, "tiny": tiny}.get(size, {})


def bert(size: ModelSize) -> ModelCase:
    from transformers import BertConfig, BertModel

    small = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "vocab_size": 1000,
    }
    chosen = _of(size, {"num_hidden_layers": 1}, small)
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **chosen)
    tokens = _ids(size, 30000, (8, 128), (32, 512))
    return BertModel(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def gpt2(size: ModelSize) -> ModelCase:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "vocab_size": 1000,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    chosen = _of(size, {"n_layer": 1}, small)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **chosen)
    tokens = _ids(size, 50000, (4, 128), (8, 1024))
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # the default, of which a warning would break the graph
    return model, {"input_ids": tokens, "labels": tokens}


def llama(size: ModelSize) -> ModelCase:
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = size == "tiny"
    width = 64 if tiny else 1024
    config = LlamaConfig(
        vocab_size=1000 if tiny else 32000,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers={"block": 1, "tiny": 2}.get(size, 8),
        num_attention_heads=2 if tiny else 16,
        num_key_value_heads=1 if tiny else 4,
        use_cache=False,
    )
    tokens = _ids(size, 1000, (2, 256), (4, 2048))
    return LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def t5(size: ModelSize) -> ModelCase:
    from transformers import T5Config, T5ForConditionalGeneration

    small = {
        "vocab_size": 1000,
        "num_layers": 1,
        "d_model": 64,
        "d_kv": 32,
        "num_heads": 2,
        "d_ff": 128,
    }
    chosen = _of(size, {"num_layers": 1}, small)
    config = T5Config(dropout_rate=0.0, use_cache=False, **chosen)
    config.decoder_start_token_id = 0
    tokens = _ids(size, 32000, (8, 128), (16, 256))
    labels = _ids(size, 32000, (8, 64), (16, 256), tiny=8)
    return T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": labels}


def mamba(size: ModelSize) -> ModelCase:
    """The scan is a loop over the tokens, which a capture unrolls: few layers, short rows."""
    from transformers import MambaConfig, MambaModel

    tiny = size == "tiny"
    config = MambaConfig(
        vocab_size=1000,
        hidden_size=64 if tiny else 768,
        num_hidden_layers=2 if size in ("whole", "large") else 1,
        use_cache=False,
        use_associative_scan=False,
    )
    return MambaModel(config), {"input_ids": _ids(size, 1000, (4, 32), (64, 32), tiny=4)}


def vit(size: ModelSize) -> ModelCase:
    import timm

    small = {"embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": 32}
    chosen = _of(size, {"depth": 1}, small)
    model = timm.create_model("vit_base_patch16_224", pretrained=False, **chosen)
    return model, {"x": _image(size)}


def convnext(size: ModelSize) -> ModelCase:
    import timm

    small = {"depths": (1, 1, 1, 1), "dims": (16, 16, 32, 32)}
    chosen = _of(size, {"depths": (1, 1, 1, 1)}, small)
    model = timm.create_model("convnext_tiny", pretrained=False, **chosen)
    return model, {"x": _image(size)}


def resnet(size: ModelSize) -> ModelCase:
    import timm

    name = "resnet18" if size == "tiny" else "resnet50"
    model = timm.create_model(name, pretrained=False, **_of(size, {"layers": (1, 1, 1, 1)}, {}))
    return model, {"x": _image(size)}


class _TimedResidual(nn.Module):
    """As in Ho et al., Denoising diffusion probabilistic models: the time's embedding is added
    between two convolutions."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(channels // 8, channels) for _ in range(2))
        self.time = nn.Linear(width, channels)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(F.silu(self.norms[0](x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        y = self.second(F.silu(self.norms[1](y)))
        return x + y


class _SpatialAttention(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(channels // 8, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x).flatten(2).mT
        q, k, v = self.qkv(rows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y: torch.Tensor = self.out(mixed).mT.view(x.shape)
        return x + y


class UNetBlock(nn.Module):
    """Two residual blocks and attention over the places of an image, of a diffusion model."""

    def __init__(self, channels: int, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = _TimedResidual(channels, width), _TimedResidual(channels, width)
        self.attention = _SpatialAttention(channels, heads)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.attention(self.first(x, time)), time)
        return y


def unet_block(size: ModelSize) -> ModelCase:
    tiny = size == "tiny"
    channels, width, side = (16, 32, 8) if tiny else (320, 1280, 64)
    model = UNetBlock(channels, width, heads=2 if tiny else 8)
    batch = 8 if size == "large" else 2
    return model, {"x": torch.randn(batch, channels, side, side), "time": torch.randn(batch, width)}


MODELS: dict[str, Callable[[ModelSize], ModelCase]] = {
    "bert-base": bert,
    "gpt2": gpt2,
    "vit-base": vit,
    "resnet50": resnet,
    "llama-style": llama,
    "t5-small": t5,
    "convnext-tiny": convnext,
    "unet-block": unet_block,
    "mamba": mamba,
}


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a model, or a training step, always on the same inputs. gradients: those of what
    the step goes back from, its loss or else its outputs."""

    module: nn.Module
    inputs: dict[str, Any]
    kind: ModelKind
    gradients: tuple[torch.Tensor, ...] = ()

    def run(self, model: Any) -> Any:
        """By `model`, which is the module or was compiled from it; what the call gives. The
        gradients of a training step stay in the parameters."""
        if self.kind == "inference":
            with torch.no_grad():
                return model(**self.inputs)
        self.forget()
        given = model(**self.inputs)
        torch.autograd.backward(_ends(given), self.gradients)
        return given

    def results(self, model: Any) -> list[torch.Tensor]:
        """Outputs, and all gradients as one vector: single ones are zero but for rounding. They
        are copies, as a CUDA graph writes into its results again."""
        found = [t.detach().clone() for t in flat(self.run(model))]
        if self.kind == "inference":
            return found
        grads = [p.grad.flatten() for p in self.module.parameters() if p.grad is not None]
        self.forget()
        return [*found, torch.cat(grads)]

    def forget(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None

    def in_float32(self) -> ModelCall:
        """The same with copies of everything."""
        module = copy.deepcopy(self.module).float()
        gradients = tuple(g.float() for g in self.gradients)
        inputs = {name: _placed(value, None, torch.float32) for name, value in self.inputs.items()}
        return ModelCall(module, inputs, self.kind, gradients)


def step_of(
    make: Callable[[ModelSize], ModelCase], kind: ModelKind, device: torch.device, size: ModelSize
) -> ModelCall:
    """The model in bfloat16 on the device, with weights and inputs that are always the same."""
    torch.manual_seed(0)
    module, inputs = make(size)
    module = module.to(device, torch.bfloat16).train(kind == "training")
    placed = {name: _placed(value, device, torch.bfloat16) for name, value in inputs.items()}
    step = ModelCall(module, placed, kind)
    if kind == "inference":
        return step
    ends = [t.detach() for t in _ends(module(**placed))]
    gradients = [torch.randn_like(t) if t.ndim else torch.ones_like(t) for t in ends]
    return replace(step, gradients=tuple(gradients))


def flat(value: Any) -> list[torch.Tensor]:
    """The float tensors of an output."""
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    found = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    return [x for x in found if x.is_floating_point()]


def _ends(value: Any) -> list[torch.Tensor]:
    """Where the backward pass begins: at the loss, if the model computes one."""
    loss = getattr(value, "loss", None)
    if isinstance(loss, torch.Tensor):
        return [loss]
    return [t for t in flat(value) if t.requires_grad]


def _placed(value: Any, device: torch.device | None, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def distance(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest relative root mean square of the outputs; infinite when one is not finite."""
    if len(found) != len(wanted):
        return float("inf")
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        a, b = a.double(), b.double()
        if not (a.isfinite().all() and b.isfinite().all()):
            return float("inf")
        worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def is_right(error: float, own: float) -> bool:
    """Whether a result is near enough to eager's. own: of eager itself, from float32."""
    return math.isfinite(error) and error <= max(LIMIT, 2 * own)
