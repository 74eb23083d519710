#!/usr/bin/env python3
"""compare_transformers.py PROGRAM [--golden FILE] [MODEL...]: compares training with Hugging Face's transformers.

PROGRAM is the aliquot command. MODEL names entries of MODELS below; the default is all of them. For each model:
- aliquot exports initial weights, and the script changes the fields of the model in their config.json;
- transformers loads these weights and saves them again;
- aliquot trains 20 steps with --init from the saved folder, and exports the result;
- transformers trains the same steps with torch.optim.AdamW;
- the script compares losses, gradient norms and final weights. transformers loads the exported result for this.
The gradient norms of transformers are summed in double, because torch's sum in fp32 is less accurate.
Exit code: 0 if all differences are within their limits, 1 if not, 77 if torch or transformers is not installed.
--golden writes the losses and norms of transformers to FILE, a C++ header.
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
# Names begin with a preset. The values are the fields of its config.json that are changed.
MODELS = {
    "gpt2-nano": {},
    "llama-nano": {},
    "gpt2-nano-epsilon": {"layer_norm_epsilon": 1e-3},
    "llama-nano-theta": {"rope_theta": 100.0, "rms_norm_eps": 1e-3},
    "llama-nano-scaled": {"rope_theta": 10000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}},
}  # fmt: skip
LOSS_LIMIT, NORM_LIMIT, WEIGHT_LIMIT = 2e-6, 5e-6, 1e-5


def tokens(count):
    """Returns the same tokens as golden_tokens() in tests/apps/models/golden_transformers_test.cpp."""
    state, made = 12345, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        made.append((state >> 16) % 32)
    return made


def aliquot(program, *words):
    subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def first_weights(program, name, folder):
    """Exports the initial weights of the preset, which do not depend on the changed fields, and changes config.json."""
    preset = "-".join(name.split("-")[:2])
    aliquot(program, "train", "--model", preset, "--quiet", "--steps", 1, "--lr", 0, "--weight-decay", 0, "--checkpoint-dir", folder / "first")
    aliquot(program, "checkpoint", "export", folder / "first", "--out", folder / "weights")
    config = json.loads((folder / "weights" / "config.json").read_text())
    (folder / "weights" / "config.json").write_text(json.dumps({**config, **MODELS[name]}))


def train_ours(program, folder, data):
    aliquot(program, "train", "--ranks", 2, "--threads", 1, "--micro-batch", BATCH // 2, "--sequence", SEQUENCE, "--quiet",
            "--steps", STEPS, "--init", folder / "saved", "--data", data, "--shuffle", "off",
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


def compare(program, name, folder, golden):
    stream = tokens(STEPS * BATCH * SEQUENCE + 1)
    data = folder / "tokens.bin"
    data.write_bytes(array("H", stream).tobytes())
    first_weights(program, name, folder)
    load(folder / "weights").save_pretrained(folder / "saved")
    ours = train_ours(program, folder, data)
    model, theirs = train_theirs(folder / "weights", stream)
    golden[name] = theirs
    found = {
        "loss": (off([o[0] for o in ours], [t[0] for t in theirs]), LOSS_LIMIT),
        "norm": (off([o[1] for o in ours], [t[1] for t in theirs]), NORM_LIMIT),
        "weights": (weights_off(load(folder / "trained"), model), WEIGHT_LIMIT),
    }
    for what, (deviation, limit) in found.items():
        print(f"{name:18} {what:8} relative difference at most {deviation:.1e} over {STEPS} steps (limit {limit:.0e})")
    print(f"{name:18} loss     {theirs[0][0]:.6f} to {theirs[-1][0]:.6f}")
    return all(deviation <= limit for deviation, limit in found.values())


def header(golden):
    lines = ["#pragma once",
             "// The losses and gradient norms of each step when the Hugging Face library transformers trains the "
             "same models.",
             "// tests/apps/models/compare_transformers.py --golden writes this file.", "",
             "namespace aliquot::test {", "", "struct GoldenStep {", "  double loss, gradient_norm;", "};", ""]  # fmt: skip
    for name, steps in golden.items():
        words = "".join(part.capitalize() for part in name.split("-"))
        lines += [f"inline constexpr GoldenStep k{words}[] = {{", *(f"    {{{loss!r}, {norm!r}}}," for loss, norm in steps), "};", ""]
    return "\n".join([*lines, "}  // namespace aliquot::test", ""])


def main(arguments):
    program, models, golden_file = arguments[0], arguments[1:], None
    if models[:1] == ["--golden"]:
        golden_file, models = models[1], models[2:]
    torch.use_deterministic_algorithms(True)
    golden = {}
    good = True
    for name in models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            good = compare(program, name, Path(folder), golden) and good
    if golden_file:
        Path(golden_file).write_text(header(golden), encoding="ascii")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
