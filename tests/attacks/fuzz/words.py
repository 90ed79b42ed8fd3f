"""List the names that readers look up, so that mutations need not guess them."""

from __future__ import annotations

from edgedec.plugins import names
from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS
from edgedec.quantize.readers.tokenizers.transformers_class import CLASSES

__all__ = ["ARCHITECTURES", "CONFIG", "GGUF_KEYS", "GGUF_TENSORS", "GGUF_TEXTS", "SETTINGS", "TENSORS", "TOKENIZER"]

_MODULES = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o", "qkv")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down", "gate_up")),
    *("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    *("self_attn.q_norm", "self_attn.k_norm", "self_attn.attn_sub_norm", "self_attn.inner_attn_ln"),
    *("mlp.ffn_sub_norm", "mlp.ffn_layernorm", "self_attn.rotary_emb.inv_freq"),
)
TENSORS = (
    *("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "lm_head.weight_scale", "a", "x.weight"),
    *("vision_tower.x.weight", "model.vision_tower.x", "language_model.model.norm.weight"),
    *(f"model.layers.0.{module}.{end}" for module in _MODULES for end in ("weight", "weight_scale", "bias")),
)

_KEYS = """
model_type architectures hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
vocab_size max_position_embeddings original_max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters
rope_interleaved rope_local_base_freq partial_rotary_factor tie_word_embeddings hidden_act hidden_activation attention_bias
mlp_bias sliding_window sliding_window_pattern use_sliding_window max_window_layers layer_types no_rope_layers
no_rope_layer_interval query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping rms_norm_offset text_config
bos_token_id eos_token_id bos_token eos_token content chat_template name default template weight_map
rope_type type factor low_freq_factor high_freq_factor short_factor long_factor attention_factor beta_fast beta_slow mscale
mscale_all_dim truncate sliding_attention full_attention
quantization_config quant_method linear_class quantization_mode group_size use_rms_norm modules_to_not_convert weight_bits
input_bits
"""
_TEXTS = """
linear llama3 yarn longrope su dynamic silu relu2 gelu_pytorch_tanh gelu bitnet bitlinear autobitlinear offline online gptq
lm_head gate_proj BitnetForCausalLM LlamaForCausalLM gemma3 float32
"""
CONFIG = (*_KEYS.split(), *_TEXTS.split(), *names("edgedec.families"), "<s>", "</s>", "tokenizer.json")

ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen3",
    "bitnet",
    "bitnet-b1.58",
    "bitnet-25",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3",
    "smollm3",
    "qwen35",
    "qwen35moe",
    "clip",
)
_ARCHITECTURE_KEYS = """
block_count context_length embedding_length feed_forward_length attention.head_count attention.head_count_kv
attention.key_length attention.value_length attention.layer_norm_rms_epsilon attention.sliding_window
attention.sliding_window_pattern rope.dimension_count rope.freq_base rope.freq_base_swa rope.scaling.type
rope.scaling.factor rope.scaling.original_context_length rope.scaling.attn_factor attn_logit_softcapping
final_logit_softcapping expert_count vocab_size rope.scale_linear attention.causal hidden_activation attention.key_length_swa
expert_used_count
"""
_DELTA_NET_KEYS = """
ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count full_attention_interval
attention.recurrent_layers nextn_predict_layers rope.dimension_count
"""
_TOKENIZER_KEYS = """
model pre tokens scores token_type merges bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id
add_bos_token add_eos_token add_space_prefix fim_pad_token_id fim_rep_token_id prefix_token_id suppress_tokens
"""
_ROTATION_KEYS = """
version block_size transform axis sign_mode sign_widths sign_values weight_names inverse_weight_names gdn_v_grouped
"""
GGUF_KEYS = (
    *(f"{name}.{key}" for name in ("llama", "phi3", "gemma3") for key in _ARCHITECTURE_KEYS.split()),
    *(f"qwen35.{key}" for key in _DELTA_NET_KEYS.split()),
    *(f"tokenizer.ggml.{key}" for key in _TOKENIZER_KEYS.split()),
    *("tokenizer.chat_template", "tokenizer.chat_template.tool_use", "general.architecture", "general.alignment"),
    *("general.type", "general.name", "adapter.type"),
    *(f"prism.hadamard.{key}" for key in _ROTATION_KEYS.split()),
    *("split.no", "split.count", "split.tensors.count", "x"),
)
GGUF_TEXTS = (
    "llama",
    "gpt2",
    "bert",
    *CUTS,
    *ARCHITECTURES,
    "none",
    "linear",
    "yarn",
    "longrope",
    "<s>",
    "<|im_end|>",
    "<|end|>",
    "My Phi-3",
    "adapter",
    "relu2",
    "a b",
    "explicit",
    "identity",
)
_PARTS = """
attn_norm attn_q attn_k attn_v attn_output attn_qkv attn_q_norm attn_k_norm attn_sub_norm ffn_norm ffn_gate ffn_up ffn_down
ffn_sub_norm post_attention_norm post_ffw_norm attn_gate ssm_conv1d ssm_beta ssm_alpha ssm_norm ssm_out ssm_dt
"""
GGUF_TENSORS = (
    *("token_embd.weight", "output_norm.weight", "output.weight", "output.scale", "x", "../x"),
    *("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"),
    *(
        f"blk.{layer}.{part}.{end}"
        for layer in (0, 1)
        for part in _PARTS.split()
        for end in ("weight", "bias", "scale")
    ),
    *("blk.0.ssm_a", "blk.1.ssm_a", "blk.1.nextn.enorm.weight"),
)

_TOKENIZER_WORDS = """
version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model type vocab merges unk_token
unk_id byte_fallback ignore_merges dropout fuse_unk continuing_subword_prefix end_of_word_suffix max_input_chars_per_word id
content single_word lstrip rstrip normalized special single pair special_tokens SpecialToken Sequence type_id ids tokens A B
BPE Unigram WordPiece WordLevel TemplateProcessing BertProcessing RobertaProcessing ByteLevel Metaspace Split Regex String
pattern behavior invert Isolated Removed Digits individual_digits Punctuation Whitespace WhitespaceSplit BertPreTokenizer
UnicodeScripts CharDelimiterSplit delimiter FixedLength length NFC NFD NFKC NFKD Nmt Lowercase StripAccents Strip Prepend
prepend Replace Precompiled precompiled_charsmap BertNormalizer Sequence normalizers pretokenizers decoders processors
ByteFallback Fuse CTC BPEDecoder sep cls add_prefix_space trim_offsets use_regex replacement prepend_scheme always
first never direction Right Left max_length strategy LongestFirst stride BatchLongest Fixed pad_id pad_type_id pad_token
pad_to_multiple_of start stop suffix
"""
TOKENIZER = (*_TOKENIZER_WORDS.split(), "<s>", "<unk>", "a", "ab", "(a*)*b", "(?<=a)", "\\p{L}+|[^", "(a|a?)+$")
SETTINGS = (
    *("tokenizer_class", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "legacy"),
    *("add_bos_token", "add_eos_token", "add_prefix_space", "chat_template", "name", "template", "default", "tool_use"),
    *(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "image")),
    *("content", "lstrip", "rstrip", "normalized", "single_word", "special", "eos_token_id", "split_special_tokens"),
    *CLASSES,
    *("PreTrainedTokenizerFast", "<s>", "</s>", "<unk>", "<x>", "0", "3", "300"),
)
