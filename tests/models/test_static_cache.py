"""Steps of transformers' models that generate text, with a cache of a fixed length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan import api
from fusionplan.planner.runtime.machine_code.compile import interpreted

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.dynamo,
    pytest.mark.interpreter,
    pytest.mark.usefixtures("few_looks"),
]

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}


def generated(model: Any, step: Callable[..., Any], count: int) -> tuple[list[int], Any]:
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        start = torch.tensor([[5, 7, 9]])
        found = model(start, past_key_values=cache, cache_position=torch.arange(3))
        tokens = []
        for place in range(3, 3 + count):
            token = found.logits[:, -1:].argmax(-1)
            at = torch.tensor([place])
            found = step(token, past_key_values=cache, cache_position=at, position_ids=at[None])
            tokens.append(int(token))
    return tokens, cache


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_a_step_is_one_graph_that_writes_its_cache(name: str) -> None:
    if not interpreted():
        pytest.skip("the kernels are looked at in the interpreter")
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    run = api.load(model, on_miss="model", evidence="any")
    tokens, kept = generated(model, run, 6)
    expected, cache = generated(model, model, 6)
    assert tokens == expected
    for mine, own in zip(kept.layers, cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, own.keys)
        torch.testing.assert_close(mine.values, own.values)
    (executor,) = api.executors(run)
    assert executor.kernels_per_call > 2
    assert "index_put" not in executor.text
    in_place = [update for update in executor.captured.updates if not update.is_copied]
    assert len(in_place) == 4
