"""llama.cpp's own server with a model of two hundred kilobytes that this program writes, whose answers are known:

    PEERS/bin/python tests/support/llama_server_program.py FOLDER CONTEXT_TOKENS [MODEL.gguf]

A file of another model is served in its place, with one slot, on one thread (two wait for each other where others use
the processor) and at temperature 0. It runs where `xllamacpp` and `gguf` are (`tests.support.llama_server`), prints the
server's URL, and serves until its standard input ends. Behind a prompt the model calls ListDirectory, behind results it
says a sentence. It knows nothing but which token follows which: each is a direction of its own, and the output matrix
leads from one to the next.
"""

from __future__ import annotations

import itertools
import os
import sys

import gguf
import numpy as np
import xllamacpp

BEHIND_PROMPT, BEHIND_RESULTS, END = "<|behind_prompt|>", "<|behind_results|>", "<|im_end|>"
CALL = '\n{"name": "ListDirectory", "arguments": {"path": "."}}\n'
CHAINS = (
    (BEHIND_PROMPT, "<tool_call>", CALL, "</tool_call>", END),
    (BEHIND_RESULTS, "There ", "is one ", "file, é, ", "and no more.", END),
)
CONTROL = ("<|im_start|>", END, BEHIND_RESULTS, BEHIND_PROMPT)
SIZE = 512  # directions: more than there are tokens
HEAD = 32
# Calls and results as the Hermes and Qwen families of models have them, which llama.cpp reads as calls.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{%- elif message.tool_calls %}<|im_start|>assistant
{{ message.content or '' }}
{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{%- elif not (tools and loop.first and message.role == 'system') %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if messages[-1].role == 'tool' %}<|behind_results|>{% else %}<|behind_prompt|>{% endif %}
{%- endif %}"""


def vocabulary() -> dict[str, gguf.TokenType]:
    """Every byte, and the words of the two answers."""
    kinds = {"<unk>": gguf.TokenType.UNKNOWN, "<s>": gguf.TokenType.CONTROL, "</s>": gguf.TokenType.CONTROL}
    kinds |= {f"<0x{byte:02X}>": gguf.TokenType.BYTE for byte in range(256)}
    kinds |= dict.fromkeys(CONTROL, gguf.TokenType.CONTROL)
    words = (word for chain in CHAINS for word in chain if word not in kinds)
    return kinds | dict.fromkeys(words, gguf.TokenType.USER_DEFINED)


def write_model(path: str) -> None:
    """One layer that adds nothing; the rest is a table from token to token."""
    kinds = vocabulary()
    place = {token: number for number, token in enumerate(kinds)}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(131_072)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(kinds))
    writer.add_token_scores([0.0] * len(kinds))
    writer.add_token_types(list(kinds.values()))
    writer.add_bos_token_id(place["<s>"])
    writer.add_eos_token_id(place[END])
    writer.add_unk_token_id(place["<unk>"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    leads_to = np.zeros((len(kinds), SIZE), np.float32)
    leads_to[place[END]] = 1.0  # what follows on all else
    for before, after in itertools.chain.from_iterable(map(itertools.pairwise, CHAINS)):
        leads_to[place[after], place[before]] = 8.0
    writer.add_tensor("token_embd.weight", np.eye(len(kinds), SIZE, dtype=np.float32))
    writer.add_tensor("output.weight", leads_to)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(SIZE, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((HEAD, SIZE), np.float32))
    for name in ("attn_output", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((SIZE, HEAD), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    folder, context, *given = sys.argv[1:]
    path = given[0] if given else os.path.join(folder, "model.gguf")
    params = xllamacpp.CommonParams()
    if given:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.sampling.temp = 0.0
    else:
        write_model(path)
    params.model.path = path
    params.n_ctx = int(context)
    params.n_gpu_layers = 0
    params.n_parallel = 1
    params.port = 0
    params.use_jinja = True
    params.warmup = False
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
