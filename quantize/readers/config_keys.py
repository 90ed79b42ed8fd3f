"""Name the keys of a ``config.json`` that nothing reads, because one of them may change the model.

A key is read if the graph is another one, or is refused, once the key has a value that no model has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import EdgedecError
from edgedec.families import build_graph
from edgedec.quantize.readers.untrusted import printable, shown

__all__ = ["IGNORED_CONFIG_KEYS", "note_unread_keys"]

log = logging.getLogger(__name__)

# Keys that change no logits (training, the way that a program runs the model, its interfaces, generation's defaults), and
# keys that are read only where others, or tensors, ask for them.
IGNORED_CONFIG_KEYS = frozenset({
    "architectures", "transformers_version", "torch_dtype", "dtype", "auto_map", "_name_or_path", "name_or_path",
    "model_name", "initializer_range", "use_cache", "attention_dropout", "hidden_dropout", "resid_pdrop",
    "embd_pdrop", "dropout", "pretraining_tp", "gradient_checkpointing", "router_aux_loss_coef",
    "output_router_logits", "z_loss_coefficient", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "unk_token_id", "decoder_start_token_id", "tokenizer_class", "task_specific_params", "problem_type",
    "finetuning_task", "id2label", "label2id", "num_labels", "output_attentions", "output_hidden_states",
    "return_dict", "torchscript", "is_encoder_decoder", "is_decoder", "chunk_size_feed_forward",
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_commit_hash", "model_type",
    "vocab_size", "max_position_embeddings", "tie_word_embeddings", "quantization_config", "use_mambapy",
    "rescale_prenorm_residual", "use_bfloat16", "pruned_heads", "prefix", "cross_attention_hidden_size",
    "tf_legacy_loss", "add_cross_attention", "time_step_max", "time_step_floor", "language_model_only", "head_dim",
    "sliding_window", "max_window_layers", "rope_theta", "rope_scaling", "rope_parameters", "cache_implementation",
    "model_max_length", "mamba_chunk_size", "chunk_size", "mamba_norm_before_gate", "num_logits_to_keep",
    "projectors_bias", "residual_in_fp32", "_sliding_window_pattern", "time_step_min", "time_step_rank",
    "original_max_position_embeddings", "no_rope_layer_interval", "num_nextn_predict_layers", "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings", "moe_intermediate_size", "hidden_act", "norm_before_gate", "full_attn_mod",
    "interpolate_factor", "is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version",
})  # fmt: skip
_NO_VALUE = "no model has this value"


def note_unread_keys(path: Path, config: Mapping[str, Any]) -> None:
    """Write a note with the keys of a configuration that no family reads and that are not known to mean nothing.

    A value that is null or false asks for nothing. A configuration of which no graph can be made is left to the reader that
    makes it.
    """
    try:
        graph = build_graph(config)
    except EdgedecError:
        return
    unread = []
    for key in sorted(config.keys() - IGNORED_CONFIG_KEYS):
        if config[key] is None or config[key] is False:
            continue
        try:
            if build_graph({**config, key: _NO_VALUE}) == graph:
                unread.append(key)
        except (EdgedecError, TypeError, ValueError, AttributeError):  # the family reads it
            continue
    if unread:
        log.warning(
            "%s: nothing reads the keys %s; if one changes the model, the bundle is another model",
            path, ", ".join(f"{printable(key)} ({shown(config[key])})" for key in unread),
        )  # fmt: skip
