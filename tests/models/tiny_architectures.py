"""Tiny models of the architectures that transformers knows, with random weights, and their inputs.

A config's numbers are made small by their names: a width is 64, a stack has one layer of each kind.
That does for about half of 640 architectures; the others raise an error when they are built or run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

HEADS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "OBJECT_DETECTION",
    "INSTANCE_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "TIME_SERIES_PREDICTION",
    "IMAGE_TEXT_TO_TEXT",
    "VISUAL_QUESTION_ANSWERING",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "MASK_GENERATION",
    "IMAGE_TO_IMAGE",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "PRETRAINING",
)
"""Kinds of heads; a model is built with the first that its architecture has, or without one."""

WORDS = 99
MOST_PARAMETERS = 6_000_000

MOST: Sequence[tuple[str, int]] = (
    (r"vocab_size$|n_words$", WORDS),
    (r"_channels$|num_labels|type_vocab|conv_kernel|input_dim$|mel", 1 << 62),
    (r"image_size|img_size|resolution$", 32),
    (r"merge_size$|window_size$|temporal_patch_size$|sliding_window|attention_window", 4),
    (r"patch_size|chunk_size|rope_head_dim|^rotary_dim$", 8),
    (r"max_\w*position|max_seq|n_positions|max_target|max_source|seq_len|context_length", 64),
    (r"n_group$|topk_group|num_expert_group", 1),
    (r"experts$", 4),
    (r"experts_per|top_?k$|moe_k$", 2),
    (r"(^|_)layers?$|depth$|num_blocks$|hidden_groups$", 1),
    (r"head_dim|d_kv$|head_size$|d_head$|kv_channels", 16),
    (r"(key_value|kv)_heads$", 2),
    (r"heads?$", 4),
    (r"intermediate|ffn_dim|d_ff$|n_inner|mlp_dim|feedforward", 64),
    (r"hidden_size|d_model|n_embd|(^|_)dim$|embedding_size|width$|lora_rank|embed_size", 64),
    (r"num_quer|num_latents|num_object_queries", 8),
)
"""The largest value of a number, by the first expression that is found in its name."""


def kinds() -> dict[str, str]:
    """The class to build for each architecture."""
    found: dict[str, str] = {}
    tables = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {}) for head in HEADS]
    for table in (*tables, modeling_auto.MODEL_MAPPING_NAMES):
        for kind, name in table.items():
            found.setdefault(kind, name if isinstance(name, str) else name[0])
    return found


def _number(name: str, value: int, seen: dict[str, int]) -> int:
    if name.endswith(("token_id", "token_index")):
        return value if value < 80 else 80 + seen.setdefault(name, len(seen)) % 19
    most = next((most for text, most in MOST if re.search(text, name)), 1 << 62)
    return min(value, most)


def _numbers(name: str, values: list[Any]) -> list[Any]:
    if not all(type(n) is int for n in values) or "kernel" in name:
        return values
    if re.search(r"depths|layers|num_blocks", name):
        return [1] * len(values)
    if re.search(r"conv_dim|tdnn_dim", name):
        return [16] * len(values)
    if name == "num_heads":
        return [min(2, n) for n in values]
    if re.search(r"sizes$|dims?$|channels$", name):
        return [n if n <= 16 else max(16, min(64, n // 64 * 8)) for n in values]
    return values


def _small(given: dict[str, Any], seen: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("out_features", "out_indices", "stage_names", "per_layer_config"):
            continue  # they name layers that are left out
        if isinstance(value, dict):
            own = name.startswith("rope") or name in ("id2label", "label2id")
            made[name] = value if own else _small(value, seen)
        elif name == "head_dim" and value is None:
            made[name] = 16
        elif isinstance(value, (list, tuple)):
            made[name] = _numbers(name, [*value])
        elif type(value) is int:
            made[name] = _number(name, value, seen)
        else:
            is_chance = isinstance(value, float) and ("drop" in name or name.startswith("mask_"))
            made[name] = 0.0 if is_chance else value
    for name in ("layer_types", "layers_block_type"):
        if made.get(name):
            made[name] = [*dict.fromkeys(made[name])]
            counts = ("num_hidden_layers", "n_layer", "num_layers")
            made |= {n: len(made[name]) for n in counts if n in made}
    if isinstance(made.get("embed_dim"), int) and isinstance(made.get("depths"), list):
        made["embed_dim"] = 16
    _split_widths(made)
    return made


def _split_widths(made: dict[str, Any]) -> None:
    """Heads of state space models share the inner width among them."""
    inner = int(made.get("mamba_expand", made.get("expand", 0)) or 0) * made.get("hidden_size", 0)
    for size, count in (
        ("mamba_d_head", "mamba_n_heads"),
        ("mamba_head_dim", "mamba_num_heads"),
        ("head_dim", "num_heads"),
    ):
        if inner and size in made and isinstance(made.get(count), int):
            made[size] = inner // made[count]


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model with the keyword arguments of a call. labels: whether there are some."""

    model: torch.nn.Module
    inputs: dict[str, Any]
    labels: bool


