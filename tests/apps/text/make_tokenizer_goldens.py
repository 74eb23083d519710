#!/usr/bin/env python3
"""Writes the files that tokenizer_golden_test.cpp reads, with the Python package tokenizers.

    make_tokenizer_goldens.py                 trains the tokenizers, and writes tokenizers/KIND.json and golden_tokens.json
    make_tokenizer_goldens.py KIND...         trains only the tokenizers of these kinds, and writes golden_tokens.json
    make_tokenizer_goldens.py --tokens        keeps the tokenizers, and writes golden_tokens.json only
    make_tokenizer_goldens.py --show KIND I   prints text I and its tokens
    make_tokenizer_goldens.py --lines N FILE  writes texts 0 to N - 1 as JSON lines, for aliquot data

Each kind has the normalizer, the pre-tokenizer and the options of published tokenizers, and a vocabulary that is
trained on generated text. The test generates the same texts and compares hashes of their tokens.
The kind t5_precompiled also needs the package sentencepiece, which makes the map of its normalizer.
"""
import base64
import io
import json
import sys
import tempfile
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

FOLDER = Path(__file__).resolve().parent
TEXT_COUNT = 12000
BLOCK = 24  # texts for each hash
MASK = (1 << 64) - 1

# Text is made of these pieces, and of single code points of these ranges.
PIECES = """the a of Model model models training trained Tokens token ' 's 'S 't 'T 're 'RE 've 'm 'll 'LL 'd 'D 'x ’s 'ſ 'K
I'm don't we'll they've it's HELLO World helloWorld snake_case CamelCase camelCase URL http://example.com/a?b=c&d=1 @user #tag
0 1 12 123 1234 12345 3.14159 1,000,000 ² ½ Ⅷ ٣٤٥ 一二三 １２３ . , ; : ! ? ... … -- — ( ) [ ] { } < > / \\ | $ € % & * + = ~ ` ^ _ "
é e\u0301 ñ n\u0303 Å A\u030a ﬁ ﬃ ſ ß ẞ İ ı Ǆ ǅ ΐ ὒ Ω Ω Ὠ א ב\u05bc שלום مرحبا لا ﷺ नमस्ते क्षि ไทย ภาษา ກ བོད 한국어 각 가 \u1100\u1161\u11a8
中文 日本語 カタカナ ｶﾞ が か\u3099 ㍿ ㌀ ① ⑳ ™ ℡ ㎏ 豈 更 🙂 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤\ufe0f 𝒜 𝟘 𝔘 𠀀 𐐀 𝅗𝅥 ﾊﾞ \u0345 \u0323\u0307 q\u0307\u0323 \u00ad
\u200b \u200d \ufeff \ufffd \x00 \x01 \x1b \x7f \x85 ▁ ▁▁ <0x0A> Ġ Ċ âĢĻ <|endoftext|> <|begin_of_text|> <|end_of_text|> <|eot_id|> <|im_start|>
<|im_end|> <s> </s> <unk> <pad> <extra_id_0> <mask> [INST] [/INST] <|reserved_special_token_7|> <|endoftext <s <</s>> <s><s>
def return for(int i=0;i<n;++i){ #include <vector> </div> SELECT * FROM é́́́ x\u0300\u0301\u0302 ΣΑΣ Straße naïve Ελλάδα Привет мир""".split()
PIECES += [" ", "  ", "   ", "       ", " " * 17, "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ", " \n\n  ", "\u00a0", "\u2003", "\u3000",
           "\u2028", "\x0b", "\x0c", " the", " a", " model", " 12", " 's", " .", " !", ", ", ". ", "  the", " é", " 中", " \u0301", "' ", " '",
           "a" * 40, "ab" * 30, "1" * 20, "!" * 15, "🙂" * 4, " <s> ", "\n<|endoftext|>\n", " <mask>", "<mask> "]
RANGES = [(0x00, 0x1f), (0x20, 0x7e), (0x20, 0x7e), (0x80, 0xff), (0x100, 0x17f), (0x250, 0x2af), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff),
          (0x590, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f), (0xe00, 0xe7f), (0xf00, 0xfff), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f),
          (0x2070, 0x209f), (0x2100, 0x218f), (0x2200, 0x22ff), (0x2460, 0x24ff), (0x3000, 0x30ff), (0x3130, 0x318f), (0x3200, 0x33ff),
          (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xe000, 0xe0ff), (0xf900, 0xfaff), (0xfb00, 0xfdff), (0xfe00, 0xfeff), (0xff00, 0xffef),
          (0x10000, 0x100ff), (0x10400, 0x1044f), (0x1d100, 0x1d1ff), (0x1d400, 0x1d7ff), (0x1f100, 0x1f1ff), (0x1f300, 0x1f6ff), (0x2f800, 0x2fa1f),
          (0xe0000, 0xe007f), (0x10fff0, 0x10ffff)]

