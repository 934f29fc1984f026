"""Tokens generated greedily by eager and by the cost model's plan, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ..api import step as loaded_step
from .decode_models import DecodeStep, Geometry, made

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens, [count, batch], and the logits behind each, [count, batch, words] in float32."""

    tokens: torch.Tensor
    logits: torch.Tensor


def generated(
    model: DecodeStep, step: Step, first: torch.Tensor, count: int, feed: torch.Tensor | None = None
) -> Generated:
    """The tokens after `first`, [batch], from empty caches. feed: the tokens that are given to the
    step in place of its own."""
    for name, buffer in model.named_buffers():
        if name.startswith(("keys", "values")):
            buffer.zero_()
    token, position = first.clone(), torch.zeros(1, dtype=torch.int64, device=first.device)
    tokens, logits = [], []
    for turn in range(count):
        found = step(token, position)[:, 0].float()
        tokens.append(found.argmax(-1))
        logits.append(found.cpu())
        token.copy_(tokens[-1] if feed is None else feed[turn])
        position.add_(1)
    return Generated(torch.stack(tokens).cpu(), torch.stack(logits))


def first_difference(eager: Generated, ours: Generated) -> Iterator[str]:
    """For each sequence, at which token the two part if they do, by how much eager's logits of the
    two tokens differ there, and by how much those of the other way differ from them."""
    count, batch = eager.tokens.shape
    for row in range(batch):
        apart = (eager.tokens[:, row] != ours.tokens[:, row]).nonzero()
        if not len(apart):
            yield f"sequence {row}: the same {count} tokens"
            continue
        turn = int(apart[0])
        wanted, found = int(eager.tokens[turn, row]), int(ours.tokens[turn, row])
        logits, others = eager.logits[turn, row], ours.logits[turn, row]
        gap = float(logits[wanted] - logits[found])
        error = float((logits - others).abs().max())
        yield (
            f"sequence {row}: the same {turn} tokens, then {wanted} and {found}: eager's logits of "
            f"these are {gap:.4f} apart, the two ways' logits differ by up to {error:.4f}"
        )


def compared(of: Geometry, batch: int, count: int, dtype: torch.dtype) -> Iterator[str]:
    """Lines that tell how far the tokens of the plan are those of eager, by numbers of `dtype`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = made(of, batch, device, dtype=dtype)
    first = torch.randint(of.words, (batch,), device=device)
    eager = generated(model, model, first, count)
    torch._dynamo.reset()
    step = loaded_step(model, on_miss="model", evidence="any")
    ours = generated(model, step, first, count)
    yield f"{str(dtype).removeprefix('torch.')}, {count} tokens:"
    yield from first_difference(eager, ours)