def build(kind: str, *, masked: bool, labelled: bool) -> Tiny:
    """A model of this architecture. Raises whatever transformers does about a config or an input
    that does not fit."""
    made = transformers.CONFIG_MAPPING[kind]
    given = made().to_dict()
    for name in ("transformers_version", "architectures", "model_type"):
        given.pop(name, None)
    config = made(**_small(given, {}))
    chosen = getattr(transformers, kinds()[kind])
    with torch.device("meta"):
        count = sum(p.numel() for p in chosen(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{kind} has {count} parameters")
    torch.manual_seed(0)
    model = chosen(config)
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name == "p"):
                setattr(module, name, 0.0)
    with torch.no_grad():  # weights that are all 0 or 1 hide mistakes
        for weight in model.parameters():
            if weight.is_floating_point() and weight.dim() < 2:
                weight += 0.1 * torch.randn_like(weight)
    inputs = _inputs(model, config)
    if masked:
        inputs |= _mask(model, inputs)
    labels = _labels(model, config, inputs) if labelled else {}
    return Tiny(model, inputs | labels, bool(labels))


def _find(config: Any, *names: str) -> Any:
    """The first of these that the config has, or one of its parts."""
    for part in ("", "text_config", "encoder", "vision_config", "backbone_config", "audio_config"):
        place = getattr(config, part, None) if part else config
        for name in names:
            value = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
            if value is not None:
                return value
    return None


def _inputs(model: torch.nn.Module, config: Any) -> dict[str, Any]:
    named = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "")
    words = torch.randint(3, 79, (2, 7))
    found: dict[str, Any] = {"input_ids": words} if "input_ids" in named else {}
    if main == "input_features" or ("input_features" in named and not found):
        mel = _find(config, "num_mel_bins", "input_feat_per_channel", "feature_size") or 80
        found = {"input_features": torch.randn(2, 24, mel)}
    if "input_values" in named and not found:
        found = {"input_values": torch.randn(2, 800)}
    if "pixel_values" in named and (not found or main == "pixel_values"):
        channels = _find(config, "num_channels", "in_channels", "in_chans") or 3
        size = _find(config, "image_size", "img_size") or 32
        sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        frames = _find(config, "num_frames")
        found["pixel_values"] = torch.randn(2, *([frames] if frames else []), channels, *sides)
    if "bbox" in named:
        corner = torch.randint(0, 30, (2, 7, 2))
        found["bbox"] = torch.cat([corner, corner + 9], -1)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in named:
        found["decoder_input_ids"] = torch.randint(3, 79, (2, 5))
    if "past_values" in named:
        length = _find(config, "context_length") + max(_find(config, "lags_sequence") or [0])
        channels = _find(config, "num_input_channels")
        found["past_values"] = torch.randn(2, length, *([channels] if channels else []))
    if "use_cache" in named:
        found["use_cache"] = False
    return found


def _mask(model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The second of two texts or sounds is about half as long."""
    given = next((inputs[n] for n in ("input_ids", "input_features") if n in inputs), None)
    if given is None or "attention_mask" not in inspect.signature(model.forward).parameters:
        return {}
    mask = torch.ones(given.shape[:2], dtype=torch.long)
    mask[1, mask.shape[1] // 2 + 1 :] = 0
    return {"attention_mask": mask}


def _labels(model: torch.nn.Module, config: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    if "labels" not in inspect.signature(model.forward).parameters:
        return {}
    name = type(model).__name__
    if "decoder_input_ids" in inputs:
        return {"labels": inputs["decoder_input_ids"].clone()}
    if re.search(r"CausalLM|LMHead|MaskedLM|ConditionalGeneration", name) and "input_ids" in inputs:
        labels = inputs["input_ids"].clone()
        labels[0, 2] = -100
        return {"labels": labels}
    if name.endswith("ForCTC"):
        return {"labels": torch.randint(1, 20, (2, 2))}
    if re.search(r"(Image|Video|Audio|Sequence)Classification", name):
        return {"labels": torch.randint(0, config.num_labels, (2,))}
    return {}
