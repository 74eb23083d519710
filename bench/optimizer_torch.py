"""optimizer_torch.py COUNT THREADS fused|foreach: a complete optimizer step in PyTorch, for optimizer_bench.

A step casts bf16 gradients to fp32, multiplies them by the clip factor, runs AdamW, and casts the parameters to bf16.
Prints a line when ready. For each line of standard input it runs one step and prints a line.
"""

import sys

import torch

count, threads, form = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(threads)
torch.manual_seed(1)

# Splits the elements into tensors of a transformer's size, because foreach is optimized for many tensors.
EACH = 768 * 768
sizes = [min(EACH, count - at) for at in range(0, count, EACH)]
parameters = [torch.nn.Parameter(torch.randn(size) * 0.02) for size in sizes]
gradients = [(torch.randn(size) * 0.01).to(torch.bfloat16) for size in sizes]
copies = [torch.empty(size, dtype=torch.bfloat16) for size in sizes]
for parameter in parameters:
    parameter.grad = torch.empty_like(parameter)
optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **{form: True})


@torch.no_grad()
def step():
    wide = [parameter.grad for parameter in parameters]
    torch._foreach_copy_(wide, gradients)
    torch._foreach_mul_(wide, 0.9)
    optimizer.step()
    torch._foreach_copy_(copies, parameters)


step()
print("ready", flush=True)
for _ in sys.stdin:
    step()
    print("done", flush=True)
