"""Workloads around matrix products, written the plain way. Each is a class and a function that
makes its inputs, as `planner tune bench/contractions.py:NAME --inputs bench/contractions.py:INPUTS`
wants them. `scale` divides the sizes, so that they run anywhere.

The classes whose names end in `Flex` are what a person would write by hand with FlexAttention for
the model of the same name; they take the same inputs.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BF16 = torch.bfloat16
SOFT_CAP = 30.0


class LinearGELU(nn.Module):
    """GELU in its exact form, behind a product with few terms."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(_part(128, scale), _part(2048, scale), dtype=BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))


def linear_smallk_gelu_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [65536, 128], bfloat16."""
    return _normal(device, (_part(65536, scale), _part(128, scale)))


class LinearReLU(nn.Module):
    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(_part(1024, scale), _part(4096, scale), dtype=BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def linear_relu_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [16384, 1024], bfloat16."""
    return _normal(device, (_part(16384, scale), _part(1024, scale)))


class MatmulRowMax(nn.Module):
    """The best match of each row of x among the rows of y."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.T).amax(-1)


def matmul_rowmax_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [16384, 256] and y [32768, 256], bfloat16."""
    width = _part(256, scale)
    return _normal(device, (_part(16384, scale), width), (_part(32768, scale), width))


class SpladeHead(nn.Module):
    """The weight of each word of a vocabulary in each text (SPLADE)."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.decoder = nn.Linear(_part(768, scale), _part(30522, scale), dtype=BF16)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits = self.decoder(hidden)
        weights = torch.log1p(torch.relu(logits)) * attention_mask.unsqueeze(-1)
        return torch.max(weights, dim=1).values


def splade_head_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """hidden [32, 512, 768], bfloat16, and attention_mask [32, 512], int64: texts of any length."""
    texts, length = _part(32, scale), _part(512, scale)
    (hidden,) = _normal(device, (texts, length, _part(768, scale)))
    lengths = torch.randint(1, length + 1, (texts, 1), device=device)
    return [hidden, (torch.arange(length, device=device) < lengths).long()]


class LinearCrossEntropy(nn.Module):
    """The loss of a language model from its last hidden states."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(_part(2048, scale), _part(131072, scale), bias=False, dtype=BF16)

    def forward(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(hidden).float(), labels)


def linear_cross_entropy_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """hidden [8192, 2048], bfloat16, and labels [8192] of 131072 classes."""
    rows = _part(8192, scale)
    (hidden,) = _normal(device, (rows, _part(2048, scale)))
    return [hidden, torch.randint(_part(131072, scale), (rows,), device=device)]


class AttentionSoftcap(nn.Module):
    """Attention with float32 scores, a soft cap, ALiBi and a causal mask."""

    slopes: torch.Tensor

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.register_buffer("slopes", _slopes(_part(32, scale)))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
        scores = SOFT_CAP * torch.tanh(scores / SOFT_CAP)
        rows = torch.arange(q.shape[-2], device=q.device)[:, None]
        columns = torch.arange(k.shape[-2], device=q.device)[None, :]
        scores = scores + self.slopes[:, None, None] * (columns - rows)
        scores = torch.where(columns <= rows, scores, -torch.inf)
        return torch.softmax(scores, -1).to(v.dtype) @ v