GPT4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % limit


def text(index):
    random = Random(index)
    result = ""
    for _ in range(1 + random.below(14)):
        kind = random.below(8)
        if kind == 0:
            first, last = RANGES[random.below(len(RANGES))]
            result += chr(first + random.below(last - first + 1))
            continue
        piece = PIECES[random.below(len(PIECES))]
        result += piece * (1 + random.below(5)) if kind == 1 else piece
    return result


def corpus():
    words = [piece for piece in PIECES if piece.isalnum()]
    random = Random(1 << 40)
    for index in range(4000):
        yield text((1 << 32) + index)
        yield " ".join(words[random.below(len(words))] for _ in range(20)) + ".\n"


def added(number, content, special=True, normalized=False, lstrip=False, rstrip=False):
    return {"id": number, "content": content, "single_word": False, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized,
            "special": special}


def small_corpus():
    """The corpus with few characters: a unigram model needs a token for each."""
    alphabet = set("".join(PIECES[:130]))
    for line in corpus():
        yield "".join(c for c in line if c in alphabet)


def trained(model, trainer, pre_tokenizer, normalizer=None, texts=corpus):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(texts(), trainer)
    return json.loads(tokenizer.to_str())


def byte_level(pre_tokenizer, specials, normalizer=None, size=1200, **options):
    """A byte-level BPE. The special tokens get the numbers after those of the vocabulary."""
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    file = trained(models.BPE(), trainer, pre_tokenizer, normalizer)
    file["model"].update(options)
    file["added_tokens"] = [added(len(file["model"]["vocab"]) + i, *token) for i, token in enumerate(specials)]
    return file


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2():
    file = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [])
    model = file["model"]
    del model["type"], model["byte_fallback"], model["ignore_merges"]
    model.update(continuing_subword_prefix="", end_of_word_suffix="", merges=[" ".join(pair) for pair in model["merges"]])
    del file["pre_tokenizer"]["use_regex"]
    model["vocab"]["<|endoftext|>"] = len(model["vocab"])
    file["added_tokens"] = [added(model["vocab"]["<|endoftext|>"], "<|endoftext|>")]
    file["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    file["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    return file


def gpt2_prefix_space():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), [("<s>",), ("</s>",), ("<mask>", True, False, True)])


def llama3():
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", *(f"<|reserved_special_token_{i}|>" for i in range(20))]
    file = byte_level(split(LLAMA3), [(token,) for token in specials], ignore_merges=True)
    # Whole words that no merges produce: ignore_merges makes the difference.
    for word in ["Ġmodels", "helloWorld", "ä¸Ńæĸĩ"]:
        file["model"]["vocab"].setdefault(word, len(file["model"]["vocab"]))
    for i, token in enumerate(file["added_tokens"]):
        token["id"] = len(file["model"]["vocab"]) + i
    file["post_processor"] = {
        "type": "Sequence",
        "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                       {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                                                                 {"Sequence": {"id": "A", "type_id": 0}}],
                        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                        "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [file["added_tokens"][0]["id"]],
                                                                 "tokens": ["<|begin_of_text|>"]}}}]}
    return file


def qwen2():
    return byte_level(split(QWEN2), [("<|endoftext|>",), ("<|im_start|>",), ("<|im_end|>",), ("[INST]", False), ("ñ", False, True)], normalizers.NFC())


def cl100k():
    return byte_level(split(CL100K, "removed", True), [("<|endoftext|>",)])


def gpt4o():
    return byte_level(split(GPT4O), [("<|endoftext|>",)])


def tekken():
    return byte_level(split(TEKKEN), [("<unk>",), ("<s>",), ("</s>",), ("[INST]",), ("[/INST]",)], ignore_merges=True)


def deepseek():
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex("[一-龥\u3040-ゟ゠-ヿ]+"), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        [("<|endoftext|>",)], normalizers.Sequence([]))


