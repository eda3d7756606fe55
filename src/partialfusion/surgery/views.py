"""Norms across channels in the result: each model's statistics run over its own channels and the shared ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, NormLayer, Space
from ..core.arrays import Floats, Ints
from ..core.modules import inside, replace_modules
from ..kernels import Plan
from ..nn import ViewNorm

UNIFORM = 1e-9  # relative difference from equal weights that is rounding


def install_views(model: nn.Module, blueprint: Blueprint, plan: Plan, layout: Mapping[str, Space]) -> nn.Module:
    """Replace norms across channels by view norms, where not all models have all channels alike.

    A model sees a target channel as often as its own channels read it; that is what the channel counts in the
    statistics of this model. A target channel is normalised by the models that write it, in their shares. Where every
    channel counts the same in every model, the norm of the user stays.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for path in blueprint.normed:
        views, shares = views_of(path, blueprint, plan, layout)
        module = modules[path]
        if np.abs(views * views.shape[1] - 1).max() < UNIFORM and not isinstance(module, ViewNorm):
            if hasattr(module, "normalized_shape"):
                module.normalized_shape = (views.shape[1],)
            continue
        found[path] = torch.from_numpy(views), torch.from_numpy(shares)
    return place_views(model, {path: blueprint.norm_layers[path] for path in found}, found)


def place_views(
    model: nn.Module, layers: Mapping[str, NormLayer], views: Mapping[str, tuple[Tensor, Tensor]]
) -> nn.Module:
    """The model with view norms in the place of norms across channels; they take over their parameters.

    Args:
        model: the model; it is changed.
        layers: path → what is computed there.
        views: path → views and shares, (views × channels) each.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    replacements: dict[nn.Module, nn.Module] = {
        modules[path]: _view_norm(modules[path], layer, *views[path], like) for path, layer in layers.items()
    }
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and {module.norm1, module.norm2} & replacements.keys():
            module.activation_relu_or_gelu = 0  # PyTorch's fused layer would take the weights and leave out the views
    return replace_modules(model, replacements)


def view_layers(model: nn.Module) -> dict[str, NormLayer]:
    """Path → what is computed there, of the view norms in a model."""
    return {
        path: NormLayer(
            path,
            centred=m.centred,
            dim=m.dim,
            positions=m.positions,
            eps=m.eps,
            weight=None if getattr(m, m.weight_name) is None else m.weight_name,
            bias=None if getattr(m, m.bias_name) is None else m.bias_name,
            offset=m.offset,
        )
        for path, m in model.named_modules()
        if isinstance(m, ViewNorm)
    }


def share_out(tensors: Mapping[str, Tensor], blueprint: Blueprint, plan: Plan, layout: Mapping[str, Space]) -> None:
    """Let the norms in front of tied last layers take the shares of the models.

    A tied weight is written like an embedding; the last layer should read every model's channels with its share.
    """
    for path in set(blueprint.tied.values()):
        layer = blueprint.norm_layers[path]
        factor = _by_position(
            path,
            {name: _read_shares(plan, name) for name in layout},
            blueprint,
            layout,
            rest=np.ones(1),
        )[0]
        for attribute, offset in ((layer.weight, layer.offset), (layer.bias, 0.0)):
            if attribute is not None:
                target = tensors[inside(path, attribute)]
                scale = torch.from_numpy(factor).to(target).view(target.shape)
                target.copy_((target + offset) * scale - offset)


def views_of(path: str, blueprint: Blueprint, plan: Plan, layout: Mapping[str, Space]) -> tuple[Floats, Floats]:
    """(views × channels) what channels count in the statistics of each view, and the shares of the views in each
    channel; models of the same statistics are one view.

    Where no mean is subtracted, only squares count, and what is not read any more may be missing from their sum.
    """
    pairs = {name: plan[name].pairs for name in layout}
    seen = {name: np.stack([p.counted() for p in found]) for name, found in pairs.items()}
    written = {name: np.stack([_total(p.target, p.write, p.targets) for p in plan[name].pairs]) for name in layout}
    views = _by_position(path, seen, blueprint, layout, rest=np.ones(plan.models))
    shares = _by_position(path, written, blueprint, layout, rest=np.asarray(plan.mix))
    seen_at_all = views.sum(1, keepdims=True) > 0  # of a model with share zero, nothing may be left
    views = np.where(seen_at_all, views, 1.0)
    channels = views.sum(1, keepdims=True)
    if not blueprint.norm_layers[path].centred:
        squares = {name: np.stack([p.squares() for p in found]) for name, found in pairs.items()}
        views = np.where(seen_at_all, _by_position(path, squares, blueprint, layout, rest=np.ones(plan.models)), views)
    views = views / channels
    total = shares.sum(0, keepdims=True)
    shares = np.where(total > 0, shares / np.where(total > 0, total, 1.0), 1.0 / plan.models)
    rounded = [tuple(view) for view in np.round(views * views.shape[1] / UNIFORM)]
    members = [np.array([r == kind for r in rounded]) for kind in sorted(set(rounded))]
    return views[[int(m.argmax()) for m in members]], np.stack([shares[m].sum(0) for m in members])


def _read_shares(plan: Plan, space: str) -> Floats:
    """(1 × targets) how the shares of what the last layer should read compare with what is written."""
    pairs = list(zip(plan.mix, plan[space].pairs, strict=True))
    read = np.sum([share * p.counted() for share, p in pairs], axis=0, keepdims=True)
    written = np.sum([_total(p.target, p.write, p.targets) for _, p in pairs], axis=0, keepdims=True)
    return np.asarray(read / np.where(written > 0, written, 1.0), np.float64)


def _total(target: Ints, weight: Floats, targets: int) -> Floats:
    """(targets,) the sum of the weights at every target."""
    return np.bincount(target, weight, targets).astype(np.float64)


def _by_position(
    path: str, values: Mapping[str, Floats], blueprint: Blueprint, layout: Mapping[str, Space], rest: Floats
) -> Floats:
    """(rows × positions) values (rows × units) of the spaces that a norm runs across, where their units sit there.

    Args:
        path: the norm.
        values: space → (rows × units).
        blueprint: of the last model.
        layout: where the units sit in the new model.
        rest: (rows,) what positions of no space have.
    """
    old = [(s.width, n.index.shape[1]) for s in blueprint for n in s.norms if n.path == path]
    bound = [(name, n.index) for name, s in layout.items() for n in s.norms if n.path == path]
    length = blueprint.normed[path] - sum(w * c for w, c in old) + sum(index.size for _, index in bound)
    found = np.repeat(rest[:, None], length, 1).astype(np.float64)
    for name, index in bound:
        found[:, index.reshape(-1)] = np.repeat(values[name], index.shape[1], 1)
    return found


def _view_norm(module: nn.Module, layer: NormLayer, views: Tensor, shares: Tensor, like: Tensor) -> ViewNorm:
    """A norm with views in the place of a module; without parameters it has the precision and device of `like`."""
    weight, bias = (None if name is None else getattr(module, name) for name in (layer.weight, layer.bias))
    like = next((p for p in (weight, bias) if p is not None), like)
    norm = ViewNorm(
        views.to(like),
        shares.to(like),
        weight=weight,
        bias=bias,
        eps=layer.eps,
        centred=layer.centred,
        dim=layer.dim,
        positions=layer.positions,
        offset=layer.offset,
        weight_name=layer.weight or "weight",
        bias_name=layer.bias or "bias",
        then={name: getattr(module, name) for name in layer.then},
    )
    return norm.to(like.device, like.dtype).train(module.training)
