"""Whole models on a real GPU by the model's plan, untuned: are they right, do our kernels run?

By hand, with transformers and timm installed: python tests/gpu/models_gpu.py OUT.json [NAME ...]
--tiny: small models of two layers, for a first look (with TRITON_INTERPRET=1 on the CPU too).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16
SECONDS = 220.0
"""After so many no further model is begun."""
LIMIT = 0.02
"""Relative root mean square from eager in bfloat16; or twice eager's own from float32."""

Case = tuple[nn.Module, dict[str, Any]]


def ids(size: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, size, (batch, length), device=DEVICE)


def bert(tiny: bool) -> Case:
    from transformers import BertConfig, BertModel

    small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    config = BertConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **(small if tiny else {})
    )
    tokens = ids(1000, 2, 16) if tiny else ids(30000, 8, 128)
    return BertModel(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def gpt2(tiny: bool) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 64, "n_head": 2}
    config = GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **(small if tiny else {})
    )
    tokens = ids(1000, 2, 16) if tiny else ids(50000, 4, 128)
    return GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def llama(tiny: bool) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 64 if tiny else 1024
    config = LlamaConfig(
        vocab_size=1000 if tiny else 32000,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=2 if tiny else 8,
        num_attention_heads=2 if tiny else 16,
        num_key_value_heads=1 if tiny else 4,
        use_cache=False,
    )
    tokens = ids(1000, 2, 16 if tiny else 256)
    return LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def vit(tiny: bool) -> Case:
    import timm

    small = {"embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": 32}
    model = timm.create_model("vit_base_patch16_224", pretrained=False, **(small if tiny else {}))
    return model, {"x": torch.randn(4, 3, 32 if tiny else 224, 32 if tiny else 224)}


def resnet(tiny: bool) -> Case:
    import timm

    model = timm.create_model("resnet18" if tiny else "resnet50", pretrained=False)
    return model, {"x": torch.randn(4, 3, 32 if tiny else 224, 32 if tiny else 224)}


MODELS: dict[str, Callable[[bool], Case]] = {
    "bert-base": bert,
    "gpt2": gpt2,
    "vit-base": vit,
    "resnet50": resnet,
    "llama-style": llama,
}


def placed(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(DEVICE, dtype) if value.is_floating_point() else value.to(DEVICE)


def flat(value: Any) -> list[torch.Tensor]:
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    found = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    return [x for x in found if x.is_floating_point()]


def inference(model: Any, _: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return flat(model(**inputs))


def training(model: Any, own: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Outputs, and all gradients as one vector: single ones are zero but for rounding."""
    outputs = flat(model(**inputs))
    losses = [t.float().square().mean() for t in outputs if t.requires_grad]
    sum(losses[1:], losses[0]).backward()
    grads = [p.grad.float().flatten() for p in own.parameters() if p.grad is not None]
    for parameter in own.parameters():
        parameter.grad = None
    return [*(t.detach() for t in outputs), torch.cat(grads)]


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest relative root mean square of the outputs; infinite when one is not finite."""
    assert len(found) == len(wanted), f"{len(found)} outputs instead of {len(wanted)}"
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        a, b = a.double(), b.double()
        if bool(a.isfinite().all()) != bool(b.isfinite().all()):
            return float("inf")
        worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def one(make: Callable[[bool], Case], stage: str, tiny: bool) -> dict[str, Any]:
    """A model in one stage: how far from eager, how many kernels of ours, what was told."""
    from fusionplan import executors, plans
    from fusionplan.backend import planner

    run = training if stage == "training" else inference
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = make(tiny)
    model = model.to(DEVICE, DTYPE).train(stage == "training")
    given = {name: placed(value, DTYPE) for name, value in inputs.items()}
    exact_model = copy.deepcopy(model).float()
    exact = run(exact_model, exact_model, {k: placed(v, torch.float32) for k, v in given.items()})
    eager_model = copy.deepcopy(model)
    eager = run(eager_model, eager_model, given)
    compiled = torch.compile(
        model, backend=planner, options={"on_miss": "model", "evidence": "any"}, dynamic=False
    )
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mine = run(compiled, model, given)
    seconds = time.monotonic() - start
    error, own = distance(mine, eager), distance(eager, exact)
    ours = executors(compiled)
    kernels = sum(r.kernels_per_call for r in ours)
    warned = [str(w.message) for w in told if "fusionplan" in str(w.message)]
    return {
        "ok": error <= max(LIMIT, 2 * own) and kernels > 0 and not warned,
        "error": error,
        "eager_error": own,
        "graphs": len(plans(compiled)),
        "kernels": kernels,
        "calls": sum(r.calls for r in ours),
        "first_call_s": seconds,
        "warnings": warned,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    os.environ["PLANNER_STORE"] = str(Path(tempfile.mkdtemp()) / "none.db")
    started, results = time.monotonic(), {}
    print(f"{'model':12} {'stage':10} ok   error    eager's  graphs kernels first call")
    for name in asked.names or MODELS:
        for stage in ("inference", "training"):
            if time.monotonic() - started > SECONDS:
                results[f"{name} {stage}"] = {"ok": False, "exception": "no time left"}
                print(f"{name:12} {stage:10} left out: {SECONDS:g} s are over")
                continue
            try:
                found = one(MODELS[name], stage, asked.tiny)
            except Exception as error:  # noqa: BLE001 - told, and the next model tried
                found = {"ok": False, "exception": f"{type(error).__name__}: {error}"[:2000]}
                found["traceback"] = traceback.format_exc()[-4000:]
                print(f"{name:12} {stage:10} FAILED {found['exception'][:200]}", flush=True)
            else:
                print(
                    f"{name:12} {stage:10} {'yes' if found['ok'] else 'NO ':4} "
                    f"{found['error']:.2e} {found['eager_error']:.2e} {found['graphs']:6} "
                    f"{found['kernels']:7} {found['first_call_s']:8.1f} s",
                    *found["warnings"],
                    sep="\n    ",
                    flush=True,
                )
            results[f"{name} {stage}"] = found
            asked.out.write_text(json.dumps(results, indent=1) + "\n")
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
    return 0 if all(r["ok"] for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