class AttentionSoftcapFlex(nn.Module):
    slopes: torch.Tensor

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        length = _part(4096, scale)
        self.register_buffer("slopes", _slopes(_part(32, scale)))
        self.mask = create_block_mask(
            lambda b, h, row, column: column <= row,
            B=None,
            H=None,
            Q_LEN=length,
            KV_LEN=length,
            device=torch.get_default_device(),
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        slopes = self.slopes

        def changed(score, b, h, row, column):  # type: ignore[no-untyped-def]
            return SOFT_CAP * torch.tanh(score / SOFT_CAP) + slopes[h] * (column - row)

        return flex_attention(q, k, v, score_mod=changed, block_mask=self.mask)


def attn_naive_softcap_alibi_causal_inputs(
    device: str = "cuda", scale: int = 1
) -> list[torch.Tensor]:
    """q, k and v [2, 32, 4096, 128], bfloat16."""
    return _normal(device, *[_heads(2, scale)] * 3)


class Attention(nn.Module):
    """Attention from its formula, nothing else."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5)
        return torch.softmax(scores, -1) @ v


class AttentionFlex(nn.Module):
    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v)


def attn_naive_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """q, k and v [4, 32, 4096, 128], bfloat16."""
    return _normal(device, *[_heads(4, scale)] * 3)


class DecodeAttention(nn.Module):
    """The attention of one query to the keys and values of a cache, which several of its heads
    share."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (self.repeated(x, q.shape[1]) for x in (k, v))
        scores = (q @ k.transpose(-1, -2)).float() * (q.shape[-1] ** -0.5)
        return torch.softmax(scores, -1).to(v.dtype) @ v

    @staticmethod
    def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
        """Keys or values once for every head of the query."""
        batch, own, length, width = x.shape
        whole = x[:, :, None].expand(batch, own, heads // own, length, width)
        return whole.reshape(batch, heads, length, width)


def decode_attention_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """q [64, 32, 1, 128], k and v [64, 8, 4096, 128], bfloat16."""
    batch, length = _part(64, scale), _part(4096, scale)
    return _normal(device, (batch, 32, 1, 128), *[(batch, 8, length, 128)] * 2)


class AttentionOutput(nn.Module):
    """The end of a block of attention: the weighted sum, the residual and the norm."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_part(128, scale), dtype=BF16)

    def forward(
        self, weights: torch.Tensor, v: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        normal: torch.Tensor = self.norm(weights @ v + residual)
        return normal


def attn_out_residual_ln_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """weights [64, 1024, 1024], which sum to 1, v and residual [64, 1024, 128], bfloat16."""
    batch, rows, width = _part(64, scale), _part(1024, scale), _part(128, scale)
    scores, v, residual = _normal(device, (batch, rows, rows), *[(batch, rows, width)] * 2)
    return [torch.softmax(scores, -1), v, residual]


class SwiGLU(nn.Module):
    """The gated MLP of a transformer."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        width, hidden = _part(4096, scale), _part(11008, scale)
        self.gate = nn.Linear(width, hidden, bias=False, dtype=BF16)
        self.up = nn.Linear(width, hidden, bias=False, dtype=BF16)
        self.down = nn.Linear(hidden, width, bias=False, dtype=BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


def swiglu_mlp_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [8192, 4096], bfloat16."""
    return _normal(device, (_part(8192, scale), _part(4096, scale)))


class ColBERTMaxSim(nn.Module):
    """Late interaction: each word of a query takes its best match in the document."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("qsd,ntd->qnst", queries, documents)
        return scores.amax(-1).sum(-1)


def colbert_maxsim_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """queries [32, 32, 128] and documents [4096, 256, 128], bfloat16, each word of length 1."""
    width = _part(128, scale)
    queries = (_part(32, scale), _part(32, scale), width)
    documents = (_part(4096, scale), _part(256, scale), width)
    return [F.normalize(x, dim=-1) for x in _normal(device, queries, documents)]


class ContrastiveLoss(nn.Module):
    """InfoNCE over a batch of pairs, in both directions (CLIP)."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        scale = self.logit_scale.exp()
        labels = torch.arange(a.shape[0], device=a.device)
        forth = F.cross_entropy((scale * a @ b.T).float(), labels)
        back = F.cross_entropy((scale * b @ a.T).float(), labels)
        return (forth + back) / 2


def contrastive_loss_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """a and b [16384, 512], bfloat16: pairs that resemble each other."""
    shape = (_part(16384, scale), _part(512, scale))
    a, noise = _normal(device, shape, shape)
    return [a, a + noise]


class RBFProduct(nn.Module):
    """The matrix of a Gaussian kernel times some vectors, as kernel methods need it."""

    gamma = 1 / 64

    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        xx = x.float().square().sum(-1)[:, None]
        yy = y.float().square().sum(-1)[None, :]
        distances = xx + yy - 2 * (x @ y.T).float()
        return torch.exp(-self.gamma * distances).to(v.dtype) @ v


def rbf_matvec_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x, y and v [32768, 64], bfloat16."""
    return _normal(device, *[(_part(32768, scale), _part(64, scale))] * 3)


def _part(size: int, scale: int) -> int:
    """A size divided, never to less than 4."""
    return max(min(size, 4), size // scale)


def _heads(batch: int, scale: int) -> tuple[int, ...]:
    return (_part(batch, scale), _part(32, scale), _part(4096, scale), _part(128, scale))


def _slopes(heads: int) -> torch.Tensor:
    """ALiBi's slopes, a geometric series down to 1/256."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


def _normal(device: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=BF16, device=device) for shape in shapes]
