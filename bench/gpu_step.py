#!/usr/bin/env python3
"""Estimates the time of a training step of GPT-2 on one GPU from the bytes and FLOPs of each kernel.

The formulas count what the kernels of apps/models/cuda and of the optimizer read and write, if every array is larger
than the caches. No figure is measured. bench/results/gpu_step.md explains the assumptions.
"""

import argparse
from dataclasses import dataclass

BF16, FP32 = 2, 4


@dataclass
class Rates:
    """What the GPU reaches."""

    copy: float = 0.93 * 4.3e12  # bytes per second of kernels that only transfer
    products: float = 0.75 * 790e12  # FLOP/s of cuBLASLt
    attention: float = 0.30 * 790e12  # FLOP/s of the attention kernels
    least_seconds: float = 2.5e-6  # of any kernel in a graph


@dataclass
class Shape:
    batch: int
    sequence: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12
    vocabulary: int = 50257

    @property
    def rows(self):
        return self.batch * self.sequence

    @property
    def hidden(self):
        return 4 * self.width

    @property
    def parameters(self):
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocabulary + self.sequence + 2) * self.width + self.layers * block


class Step:
    """Collects kernels with their bytes and FLOPs."""

    def __init__(self, rates):
        self.rates = rates
        self.kernels = {}  # name: [calls, bytes, flops, seconds]

    def add(self, name, calls, byte_count, flops=0.0, flop_rate=1.0):
        seconds = max(byte_count / self.rates.copy, flops / flop_rate, self.rates.least_seconds)
        entry = self.kernels.setdefault(name, [0, 0.0, 0.0, 0.0])
        for i, more in enumerate((calls, calls * byte_count, calls * flops, calls * seconds)):
            entry[i] += more

    def product(self, name, calls, extents, byte_count):
        """A product of rows x depth x columns."""
        rows, depth, columns = extents
        self.add(name, calls, byte_count, 2.0 * rows * depth * columns, self.rates.products)

    def transfer(self, name, calls, byte_count):
        self.add(name, calls, byte_count)


def forward(step, s):
    stream, narrow, wide = FP32 * s.rows * s.width, BF16 * s.rows * s.width, BF16 * s.rows * s.hidden
    matrix = BF16 * s.width**2
    step.transfer("embedding and positions", 2, narrow + 2 * stream)
    step.transfer("norm", 2 * s.layers + 1, stream + narrow)
    step.transfer("conversion of biases", 2 * s.layers, BF16 * s.width)
    step.product("qkv", s.layers, (s.rows, s.width, 3 * s.width), 4 * narrow + 3 * matrix)
    scores = 2.0 * s.rows * s.sequence * s.width  # two products over half of the keys
    step.add("attention", s.layers, 4 * narrow, scores, step.rates.attention)
    step.product("attention output", s.layers, (s.rows, s.width, s.width), narrow + matrix + 2 * stream)
    step.product("mlp up, GELU", s.layers, (s.rows, s.width, s.hidden), narrow + 4 * matrix + 2 * wide)
    step.product("mlp down", s.layers, (s.rows, s.hidden, s.width), wide + 4 * matrix + 2 * stream)


