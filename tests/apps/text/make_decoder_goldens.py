#!/usr/bin/env python3
"""Writes golden_decoded.json, which token_decoder_test.cpp reads, with the Python package tokenizers.

Decodes random tokens of the tokenizers in tokenizers/ with the decoders of published models. The bytes of a byte-level
model are random, so many of them are not valid UTF-8. The byte tokens of other models are those of whole characters,
because the package replaces each byte of an invalid run, and a program that prints tokens one by one cannot.
"""
import json
import random
from pathlib import Path

import tokenizers

FOLDER = Path(__file__).resolve().parent
CASES, LONGEST = 60, 24
LLAMA2 = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}  # fmt: skip
GEMMA = {"type": "Sequence", "decoders": LLAMA2["decoders"][:3]}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
KINDS = {
    "gpt2": ("gpt2", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
    "llama3": ("llama3", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
    "llama2": ("llama2", LLAMA2),
    "gemma": ("gemma", GEMMA),
    "metaspace": ("llama2_metaspace", METASPACE),
    "metaspace_never": ("llama2_metaspace", {**METASPACE, "prepend_scheme": "never"}),
    "t5": ("t5", METASPACE),
    "none": ("digits", None),
}


def random_tokens(draw, tokenizer, is_byte_level):
    """Tokens of the vocabulary. Byte tokens of a model that is not byte-level come in whole characters."""
    vocabulary = tokenizer.get_vocab()
    plain = [number for token, number in sorted(vocabulary.items(), key=lambda item: item[1]) if not token.startswith("<0x")]
    tokens = []
    for _ in range(draw.randrange(1, LONGEST)):
        if not is_byte_level and "<0xC3>" in vocabulary and draw.random() < 0.2:
            tokens += [vocabulary[f"<0x{byte:02X}>"] for byte in draw.choice("éñ中🙂\n").encode()]
        else:
            tokens.append(draw.choice(plain))
    return tokens


def main():
    draw = random.Random(7)
    goldens = {}
    for name, (kind, decoder) in KINDS.items():
        file = json.loads((FOLDER / "tokenizers" / f"{kind}.json").read_text())
        file["decoder"] = decoder
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(file))
        is_byte_level = decoder is not None and decoder["type"] == "ByteLevel"
        cases = [random_tokens(draw, tokenizer, is_byte_level) for _ in range(CASES)]
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in cases]
        goldens[name] = {"tokenizer": kind, "decoder": decoder, "cases": [list(pair) for pair in zip(cases, texts)]}
    lines = (f"{json.dumps(name)}: {json.dumps(golden)}" for name, golden in goldens.items())
    (FOLDER / "golden_decoded.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")


if __name__ == "__main__":
    main()
