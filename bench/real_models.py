"""Models at sizes that fill a GPU, and functions of a few operations: what `bench.real` measures.

Random weights, inference. Models are those of transformers and timm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .whole_models import UNetBlock


class RealCase(NamedTuple):
    """A module and the arguments of a call by name, both on the CPU in float32. dtype: of the
    floats that it is measured with."""

    model: nn.Module
    inputs: dict[str, torch.Tensor]
    dtype: torch.dtype = torch.bfloat16


def tokens(words: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, words, (batch, length))


def _images(batch: int, side: int = 224) -> torch.Tensor:
    return torch.randn(batch, 3, side, side)


def timm_case(name: str, batch: int) -> RealCase:
    import timm

    return RealCase(timm.create_model(name, pretrained=False), {"x": _images(batch)})


def bert(width: int, layers: int, batch: int, length: int, padded: bool) -> RealCase:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    inputs = {"input_ids": tokens(30000, batch, length)}
    if padded:
        lengths = torch.linspace(length // 2, length, batch).long()
        inputs["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
    return RealCase(BertModel(config), inputs)


def distilbert() -> RealCase:
    from transformers import DistilBertConfig, DistilBertModel

    return RealCase(DistilBertModel(DistilBertConfig()), {"input_ids": tokens(30000, 64, 256)})


def gpt2_medium() -> RealCase:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    return RealCase(GPT2LMHeadModel(config), {"input_ids": tokens(50000, 8, 1024)})


def llama_1b() -> RealCase:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        use_cache=False,
    )
    return RealCase(LlamaForCausalLM(config), {"input_ids": tokens(32000, 4, 2048)})


def qwen_half_b() -> RealCase:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        use_cache=False,
    )
    return RealCase(Qwen2ForCausalLM(config), {"input_ids": tokens(150000, 8, 1024)})


def t5_base() -> RealCase:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)
    config.decoder_start_token_id = 0
    inputs = {
        "input_ids": tokens(32000, 16, 256),
        "decoder_input_ids": tokens(32000, 16, 256),
    }
    return RealCase(T5ForConditionalGeneration(config), inputs)


def unet_block() -> RealCase:
    inputs = {"x": torch.randn(8, 320, 64, 64), "time": torch.randn(8, 1280)}
    return RealCase(UNetBlock(320, 1280, heads=8), inputs)


REAL: dict[str, Callable[[], RealCase]] = {
    "bert-base 32x512": lambda: bert(768, 12, 32, 512, padded=False),
    "bert-base 32x512 padded": lambda: bert(768, 12, 32, 512, padded=True),
    "bert-large 16x384": lambda: bert(1024, 24, 16, 384, padded=False),
    "bert-large 16x384 padded": lambda: bert(1024, 24, 16, 384, padded=True),
    "distilbert 64x256": distilbert,
    "gpt2-medium 8x1024": gpt2_medium,
    "llama-1b 4x2048": llama_1b,
    "qwen-0.5b 8x1024": qwen_half_b,
    "t5-base 16x256": t5_base,
    "vit-large 32": lambda: timm_case("vit_large_patch16_224", 32),
    "swin-small 64": lambda: timm_case("swin_small_patch4_window7_224", 64),
    "convnext-small 64": lambda: timm_case("convnext_small", 64),
    "resnet-101 64": lambda: timm_case("resnet101", 64),
    "efficientnet-b0 64": lambda: timm_case("efficientnet_b0", 64),
    "unet-block 8x64x64": unet_block,
}


class _Function(nn.Module):
    """A function of tensors as a module, whose arguments are named a, b, ..."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, **named: torch.Tensor) -> Any:
        return self.function(*named.values())


def case_of(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16
) -> Callable[[], RealCase]:
    """What makes the case of a function of normally distributed tensors of these shapes."""

    def make() -> RealCase:
        named = {chr(ord("a") + i): torch.randn(shape) for i, shape in enumerate(shapes)}
        return RealCase(_Function(function), named, dtype)

    return make


def standardised(a: torch.Tensor) -> torch.Tensor:
    """Columns with a mean of 0 and a deviation of 1."""
    return (a - a.mean(0)) / (a.std(0) + 1e-5)


