#!/usr/bin/env python3
"""bench/training_gpu.py [OPTIONS]

Trains GPT-2 124M in bf16 on one GPU with aliquot and with PyTorch, by turns, and prints tokens per second. For each
micro-batch size it runs, twice in this order:

  plain     aliquot train
  direct    the same with --graph off: the host enqueues each kernel
  metrics   the same as plain with --metrics, which records the times of all operations
  padded    the same as plain with a vocabulary of 50304 (--padded), a multiple of 64
  torch     bench/training_torch.py: torch.compile, fused attention, fused AdamW, autocast to bf16

A rate is the median over the steps after the first five. The table has the higher rate of the two runs, and how much
lower the other one was. Memory is the highest that the program used on the GPU, as aliquot's ledger and PyTorch's
allocator count it. Exit code: 1 if a run failed.

  --aliquot FILE      the program (build/aliquot)
  --torch PYTHON      a Python with PyTorch, or none (python3 if it has PyTorch)
  --batches LIST      micro-batch sizes (1,4,16)
  --sequence T        (1024)
  --steps N           steps of each run (25)
  --seconds S         ends the last run after S seconds (480)
  --json FILE         writes all rates to FILE
  --device NAME       cuda or host (cuda)
  --padded N          (50304)
  --model NAME        for aliquot (gpt2-124m). With another model, PyTorch is left out
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP = 5
VARIANTS = ["plain", "direct", "metrics", "padded", "torch"]


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--aliquot", default="build/aliquot")
    parser.add_argument("--torch")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--padded", type=int, default=50304)
    return parser.parse_args()


def output_of(arguments, command):
    left = max(0.0, arguments.end - time.monotonic())
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=left)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"ended after {left:.0f} s, because the time is over: {' '.join(command)}") from error
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode} of {' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def python_with_torch(wanted):
    """The Python to use, or None."""
    python = wanted or shutil.which("python3")
    if wanted == "none" or python is None:
        return None
    found = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    return python if found.returncode == 0 else None


def aliquot_rates(arguments, variant, batch):
    """Tokens per second of each step, and the memory in bytes, or None if it is not known."""
    command = [arguments.aliquot, "train", "--model", arguments.model, "--device", arguments.device, "--ranks", "1",
               "--precision", "bf16", "--sequence", str(arguments.sequence), "--micro-batch", str(batch), "--steps",
               str(arguments.steps), "--progress", "lines", "--log-every", "1"]
    if variant == "padded":
        command += ["--vocab", str(arguments.padded)]
    if variant == "direct":
        command += ["--graph", "off"]
    if variant != "metrics":
        return [float(rate) for rate in re.findall(r" ([0-9]+) tokens/s", output_of(arguments, command))], None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "metrics.jsonl")
        output_of(arguments, command + ["--metrics", path])
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    tokens = batch * arguments.sequence
    memory = [line["done"]["measured_peak"] for line in lines if "measured_peak" in line.get("done", {})]
    return [tokens / line["step_seconds"] for line in lines if "step" in line], memory[0] if memory else None


def torch_rates(arguments, python, batch):
    script = os.path.join(os.path.dirname(os.path.realpath(__file__)), "training_torch.py")
    command = [python, script, "gpu", "bf16", str(arguments.steps), str(batch), str(arguments.sequence)]
    text = output_of(arguments, command)
    tokens = batch * arguments.sequence
    memory = re.findall(r"^memory ([0-9]+)$", text, re.M)
    return ([tokens / float(seconds) for seconds in re.findall(r"^step ([0-9.e-]+)$", text, re.M)],
            int(memory[0]) if memory else None)


def measure(arguments, python, variant, batch):
    rates, memory = (torch_rates(arguments, python, batch) if variant == "torch" else
                     aliquot_rates(arguments, variant, batch))
    if len(rates) <= WARM_UP:
        raise RuntimeError(f"{variant} printed {len(rates)} steps, expected more than {WARM_UP}")
    return {"batch": batch, "variant": variant, "tokens_per_second": statistics.median(rates[WARM_UP:]),
            "memory": memory}


def write_json(arguments, runs):
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(runs, file, indent=1)


def print_table(runs, batches, variants):
    print(f"{'batch':>5}  {'variant':8} {'tokens/s':>9}  {'lower run':>9}  {'of torch':>8}  {'GPU memory':>10}")
    for batch in batches:
        best = {}
        for variant in variants:
            found = [run for run in runs if run["batch"] == batch and run["variant"] == variant]
            if found:
                best[variant] = sorted(found, key=lambda run: -run["tokens_per_second"])
        for variant, found in best.items():
            rate, lower = found[0]["tokens_per_second"], found[-1]["tokens_per_second"]
            ratio = f"{rate / best['torch'][0]['tokens_per_second']:.3f}" if "torch" in best else ""
            memory = f"{found[0]['memory'] / 2**30:.2f} GiB" if found[0]["memory"] else ""
            line = f"{batch:5}  {variant:8} {rate:9.0f}  {100 * (1 - lower / rate):7.1f} %  {ratio:>8}  {memory:>10}"
            print(line.rstrip())


def main():
    arguments = parse_arguments()
    batches = [int(batch) for batch in arguments.batches.split(",")]
    python = python_with_torch(arguments.torch) if arguments.model == "gpt2-124m" else None
    variants = VARIANTS if python else VARIANTS[:-1]
    if python is None:
        print("PyTorch is left out")
    runs, failed = [], 0
    arguments.end = time.monotonic() + arguments.seconds
    for turn in range(2):
        for batch in batches:
            for variant in variants:
                if time.monotonic() > arguments.end:
                    print(f"not run, the time is over: {variant}, batch {batch}, turn {turn + 1}")
                    continue
                try:
                    runs.append(measure(arguments, python, variant, batch))
                    write_json(arguments, runs)
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    failed += 1
    print_table(runs, batches, variants)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
