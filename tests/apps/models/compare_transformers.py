#!/usr/bin/env python3
"""compare_transformers.py PROGRAM [--golden FILE] [--tensor T] [--greedy] [MODEL...]: compares with transformers.

PROGRAM is the aliquot command. With --tensor, it trains in a tensor group of T ranks. MODEL names entries of MODELS
below; the default is all of them. For each model:
- aliquot exports initial weights, and the script writes the config.json of MODELS next to them;
- transformers loads these weights and saves them again;
- aliquot trains 20 steps with --init from the saved folder, and exports the result;
- transformers trains the same steps with torch.optim.AdamW, and loads the exported result;
- the script compares losses, gradient norms, final weights, and the logits of both results.
The gradient norms of transformers are summed in double, because torch's sum in fp32 is less accurate.
Exit code: 0 if all differences are within their limits, 1 if not, 77 if torch or transformers is not installed.
--golden writes the models, and the losses and norms of transformers, to FILE. golden_transformers_test reads the file.
With --greedy, the script compares no training. It compares the most probable continuations of prompts by aliquot sample
and by transformers' generate(), on one rank and on two, and writes those of transformers to FILE for greedy_test.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TQDM_DISABLE"] = "1"
try:
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(f"compare_transformers.py: {missing}: install torch and transformers in a virtual environment and run this script with its python")
    sys.exit(77)

STEPS, BATCH, SEQUENCE = 20, 4, 32
RATE, DECAY, BETAS, CLIP = 1e-3, 0.1, (0.9, 0.95), 1.0
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 128, "vocab_size": 256}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 384, "max_position_embeddings": 128, "vocab_size": 256,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
# Most of these models have a tied output head. Without it, updates of so small a model can move an embedding row close
# to zero. A norm then enlarges rounding errors: the gradient norms of transformers in fp32 and in fp64 differ by up to
# 5e-4.
SMALL = {
    "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 256, "tie_word_embeddings": True,
}  # fmt: skip
SMALL_LLAMA, MISTRAL, QWEN2, QWEN3 = ({"model_type": name, **SMALL} for name in ("llama", "mistral", "qwen2", "qwen3"))
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 7}
UNTIED = {"tie_word_embeddings": False}
# A preset, or a config.json.
MODELS = {
    "gpt2-nano": "gpt2-nano",
    "gpt2-epsilon": {**GPT2, "layer_norm_epsilon": 1e-3},
    "gpt2-untied": {**GPT2, **UNTIED},
    "llama-nano": "llama-nano",
    "llama-theta": {**LLAMA, "rope_theta": 100.0, "rms_norm_eps": 1e-3},
    "llama-2": {**SMALL_LLAMA, **UNTIED, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    "llama-3.1": {**SMALL_LLAMA, **UNTIED, "rope_theta": 500000.0, "rope_scaling": LLAMA3, "rms_norm_eps": 1e-5},
    "llama-3.2": {**LLAMA, "rope_theta": 10000.0, "rope_scaling": LLAMA3},
    "tinyllama": {**SMALL_LLAMA, **UNTIED, "num_attention_heads": 8, "num_key_value_heads": 1, "rms_norm_eps": 1e-5},
    "llama-bias": {**SMALL_LLAMA, "attention_bias": True},
    "llama-head-dim": {**SMALL_LLAMA, "head_dim": 40},
    "llama-linear": {**SMALL_LLAMA, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama-dynamic": {**SMALL_LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama-dynamic-long": {**SMALL_LLAMA, "max_position_embeddings": 12,
                           "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    "llama-yarn": {**SMALL_LLAMA, "rope_theta": 10000.0, "rope_scaling": YARN},
    "llama-yarn-mscale": {**SMALL_LLAMA, "rope_parameters": {
        **YARN, "rope_theta": 1000.0, "mscale": 0.7, "mscale_all_dim": 0.3, "beta_fast": 4.0, "beta_slow": 0.5,
        "truncate": False}},
    "llama-yarn-attention": {**SMALL_LLAMA, "rope_parameters": {
        **YARN, "rope_theta": 10000.0, "attention_factor": 1.5, "factor": 3.0}},
    "mistral": {**MISTRAL, **UNTIED, "sliding_window": 9},
    "mistral-head-dim": {**MISTRAL, "head_dim": 24, "num_attention_heads": 6, "sliding_window": 3},
    "mistral-full": {**MISTRAL, "sliding_window": None},
    "qwen2": {**QWEN2, "rope_theta": 1000000.0},
    "qwen2-window": {**QWEN2, **WINDOW, "max_window_layers": 1},
    "qwen2-yarn": {**QWEN2, "rope_parameters": {**YARN, "rope_theta": 1000000.0}},
    "qwen3": {**QWEN3, "head_dim": 24, "rope_theta": 1000000.0},
    "qwen3-bias": {**QWEN3, **UNTIED, "attention_bias": True, "head_dim": 32},
    "qwen3-window": {**QWEN3, **WINDOW, "head_dim": 48,
                     "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "qwen3-max-window-layers": {**QWEN3, **WINDOW, "max_window_layers": 2, "head_dim": 20},
}  # fmt: skip
# These models are exported as another type that computes the same.
OTHER_TYPES = ["mistral-full"]
GREEDY_PROMPTS, GREEDY_TOKENS = 3, 40
LOSS_LIMIT, NORM_LIMIT, WEIGHT_LIMIT, LOGIT_LIMIT = 2e-6, 5e-6, 1e-5, 5e-5


def tokens(count):
    """Returns the same tokens as golden_tokens() in tests/apps/models/golden_transformers_test.cpp."""
    state, made = 12345, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        made.append((state >> 16) % 32)
    return made


def aliquot(program, *words):
    subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def first_weights(program, model, folder):
    """Exports the initial weights of the model, next to its config.json."""
    config = folder / "config.json"
    if isinstance(model, dict):
        config.write_text(json.dumps(model))
    aliquot(program, "train", "--model", config if isinstance(model, dict) else model, "--quiet", "--steps", 1, "--lr", 0,
            "--weight-decay", 0, "--sequence", 8, "--checkpoint-dir", folder / "first")  # fmt: skip
    aliquot(program, "checkpoint", "export", folder / "first", "--out", folder / "weights")
    if isinstance(model, dict):
        written = json.loads((folder / "weights" / "config.json").read_text())
        # GPT-2 has dropout by default.
        fixed = {key: written[key] for key in ("architectures", "attn_pdrop", "embd_pdrop", "resid_pdrop") if key in written}
        (folder / "weights" / "config.json").write_text(json.dumps({**model, **fixed}))


def train_ours(program, folder, data, tensor):
    ranks = 2 if tensor == 1 else tensor
    aliquot(program, "train", "--ranks", ranks, "--tensor", tensor, "--threads", 1, "--sequence", SEQUENCE, "--quiet",
            "--micro-batch", BATCH * tensor // ranks, "--steps", STEPS, "--init", folder / "saved", "--data", data, "--shuffle", "off",
            "--schedule", "constant", "--lr", RATE, "--weight-decay", DECAY, "--clip", CLIP,
            "--metrics", folder / "run.jsonl", "--checkpoint-dir", folder / "last")  # fmt: skip
    aliquot(program, "checkpoint", "export", folder / "last", "--out", folder / "trained")
    steps = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return [(step["loss"], step["grad_norm"]) for step in steps if "step" in step]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


def train_theirs(folder, stream):
    model = load(folder).train()
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == matrix], "weight_decay": DECAY * matrix}
              for matrix in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=1e-8)
    results = []
    for step in range(STEPS):
        rows = [stream[(step * BATCH + b) * SEQUENCE:][: SEQUENCE + 1] for b in range(BATCH)]
        batch = torch.tensor(rows)
        logits = model(batch[:, :-1]).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, CLIP / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
        results.append((loss.item(), norm))
    return model, results


def off(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def weights_off(ours, theirs):
    """Returns the norm of the difference divided by the norm of the weights.

    Single elements cannot be compared. A gradient that is zero except for rounding, such as that of a key bias, has a
    random sign. Adam's step does not depend on its magnitude.
    """
    mine = dict(ours.named_parameters())
    difference = sum((mine[name] - p).double().square().sum().item() for name, p in theirs.named_parameters())
    return math.sqrt(difference / sum(p.double().square().sum().item() for p in theirs.parameters()))


def logits_off(ours, theirs, stream):
    """Returns the largest difference of a logit divided by the largest logit."""
    batch = torch.tensor([stream[:SEQUENCE]])
    with torch.no_grad():
        expected, found = theirs.eval()(batch).logits, ours.eval()(batch).logits
    return ((found - expected).abs().max() / expected.abs().max()).item()


def compare(program, name, folder, golden, tensor):
    stream = tokens(STEPS * BATCH * SEQUENCE + 1)
    data = folder / "tokens.bin"
    data.write_bytes(array("H", stream).tobytes())
    first_weights(program, MODELS[name], folder)
    load(folder / "weights").save_pretrained(folder / "saved")
    ours = train_ours(program, folder, data, tensor)
    model, theirs = train_theirs(folder / "weights", stream)
    golden[name] = {"model": MODELS[name], "steps": theirs}
    exported = load(folder / "trained")
    found = {
        "loss": (off([o[0] for o in ours], [t[0] for t in theirs]), LOSS_LIMIT),
        "norm": (off([o[1] for o in ours], [t[1] for t in theirs]), NORM_LIMIT),
        "weights": (weights_off(exported, model), WEIGHT_LIMIT),
        "logits": (logits_off(exported, model, stream), LOGIT_LIMIT),
    }
    if type(exported) is not type(model) and name not in OTHER_TYPES:
        raise SystemExit(f"{name}: the export is a {type(exported).__name__}, expected {type(model).__name__}")
    for what, (deviation, limit) in found.items():
        print(f"{name:23} {what:8} relative difference at most {deviation:.1e} over {STEPS} steps (limit {limit:.0e})")
    print(f"{name:23} loss     {ours[0][0]:.7f} to {ours[-1][0]:.7f}, transformers {theirs[0][0]:.7f} to {theirs[-1][0]:.7f}")
    return all(deviation <= limit for deviation, limit in found.values())


def greedy_ours(program, folder, prompt, count, ranks):
    words = [program, "sample", "--init", folder / "saved", "--temperature", 0, "--tokens", count, "--threads", 1,
             "--ranks", ranks, "--prompt-tokens", ",".join(map(str, prompt))]  # fmt: skip
    out = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout
    return list(map(int, out.split()))


def compare_greedy(program, name, folder, golden):
    """Compares continuations of several prompts by the initial weights. The heads are not tied: an initial model with a
    tied head repeats one token."""
    shape = MODELS[name] if isinstance(MODELS[name], str) else {**MODELS[name], **UNTIED}
    first_weights(program, shape, folder)
    model = load(folder / "weights").eval()
    model.save_pretrained(folder / "saved")
    # The defaults of some configurations have end-of-text tokens, which this small vocabulary uses for others.
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    context = getattr(model.config, "max_position_embeddings", None) or model.config.n_positions
    stream, good, cases = tokens(1000), True, []
    for i in range(GREEDY_PROMPTS):
        prompt = stream[100 * i:][: min(3 + 7 * i, context - 2)]
        count = min(GREEDY_TOKENS, context - len(prompt))
        with torch.no_grad():
            theirs = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count)[0].tolist()
        cases.append({"prompt": prompt, "tokens": theirs[len(prompt):]})
        for ranks in (1, 2):
            ours = greedy_ours(program, folder, prompt, count, ranks)
            if ours != theirs:
                print(f"{name}: prompt {prompt} on {ranks} ranks: {ours[len(prompt):]}, transformers {theirs[len(prompt):]}")
                good = False
    golden[name] = {"model": shape, "cases": cases}
    generated = sum(len(case["tokens"]) for case in cases)
    print(f"{name:23} greedy   {generated} tokens after {GREEDY_PROMPTS} prompts {'equal' if good else 'DIFFER'}")
    return good


def write_golden(path, golden):
    """Writes one line for each case."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in golden.items())
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")


def main(arguments):
    program, models, golden_file, tensor, greedy = arguments[0], arguments[1:], None, 1, False
    while models and models[0] in ("--golden", "--tensor", "--greedy"):
        if models[0] == "--greedy":
            greedy, models = True, models[1:]
            continue
        if models[0] == "--golden":
            golden_file = models[1]
        else:
            tensor = int(models[1])
        models = models[2:]
    torch.use_deterministic_algorithms(True)
    golden = {}
    good = True
    for name in models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            if greedy:
                good = compare_greedy(program, name, Path(folder), golden) and good
            else:
                good = compare(program, name, Path(folder), golden, tensor) and good
    if golden_file:
        write_golden(golden_file, golden)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
