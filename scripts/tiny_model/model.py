"""A small Llama in plain PyTorch: tied embeddings, RMSNorm, rotary positions, SwiGLU."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    width: int = 192
    layers: int = 4
    heads: int = 6
    feed_forward: int = 512
    context: int = 1024
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5


def phases(length: int, width: int, base: float) -> Tensor:
    """Unit complex numbers (length, 1, width / 2), one for each position and pair."""
    frequencies = base ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary positions on neighbouring pairs, llama.cpp's NORM layout; `x` is (batch, length, heads, head width)."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class Linear(nn.Linear):
    """Keeps its weights in float32 and computes in the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.epsilon)
        return x * scale.to(x.dtype) * self.weight.to(x.dtype)


class Block(nn.Module):
    """Parameter names are the GGUF tensor names of the llama architecture."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.feed_forward
        self.shape = shape
        self.attn_norm = RMSNorm(width, shape.norm_epsilon)
        self.attn_q = Linear(width, width, bias=False)
        self.attn_k = Linear(width, width, bias=False)
        self.attn_v = Linear(width, width, bias=False)
        self.attn_output = Linear(width, width, bias=False)
        self.ffn_norm = RMSNorm(width, shape.norm_epsilon)
        self.ffn_gate = Linear(width, inner, bias=False)
        self.ffn_up = Linear(width, inner, bias=False)
        self.ffn_down = Linear(inner, width, bias=False)

    def attention(self, x: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.shape.heads
        split = (batch, length, heads, width // heads)
        query, key, value = (layer(x).view(split) for layer in (self.attn_q, self.attn_k, self.attn_v))
        query = rotate(query * (width // heads) ** -0.5, turn)
        query, key, value = (
            part.transpose(1, 2).reshape(batch * heads, length, width // heads)
            for part in (query, rotate(key, turn), value)
        )
        # By hand: the backward pass of PyTorch's fused CPU attention is several times slower at this size.
        weights = torch.softmax(torch.baddbmm(mask, query, key.transpose(1, 2)), -1)
        mixed = (weights @ value).view(batch, heads, length, -1).transpose(1, 2)
        return self.attn_output(mixed.reshape(batch, length, width))

    def forward(self, x: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attn_norm(x), turn, mask)
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class LanguageModel(nn.Module):
    def __init__(self, shape: Shape, compute: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape, self.compute = shape, compute
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = RMSNorm(shape.width, shape.norm_epsilon)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * shape.layers) if residual else 1))

    def forward(self, ids: Tensor, wanted: Tensor) -> Tensor:
        """Logits (n, vocabulary) at the `wanted` positions, a boolean mask shaped like `ids`."""
        x = self.token_embd(ids).to(self.compute)
        length = ids.shape[1]
        turn = phases(length, self.shape.width // self.shape.heads, self.shape.rope_base)
        mask = torch.full((length, length), -1e4, dtype=self.compute).triu(1)
        for block in self.blk:
            x = block(x, turn, mask)
        return functional.linear(self.output_norm(x[wanted]), self.token_embd.weight.to(self.compute))