def llama2(legacy=True):
    """A BPE with byte fallback, whose vocabulary begins with special tokens and bytes."""
    trainer = trainers.BpeTrainer(vocab_size=1000, show_progress=False, limit_alphabet=160)
    file = trained(models.BPE(), trainer, pre_tokenizers.Metaspace(prepend_scheme="always", split=True))
    names = ["<unk>", "<s>", "</s>", *BYTE_TOKENS]
    names += [token for token in file["model"]["vocab"] if token not in names]
    names += ["▁▁", "▁▁▁▁"]
    file["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True, vocab={name: i for i, name in enumerate(dict.fromkeys(names))})
    file["model"]["merges"] = [*file["model"]["merges"], ["▁", "▁"], ["▁▁", "▁▁"]]
    file["added_tokens"] = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    if legacy:
        file["pre_tokenizer"] = None
        file["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                                  {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    else:
        file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        file["added_tokens"].append(added(len(file["model"]["vocab"]), "[INST]", False, True))
    return file


def without(file, tokens):
    """Removes tokens of a BPE and the merges that need them."""
    model, removed = file["model"], set(tokens)
    kept = [token for token in model["vocab"] if token not in removed]
    model["vocab"] = {name: i for i, name in enumerate(kept)}
    model["merges"] = [pair for pair in model["merges"] if not removed & {*pair, "".join(pair)}]
    return file


def gemma():
    file = llama2()
    file["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    file["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return file


def bpe_unknown(fuses):
    """Without byte tokens: unknown characters become the unknown token."""
    file = llama2()
    file["model"].update(byte_fallback=False, fuse_unk=fuses)
    return without(file, BYTE_TOKENS)


def bpe_partial_bytes():
    """Some byte tokens are missing."""
    return without(llama2(), BYTE_TOKENS[::5])


def unigram(pre_tokenizer, normalizer, specials, **options):
    trainer = trainers.UnigramTrainer(vocab_size=900, show_progress=False, special_tokens=specials, unk_token="<unk>", max_piece_length=12)
    file = trained(models.Unigram(), trainer, pre_tokenizer, normalizer, small_corpus)
    file["model"].update(options)
    return file


def t5():
    """T5's pre-tokenizers and special tokens. The normalizer is NFKC and T5's Replace, in place of Precompiled."""
    file = unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always", split=True)]),
                   normalizers.NFKC(), ["<pad>", "</s>", "<unk>"])
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]}
    file["added_tokens"].append(added(len(file["model"]["vocab"]), "<extra_id_0>"))
    return file


def charsmap():
    """The map of a SentencePiece model, as base64. It has rules of NFKC for code points of the texts, and blanks for white space."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    rules = {}
    for code in sorted({code for first, last in RANGES if first not in (0xac00, 0xf900, 0x2f800) for code in range(first, last + 1)}):
        letter = chr(code)
        if (normal := unicodedata.normalize("NFKC", letter)) != letter:
            rules[letter] = normal
        decomposed = unicodedata.normalize("NFD", letter)
        if decomposed != letter and unicodedata.normalize("NFC", decomposed) == letter:
            rules[decomposed] = letter
        if unicodedata.category(letter) == "Cc":
            rules[letter] = " " if letter.isspace() else ""
    rules |= {letter: " " for letter in "\u00a0\u2003\u3000\u2028\u200b\u200d\ufeff\ufffd\u2581"}
    rules.pop("\0", None)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        hexadecimal = lambda text: " ".join(f"{ord(letter):X}" for letter in text)
        file.writelines(f"{hexadecimal(source)}\t{hexadecimal(target)}\n" for source, target in rules.items())
        file.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d e f g"] * 20), model_writer=model, vocab_size=12,
                                                 hard_vocab_limit=False, normalization_rule_tsv=file.name, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()


def t5_precompiled():
    """T5's normalizers, pre-tokenizer and special tokens, with a smaller map."""
    file = unigram(pre_tokenizers.Metaspace(prepend_scheme="always", split=True), normalizers.NFKC(), ["<pad>", "</s>", "<unk>"])
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": charsmap()}, {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]}
    file["added_tokens"].append(added(len(file["model"]["vocab"]), "<extra_id_0>"))
    return file


