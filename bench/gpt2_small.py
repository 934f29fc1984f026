"""GPT-2 small of transformers, random weights: a whole model that `bench.startup` starts.

By its path, not as a module of the package: eager starts without it.
"""

import torch


def gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(use_cache=False))
    return model.eval().to(torch.bfloat16)


def gpt2_inputs(device: str = "cuda") -> tuple[torch.Tensor]:
    return (torch.randint(0, 50000, (4, 512), device=device),)
