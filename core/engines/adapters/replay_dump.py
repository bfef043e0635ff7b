"""A folder of tensor dumps as an engine: what the hooks of a model wrote by `torch.save`, one dict
of module name -> tensor per forward, replayed. SGLang's `--debug-tensor-dump-output-folder` writes
such folders; names of transformers, SGLang (and vLLM) and torchtitan are known. Files are
untrusted: no code in them is executed.
"""

import json
import re
import sys
from itertools import takewhile
from pathlib import Path

from ulpscope_engine import Refused, bits_of, is_installed, serve

HELLO = {
    "engine": "tensor dumps",
    "dtypes": ["float32", "bfloat16", "float16"],
    "modules": True,
    "bases": {"replay": {}},  # the forwards in which the prompt's tokens were computed
}
# whose logits are the last norm times the head
HEADED = ("llama", "mistral", "qwen2", "qwen3", "gemma")
OF_TITAN = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "": "",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward": "mlp",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
IN_BLOCK = re.compile(r"(model\.)?layers\.(\d+)\.?(.*)")
ENDS = {"self_attn": "self_attn.o_proj", "mlp": "mlp.down_proj"}  # SGLang follows what has no parts


def read(path):
    """Return name -> list of tensors of one file, without executing code.

    Refused for anything else.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch raises anything on a damaged or hostile file
        reason = " ".join(str(error).split())[:120]
        raise Refused(f"{path.name} holds more than tensors, or is damaged ({reason}).") from error
    if not isinstance(content, dict):
        raise Refused(f"{path.name} is not a dict of module name -> tensor.")
    entries = {}
    for name, value in content.items():
        tensors = value if isinstance(value, (list, tuple)) else [value]
        if tensors and all(
            isinstance(one, torch.Tensor) and not one.is_quantized for one in tensors
        ):
            entries[name] = tensors
    return entries


class Pass:
    """One forward: its file, and its tokens as (position, token)."""

    def __init__(self, path):
        self.path, entries = path, read(path)
        ids, positions = (self.only(entries, name) for name in ("input_ids", "positions"))
        self.is_forward = ids is not None and ids.numel() > 0
        if not self.is_forward:
            return
        if ids.numel() != max(ids.shape):
            raise Refused(
                f"{path.name} has input_ids {list(ids.shape)}; expected a flat batch, as SGLang"
                " writes it.",
            )
        count = ids.numel()
        places = range(count) if positions is None else positions.flatten().tolist()
        if len(places) != count or ids.is_floating_point():
            raise Refused(f"{path.name} has {len(places)} positions for {count} tokens.")
        self.places = list(zip(places, ids.flatten().tolist(), strict=True))

    @staticmethod
    def only(entries, name):
        keys = [key for key in entries if key == name or key.endswith(f"forward_batch_info.{name}")]
        tensors = entries[keys[0]] if keys else []
        return tensors[0] if len(tensors) == 1 else None

    def begins(self, position, prompt):
        """Return [(row, count)] of the runs of the prompt's tokens from this position on."""
        tokens = list(enumerate(prompt))[position:]
        runs = []
        for row, place in enumerate(self.places):
            if place == tokens[0]:
                pairs = zip(self.places[row:], tokens, strict=False)
                count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                runs.append((row, count))
        return runs


def chain(passes, prompt):
    """Return [(pass, row, position, count)] that make up the prompt, of the first request that has
    it.
    """
    for first in range(len(passes)):
        parts, position = [], 0
        for each in passes[first:]:
            runs = each.begins(position, prompt)
            if not runs and position:
                continue
            if not runs:
                # the prompt does not begin here
                break
            most = max(count for _, count in runs)
            best = [row for row, count in runs if count == most]
            if len(best) > 1:
                raise Refused(
                    f"{each.path.name} holds position {position} of the prompt {len(best)} times.",
                )
            parts.append((each, best[0], position, most))
            position += most
            if position == len(prompt):
                return parts
    raise Refused(f"no forwards in the folder have the {len(prompt)} tokens of the prompt.")


