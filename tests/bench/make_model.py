#!/usr/bin/env python3
"""Writes a Llama of about a billion parameters with random weights, for measuring speed.

    make_model.py --type f16|q8_0|q4_k_m --output FILE.gguf [--tiny] [--seed N]

Dimensions are multiples of 256, so that K-quants fit: 2048 wide, 16 layers, 8192 in the feed-
forward part, 32 heads, 8 of them for keys and values, 32768 tokens, a head of its own. q4_k_m is
Q4_K with Q6_K where llama-quantize puts it: in the head and in half of the layers' attn_v and
ffn_down. Quantised blocks are drawn, not quantised: random codes, scales such that weights have the
mean 0 and the variance 1 / columns, which keeps activations of the size a trained model has. The
same seed writes the same bytes. Needs numpy and gguf from PyPI.
"""
import argparse

import gguf
import numpy as np

TYPES = gguf.GGMLQuantizationType


def blocks_f16(rng, rows, cols, deviation):
    table = (rng.standard_normal(65536, np.float32) * deviation).astype(np.float16)
    return table[rng.integers(0, 65536, (rows, cols), np.uint16)]


def f16_bytes(value, n):
    return np.full((n, 1), value, np.float16).view(np.uint8)


def blocks_q8_0(rng, rows, cols, deviation):
    """d f16, 32 codes of int8: uniform in [-127, 127], deviation 73.3."""
    n = rows * cols // 32
    codes = rng.integers(-127, 128, (n, 32), np.int8).view(np.uint8)
    return np.hstack([f16_bytes(deviation / 73.3, n), codes]).reshape(rows, -1)


def blocks_q4_k(rng, rows, cols, deviation):
    """d, dmin f16, 8 scales and 8 minimums of 6 bits, 256 codes of 4 bits.

    A weight is d scale code - dmin minimum. With minimum = scale and dmin = 7.5 d that is
    d scale (code - 7.5): mean 0, deviation 4.61 d times the root mean square of the scales, here
    uniform in [1, 15] (9.09), which need 4 bits of the 6.
    """
    n = rows * cols // 256
    d = deviation / (4.61 * 9.09)
    scales = rng.integers(1, 16, (n, 8), np.uint8)
    low, high = scales[:, :4], scales[:, 4:]
    codes = rng.integers(0, 256, (n, 128), np.uint8)
    return np.hstack([f16_bytes(d, n), f16_bytes(7.5 * d, n), low, low, high | high << 4,
                      codes]).reshape(rows, -1)


def blocks_q6_k(rng, rows, cols, deviation):
    """Low 4 and high 2 bits of 256 codes, 16 scales of int8, d f16.

    A weight is d scale (code - 32): deviation 18.5 d times that of the scales, uniform in [-15, 15]
    (8.94).
    """
    n = rows * cols // 256
    codes = rng.integers(0, 256, (n, 192), np.uint8)
    scales = rng.integers(-15, 16, (n, 16), np.int8).view(np.uint8)
    return np.hstack([codes, scales, f16_bytes(deviation / (18.5 * 8.94), n)]).reshape(rows, -1)


BLOCKS = {TYPES.F16: blocks_f16, TYPES.Q8_0: blocks_q8_0, TYPES.Q4_K: blocks_q4_k,
          TYPES.Q6_K: blocks_q6_k}


def vocabulary(writer, n):
    """Three control tokens, the 256 bytes, and words."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    while len(tokens) < n:
        tokens.append(f"\u2581w{len(tokens)}")
        kinds.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(n)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--type", choices=["f16", "q8_0", "q4_k_m"], required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--tiny", action="store_true", help="256 wide, 2 layers, for trying out")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    width, n_layers, ff, heads, kv_heads, vocab = (
        (256, 2, 512, 4, 2, 512) if args.tiny else (2048, 16, 8192, 32, 8, 32768))
    kv_width = width // heads * kv_heads

    writer = gguf.GGUFWriter(args.output, "llama")
    writer.add_name(f"random {args.type}")
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    vocabulary(writer, vocab)

    usual = {"f16": TYPES.F16, "q8_0": TYPES.Q8_0, "q4_k_m": TYPES.Q4_K}[args.type]
    better = TYPES.Q6_K if args.type == "q4_k_m" else usual
    tensors = [("token_embd.weight", vocab, width, usual)]
    for i in range(n_layers):
        # llama-quantize's choice: the first and last eighth of the layers, of the rest every third.
        more = i < n_layers // 8 or i >= 7 * n_layers // 8 or (i - n_layers // 8) % 3 == 2
        chosen = better if more else usual
        tensors += [(f"blk.{i}.attn_norm.weight", width, 0, TYPES.F32),
                    (f"blk.{i}.attn_q.weight", width, width, usual),
                    (f"blk.{i}.attn_k.weight", kv_width, width, usual),
                    (f"blk.{i}.attn_v.weight", kv_width, width, chosen),
                    (f"blk.{i}.attn_output.weight", width, width, usual),
                    (f"blk.{i}.ffn_norm.weight", width, 0, TYPES.F32),
                    (f"blk.{i}.ffn_gate.weight", ff, width, usual),
                    (f"blk.{i}.ffn_up.weight", ff, width, usual),
                    (f"blk.{i}.ffn_down.weight", width, ff, chosen)]
    tensors += [("output_norm.weight", width, 0, TYPES.F32),
                ("output.weight", vocab, width, better)]

    for name, rows, cols, kind in tensors:
        shape = [rows, cols] if cols else [rows]
        n_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // n_block * n_bytes
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for index, (name, rows, cols, kind) in enumerate(tensors):
        rng = np.random.Generator(np.random.PCG64([args.seed, index]))
        if cols:
            # An embedding row has the size of a residual stream.
            deviation = 1.0 if name == "token_embd.weight" else cols ** -0.5
            data = BLOCKS[kind](rng, rows, cols, deviation)
        else:
            data = np.ones(rows, np.float32)
        writer.write_tensor_data(data)
    writer.close()


if __name__ == "__main__":
    main()
