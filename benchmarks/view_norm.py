"""What view norms cost in a vision transformer, relative to the same network with nn.LayerNorm."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialfusion.core.text import table
from partialfusion.core.timing import interleaved_times, medians
from partialfusion.nn import ViewNorm

SECONDS, FEWEST, MOST = 25.0, 9, 400
WIDTH, DEPTH, HEADS, PATCH, SIZE = 384, 12, 6, 16, 224


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """ViT-S/16: 197 tokens of width 384."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def with_view_norms(model: nn.Module, views: int) -> nn.Module:
    """A copy with a view norm for every layer norm: half of the channels shared, the others of one view each."""
    member = torch.zeros(views, WIDTH)
    member[:, : WIDTH // 2] = 1
    for v, part in enumerate(torch.arange(WIDTH // 2, WIDTH).chunk(views)):
        member[v, part] = 1
    shares, weights = member / member.sum(0), member / member.sum(1, keepdim=True)
    model = copy.deepcopy(model)
    for name, norm in list(model.named_modules()):
        if isinstance(norm, nn.LayerNorm):
            parent, _, attribute = name.rpartition(".")
            new = ViewNorm(weights, shares, weight=norm.weight, bias=norm.bias, eps=norm.eps)
            setattr(model.get_submodule(parent), attribute, new)
    return model


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    with torch.no_grad():
        for batch in (1, 8):
            plain, x = Transformer().eval(), torch.randn(batch, 3, SIZE, SIZE)
            models = {"layer norms": plain, **{f"{v} views": with_view_norms(plain, v) for v in (1, 2, 4)}}
            times = medians(
                interleaved_times(
                    {name: lambda m=m, x=x: m(x) for name, m in models.items()},
                    seconds=SECONDS,
                    fewest=FEWEST,
                    most=MOST,
                )
            )
            wall, work = times["layer norms"]
            ratios = (f"{a / wall:.3f} ({b / work:.3f})" for name, (a, b) in times.items() if name != "layer norms")
            rows.append((f"ViT-S/16, batch {batch}", f"{1e3 * wall:.1f} ms ({1e3 * work:.1f})", *ratios))
    print(table(("one thread", *models), rows, align="<" + ">" * len(models)))
    print(
        "\nMedians relative to the network with layer norms, all taken in turns: wall-clock time, in brackets "
        "processor time."
    )


if __name__ == "__main__":
    main()