def unigram_nmt():
    """The normalizer Nmt, which removes and replaces characters before NFKC."""
    file = unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always", split=True)]),
                   normalizers.NFKC(), ["<s>", "<pad>", "</s>", "<unk>"])
    file["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, {"type": "Prepend", "prepend": "▁"},
                                                              {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    file["added_tokens"].append(added(len(file["model"]["vocab"]), "<mask>", True, False, True))
    return file


def unigram_bytes():
    file = unigram(pre_tokenizers.Metaspace(prepend_scheme="always", split=True), normalizers.NFC(), ["<unk>", "<s>", "</s>"])
    file["model"]["vocab"] += [[token, -12.5] for token in BYTE_TOKENS]
    file["model"]["byte_fallback"] = True
    file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    return file


def unigram_whole():
    """No pre-tokenizer: a text is one piece. The added tokens take white space, and are found in normalized text."""
    file = unigram(pre_tokenizers.Metaspace(prepend_scheme="never", split=True), normalizers.NFD(), ["<unk>", "<s>", "</s>"])
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "NFKD"}, {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    file["pre_tokenizer"] = None
    size = len(file["model"]["vocab"])
    file["added_tokens"] += [added(size, "<mask>", True, False, True, True), added(size + 1, "ﬁ", False, True), added(size + 2, "token", False, True)]
    return file


def digits():
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex(r"\p{P}"), "contiguous"),
                                               pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                      [("<|endoftext|>",)], normalizers.NFD())


KINDS = {
    "gpt2": gpt2, "gpt2_prefix_space": gpt2_prefix_space, "llama3": llama3, "qwen2": qwen2, "cl100k": cl100k, "gpt4o": gpt4o, "tekken": tekken,
    "deepseek": deepseek, "digits": digits, "llama2": llama2, "llama2_metaspace": lambda: llama2(False), "gemma": gemma,
    "bpe_unknown": lambda: bpe_unknown(False), "bpe_fused_unknown": lambda: bpe_unknown(True), "bpe_partial_bytes": bpe_partial_bytes,
    "t5": t5, "t5_precompiled": t5_precompiled, "unigram_nmt": unigram_nmt, "unigram_bytes": unigram_bytes, "unigram_whole": unigram_whole}


def renumbered(file):
    """Gives each added token its number: that of the same token in the vocabulary, or the next free one."""
    vocabulary = file["model"]["vocab"]
    numbers = vocabulary if isinstance(vocabulary, dict) else {token: i for i, (token, _) in enumerate(vocabulary)}
    free = len(vocabulary)
    for token in file["added_tokens"]:
        token["id"] = numbers.get(token["content"], free)
        free += token["id"] == free
    return file


def tokenizer_file(kind):
    return FOLDER / "tokenizers" / f"{kind}.json"


def encode(tokenizer, index):
    return tokenizer.encode(text(index), add_special_tokens=False).ids


def block_hash(lists):
    """FNV-1a over the tokens as 32-bit integers; ~0 follows each list."""
    value = 0xCBF29CE484222325
    for ids in lists:
        for number in [*ids, 0xFFFFFFFF]:
            for byte in number.to_bytes(4, "little"):
                value = ((value ^ byte) * 0x100000001B3) & MASK
    return f"{value:016x}"


def golden(kind):
    tokenizer = Tokenizer.from_file(str(tokenizer_file(kind)))
    ids = [encode(tokenizer, index) for index in range(TEXT_COUNT)]
    return {"first": ids[:5], "hashes": [block_hash(ids[at:at + BLOCK]) for at in range(0, TEXT_COUNT, BLOCK)]}


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--show"]:
        print(json.dumps(text(int(arguments[2]))))
        print(encode(Tokenizer.from_file(str(tokenizer_file(arguments[1]))), int(arguments[2])))
        return
    if arguments[:1] == ["--lines"]:
        lines = (json.dumps({"text": text(index)}, ensure_ascii=index % 2 == 0) + "\n" for index in range(int(arguments[1])))
        Path(arguments[2]).write_text("".join(lines), encoding="utf-8", newline="")
        return
    kinds = list(KINDS) if not arguments else [] if arguments == ["--tokens"] else arguments
    if not set(kinds) <= set(KINDS):
        sys.exit(__doc__)
    tokenizer_file("").parent.mkdir(exist_ok=True)
    for kind in kinds:
        tokenizer_file(kind).write_text(json.dumps(renumbered(KINDS[kind]()), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    goldens = {"tokenizers": tokenizers.__version__, "block": BLOCK, "pieces": PIECES, "ranges": RANGES,
               "kinds": {kind: golden(kind) for kind in KINDS}}
    lines = json.dumps(goldens, separators=(",", ":")).replace('"kinds":{', '"kinds":{\n').replace("]},", "]},\n")
    (FOLDER / "golden_tokens.json").write_text(lines + "\n")


main()
