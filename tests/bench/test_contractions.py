"""The models around matrix products, small, against their formulas in float64; and as rewritten."""

import math
from dataclasses import replace

import pytest
import torch
from fusionplan.bench.measure import accuracy_of
from fusionplan.bench.workloads import CONTRACTIONS, WORKLOADS, make, make_rewritten
from fusionplan.planner.costs.device import H200

SCALE = 64

FLOORS_MS = {
    "linear_smallk_gelu": 0.0665,
    "linear_relu": 0.174,
    "matmul_rowmax": 0.3479,
    "splade_head": 0.9723,
    "linear_cross_entropy": 5.5671,
    "attn_naive_softcap_alibi_causal": 0.3479,
    "attn_naive": 1.3918,
    "decode_attention": 0.2500,
    "attn_out_residual_ln": 0.0429,
    "swiglu_mlp": 2.8053,
}
"""Milliseconds that one H200 needs at the least, reckoned by hand from shapes and data types."""


def linear(layer, x):
    product = x.double() @ layer.weight.double().T
    return product if layer.bias is None else product + layer.bias.double()


def gelu(model, x):
    z = linear(model.linear, x)
    return z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))


def relu(model, x):
    return linear(model.linear, x).clamp(min=0)


def row_max(model, x, y):
    return torch.einsum("ik,jk->ij", x.double(), y.double()).max(1).values


def splade(model, hidden, mask):
    weights = torch.log(1 + linear(model.decoder, hidden).clamp(min=0))
    return torch.where(mask[:, :, None].bool(), weights, 0.0).amax(1)


def cross_entropy(model, hidden, labels):
    logits = linear(model.head, hidden)
    return (torch.logsumexp(logits, 1) - logits[torch.arange(len(labels)), labels]).mean()


def softcap(model, q, k, v):
    scores = torch.einsum("bhmd,bhnd->bhmn", q.double(), k.double()) / q.shape[-1] ** 0.5
    scores = 30 * torch.tanh(scores / 30)
    heads, length = q.shape[1], q.shape[2]
    for head in range(heads):
        for row in range(length):
            ahead = torch.arange(length) - row
            scores[:, head, row] += 2.0 ** (-8 * (head + 1) / heads) * ahead
            scores[:, head, row, row + 1 :] = -math.inf
    likely = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return likely @ v.double()


def attention(model, q, k, v):
    scores = torch.einsum("bhmd,bhnd->bhmn", q.double(), k.double()) / q.shape[-1] ** 0.5
    return scores.exp() / scores.exp().sum(-1, keepdim=True) @ v.double()


def decode(model, q, k, v):
    heads = [h // (q.shape[1] // k.shape[1]) for h in range(q.shape[1])]
    return attention(model, q, k[:, heads], v[:, heads])


def attention_output(model, weights, v, residual):
    total = weights.double() @ v.double() + residual.double()
    spread = total.var(-1, correction=0, keepdim=True) + model.norm.eps
    return (total - total.mean(-1, keepdim=True)) / spread.sqrt()


def swiglu(model, x):
    gate = linear(model.gate, x)
    hidden = gate / (1 + torch.exp(-gate)) * linear(model.up, x)
    return hidden @ model.down.weight.double().T


def maxsim(model, queries, documents):
    rows = [
        torch.stack([(q.double() @ d.double().T).max(1).values.sum() for d in documents])
        for q in queries
    ]
    return torch.stack(rows)


def contrastive(model, a, b):
    a, b = (x.double() / x.double().norm(dim=1, keepdim=True) for x in (a, b))
    logits = a @ b.T / 0.07
    both = [torch.logsumexp(logits, d).mean() - logits.diagonal().mean() for d in (0, 1)]
    return (both[0] + both[1]) / 2


def rbf(model, x, y, v):
    distances = torch.cdist(x.double(), y.double()).square()
    return torch.exp(-distances / 64) @ v.double()


FORMULAS = {
    "linear_smallk_gelu": gelu,
    "linear_relu": relu,
    "matmul_rowmax": row_max,
    "splade_head": splade,
    "linear_cross_entropy": cross_entropy,
    "attn_naive_softcap_alibi_causal": softcap,
    "attn_naive": attention,
    "decode_attention": decode,
    "attn_out_residual_ln": attention_output,
    "swiglu_mlp": swiglu,
    "colbert_maxsim": maxsim,
    "contrastive_loss": contrastive,
    "rbf_matvec": rbf,
}


@pytest.mark.parametrize("workload", CONTRACTIONS, ids=lambda w: w.name)
def test_each_computes_its_formula(workload):
    model, call = make(workload, "cpu", scale=SCALE)
    with torch.no_grad():
        result = call.run(model)
        ideal = FORMULAS[workload.name](model, *call.args)
    assert result.dtype == (torch.float32 if result.ndim == 0 else torch.bfloat16)
    assert result.shape == ideal.shape
    assert bool(torch.isfinite(result).all())
    error = (result.double() - ideal).abs().max() / ideal.abs().max()
    assert float(error) < 0.02  # A few roundings to bfloat16.


@pytest.mark.parametrize("name", FLOORS_MS)
def test_floors(name):
    rates = replace(H200, copy_s=((4.3e12, 1.0),), tensor_flops=790e12)
    assert WORKLOADS[name].floor_s(rates) * 1e3 == pytest.approx(FLOORS_MS[name], abs=1e-4)


@pytest.mark.parametrize("workload", CONTRACTIONS, ids=lambda w: w.name)
def test_what_is_asked_is_possible(workload):
    model, call = make(workload, "meta")
    with torch.no_grad():
        result = call.run(model)
    assert workload.peak_extra > result.nbytes
    assert workload.reach is None or workload.reach > workload.floor_s(H200)


@pytest.mark.dynamo
@pytest.mark.parametrize("name", ["attn_naive", "attn_naive_softcap_alibi_causal"])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_what_is_rewritten_by_hand_computes_the_same(name):
    model, call = make(WORKLOADS[name], "cpu", scale=SCALE)
    rewritten = make_rewritten(WORKLOADS[name], "cpu", scale=SCALE)
    with torch.no_grad():
        found = accuracy_of(model, call, lambda: call.run(rewritten))
    assert found.problem == ""
