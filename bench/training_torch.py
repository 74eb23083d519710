#!/usr/bin/env python3
"""Trains GPT-2 124M with PyTorch, for comparison: fused AdamW, gradient norm clipped to 1.

training_torch.py fsdp2|ddp fp32|bf16 STEPS
  As in training_bench: sequence 256, micro-batch 1, two processes of one thread over gloo. Prints "step SECONDS" for
  each step, and at the end "pss BYTES" with the largest Pss of a rank. In bf16, FSDP2 keeps parameters in fp32, gathers
  them in bf16 and sums gradients in fp32; DDP runs under autocast.

training_torch.py gpu fp32|bf16 STEPS BATCH SEQUENCE
  As in training_gpu.py: one GPU, torch.compile, fused attention. In bf16, the model runs under autocast. Prints "step
  SECONDS" for each step, and at the end "memory BYTES" with the most that PyTorch allocated. Without a GPU it runs on
  the host.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY, SEQUENCE = 12, 768, 12, 1024, 50257, 256
RANKS = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.attn_proj = nn.Linear(WIDTH, WIDTH)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, sequence, _ = x.shape
        parts = self.attn(self.ln_1(x)).split(WIDTH, 2)
        heads = [part.view(batch, sequence, HEADS, -1).transpose(1, 2) for part in parts]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(batch, sequence, WIDTH))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))


def wrapped(model, mode, precision):
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy()
    if precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def share_of_memory():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def run_on_gpu(precision, steps, batch, sequence):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    model = Gpt2().to(device)
    optimizer = adamw(model)
    compiled = torch.compile(model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (batch, sequence + 1), generator=generator).to(device)
        began = time.monotonic()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = compiled(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"step {time.monotonic() - began}", flush=True)
    if device.type == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated()}", flush=True)


def run(rank, mode, precision, steps, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(1)
    model = wrapped(Gpt2(), mode, precision)
    optimizer = adamw(model)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (1, SEQUENCE + 1), generator=generator)
        began = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "ddp" and precision == "bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        if rank == 0:
            print(f"step {time.monotonic() - began}", flush=True)
    most = torch.tensor([share_of_memory()], dtype=torch.int64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"pss {most.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    if sys.argv[1] == "gpu":
        run_on_gpu(sys.argv[2], *map(int, sys.argv[3:6]))
        sys.exit()

    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        free = any_port.getsockname()[1]
    torch.multiprocessing.spawn(run, (sys.argv[1], sys.argv[2], int(sys.argv[3]), free), nprocs=RANKS)
