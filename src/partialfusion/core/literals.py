"""The values that options take, for everybody who names one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

MethodName = Literal[
    "auto", "average", "permutation", "ot", "partial-ot", "cluster", "interpolate", "zip", "magnitude", "magnitude+ot"
]
PruningName = Literal["auto", "cluster", "interpolate", "zip", "magnitude", "magnitude+ot"]
# Whether to refit, or the strength of its ridge; "auto" where the method is, and there is data.
Refit = bool | float | Literal["auto"]
# Activations are compared by correlation, "distances" by their squared differences, as in the paper.
Features = Literal["auto", "weights", "activations", "distances", "both"]
# Before the activation function (what is computed), after it (what is read), or what suits the space.
Site = Literal["pre", "post", "auto"]
# What is compared: channels, or the directions of spaces that may be rotated; "auto" is what proves nearer on the data.
Basis = Literal["auto", "permutation", "rotation"]
Align = Literal["fixed-point", "greedy"]
NormRule = Literal["auto", "recalibrate", "analytic", "repair"]
Convention = Literal["value", "mass"]
# How much each channel counts where channels are matched: the same, or by the norm of its weights.
Masses = Literal["equal", "incoming", "outgoing"]
# What refitting may do with the blocks of a weight that a fusion leaves at zero.
Zeros = Literal["auto", "free", "kept"]
# What the size of a network is: the parameters of the module, or those outside its zero blocks.
Size = Literal["dense", "effective"]
# Channels that every part of a space is a multiple of; "auto" is what the device's kernels like.
RoundTo = int | Literal["auto"]
Solver = Literal["exchange", "ward", "stochastic-ward", "lloyd"]
Importance = Literal["incoming", "outgoing", "activation"]
Alpha = float | Mapping[str, float]
Keep = float | Mapping[str, float]
Mix = tuple[float, ...]  # the share of each model
