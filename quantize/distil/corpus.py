"""Make the training text of the embedded model: stories sampled from trained llama2.c checkpoints.

    python -m edgedec.quantize.distil.corpus CHECKPOINT.bin VOCABULARY -o stories.txt --samples 100000

One story a line; a run appends, so it can be stopped and started again (each batch has its own seed, which is the
number of lines already there). Stories that ran into the context's end are cut at their last full sentence.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgedec.quantize.distil.torch_llama import Cache, LlamaConfig, TorchLlama

__all__ = ["load_llama2c", "read_pieces", "sample_stories"]

F32 = NDArray[np.float32]


def _unpermute(weight: F32, heads: int) -> F32:
    """Interleaved-pair rope rows [heads * head_dim, hidden] to rotate-half rows."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).transpose(0, 2, 1, 3).reshape(rows, width)


def load_llama2c(path: Path) -> TorchLlama:
    """A llama2.c version 0 file (float32, no magic) as a torch model. For trusted files; edgedec's reader checks."""
    blob = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, positions = struct.unpack_from("<7i", blob)
    data = np.frombuffer(blob, "<f4", offset=28)
    head_dim = dim // heads
    taken = 0

    def take(*shape: int) -> F32:
        nonlocal taken
        count = int(np.prod(shape))
        taken += count
        return data[taken - count : taken].reshape(shape)

    embed = take(abs(vocab), dim)
    attn_norm = take(layers, dim)
    wq, wk = take(layers, dim, dim), take(layers, kv_heads * head_dim, dim)
    wv, wo = take(layers, kv_heads * head_dim, dim), take(layers, dim, dim)
    ffn_norm = take(layers, dim)
    w1, w2, w3 = take(layers, hidden, dim), take(layers, dim, hidden), take(layers, hidden, dim)
    state = {"embed_tokens.weight": embed, "norm.weight": take(dim)}
    take(2, positions, head_dim // 2)  # two rope tables that nothing reads
    state["lm_head.weight"] = embed if vocab > 0 else take(-vocab, dim)
    for i in range(layers):
        state |= {
            f"layers.{i}.input_layernorm.weight": attn_norm[i],
            f"layers.{i}.self_attn.q_proj.weight": _unpermute(wq[i], heads),
            f"layers.{i}.self_attn.k_proj.weight": _unpermute(wk[i], kv_heads),
            f"layers.{i}.self_attn.v_proj.weight": wv[i],
            f"layers.{i}.self_attn.o_proj.weight": wo[i],
            f"layers.{i}.post_attention_layernorm.weight": ffn_norm[i],
            f"layers.{i}.mlp.gate_proj.weight": w1[i],
            f"layers.{i}.mlp.down_proj.weight": w2[i],
            f"layers.{i}.mlp.up_proj.weight": w3[i],
        }
    model = TorchLlama(
        LlamaConfig(
            hidden_size=dim,
            intermediate_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=abs(vocab),
            max_position_embeddings=positions,
            tie_word_embeddings=vocab > 0,
        )
    )
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    return model.eval()


def read_pieces(path: Path) -> list[bytes]:
    """The byte string of each id: a llama2.c ``tokenizer.bin``, or a SentencePiece ``.vocab`` listing."""
    if path.suffix == ".vocab":
        names = [line.split("\t")[0] for line in path.read_text("utf-8").splitlines()]
        return [name.replace("\u2581", " ").encode() for name in names]
    blob, offset, pieces = path.read_bytes(), 4, []
    while offset < len(blob):
        _, length = struct.unpack_from("<fi", blob, offset)
        pieces.append(blob[offset + 8 : offset + 8 + length])
        offset += 8 + length
    return pieces


@torch.inference_mode()
def sample_stories(
    model: TorchLlama, pieces: Sequence[bytes], *, batch: int, seed: int, temperature: float, top_p: float
) -> list[str]:
    """``batch`` stories, each from the begin token (id 1) to the next one or the end of the context."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((batch, 1), 1)
    cache = Cache.empty(model.config, batch)
    rows: list[list[int]] = [[] for _ in range(batch)]
    alive = torch.arange(batch)  # which story each row of the shrinking batch writes
    ended = [False] * batch
    for _ in range(model.config.max_position_embeddings - 1):
        logits = model(ids, cache)
        probs, order = torch.softmax(logits[:, -1] / temperature, -1).sort(-1, descending=True)
        probs[probs.cumsum(-1) - probs > top_p] = 0
        ids = order.gather(1, torch.multinomial(probs, 1, generator=generator))
        running = ids[:, 0] > 2
        for story, token in zip(alive.tolist(), ids[:, 0].tolist(), strict=True):
            if token > 2:
                rows[story].append(token)
            else:
                ended[story] = True
        if not running.all():
            cache.keep(running)
            ids, alive = ids[running], alive[running]
        if not len(alive):
            break
    texts = []
    for row, whole in zip(rows, ended, strict=True):
        text = b"".join(
            bytes([int(p[3:5], 16)]) if p.startswith(b"<0x") and len(p) == 6 else p for p in (pieces[i] for i in row)
        )
        story = text.decode("utf-8", "replace").strip().replace("\n", "\\n")
        if not whole:
            cut = max(story.rfind(mark) for mark in (". ", "! ", '" '))
            story = story[: cut + 1]
        if len(story) > 80 and "\ufffd" not in story:
            texts.append(story)
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.95)
    args = parser.parse_args()
    model, pieces = load_llama2c(args.checkpoint), read_pieces(args.vocabulary)
    done = sum(1 for _ in args.output.open(encoding="utf-8")) if args.output.exists() else 0
    began, first = time.monotonic(), done
    while done < args.samples:
        stories = sample_stories(
            model, pieces, batch=args.batch, seed=done, temperature=args.temperature, top_p=args.top_p
        )
        with args.output.open("a", encoding="utf-8") as file:
            file.writelines(story + "\n" for story in stories)
        done += len(stories)
        rate = (done - first) / (time.monotonic() - began)
        print(f"{done}/{args.samples} stories, {rate:.0f} a second, {max(0, args.samples - done) / rate:.0f} s to go")


if __name__ == "__main__":
    main()