def kl_divergence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler, of the softmaxes of rows."""
    return F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean")


ROWS, SQUARE, SMALL = (8192, 4096), (4096, 4096), (256, 1024)

FUNCTIONS: dict[str, Callable[[], RealCase]] = {
    "relu": case_of(torch.relu, ROWS),
    "relu, small": case_of(torch.relu, SMALL),
    "add relu": case_of(lambda a, b: torch.relu(a + b), ROWS, ROWS),
    "add, small": case_of(torch.add, SMALL, SMALL),
    "gelu": case_of(F.gelu, ROWS),
    "silu and multiply": case_of(lambda a, b: F.silu(a) * b, ROWS, ROWS),
    "softmax": case_of(lambda a: torch.softmax(a, -1), ROWS),
    "softmax, odd rows": case_of(lambda a: torch.softmax(a, -1), (8192, 4099)),
    "log softmax over columns": case_of(lambda a: torch.log_softmax(a, 0), ROWS),
    "layer norm": case_of(lambda a: F.layer_norm(a, (4096,)), ROWS),
    "rms norm": case_of(lambda a: a * torch.rsqrt(a.square().mean(-1, keepdim=True) + 1e-6), ROWS),
    "sum of rows": case_of(lambda a: a.sum(-1), ROWS),
    "sum of columns": case_of(lambda a: a.sum(0), ROWS),
    "mean of all": case_of(torch.mean, ROWS),
    "argmax": case_of(lambda a: a.argmax(-1), ROWS),
    "max and its place": case_of(lambda a: torch.max(a, 1), ROWS),
    "transpose and copy": case_of(lambda a: a.t().contiguous(), SQUARE),
    "concatenate": case_of(lambda a, b: torch.cat([a, b], 1), ROWS, ROWS),
    "roll": case_of(lambda a: torch.roll(a, 7, 1), ROWS),
    "product": case_of(torch.mm, SQUARE, SQUARE),
    "product and relu": case_of(lambda a, b: torch.relu(a @ b), SQUARE, SQUARE),
    "product, bias, gelu": case_of(lambda a, b, c: F.gelu(a @ b + c), SQUARE, SQUARE, (4096,)),
    "product and residual": case_of(lambda a, b, c: a @ b + c, SQUARE, SQUARE, SQUARE),
    "product, odd columns": case_of(torch.mm, (4096, 1024), (1024, 50257)),
    "product and row maximum": case_of(lambda a, b: (a @ b).amax(-1), SQUARE, SQUARE),
    "skinny product": case_of(torch.mm, (16, 4096), SQUARE),
    "batched product": case_of(torch.bmm, (64, 512, 512), (64, 512, 512)),
    "cumulative sum": case_of(lambda a: a.cumsum(-1), ROWS),
    "cumulative sum and gate": case_of(lambda a, b: a.cumsum(-1) * torch.sigmoid(b), ROWS, ROWS),
    "sort": case_of(lambda a: a.sort(-1), (1024, 4096)),
    "top-k": case_of(lambda a: a.topk(8, -1), ROWS),
    "depthwise convolution": case_of(
        lambda a, b: F.conv2d(a, b, padding=3, groups=96), (64, 96, 56, 56), (96, 1, 7, 7)
    ),
    "convolution and relu": case_of(
        lambda a, b: torch.relu(F.conv2d(a, b, padding=1)), (64, 64, 56, 56), (64, 64, 3, 3)
    ),
    "maximum pool": case_of(lambda a: F.max_pool2d(a, 3, 2, 1), (64, 64, 112, 112)),
    "average pool": case_of(lambda a: F.avg_pool2d(a, 2), (64, 64, 112, 112)),
    "upsample": case_of(lambda a: F.interpolate(a, scale_factor=2.0), (16, 64, 64, 64)),
    "batch norm of inference": case_of(
        lambda a, b, c: F.batch_norm(a, b, c.abs() + 1), (64, 64, 56, 56), (64,), (64,)
    ),
    "group norm": case_of(lambda a: F.group_norm(a, 32), (16, 320, 64, 64)),
    "attention": case_of(F.scaled_dot_product_attention, *[(16, 16, 1024, 64)] * 3),
    "causal attention": case_of(
        lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True),
        *[(16, 16, 1024, 64)] * 3,
    ),
    "attention of one query": case_of(
        F.scaled_dot_product_attention, (64, 32, 1, 128), *[(64, 32, 4096, 128)] * 2
    ),
    "outer sum": case_of(lambda a, b: a[:, None] + b, (8192,), (4096,)),
    "distance": case_of(lambda a, b: (a - b).square().sum(-1).sqrt(), ROWS, ROWS),
    "cosine": case_of(lambda a, b: F.cosine_similarity(a, b, dim=-1), ROWS, ROWS),
    "cross-entropy": case_of(
        lambda a, b: F.cross_entropy(a, b.abs().long() % 4096), ROWS, (8192,)
    ),
    "mean square error": case_of(F.mse_loss, ROWS, ROWS),
    "binary cross-entropy": case_of(
        lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()), ROWS, ROWS
    ),
    "Kullback-Leibler": case_of(kl_divergence, ROWS, ROWS),
    "embedding": case_of(lambda a, b: a[b.abs().long() % 8192], ROWS, (16384,)),
    "gather": case_of(lambda a, b: a.gather(1, b.abs().long() % 4096), ROWS, (8192, 64)),
    "masked fill": case_of(lambda a, b: a.masked_fill(b > 0, -1e4), ROWS, ROWS),
    "triangle": case_of(torch.tril, SQUARE),
    "where of two": case_of(lambda a, b: torch.where(a > b, a, b * 2), ROWS, ROWS),
    "clamp and round": case_of(lambda a: (a * 16).round().clamp(-127, 127), ROWS),
    "cast to float": case_of(lambda a: a.float() * 2, ROWS),
    "variance": case_of(lambda a: a.var(-1), ROWS),
    "standardised columns": case_of(standardised, ROWS),
    "norm of rows": case_of(lambda a: a / a.norm(dim=-1, keepdim=True), ROWS),
    "rotary": case_of(
        lambda a, b, c: a * b + torch.cat([-a[..., 64:], a[..., :64]], -1) * c,
        (8, 32, 2048, 128), (2048, 128), (2048, 128),
    ),
    "log-sum-exp": case_of(lambda a: torch.logsumexp(a, -1), ROWS),
}  # fmt: skip
