"""The sweep over transformers' architectures: its models are tiny, and it sees wrong numbers."""

import pytest
import torch

pytest.importorskip("transformers")
from models.architecture_sweep import compare
from models.tiny_architectures import build, kinds

pytestmark = pytest.mark.dynamo  # what it imports takes seconds


@pytest.mark.parametrize("kind", ["llama", "vit", "t5"])
def test_a_model_is_tiny_and_has_labels(kind: str) -> None:
    tiny = build(kind, masked=True, labelled=True)
    assert sum(p.numel() for p in tiny.model.parameters()) < 200_000
    assert tiny.labels
    assert ("attention_mask" in tiny.inputs) == (kind != "vit")
    assert tiny.model(**tiny.inputs).loss.isfinite()


def test_architectures_have_a_class_each() -> None:
    found = kinds()
    assert len(found) > 300
    assert found["llama"] == "LlamaForCausalLM"


def test_what_is_wrong_is_seen() -> None:
    right = torch.tensor([1.0, float("-inf"), 3.0])
    compare([right], [right], [right.double()])
    for wrong in (
        [1.0, -3e38, 3.0],
        [1.0, float("-inf"), 3.01],
        [float("nan"), float("-inf"), 3.0],
    ):
        with pytest.raises(AssertionError):
            compare([torch.tensor(wrong)], [right], [right.double()])


def test_a_wrong_dtype_is_seen() -> None:
    with pytest.raises(AssertionError):
        compare([torch.ones(2, dtype=torch.bfloat16)], [torch.ones(2)], [torch.ones(2).double()])
