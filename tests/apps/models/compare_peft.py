#!/usr/bin/env python3
"""compare_peft.py PROGRAM [--golden FILE] [--tensor T] [CASE...]: compares adapters with those of PEFT.

PROGRAM is the aliquot command. CASE names entries of CASES below; the default is all of them. For each case:
- aliquot exports initial weights, and trains 20 steps of --lora with --init from them;
- PEFT starts from the adapters that aliquot exports of a run with a learning rate of 0, so from the same random A, and
  trains the same steps with torch.optim.AdamW;
- the script compares losses and gradient norms, and the logits of both exports, merged and in the format of PEFT, with
  those of the model that PEFT trained.
Exit code: 0 if all differences are within their limits, 1 if not, 77 if torch, transformers or peft is not installed.
--golden writes the cases and the losses and norms of PEFT to FILE. golden_peft_test reads the file.
"""
import json
import math
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

import compare_transformers as base

try:
    import torch
    import torch.nn.functional as F
    from peft import PeftModel
except ImportError as missing:
    print(f"compare_peft.py: {missing}: install torch, transformers and peft in a virtual environment")
    sys.exit(77)

# The model, an entry of MODELS in compare_transformers.py, and --lora.
CASES = {
    "gpt2-all": ("gpt2-nano", "rank=8,alpha=16,targets=all-linear"),
    "gpt2-attention": ("gpt2-nano", "rank=4,alpha=8,targets=c_attn"),
    "gpt2-projections": ("gpt2-untied", "rank=2,alpha=7.5,targets=c_proj"),
    "llama-all": ("llama-nano", "rank=8,alpha=16,targets=all-linear"),
    "llama-queries-values": ("llama-3.1", "rank=4,alpha=32,targets=q_proj,v_proj"),
    "llama-mlp": ("llama-2", "rank=5,alpha=5,targets=gate,up,down"),
    "mistral-all": ("mistral", "rank=8,alpha=16,targets=all-linear"),
    "qwen2-all": ("qwen2", "rank=8,alpha=16,targets=all-linear"),
    "qwen3-all": ("qwen3-bias", "rank=16,alpha=16,targets=q,k,v,o,gate,up,down"),
}
STEPS, BATCH, SEQUENCE = base.STEPS, base.BATCH, base.SEQUENCE
LOSS_LIMIT, NORM_LIMIT, LOGIT_LIMIT = 1e-6, 5e-6, 5e-6


def train(program, folder, to, lora, data, ranks, tensor, steps, rate):
    base.aliquot(program, "train", "--init", folder / "weights", "--lora", lora, "--ranks", ranks, "--tensor", tensor,
                 "--threads", 1, "--sequence", SEQUENCE, "--micro-batch", BATCH * tensor // ranks, "--steps", steps,
                 "--data", data, "--shuffle", "off", "--schedule", "constant", "--lr", rate, "--weight-decay",
                 base.DECAY if rate else 0, "--clip", base.CLIP, "--quiet", "--metrics", folder / f"{to}.jsonl",
                 "--checkpoint-dir", folder / to)  # fmt: skip
    lines = [json.loads(line) for line in (folder / f"{to}.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines if "step" in line]


def export(program, folder, of, form):
    base.aliquot(program, "checkpoint", "export", folder / of, "--lora", form, "--out", folder / f"{of}-{form}")
    return folder / f"{of}-{form}"


def with_adapters(folder, adapters, trainable=False):
    return PeftModel.from_pretrained(base.load(folder / "weights"), adapters, is_trainable=trainable)


def train_theirs(model, stream):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=base.RATE, betas=base.BETAS, eps=1e-8, weight_decay=base.DECAY)
    results = []
    for step in range(STEPS):
        rows = [stream[(step * BATCH + b) * SEQUENCE:][: SEQUENCE + 1] for b in range(BATCH)]
        batch = torch.tensor(rows)
        logits = model(batch[:, :-1]).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in trained))
        for parameter in trained:
            parameter.grad.mul_(min(1.0, base.CLIP / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
        results.append((loss.item(), norm))
    return results


def same_continuation(program, name, folder, merged, stream):
    """Compares the most probable text of aliquot sample, from the adapters, with that of transformers, from the merged
    weights."""
    prompt, count = stream[:7], 20
    words = [program, "sample", "--checkpoint", folder / "run", "--temperature", 0, "--tokens", count, "--threads", 1,
             "--prompt-tokens", ",".join(map(str, prompt))]  # fmt: skip
    ours = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout.split()
    merged.generation_config.eos_token_id = merged.generation_config.pad_token_id = None
    with torch.no_grad():
        theirs = merged.eval().generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count)[0].tolist()
    same = list(map(int, ours)) == theirs
    print(f"{name:23} {count} most probable tokens {'equal' if same else 'DIFFER'}")
    return same


def compare(program, name, folder, golden, tensor):
    model_name, lora = CASES[name]
    model = base.MODELS[model_name]
    stream = base.tokens(STEPS * BATCH * SEQUENCE + 1)
    data = folder / "tokens.bin"
    data.write_bytes(array("H", stream).tobytes())
    base.first_weights(program, model, folder)
    train(program, folder, "start", lora, data, 1, 1, 1, 0)
    ours = train(program, folder, "run", lora, data, 2 if tensor == 1 else tensor, tensor, STEPS, base.RATE)
    peft = with_adapters(folder, export(program, folder, "start", "adapter"), True).train()
    expected = sum(p.numel() for n, p in peft.named_parameters() if "lora_" in n)
    theirs = train_theirs(peft, stream)
    golden[name] = {"model": model, "lora": lora, "trained": expected, "steps": theirs}
    adapters = with_adapters(folder, export(program, folder, "run", "adapter"))
    merged = base.load(export(program, folder, "run", "merged"))
    found = {
        "loss": (base.off([o[0] for o in ours], [t[0] for t in theirs]), LOSS_LIMIT),
        "norm": (base.off([o[1] for o in ours], [t[1] for t in theirs]), NORM_LIMIT),
        "adapter logits": (base.logits_off(adapters, peft, stream), LOGIT_LIMIT),
        "merged logits": (base.logits_off(merged, peft, stream), LOGIT_LIMIT),
    }
    good = same_continuation(program, name, folder, merged, stream)
    for what, (deviation, limit) in found.items():
        print(f"{name:23} {what:14} relative difference at most {deviation:.1e} (limit {limit:.0e})")
    print(f"{name:23} loss {ours[0][0]:.7f} to {ours[-1][0]:.7f}, PEFT {theirs[0][0]:.7f} to {theirs[-1][0]:.7f}")
    return good and all(deviation <= limit for deviation, limit in found.values())


def main(arguments):
    program, cases, golden_file, tensor = arguments[0], arguments[1:], None, 1
    while cases and cases[0] in ("--golden", "--tensor"):
        if cases[0] == "--golden":
            golden_file = cases[1]
        else:
            tensor = int(cases[1])
        cases = cases[2:]
    torch.use_deterministic_algorithms(True)
    golden, good = {}, True
    for name in cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            good = compare(program, name, Path(folder), golden, tensor) and good
    if golden_file:
        base.write_golden(golden_file, golden)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
