#!/usr/bin/env python3
"""compare_torch.py PROGRAM: compares ten steps of every optimizer rule with torch.optim.

PROGRAM is optim_trajectory, which prints Aliquot's weights. A rule that torch.optim lacks is compared with its formula
in float64. Installs nothing.
Exit status: 0 if all deviations are within their limits, 1 if one is not, 77 if torch is not installed.
A deviation is relative to the largest change of a weight. The limits allow for fp32 operations in another order, or for
bf16 where torch computes in bf16.
"""
import subprocess
import sys

try:
    import torch
except ImportError:
    print(f"compare_torch.py: {sys.executable} cannot import torch: run this script with a python that has it")
    sys.exit(77)

SHAPE = (48, 16)
STEPS = 10


def read(program):
    values = {}
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        what, step, *numbers = line.split()
        values[what, int(step)] = torch.tensor([float(n) for n in numbers], dtype=torch.float32).reshape(SHAPE)
    return values


def follow_torch(values, make):
    weight = torch.nn.Parameter(values["start", 0].clone())
    optimizer = make([weight])
    for step in range(1, STEPS + 1):
        weight.grad = values["gradient", step].clone()
        optimizer.step()
        yield weight.detach().double()


def follow_lion(values):
    lr, beta1, beta2, decay = 0.01, 0.9, 0.99, 0.1
    weight, mean = values["start", 0].double(), torch.zeros(SHAPE, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        gradient = values["gradient", step].double()
        weight = weight - lr * (torch.sign(beta1 * mean + (1 - beta1) * gradient) + decay * weight)
        mean = beta2 * mean + (1 - beta2) * gradient
        yield weight


def orthogonal(x):
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def follow_muon(values):
    lr, beta, decay = 0.02, 0.95, 0.1
    factor = max(1.0, SHAPE[0] / SHAPE[1]) ** 0.5
    weight, mean = values["start", 0].double(), torch.zeros(SHAPE, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        gradient = values["gradient", step].double()
        mean = beta * mean + (1 - beta) * gradient
        weight = weight * (1 - lr * decay) - lr * factor * orthogonal((1 - beta) * gradient + beta * mean)
        yield weight


def dynamic_code(signed):
    """The table of 8-bit codes, built like that of bitsandbytes."""
    code = [0.0, 1.0]
    for i in range(7):
        edges = torch.linspace(0.1, 1, (1 if signed else 2) * 2**i + 1, dtype=torch.float64)
        middles = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
        code += middles.tolist() + ((-middles).tolist() if signed else [])
    return torch.tensor(sorted(code), dtype=torch.float64)


def quantize_and_decode(values, code):
    """Quantizes the values in blocks of 256 and decodes them again."""
    blocks = values.reshape(-1, 256)
    scale = blocks.abs().amax(dim=1, keepdim=True)
    nearest = torch.bucketize(blocks / scale, (code[1:] + code[:-1]) / 2)
    return (code[nearest] * scale).reshape(SHAPE)


def follow_adamw8bit(values):
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.95, 1e-8, 0.1
    weight = values["start", 0].double()
    mean = square = torch.zeros(SHAPE, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        gradient = values["gradient", step].double()
        mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
        denominator = (square / (1 - beta2**step)).sqrt() + eps
        weight = weight * (1 - lr * decay) - lr / (1 - beta1**step) * mean / denominator
        mean, square = quantize_and_decode(mean, dynamic_code(True)), quantize_and_decode(square, dynamic_code(False))
        yield weight


def comparisons(values):
    """Yields (rule, name of the reference, weights of the reference after each step, limit of the deviation)."""
    optim = torch.optim
    adamw = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    adam = dict(lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.05)
    sgd = dict(lr=0.1, weight_decay=0.01)
    yield "adamw", "torch.optim.AdamW", follow_torch(values, lambda p: optim.AdamW(p, **adamw)), 2e-5
    yield "adam", "torch.optim.Adam", follow_torch(values, lambda p: optim.Adam(p, **adam)), 2e-5
    yield "sgd", "torch.optim.SGD", follow_torch(values, lambda p: optim.SGD(p, **sgd)), 2e-5
    yield "sgd-momentum", "torch.optim.SGD", follow_torch(values, lambda p: optim.SGD(p, momentum=0.9, dampening=0.2, **sgd)), 2e-5
    yield "sgd-nesterov", "torch.optim.SGD", follow_torch(values, lambda p: optim.SGD(p, momentum=0.9, nesterov=True, **sgd)), 2e-5
    yield "lion", "its formula", follow_lion(values), 2e-5
    # A moment midway between two codes may be rounded either way, and the code of small moments is coarse.
    yield "adamw8bit", "its formula", follow_adamw8bit(values), 2e-2
    yield "muon", "its formula", follow_muon(values), 1e-4
    if hasattr(optim, "Muon"):
        theirs = list(follow_torch(values, lambda p: optim.Muon(p, lr=0.02)))
        yield "muon", "torch.optim.Muon, bf16", theirs, 5e-2
        yield "muon-bf16", "torch.optim.Muon, bf16", theirs, 5e-2


def main():
    values = read(sys.argv[1])
    print(f"torch {torch.__version__}, {STEPS} steps of {SHAPE[0]} x {SHAPE[1]} weights")
    print("deviations are relative to the largest change of a weight")
    print(f"{'rule':14} {'reference':24} {'after 1':>9} {'after 10':>9} {'largest':>9} {'limit':>7}")
    failed = []
    for rule, reference, weights, limit in comparisons(values):
        deviations = []
        for step, theirs in enumerate(weights, start=1):
            ours, start = values[rule, step].double(), values["start", 0].double()
            deviations.append(((ours - theirs).abs().max() / (theirs - start).abs().max()).item())
        print(f"{rule:14} {reference:24} {deviations[0]:9.1e} {deviations[-1]:9.1e} {max(deviations):9.1e} {limit:7.0e}")
        if not max(deviations) <= limit:
            failed.append(rule)
    if failed:
        print("deviation above the limit: " + ", ".join(failed))
        sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__)
        sys.exit(1)
    main()
