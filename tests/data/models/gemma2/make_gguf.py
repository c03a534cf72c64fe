#!/usr/bin/env python3
"""model-f32.gguf of the tiny Gemma 2 of the golden data: make_gguf.py GOLDEN_FOLDER/models/gemma2.

As convert_hf_to_gguf.py of llama.cpp has it (norm weights plus 1, its keys and names), except that
- attention.scale says what query_pre_attn_scalar is, which here is not the heads' width;
- heads are filled up from 40 to 48 channels with zeros, for the CUDA kernels; RoPE turns 40;
- there is no tokenizer.
None of it changes a logit, and weights stay F32. Needs numpy and gguf from PyPI.
"""
import json
import pathlib
import sys

import gguf
import numpy

HEAD = 48
folder = pathlib.Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
file = (folder / "model.safetensors").read_bytes()
header_end = 8 + int.from_bytes(file[:8], "little")
header = json.loads(file[8:header_end])

out = gguf.GGUFWriter(pathlib.Path(__file__).parent / "model-f32.gguf", "gemma2")
out.add_name("tiny gemma2")
out.add_context_length(config["max_position_embeddings"])
out.add_embedding_length(config["hidden_size"])
out.add_block_count(config["num_hidden_layers"])
out.add_feed_forward_length(config["intermediate_size"])
out.add_head_count(config["num_attention_heads"])
out.add_head_count_kv(config["num_key_value_heads"])
out.add_layer_norm_rms_eps(config["rms_norm_eps"])
out.add_key_length(HEAD)
out.add_value_length(HEAD)
out.add_rope_dimension_count(config["head_dim"])
out.add_attn_logit_softcapping(config["attn_logit_softcapping"])
out.add_final_logit_softcapping(config["final_logit_softcapping"])
out.add_sliding_window(config["sliding_window"])
out.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
out.add_file_type(gguf.LlamaFileType.ALL_F32)



def filled(data, axis):
    """The heads along an axis."""
    width = config["head_dim"]
    shape = list(data.shape)
    shape[axis : axis + 1] = [shape[axis] // width, width]
    fill = [(0, 0)] * len(shape)
    fill[axis + 1] = (0, HEAD - width)
    shape[axis : axis + 2] = [shape[axis] * HEAD]
    heads = data.reshape(*data.shape[:axis], -1, width, *data.shape[axis + 1 :])
    return numpy.ascontiguousarray(numpy.pad(heads, fill).reshape(shape))


names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA2, config["num_hidden_layers"])
for name, tensor in header.items():
    if name == "__metadata__":
        continue
    assert tensor["dtype"] == "F32"
    begin, end = (header_end + offset for offset in tensor["data_offsets"])
    data = numpy.frombuffer(file[begin:end], "<f4").reshape(tensor["shape"])
    if name.endswith("norm.weight"):
        data = data + numpy.float32(1)
    if ".self_attn." in name:
        data = filled(data, 1 if "o_proj" in name else 0)
    out.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data)
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
