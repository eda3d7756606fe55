"""One small model of every family of timm, for the catalogue.

In double precision: with random weights, rounding alone moves the logits of the deepest ones by 2e-4.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .needs import allow_torchvision
from .zoo import Entry, images

VIT: dict[str, Any] = {"embed_dim": 64, "depth": 2, "num_heads": 4}
SWIN: dict[str, Any] = {"window_size": 4, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4)}


@dataclass(frozen=True)
class Member:
    """A model of a family.

    Args:
        model: timm's name of it, or of its class.
        edge: of its images.
        sized: it must be told the edge.
        own: `model` is a class of the family's module, for want of a small model that takes arguments.
        arguments: what makes it smaller.
    """

    model: str
    edge: int = 64
    sized: bool = False
    own: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, module: str) -> Entry:
        def make() -> nn.Module:
            allow_torchvision()
            arguments = {**self.arguments, **({"img_size": self.edge} if self.sized else {}), "num_classes": 5}
            if self.own:
                model = getattr(importlib.import_module(f"timm.models.{module}"), self.model)(**arguments)
            else:
                model = importlib.import_module("timm").create_model(self.model, pretrained=False, **arguments)
            return model.double()

        return Entry(f"timm:{module}", "timm", make, lambda generator: images(self.edge)(generator).double())

    def described(self) -> str:
        """For the page."""
        return f"{self.model}{', smaller' if self.arguments else ''}"


# Families of which no model can be built and run here, and why.
NOT_BUILT: dict[str, str] = {}

# Families whose alpha=1 is not the mix of the logits, and why.
ONE_HEAD = "attention with a single head, which the code leaves no place for a second beside"
ONE_TABLE = "one table of relative positions for all heads, multiplied with their queries"
WHY_NOT: dict[str, str] = {
    "byoanet": f"{ONE_TABLE}; a convolution over the order of the channels (ECA)",
    "coat": "three numbers weigh the scales for all channels, and heads have windows of different sizes",
    "csatv2": "a map of one channel, from the mean and the maximum over all channels, multiplies all of them",
    "efficientvim": "one set of states is multiplied with all channels",
    "efficientvit_msra": ONE_HEAD,
    "focalnet": "gates of one channel each multiply all channels",
    "gemma4_vit": "the norms of queries and keys have one weight for all heads",
    "iformer": ONE_HEAD,
    "mlp_mixer": "its tokens are mixed by position, so the layers that mix them can only be averaged",
    "mobilenetv5": "one head of keys and values for all queries, which the code leaves no place for a second beside",
    "mvitv2": ONE_TABLE,
    "shvit": ONE_HEAD,
    "swiftformer": "one weight for every token multiplies all channels, which are normed together",
    "vision_transformer_sam": ONE_TABLE,
    "volo": "the largest of the logits over all positions is added to them, behind the last layer",
}

MEMBERS: dict[str, Member] = {
    "beit": Member("beit_base_patch16_224", sized=True, arguments=VIT),
    "byoanet": Member("eca_botnext26ts_256", sized=True),
    "byobnet": Member("test_byobnet"),
    "cait": Member("cait_xxs24_224", sized=True, arguments=VIT),
    "coat": Member(
        "coat_tiny",
        sized=True,
        arguments={"embed_dims": (64, 64, 64, 64), "serial_depths": (1, 1, 1, 1), "parallel_depth": 2},
    ),
    "convit": Member("convit_tiny", sized=True, arguments={"embed_dim": 16, "depth": 3, "local_up_to_layer": 2}),
    "convmixer": Member("ConvMixer", own=True, arguments={"dim": 64, "depth": 4}),
    "convnext": Member("test_convnext"),
    "cpubone": Member("cpubone_nano"),
    "crossvit": Member(
        "crossvit_tiny_240", edge=240, arguments={"embed_dim": (48, 96), "depth": ((1, 1, 0), (1, 1, 0))}
    ),
    "csatv2": Member("csatv2"),
    "cspnet": Member("cs3darknet_focus_s"),
    "cspnext": Member("cspnext_tiny"),
    "davit": Member("davit_tiny", arguments={"embed_dims": (32, 64), "depths": (1, 1), "num_heads": (2, 4)}),
    "deepseek_vit": Member("deepseek_vit_412m", edge=112, sized=True, arguments=VIT),
    "deit": Member("deit_tiny_distilled_patch16_224", sized=True, arguments=VIT),
    "densenet": Member("densenet121", arguments={"growth_rate": 8, "block_config": (2, 2, 4, 2)}),
    "dla": Member("dla46x_c"),
    "dpn": Member("dpn48b"),
    "edgenext": Member("edgenext_xx_small", arguments={"dims": (24, 48, 72, 96)}),  # widths that its parts divide
    "efficientformer": Member("efficientformer_l1", edge=224),
    "efficientformer_v2": Member("efficientformerv2_s0", sized=True),
    "efficientnet": Member("test_efficientnet"),
    "efficientvim": Member("efficientvim_m1"),
    "efficientvit_mit": Member("efficientvit_b0"),
    "efficientvit_msra": Member("efficientvit_m0", sized=True),
    "eva": Member("eva02_tiny_patch14_224", edge=56, sized=True, arguments=VIT),
    "fasternet": Member("fasternet_t0"),
    "fastvit": Member("fastvit_t8"),
    "focalnet": Member("FocalNet", own=True, arguments={"embed_dim": 32, "depths": (1, 1, 2, 1)}),
    "gcvit": Member("gcvit_xxtiny", sized=True, arguments={"embed_dim": 32}),
    "gemma4_vit": Member("gemma4_vit_167m", edge=96, sized=True, arguments=VIT),
    "ghostnet": Member("ghostnet_050"),
    "hardcorenas": Member("hardcorenas_a"),
    "hgnet": Member("hgnetv2_b0"),
    "hiera": Member("hiera_tiny_224", sized=True, arguments={"embed_dim": 32, "stages": (1, 1, 2, 1)}),
    "hieradet_sam2": Member(
        "sam2_hiera_tiny", arguments={"embed_dim": 32, "stages": (1, 1, 2, 1), "global_att_blocks": (3,)}
    ),
    "hrnet": Member("hrnet_w18_small"),
    "iformer": Member("iformer_t"),
    "inception_next": Member("inception_next_atto"),
    "inception_resnet_v2": Member("inception_resnet_v2", edge=96),
    "inception_v3": Member("inception_v3", edge=96),
    "inception_v4": Member("inception_v4", edge=96),
    "lcnetv2": Member("lcnetv2_small"),
    "levit": Member("levit_128s", sized=True),
    "lowformer": Member("lowformer_b0"),
    "mambaout": Member("test_mambaout"),
    "maxxvit": Member("test_maxvit", sized=True),
    "metaformer": Member("MetaFormer", own=True, arguments={"dims": (16, 32, 48, 64), "depths": (1, 1, 2, 1)}),
    "mlp_mixer": Member("gmixer_12_224", sized=True),
    "mobilenetv3": Member("lcnet_035"),
    "mobilenetv5": Member("mobilenetv5_base", arguments={"channel_multiplier": 0.25}),
    "mobilevit": Member("mobilevit_xxs", sized=True),
    "mvitv2": Member("mvitv2_tiny", sized=True),
    "naflexvit": Member("naflexvit_base_patch16_gap", sized=True, arguments=VIT),
    "nasnet": Member("nasnetalarge", edge=96, arguments={"num_features": 384, "stem_size": 32}),
    "nest": Member(
        "Nest",
        sized=True,
        own=True,
        arguments={"embed_dims": (32, 64, 96), "num_heads": (2, 4, 6), "depths": (1, 1, 2)},
    ),
    "nextvit": Member("nextvit_small", arguments={"stem_chs": (16, 16, 16), "depths": (1, 1, 5, 2)}),
    "nfnet": Member("test_nfnet"),
    "pit": Member("pit_ti_224", sized=True),
    "pnasnet": Member("pnasnet5large"),
    "pvt_v2": Member("pvt_v2_b0"),
    "qwen3_vit": Member("qwen3_vit_88m", sized=True, arguments=VIT),
    "rdnet": Member(
        "rdnet_tiny",
        arguments={
            "num_init_features": 16,
            "growth_rates": (16, 16, 24, 24),
            "num_blocks_list": (1, 1, 2, 1),
            "is_downsample_block": (None, True, True, True),
            "transition_compression_ratio": 0.5,
            "block_type": ("Block", "Block", "BlockESE", "BlockESE"),
        },
    ),
    "regnet": Member("regnetx_002"),
    "repghost": Member("repghostnet_050"),
    "repvit": Member("repvit_m1", sized=True),
    "res2net": Member("res2net50_14w_8s", arguments={"layers": (1, 1, 1, 1), "channels": (16, 32, 48, 64)}),
    "resnest": Member("resnest14d"),
    "resnet": Member("test_resnet"),
    "resnetv2": Member("resnetv2_18", arguments={"channels": (32, 48, 64, 96)}),
    "rexnet": Member("rexnet_100"),
    "selecsls": Member("selecsls42"),
    "senet": Member("legacy_seresnet18"),
    "sequencer": Member(
        "sequencer2d_s",
        sized=True,
        arguments={"layers": (1, 1, 2, 1), "embed_dims": (32, 64, 64, 64), "hidden_sizes": (8, 16, 16, 16)},
    ),
    "shvit": Member("shvit_s1"),
    "sknet": Member("skresnet18"),
    "starnet": Member("starnet_s050"),
    "swiftformer": Member("swiftformer_xs", sized=True),
    "swin_transformer": Member("swin_tiny_patch4_window7_224", sized=True, arguments=SWIN),
    "swin_transformer_v2": Member("swinv2_tiny_window8_256", sized=True, arguments=SWIN),
    "swin_transformer_v2_cr": Member("swinv2_cr_tiny_224", sized=True, arguments=SWIN),
    "tiny_vit": Member("tiny_vit_5m_224"),
    "tnt": Member(
        "tnt_s_patch16_224", sized=True, arguments={"embed_dim": 64, "inner_dim": 16, "depth": 2, "num_heads_outer": 4}
    ),
    "tresnet": Member("tresnet_m", arguments={"layers": (1, 1, 2, 1), "width_factor": 0.5}),
    "twins": Member(
        "twins_svt_small",
        sized=True,
        arguments={"embed_dims": (32, 64, 96, 128), "num_heads": (2, 4, 6, 8), "depths": (2, 2, 2, 2)},
    ),
    "vgg": Member("VGG", own=True, arguments={"cfg": (16, "M", 32, "M", 48, "M", 64, "M", 64, "M")}),
    "visformer": Member("visformer_tiny", sized=True),
    "vision_transformer": Member("test_vit", sized=True),
    "vision_transformer_hybrid": Member("vit_tiny_r_s16_p8_224", sized=True, arguments=VIT),
    "vision_transformer_relpos": Member("test_vit_relpos", sized=True),
    "vision_transformer_sam": Member(
        "samvit_base_patch16_224", sized=True, arguments={**VIT, "global_attn_indexes": (1,)}
    ),
    "vitamin": Member("vitamin_small_224", sized=True, arguments={"depth": 2}),
    "volo": Member(
        "VOLO",
        sized=True,
        own=True,
        arguments={"layers": (1, 1, 1, 1), "embed_dims": (32, 64, 64, 64), "num_heads": (2, 4, 4, 4)},
    ),
    "vovnet": Member("ese_vovnet19b_slim_dw"),
    "xception": Member("legacy_xception", edge=96),
    "xception_aligned": Member("xception41p"),
    "xcit": Member("xcit_nano_12_p16_224", sized=True, arguments=VIT),
}
