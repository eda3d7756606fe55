"""Generalised pruning: every space of the union, or of one model, reduced to the channels asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..core.arrays import Ints
from ..core.progress import ProgressCallback, silent
from ..features import Need, UnionFeatures, UnionHeads, UnionSpace
from ..features.activations import Place
from ..features.moments import Moments
from ..kernels import Choice, KernelPair, PlanTemplate, Shift
from ..kernels.pair import reference_frames
from ..surgery.refit.steps import LayerCalls
from .align import Aligner, Alignment
from .methods import PruningMethod, Search
from .options import Recipe
from .sources import Sources


class UnionPruner:
    """Reduces the union of the models; what does not depend on sizes and shares is computed once.

    Args:
        sources: one or more models.
        aligner: says how the models correspond.
        recipe: features, site, norm and convention; sizes and shares play no part.
        method: chooses what becomes of the channels.
    """

    def __init__(self, sources: Sources, aligner: Aligner, recipe: Recipe, method: PruningMethod) -> None:
        self.sources, self.aligner, self.recipe, self.method = sources, aligner, recipe, method

    def template(self, targets: Mapping[str, int], recipe: Recipe, progress: ProgressCallback = silent) -> PlanTemplate:
        """Reduce every elastic space of the union.

        Spaces that are only permutable keep their width: there, channels of the models are matched one to one.

        Args:
            targets: elastic space → channels in the result.
            recipe: says the mix and the seed.
            progress: called with the space at work and how far the search is.
        """
        widths, mix = self.sources.widths, recipe.mix
        reduced = [s for s, k in targets.items() if k < sum(widths[s])]
        if reduced and self._needs_activations:
            progress("recording activations", 0.0)
        alignments = self._alignments(reduced=bool(reduced))
        search = Search(recipe.seed)
        choices: dict[str, Choice] = {}
        for space, per_model in widths.items():
            if space not in reduced:
                if space in targets or len(per_model) == 1:
                    choices[space] = _everything(per_model, mix)
                continue
            if space not in choices:
                search.on_progress = _report(progress, space, reduced)
                choices |= self._chosen(space, targets[space], recipe, search)
        couplings = {s: [a.couplings[s] for a in alignments] for s in widths}
        return PlanTemplate(widths, couplings, choices, mix, recipe.convention)

    def spaces(self, mix: Sequence[float]) -> dict[str, UnionSpace]:
        """Elastic space → its channels in all models together, as a method sees them; the first space of a bundle
        stands for its heads."""
        names = [s.name for s in self.sources.blueprint if s.kind == "elastic" and s.bundle in (None, s.name)]
        return {name: self._union_space(name, mix) for name in names}

    def unseen(self) -> list[str]:
        """Elastic spaces that are to be compared by activations, of which the data shows none."""
        if not self._needs_activations:
            return []
        return [s for s in self.sources.names("elastic") if s not in self._moments]

    @property
    def _needs_activations(self) -> bool:
        return self.recipe.features != "weights" or self.method.needs_data

    @property
    def _moments(self) -> dict[str, dict[Place, Moments]]:
        need = Need(self.recipe.site, within=self.recipe.features != "weights")
        return self.sources.activations(need).union(self.recipe.site) if self._needs_activations else {}

    @property
    def _by_noise(self) -> bool:
        """Whether the method works on activations alone and has to make do with those of noise."""
        return self.recipe.features == "weights" and getattr(self.method.prefers, "only", False)

    def _chosen(self, name: str, k: int, recipe: Recipe, search: Search) -> dict[str, Choice]:
        """What becomes of a space that is reduced to k channels, and of those whose heads go with its own."""
        space = self._union_space(name, recipe.mix)
        if not isinstance(space, UnionHeads):
            return {name: _read(space, self._checked(self.method.choose(space, k, search), name, k))}
        heads = k * space.width // sum(self.sources.widths[name])
        choices = space.channels(self._checked(self.method.choose(space, heads, search), name, heads))
        return {s.name: _read(s, choices[s.name]) for s in space.spaces}

    def _checked(self, choice: Choice, name: str, k: int) -> Choice:
        assert choice.targets == k, f"{self.method.name} gave {choice.targets} targets for {name} instead of {k}"
        return choice

    def _union_space(self, name: str, mix: Sequence[float]) -> UnionSpace:
        bundle = self.sources.blueprint[name].bundle
        if bundle is None:
            return self._channels(name, mix)
        members = [s.name for s in self.sources.blueprint if s.bundle == bundle]
        blocks = [self._heads(s) for s in members]
        per_model = [b[name].heads for b in self.sources.blueprints]
        return UnionHeads(
            name,
            np.repeat(np.asarray(mix), per_model),
            np.repeat(np.arange(len(per_model)), per_model),
            self.features,
            tuple(self._channels(s, mix) for s in members),
            tuple(blocks),
        )

    def _channels(self, name: str, mix: Sequence[float]) -> UnionSpace:
        widths = self.sources.widths[name]
        masses = np.repeat(np.asarray(mix), widths)
        return UnionSpace(name, masses, np.repeat(np.arange(len(widths)), widths), self.features)

    def _heads(self, name: str) -> Ints:
        """(channels of the union,) the head of each, counted over all models."""
        spaces = [b[name] for b in self.sources.blueprints]
        before = np.cumsum([0] + [s.heads for s in spaces])
        return np.concatenate([np.asarray(s.blocks) + n for s, n in zip(spaces, before, strict=False)])

    @cached_property
    def features(self) -> UnionFeatures:
        """What is known of the channels of the union."""
        self.sources.require_numbers()
        frames, recipe = self._frames(self._alignments(reduced=True)), self.recipe
        known = UnionFeatures(self.sources.traced, frames, self._moments, recipe.features, self._shifts())
        if not getattr(self.method.prefers, "only", False) or (seen := self._noise) is None:
            return known
        computed = self.sources.noise(Need("pre", within=True), recipe.seed, little=True).union("pre")
        if self._by_noise:
            return replace(known, moments=seen, kind="activations", computed=computed)
        return replace(known, noise=seen, computed=computed)

    @cached_property
    def _noise(self) -> dict[str, dict[Place, Moments]] | None:
        """Space → moments of its activations on noise; None where there is data and the models do not run on noise."""
        record = self.sources.noise if self._by_noise else self.sources.background
        found = record(Need(self.recipe.site, within=True), self.recipe.seed)
        return None if found is None else found.union(self.recipe.site)

    def _shifts(self) -> dict[str, Shift]:
        """Weight → its bias, or the mean of the norm that alone follows it."""
        means = {norm.var: norm.mean for norm in self.sources.blueprint.norms}
        found = {}
        for step in LayerCalls(self.sources.models[-1], self.sources.inputs).steps().values():
            if step.name is not None and step.bias is not None:
                found[step.name] = Shift(step.bias)
            elif step.name is not None and step.norm in means:
                found[step.name] = Shift(means[step.norm], -1.0)
        return found

    @property
    def _by_weights(self) -> bool:
        """Whether the weights of some space are compared."""
        if self._by_noise:
            return any(s not in (self._noise or {}) for s in self.sources.names("elastic"))
        return self.recipe.features != "activations" or bool(self.unseen())

    def _alignments(self, *, reduced: bool) -> list[Alignment]:
        """How the models correspond, where that is needed: to compare their weights, to match spaces that keep their
        width, and for the data-free normalisation rule. Without need, channel i stands for channel i."""
        if len(self.sources.models) == 1:
            return []
        elastic = self.sources.names("elastic")
        needed = bool(self.sources.names("permutable"))
        if reduced:
            analytic = self.recipe.norm == "analytic" and bool(self.sources.blueprint.norms)
            needed = needed or analytic or self._by_weights
        return self.aligner.align(dict.fromkeys(elastic, 0.0 if needed and reduced else 1.0))

    def _frames(self, alignments: Sequence[Alignment]) -> list[dict[str, KernelPair]]:
        """Per model, space → its kernel pair into the reference frame."""
        frames = {
            s: reference_frames([a.couplings[s] for a in alignments], self.recipe.convention, widths[-1])
            for s, widths in self.sources.widths.items()
        }
        return [{s: pairs[m] for s, pairs in frames.items()} for m in range(len(self.sources.models))]


def _read(space: UnionSpace, choice: Choice) -> Choice:
    """The choice with how the channels that are not kept are read, where least squares say that."""
    if choice.ridge is None:
        return choice
    return replace(choice, interpolation=space.interpolation(choice.source, choice.ridge))


def _everything(widths: Sequence[int], mix: Sequence[float]) -> Choice:
    """All channels stay as they are."""
    return Choice.of_labels(np.arange(sum(widths)), np.repeat(np.asarray(mix), widths))


def _report(progress: ProgressCallback, space: str, reduced: Sequence[str]) -> Callable[[int, int], None]:
    """Reports how far the search in one space is, as a fraction of all spaces."""
    at = reduced.index(space)

    def report(done: int, total: int) -> None:
        progress(f"{space} ({at + 1} of {len(reduced)})", (at + done / max(total, 1)) / len(reduced))

    report(0, 1)
    return report
