"""products_torch.py fp32|bf16 forward|inputs|weights ROWS INPUTS OUTPUTS OUTPUTS_FIRST CALLS: one matrix product of
products_bench in PyTorch.

OUTPUTS_FIRST is 1 if the weight is [outputs, inputs], else 0. Each call uses other operands, which come from memory.
Prints a line when ready. For each line of standard input it computes CALLS products and prints a line.
"""

import sys

import torch

precision, what = sys.argv[1:3]
rows, inputs, outputs, outputs_first, calls = map(int, sys.argv[3:8])
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
torch.set_num_threads(1)

# Larger than the share of a rank of the last cache of today's processors.
BYTES_OF_SETS = 512 << 20
set_bytes = (2 * inputs * outputs + rows * (inputs + outputs)) * dtype.itemsize
sets = [
    (torch.zeros(outputs, inputs, dtype=dtype) if outputs_first else torch.zeros(inputs, outputs, dtype=dtype),
     torch.zeros(rows, inputs, dtype=dtype), torch.zeros(rows, outputs, dtype=dtype),
     torch.zeros(outputs, inputs, dtype=dtype) if outputs_first else torch.zeros(inputs, outputs, dtype=dtype))
    for _ in range(max(2, BYTES_OF_SETS // set_bytes))
]


def multiply(call):
    weight, x, y, gradient = sets[call % len(sets)]
    if what == "forward":
        torch.mm(x, weight.t() if outputs_first else weight, out=y)
    elif what == "inputs":
        torch.mm(y, weight if outputs_first else weight.t(), out=x)
    elif outputs_first:
        torch.mm(y.t(), x, out=gradient)
    else:
        torch.mm(x.t(), y, out=gradient)


@torch.no_grad()
def run():
    for call in range(calls):
        multiply(call)


run()
print("ready", flush=True)
for _ in sys.stdin:
    run()
    print("done", flush=True)
