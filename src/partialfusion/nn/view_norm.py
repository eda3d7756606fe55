"""A norm across channels for several models at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


class ViewNorm(nn.Module):
    """A layer norm or RMS norm of several models at once, each with a view of the channels.

    The view of a model is its own channels and those that it shares. Its statistics are taken over its view; a channel
    of one model is normalised by the statistics of that model, a shared one by a mix of them. With every channel shared
    this is the plain norm, with none shared each model's own norm, side by side. At every position of an input x,

        mean_v = Σ_c views[v, c] · x_c
        var_v = Σ_c views[v, c] · x_c² − mean_v²
        y_c = (offset + weight_c) · Σ_v shares[v, c] · (x_c − mean_v) / √(var_v + eps) + bias_c

    and an RMS norm leaves the means out of the second and third line. Half-precision inputs are normalised in single
    precision; the output has the type of the input.

    Args:
        views: (views × channels) how much each channel counts in the statistics of each view; no entry is negative and
            every row sums to one, which it need not where no mean is subtracted.
        shares: (views × channels) by which views a channel is normalised; every column sums to one.
        weight: the scale of every channel, a tensor of as many entries as there are channels, in any shape; without
            it the scale is one, whatever the offset.
        bias: added to every channel, likewise.
        eps: added to the variance, or to the mean square.
        centred: subtract the mean, as layer norm does; otherwise an RMS norm.
        dim: the dimension of the channels, counted from the end: -1, or -3 for maps of (channels × height × width).
        positions: take the statistics over all dimensions behind `dim` too, as `nn.GroupNorm` with one group does.
        offset: added to the weight before it scales; 1.0 for norms that multiply by 1 + weight.
        weight_name: the attribute, and key of the state dict, that holds the weight.
        bias_name: the attribute, and key of the state dict, that holds the bias.
        then: attribute → module to apply to the normalised values, such as an activation function, in this order.
    """

    views: Tensor
    shares: Tensor

    def __init__(
        self,
        views: Tensor,
        shares: Tensor,
        *,
        weight: nn.Parameter | None = None,
        bias: nn.Parameter | None = None,
        eps: float = 1e-5,
        centred: bool = True,
        dim: int = -1,
        positions: bool = False,
        offset: float = 0.0,
        weight_name: str = "weight",
        bias_name: str = "bias",
        then: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        _check(views, shares, {weight_name: weight, bias_name: bias}, centred)
        if dim >= 0:
            raise ValueError(f"dim is {dim}: count the dimension of the channels from the end, such as -1")
        dtype = weight.dtype if weight is not None else torch.float32
        self.register_buffer("views", views.detach().to(dtype, copy=True))
        self.register_buffer("shares", shares.detach().to(dtype, copy=True))
        self.register_parameter(weight_name, weight)
        self.register_parameter(bias_name, bias)
        self.weight_name, self.bias_name = weight_name, bias_name
        self.eps, self.centred, self.dim, self.positions, self.offset = eps, centred, dim, positions, offset
        self.then = tuple(then or ())
        for name, module in (then or {}).items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise an input with the channels along `dim`; the output has its shape and type."""
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):  # it would take the statistics in half precision
                y = self._normalised(x)
        else:
            y = self._normalised(x)
        for name in self.then:
            y = getattr(self, name)(y)
        return y

    def _normalised(self, x: Tensor) -> Tensor:
        half = x.dtype in HALF
        z = x.float() if half else x
        views, shares, bias = self._constants(z.dtype)
        if self.dim != -1:
            z = z.flatten(self.dim + 1)  # (… × channels × positions)
        if self.centred:
            # Around the mean of all channels a variance is not the small difference of two large numbers.
            z = z - z.mean(self._reduced, keepdim=True)
            mean = self._over(views, z)
            variance = torch.addcmul(self._over(views, z * z), mean, mean, value=-1).clamp_min(0)
            rate = (variance + self.eps).rsqrt()
            # In place where no gradient needs z: fresh memory costs more than the arithmetic.
            z = z * self._spread(rate, shares) if torch.is_grad_enabled() else z.mul_(self._spread(rate, shares))
            z = self._shifted(z, -rate * mean, shares, bias)
        else:
            z = z * self._spread((self._over(views, z * z) + self.eps).rsqrt(), shares)
            z = z if bias is None else z.add_(bias if self.dim == -1 else bias[:, None])
        z = z.reshape(x.shape)
        return z.to(x.dtype) if half else z

    def _constants(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """The views and the shares times the weight, (views × channels) each, and the bias, (channels)."""
        views, shares = self.views, self.shares
        if views.dtype != dtype:  # rounding has changed the sums
            views, shares = views.to(dtype), shares.to(dtype)
            views, shares = views / views.sum(1, keepdim=True), shares / shares.sum(0)
        weight: Tensor | None = getattr(self, self.weight_name)
        bias: Tensor | None = getattr(self, self.bias_name)
        if weight is not None:
            weight = _vector(weight, dtype)
            shares = shares * (weight + self.offset if self.offset else weight)
        return views, shares, None if bias is None else _vector(bias, dtype)

    @property
    def _reduced(self) -> tuple[int, ...]:
        """The dimensions that the statistics run over, when those behind the channels are flattened."""
        if self.dim == -1:
            return (-1,)
        return (-2, -1) if self.positions else (-2,)

    def _over(self, views: Tensor, z: Tensor) -> Tensor:
        """Channels → the mean over each view: (… × views), or (… × views × positions), or one position for all."""
        if self.dim == -1:
            return F.linear(z, views)
        found = views @ z
        return found.mean(-1, keepdim=True) if self.positions else found

    def _spread(self, statistics: Tensor, shares: Tensor) -> Tensor:
        """Statistics of views → of channels."""
        return statistics @ shares if self.dim == -1 else shares.T @ statistics

    def _shifted(self, z: Tensor, statistics: Tensor, shares: Tensor, bias: Tensor | None) -> Tensor:
        """z, which is overwritten, plus statistics of views as channels have them, plus a bias."""
        if bias is not None:  # as the share that channels have in a further view, whose statistic is one
            statistics = F.pad(statistics, (0, 1) if self.dim == -1 else (0, 0, 0, 1), value=1.0)
            shares = torch.cat([shares, bias[None]])
        if self.dim != -1:
            return z.add_(self._spread(statistics, shares))
        rows, channels = shares.shape
        return z.reshape(-1, channels).addmm_(statistics.reshape(-1, rows), shares)

    def extra_repr(self) -> str:
        views, channels = self.views.shape
        kind = "layer norm" if self.centred else "RMS norm"
        parts = [f"{channels} channels, {views} views, eps={self.eps}, {kind}"]
        parts += [f"dim={self.dim}"] * (self.dim != -1) + ["over all positions"] * self.positions
        parts += [f"offset={self.offset}"] * (self.offset != 0)
        return ", ".join(parts)


def _vector(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    vector = parameter if parameter.dim() == 1 else parameter.flatten()
    return vector if vector.dtype == dtype else vector.to(dtype)


def _check(views: Tensor, shares: Tensor, affine: dict[str, nn.Parameter | None], centred: bool) -> None:
    """Raise a ValueError where shapes do not fit or sums are not one."""
    if views.dim() != 2 or views.shape != shares.shape:
        raise ValueError(
            f"views has the shape {tuple(views.shape)} and shares {tuple(shares.shape)}: both are (views × channels)"
        )
    for name, parameter in affine.items():
        if parameter is not None and parameter.numel() != views.shape[1]:
            raise ValueError(f"{name} has {parameter.numel()} entries for {views.shape[1]} channels")
    if views.is_meta or shares.is_meta:
        return
    for name, tensor, axis, line in (("views", views, 1, "row"), ("shares", shares, 0, "column")):
        tolerance = max(1e-4, 4 * torch.finfo(tensor.dtype).eps)
        sums = tensor.detach().double().sum(axis)
        if (centred or name == "shares") and not bool(((sums - 1).abs() <= tolerance).all()):
            raise ValueError(f"every {line} of {name} sums to one; these sum to {sums.min():.4g} to {sums.max():.4g}")
    if bool((views < 0).any()):
        raise ValueError("views has negative entries: a channel counts nothing or more")