class Translation:
    """Translates entries of other hooks to the names and shapes of transformers."""

    def __init__(self, config):
        self.config = config
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.size = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        self.last = int(config["num_hidden_layers"]) - 1

    def of(self, entries):
        """Return transformers' name -> [tokens, features]."""
        modules = {}
        for name, tensors in entries.items():
            if all(one.ndim > 1 and one.is_floating_point() for one in tensors):
                modules.update(self.one(name, [one.flatten(0, -2) for one in tensors]))
        for name in list(modules):
            for whole, end in ENDS.items():
                if name.endswith(f".{end}"):
                    modules.setdefault(name.removesuffix(end) + whole, modules[name])
        return modules

    def one(self, name, tensors):
        """Translate one entry of a dump to transformers' name of a module -> its tensor."""
        first = tensors[0]
        inside = IN_BLOCK.fullmatch(name)
        if inside is None:
            own = OF_TITAN.get(name, name)
            # SGLang adds the stream in the norm, and hands on the sum
            if own == "model.norm" and len(tensors) == 2:
                return {own: first, f"model.layers.{self.last}": tensors[1]}
            return {own: first}
        block, part = int(inside[2]), inside[3].replace("attention.qkv_linear.", "attention.")
        stem = f"model.layers.{block}"
        if part.endswith("qkv_proj"):
            pair = self.kv_heads * self.size
            sizes = [self.heads * self.size, pair, pair]
            if first.shape[-1] != sum(sizes):
                return {}
            pieces = zip("qkv", first.split(sizes, -1), strict=True)
            return {f"{stem}.self_attn.{own}_proj": piece for own, piece in pieces}
        if part.endswith("gate_up_proj"):
            gate, up = first.chunk(2, -1)
            return {f"{stem}.mlp.gate_proj": gate, f"{stem}.mlp.up_proj": up}
        if part == "input_layernorm" and len(tensors) == 2:
            return {f"{stem}.{part}": first, f"model.layers.{block - 1}": tensors[1]}
        # which multiplies by the other half, where transformers does that outside
        if part.endswith("act_fn"):
            return {}
        is_titan = inside[1] is None
        if is_titan and part not in OF_TITAN:
            return {}
        is_rotated = is_titan and part in ("attention.wq", "attention.wk")
        if is_rotated and self.config.get("model_type") == "llama":
            # rotated as neighbours, not as halves
            count = self.heads if part == "attention.wq" else self.kv_heads
            first = first.reshape(len(first), count, -1, 2).swapaxes(2, 3).reshape(first.shape)
        own = OF_TITAN[part] if is_titan else part
        return {f"{stem}.{own}" if own else stem: first}


def head_of(folder, config):
    """Return the checkpoint's own head. [vocab, hidden]"""
    from safetensors import safe_open

    name = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    if config.get("model_type") not in HEADED or config.get("final_logit_softcapping"):
        raise Refused(
            "the dump has no logits, and ULPscope does not compute those of a"
            f" '{config.get('model_type')}'.",
        )
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118 - it is no dict
                return file.get_tensor(name)
    raise Refused(f"the dump has no logits, and the model's folder has no {name} in safetensors.")


def times_head(hidden, head):
    """Logits of last hidden states, products in float64 rounded once. [tokens, vocab]"""
    import torch

    pieces = [(hidden.double() @ rows.double().T).to(hidden.dtype) for rows in head.split(8192)]
    return torch.cat(pieces, -1)


def load(request):
    """Read the folder's forwards."""
    folder = Path(sys.argv[1])
    paths = sorted(
        path for path in folder.rglob("*.pt") if path.is_file() and not path.is_symlink()
    )
    ranks = {path.parent for path in paths}
    if not paths:
        raise Refused(f"{folder.name} has no *.pt files; expected one per forward.")
    if len(ranks) > 1:
        raise Refused(
            f"{folder.name} holds dumps of {len(ranks)} processes; name the folder of one process.",
        )

    config = json.loads((Path(request["model"]) / "config.json").read_text())
    config = config.get("text_config", config)
    passes = [one for one in map(Pass, paths) if one.is_forward]
    if not passes:
        raise Refused(f"no file in {folder.name} has input_ids; expected them in every forward.")
    translation = Translation(config)
    first = translation.of(read(passes[0].path))
    ending = next((name for name in ("lm_head", "model.norm") if name in first), None)
    if ending is None:
        raise Refused(
            f"{passes[0].path.name} has neither logits (lm_head) nor the last norm (model.norm).",
        )
    dtype = str(first[ending].dtype).removeprefix("torch.")
    if dtype != request["dtype"]:
        raise Refused(f"the dump is {dtype}, not {request['dtype']}; capture with its dtype.")
    head = head_of(request["model"], config) if ending == "model.norm" else None
    vocab = first[ending].shape[-1] if head is None else len(head)

    def run(ids, rows):
        for each, row, position, count in chain(passes, ids):
            modules = translation.of(read(each.path))
            parts = {
                name: value[row : row + count]
                for name, value in modules.items()
                if len(value) == len(each.places)
            }
            if ending not in parts:
                raise Refused(f"{each.path.name} has no {ending} of its {len(each.places)} tokens.")
            for name in request["modules"]:
                if name in parts:
                    rows.module(name, position, *bits_of(parts[name]))
            for start in range(0, count, 64):
                piece = parts[ending][start : start + 64]
                if head is not None:
                    piece = times_head(piece, head)
                rows(position + start, *bits_of(piece))

    parts = {
        "weights": dtype,
        "activations": dtype,
        "head": "own" if head is None else "the checkpoint's, in float64",
    }
    return {"vocab": vocab, "parts": parts}, run


if __name__ == "__main__":
    serve(dict(HELLO, version="", is_here=is_installed("torch")), load)
