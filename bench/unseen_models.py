"""Models at sizes that fill a GPU on which nothing in the planner was made, for `bench.real`.

Once a change of the planner was made for one of them, it belongs in `real_models`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .real_models import RealCase, timm_case, tokens


def pythia() -> RealCase:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        use_cache=False,
    )
    return RealCase(GPTNeoXForCausalLM(config), {"input_ids": tokens(50000, 8, 1024)})


def deberta() -> RealCase:
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
    )
    return RealCase(DebertaV2Model(config), {"input_ids": tokens(128000, 32, 256)})


def whisper() -> RealCase:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    inputs = {
        "input_features": torch.randn(8, 80, 3000),
        "decoder_input_ids": tokens(50000, 8, 128),
    }
    return RealCase(WhisperModel(config), inputs)


def olmo() -> RealCase:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    config = Olmo2Config(
        vocab_size=100352,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=16,
        use_cache=False,
    )
    return RealCase(Olmo2ForCausalLM(config), {"input_ids": tokens(100000, 4, 1024)})


UNSEEN: dict[str, Callable[[], RealCase]] = {
    "pythia-410m 8x1024": pythia,
    "deberta-v3-base 32x256": deberta,
    "whisper-small 8": whisper,
    "olmo2-1b 4x1024": olmo,
    "beit-base 64": lambda: timm_case("beit_base_patch16_224", 64),
    "coatnet-0 64": lambda: timm_case("coatnet_0_rw_224", 64),
    "mobilenetv4-medium 64": lambda: timm_case("mobilenetv4_conv_medium", 64),
    "caformer-s18 64": lambda: timm_case("caformer_s18", 64),
}