def head(step, s):
    hidden, stream, logits = BF16 * s.rows * s.width, FP32 * s.rows * s.width, BF16 * s.rows * s.vocabulary
    table, tiles = BF16 * s.vocabulary * s.width, -(-s.vocabulary // 6400)
    step.product("logits", 1, (s.rows, s.width, s.vocabulary), tiles * hidden + table + logits)
    step.transfer("loss", 1, logits)
    step.transfer("loss backward", 1, 2 * logits)
    step.product("head input gradient", 1, (s.rows, s.vocabulary, s.width), logits + table + (2 * tiles - 1) * stream)
    step.product("head weight gradient", 1, (s.vocabulary, s.rows, s.width), logits + tiles * hidden + 2 * table)


def backward(step, s):
    stream, narrow, wide = FP32 * s.rows * s.width, BF16 * s.rows * s.width, BF16 * s.rows * s.hidden
    matrix, gradient = BF16 * s.width**2, FP32 * s.width**2
    step.transfer("conversion of gradients", 2 * s.layers, stream + narrow)
    step.transfer("GELU again", s.layers, 2 * wide)
    step.product("mlp down gradients", s.layers, (s.hidden, s.rows, s.width), wide + narrow + 4 * gradient)
    step.product("mlp down input, GELU", s.layers, (s.rows, s.width, s.hidden), narrow + 4 * matrix + 2 * wide)
    step.transfer("norm again", 2 * s.layers, stream + narrow)
    step.product("mlp up gradients", s.layers, (s.width, s.rows, s.hidden), wide + narrow + 4 * gradient)
    step.product("mlp up input", s.layers, (s.rows, s.hidden, s.width), wide + 4 * matrix + stream)
    step.transfer("norm backward", 2 * s.layers + 1, 4 * stream)
    step.transfer("norm weights", 2 * s.layers + 1, 2 * stream)
    step.product("attention output gradients", s.layers, (s.width, s.rows, s.width), 2 * narrow + gradient)
    step.product("attention output input", s.layers, (s.rows, s.width, s.width), narrow + matrix + stream)
    # Reads the fp32 gradient and the output, and writes the rounded gradient.
    step.transfer("attention deltas", s.layers, stream + 2 * narrow)
    scores = 2.0 * s.rows * s.sequence * s.width
    # Two kernels multiply seven times where forward multiplies twice.
    step.add("attention backward", s.layers, 11 * narrow, 3.5 * scores, step.rates.attention)
    step.product("qkv gradients", s.layers, (s.width, s.rows, 3 * s.width), 4 * narrow + 3 * gradient)
    # The gradients of four biases.
    step.transfer("column sums", 4 * s.layers, (5 * narrow + wide) / 4)
    step.product("qkv input", s.layers, (s.rows, 3 * s.width, s.width), 3 * narrow + 3 * matrix + stream)
    step.transfer("embedding backward", 2, stream + FP32 * s.sequence * s.width)


def update(step, s):
    step.transfer("norm of gradients", 1, FP32 * s.parameters)
    # Reads the gradient, the moments, and both halves of the parameter. Writes the moments and the halves.
    step.transfer("AdamW", s.layers + 4, (3 * FP32 + 4 + 2 * FP32 + 4) * s.parameters / (s.layers + 4))


def make_step(shape, rates):
    step = Step(rates)
    forward(step, shape)
    head(step, shape)
    backward(step, shape)
    update(step, shape)
    return step


def print_kernels(shape, rates):
    step = make_step(shape, rates)
    total = sum(entry[3] for entry in step.kernels.values())
    print(f"| kernel, batch {shape.batch} | calls | MB | GFLOP | us | % |\n| --- | --- | --- | --- | --- | --- |")
    for name, (calls, byte_count, flops, seconds) in sorted(step.kernels.items(), key=lambda item: -item[1][3]):
        print(
            f"| {name} | {calls} | {byte_count / 1e6:.0f} | {flops / 1e9:.0f} | {seconds * 1e6:.0f} "
            f"| {100 * seconds / total:.1f} |"
        )


def print_totals(batches, rates):
    print("| batch | kernels | GB | TFLOP | ms | tokens/s |\n| --- | --- | --- | --- | --- | --- |")
    for batch in batches:
        shape = Shape(batch)
        sums = [sum(column) for column in zip(*make_step(shape, rates).kernels.values())]
        print(
            f"| {batch} | {sums[0]:.0f} | {sums[1] / 1e9:.1f} | {sums[2] / 1e12:.2f} | {sums[3] * 1e3:.2f} "
            f"| {shape.rows / sums[3]:.0f} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--products", type=float, help="share of 790 TFLOP/s that matrix products reach")
    parser.add_argument("--attention", type=float, help="share of 790 TFLOP/s that attention reaches")
    parser.add_argument("--copy", type=float, help="share of 4.3 TB/s that other kernels reach")
    arguments = parser.parse_args()
    rates = Rates()
    if arguments.products:
        rates.products = arguments.products * 790e12
    if arguments.attention:
        rates.attention = arguments.attention * 790e12
    if arguments.copy:
        rates.copy = arguments.copy * 4.3e12
    print_totals(arguments.batch, rates)
    print()
    print_kernels(Shape(arguments.batch[-1]), rates)


if __name__ == "__main__":
    main()
