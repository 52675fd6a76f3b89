"""Train the test model: `python -m scripts.tiny_model.train OUT [--steps N]`, one thread, fixed seed.

The step count fixes the learning-rate schedule, so the published recipe is the default; a checkpoint is written
every 200 steps.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional, utils

from . import tokenizer as vocabulary
from .data import conversations
from .dialect import render
from .model import LanguageModel, Shape

SEED = 20
STEPS = 1800
BATCH_TOKENS = 6144
LONGEST = 768
POOL = 512
MATRIX_RATE, OTHER_RATE, WARM_UP = 0.02, 3e-3, 50
IGNORED = -100

Row = tuple[list[int], list[int]]


def rows(tokens: Tokenizer, seed: int) -> Iterator[Row]:
    """(ids, targets): the target of a position is the next token where the model has to write it itself."""
    for made in conversations(seed):
        ids: list[int] = []
        learned: list[int] = []
        for text, learn in render(made):
            piece = tokens.encode(text, add_special_tokens=False).ids
            ids += piece
            learned += piece if learn else [IGNORED] * len(piece)
        if len(ids) <= LONGEST:
            yield ids, [*learned[1:], IGNORED]


def batches(tokens: Tokenizer, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of like length together, at most BATCH_TOKENS with padding, in shuffled order."""
    source = rows(tokens, seed)
    order = torch.Generator().manual_seed(seed)
    while True:
        pool = sorted(islice(source, POOL), key=lambda row: len(row[0]))
        groups: list[list[Row]] = [[]]
        for row in pool:
            if len(row[0]) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(row)
        for index in torch.randperm(len(groups), generator=order).tolist():
            group = groups[index]
            length = max(len(ids) for ids, _ in group)
            ids = torch.zeros(len(group), length, dtype=torch.long)
            targets = torch.full((len(group), length), IGNORED)
            for at, (row_ids, row_targets) in enumerate(group):
                ids[at, : len(row_ids)] = torch.tensor(row_ids)
                targets[at, : len(row_targets)] = torch.tensor(row_targets)
            yield ids, targets


def rate(step: int, steps: int) -> float:
    """Warm-up, then a cosine down to 2 %, as a factor."""
    return min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(out: Path, steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    tokens = vocabulary.train(seed)
    tokens.save(str(out / "tokenizer.json"))
    shape = Shape(vocabulary=tokens.get_vocab_size())
    (out / "shape.json").write_text(json.dumps(asdict(shape), indent=2))
    model = LanguageModel(shape)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {shape.vocabulary} tokens", flush=True)
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "token_embd" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() == 1 or "token_embd" in name]
    optimizers: tuple[torch.optim.Optimizer, ...] = (
        torch.optim.Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    )
    peaks = (MATRIX_RATE, OTHER_RATE)
    started, seen = time.monotonic(), 0
    for step, (ids, targets) in enumerate(islice(batches(tokens, seed + 1), steps)):
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(step, steps)
        wanted = targets != IGNORED
        loss = functional.cross_entropy(model(ids, wanted).float(), targets[wanted])
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        seen += ids.numel()
        done = step + 1
        if done % 25 == 0 or done == steps:
            elapsed = time.monotonic() - started
            print(f"{done} loss {loss.item():.4f} {elapsed:.0f} s {seen / elapsed:.0f} tokens/s", flush=True)
        if done % 200 == 0 or done == steps:
            torch.save(model.state_dict(), out / "weights.new")
            (out / "weights.new").replace(out / "weights.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny test model.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    train(options.out, options.steps, options.seed)


if __name__ == "__main__":
    main()
