"""What may be reordered in every model of the zoo, by names of parameters."""

from __future__ import annotations

from .twins import (
    Axis,
    Family,
    along,
    attention,
    batch_norm,
    family,
    linear,
    mlp,
    norm,
    packed,
    reads,
    torch_attention,
    transposed,
    writes,
)

FOUR = "stream{previous} stream{previous} stream{previous} stream{previous}"


def _vit(root: str) -> Family:
    layer = f"{root}.layers.#"
    return family(
        along(f"{root}.embeddings.(cls_token|distillation_token|position_embeddings)", "stream"),
        writes(f"{root}.embeddings.patch_embeddings.projection", "stream"),
        norm(f"{root}.(layers.#.layernorm_before|layers.#.layernorm_after|layernorm)", "stream"),
        attention(f"{layer}.attention", "q_proj k_proj v_proj o_proj"),
        mlp(f"{layer}.mlp", "fc1", "fc2"),
        reads("classifier", "stream"),
    )


def _bert(root: str, *end: list[Axis]) -> Family:
    layer = f"{root}.encoder.layer.#"
    return family(
        along(f"{root}.embeddings.(word|position|token_type)_embeddings.weight", "stream"),
        norm(f"{root}.(embeddings|encoder.layer.#.attention.output|encoder.layer.#.output).LayerNorm", "stream"),
        attention(f"{layer}.attention", "self.query self.key self.value output.dense"),
        mlp(layer, "intermediate.dense", "output.dense"),
        *end,
    )


def _llama() -> Family:
    return family(
        along("model.embed_tokens.weight", "stream"),
        norm("model.(layers.#.input_layernorm|layers.#.post_attention_layernorm|norm)", "stream"),
        attention("model.layers.#.self_attn", "q_proj k_proj v_proj o_proj"),
        mlp("model.layers.#.mlp", "(gate|up)_proj", "down_proj"),
        reads("lm_head", "stream"),
        rotary=True,
    )


def _t5(enter: str) -> Family:
    """The table of the first layer serves all layers of its stack, so their heads are in one order; encoder and decoder
    share the embedding, so they are in one stream."""
    own = "(?P<side>encoder|decoder).block.#.layer.0.SelfAttention"
    table = "(?P<side>encoder|decoder).block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return family(
        along("(shared|encoder.embed_tokens|decoder.embed_tokens).weight", "stream"),
        norm("(encoder|decoder).(block.#.layer.#.layer_norm|final_layer_norm)", "stream"),
        attention(own, "q k v o", heads="{side}.self"),
        along(table, "{side}.self:heads"),
        attention("decoder.block.#.layer.1.EncDecAttention", "q k v o"),
        mlp("(encoder|decoder).block.#.layer.#.DenseReluDense", enter, "wo"),
        reads("lm_head", "stream"),
    )


def _clip() -> Family:
    def tower(side: str) -> list[Axis]:
        stream, root = f"stream.{side}", f"{side}_model"
        return [
            *norm(f"{root}.encoder.layers.#.layer_norm#", stream),
            *attention(f"{root}.encoder.layers.#.self_attn", "q_proj k_proj v_proj out_proj", stream),
            *mlp(f"{root}.encoder.layers.#.mlp", "fc1", "fc2", stream),
        ]

    return family(
        tower("text"),
        along("text_model.embeddings.(token|position)_embedding.weight", "stream.text"),
        norm("text_model.final_layer_norm", "stream.text"),
        reads("text_projection", "stream.text"),
        tower("vision"),
        along("vision_model.embeddings.class_embedding", "stream.vision"),
        along("vision_model.embeddings.position_embedding.weight", "stream.vision"),
        writes("vision_model.embeddings.patch_embedding", "stream.vision"),
        norm("vision_model.(pre_layrnorm|post_layernorm)", "stream.vision"),
        reads("visual_projection", "stream.vision"),
        left_alone="what both towers project into, which is normalised and multiplied by a scale: it is rigid",
    )


def _whisper() -> Family:
    def side(name: str) -> list[Axis]:
        stream, root = f"stream.{name}", f"model.{name}"
        return [
            *along(f"{root}.embed_positions.weight", stream),
            *norm(f"{root}.(layer_norm|layers.#.self_attn_layer_norm|layers.#.final_layer_norm)", stream),
            *attention(f"{root}.layers.#.self_attn", "q_proj k_proj v_proj out_proj", stream),
            *mlp(f"{root}.layers.#", "fc1", "fc2", stream),
        ]

    cross = "model.decoder.layers.#.encoder_attn"
    return family(
        writes("model.encoder.conv1", "convolution"),
        linear("model.encoder.conv2", "convolution", "stream.encoder"),
        side("encoder"),
        side("decoder"),
        along("(model.decoder.embed_tokens|proj_out).weight", "stream.decoder"),
        norm(f"{cross}_layer_norm", "stream.decoder"),
        attention(cross, "q_proj k_proj v_proj out_proj", "stream.decoder", "stream.encoder"),
    )


def _wav2vec2() -> Family:
    layer, features = "wav2vec2.encoder.layers.#", "wav2vec2.feature_extractor.conv_layers"
    position = "wav2vec2.encoder.pos_conv_embed.conv"
    return family(
        writes(f"{features}.0.(conv|layer_norm)", "features0"),
        linear(f"{features}.1.conv", "features0", "features1"),
        linear(f"{features}.2.conv", "features1", "features2"),
        norm("wav2vec2.feature_projection.layer_norm", "features2"),
        linear("wav2vec2.feature_projection.projection", "features2", "stream"),
        along(f"{position}.(parametrizations.weight.original1|weight)", "stream", 0),
        along(f"{position}.bias", "stream"),
        norm("wav2vec2.encoder.(layer_norm|layers.#.layer_norm|layers.#.final_layer_norm)", "stream"),
        attention(f"{layer}.attention", "q_proj k_proj v_proj out_proj"),
        mlp(f"{layer}.feed_forward", "intermediate_dense", "output_dense"),
        linear("projector", "stream", "projection"),
        reads("classifier", "projection"),
        together={"stream": 16},
        left_alone="the order within the four groups of the positional convolution, which reads them by position, and "
        "masked_spec_embed, which only training uses",
    )


def _convnext(stages: str, down: str, block: str, names: str, *ends: list[Axis]) -> Family:
    """Names: layer scale, depthwise convolution, norm, the two layers of the MLP."""
    scale, depthwise, layer_norm, enter, leave = names.split()
    stage = f"{stages}.(?P<stage>#)"
    inside = f"{stage}.{block}.#"
    return family(
        *ends,
        norm(f"{stage}.{down}.0", "stream{previous}"),
        linear(f"{stage}.{down}.1", "stream{previous}", "stream{stage}"),
        along(f"{inside}.{scale}", "stream{stage}"),
        writes(f"{inside}.({depthwise}|{layer_norm})", "stream{stage}"),
        mlp(inside, enter, leave, "stream{stage}"),
    )


def _resnet() -> Family:
    """Bottlenecks: a space in every stage and two in every block."""
    stage = "resnet.encoder.stages.(?P<stage>#)"
    block = f"(?P<block>{stage}.layers.#)"
    axes = [
        *writes("resnet.embedder.embedder.convolution", "stream-1"),
        *batch_norm("resnet.embedder.embedder.normalization", "stream-1"),
        *linear(f"{stage}.layers.#.shortcut.convolution", "stream{previous}", "stream{stage}"),
        *batch_norm(f"{stage}.layers.#.shortcut.normalization", "stream{stage}"),
        *reads(f"{stage}.layers.0.layer.0.convolution", "stream{previous}"),
        *reads(f"{stage}.layers.[1-9].layer.0.convolution", "stream{stage}"),
        *writes(f"{block}.layer.0.convolution", "{block}:narrow"),
        *batch_norm(f"{block}.layer.0.normalization", "{block}:narrow"),
        *linear(f"{block}.layer.1.convolution", "{block}:narrow", "{block}:wide"),
        *batch_norm(f"{block}.layer.1.normalization", "{block}:wide"),
        *linear(f"{block}.layer.2.convolution", "{block}:wide", "stream{stage}"),
        *batch_norm(f"{block}.layer.2.normalization", "stream{stage}"),
        *reads("classifier.1", "stream3"),
    ]
    return family(axes)


def _hf_swin() -> Family:
    stage = "swin.encoder.layers.(?P<stage>#)"
    block = f"{stage}.blocks.#"
    merged = "stream{stage} stream{stage} stream{stage} stream{stage}"
    table = "relative_position_bias.relative_position_bias_table"
    return family(
        writes("swin.embeddings.(patch_embeddings.projection|norm)", "stream0"),
        norm(f"{block}.layernorm_(before|after)", "stream{stage}"),
        attention(f"{block}.attention", "q_proj k_proj v_proj o_proj", "stream{stage}"),
        along(f"(?P<block>{block}.attention).{table}", "{block}:heads"),
        mlp(f"{block}.mlp", "fc1", "fc2", "stream{stage}"),
        norm(f"{stage}.downsample.norm", merged),
        linear(f"{stage}.downsample.reduction", merged, "stream{next}"),
        norm("swin.layernorm", "stream1"),
        reads("classifier", "stream1"),
    )


def _swin(block: str, stream: str, names: str) -> list[Axis]:
    """The blocks of torchvision's and timm's; names: the two layers of the MLP."""
    enter, leave = names.split()
    return [
        *norm(f"{block}.norm#", stream),
        *packed(f"{block}.attn", "qkv", "proj", stream),
        *along(f"(?P<block>{block}.attn).relative_position_bias_table", "{block}:heads"),
        *mlp(f"{block}.mlp", enter, leave, stream),
    ]


def _torchvision_swin() -> Family:
    first = " ".join(["stream0"] * 4)
    return family(
        writes("features.0.(0|2)", "stream0"),
        _swin("features.1.#", "stream0", "0 3"),
        norm("features.2.norm", first),
        linear("features.2.reduction", first, "stream1"),
        _swin("features.3.#", "stream1", "0 3"),
        norm("norm", "stream1"),
        reads("head", "stream1"),
    )


def _timm_swin() -> Family:
    stage = "layers.(?P<stage>#)"
    return family(
        writes("patch_embed.(proj|norm)", "stream0"),
        _swin(f"{stage}.blocks.#", "stream{stage}", "fc1 fc2"),
        norm(f"{stage}.downsample.norm", FOUR),
        linear(f"{stage}.downsample.reduction", FOUR, "stream{stage}"),
        norm("norm", "stream1"),
        reads("head.fc", "stream1"),
    )


def _encoder(*end: list[Axis]) -> Family:
    return family(
        along("words.weight", "stream"),
        torch_attention("encoder.layers.#.self_attn"),
        norm("encoder.layers.#.norm#", "stream"),
        mlp("encoder.layers.#", "linear1", "linear2"),
        reads("head", "stream"),
        *end,
    )


def _timm_vit(*end: list[Axis], rotary: bool = False) -> Family:
    return family(
        along("(cls_token|pos_embed|dist_token)", "stream"),
        writes("patch_embed.proj", "stream"),
        norm("blocks.#.norm#", "stream"),
        packed("blocks.#.attn", "qkv", "proj"),
        *end,
        rotary=rotary,
    )


def _eva02() -> Family:
    """The first layer of the MLP holds the gate and what it gates side by side."""
    part = "(?P<block>blocks.#.mlp)"
    return _timm_vit(
        along("(?P<block>blocks.#.attn).q_bias", "{block}:q"),
        along("(?P<block>blocks.#.attn).v_bias", "{block}:v"),
        linear(f"{part}.fc1", "stream", "{block}:mlp {block}:mlp"),
        linear(f"{part}.fc2", "{block}:mlp", "stream"),
        norm("fc_norm", "stream"),
        reads("head", "stream"),
        rotary=True,
    )


def _maxvit() -> Family:
    """Heads hold their queries, keys and values side by side; a small MLP of the positions ends in the heads."""
    stage = "stages.(?P<stage>#)"
    block = f"{stage}.blocks.#"
    inner = f"(?P<block>{block}.conv)"
    attentions = f"{block}.attn_(block|grid)"
    position = f"(?P<block>{attentions}.attn).rel_pos.mlp"
    return family(
        writes("stem.conv1", "stem"),
        batch_norm("stem.norm1", "stem"),
        linear("stem.conv2", "stem", "stream0"),
        batch_norm("stages.#.blocks.0.conv.pre_norm", "stream0"),
        reads("stages.#.blocks.0.conv.conv1_1x1", "stream0"),
        linear("stages.1.blocks.0.conv.shortcut.expand", "stream0", "stream1"),
        writes(f"{inner}.conv1_1x1", "{block}:wide"),
        batch_norm(f"{inner}.norm(1|2)", "{block}:wide"),
        writes(f"{inner}.conv2_kxk", "{block}:wide"),
        linear(f"{inner}.se.fc1", "{block}:wide", "{block}:squeezed"),
        linear(f"{inner}.se.fc2", "{block}:squeezed", "{block}:wide"),
        linear(f"{inner}.conv3_1x1", "{block}:wide", "stream{stage}"),
        norm(f"{attentions}.norm#", "stream{stage}"),
        packed(f"{attentions}.attn", "qkv", "proj", "stream{stage}", "{block}:qkv"),
        writes(f"{position}.fc1", "{block}:positions"),
        linear(f"{position}.fc2", "{block}:positions", "{block}:heads"),
        mlp(f"{attentions}.mlp", "fc1", "fc2", "stream{stage}"),
        norm("norm", "stream1"),
        reads("head.fc", "stream1"),
        head_size=32,
    )


FAMILIES: dict[str, Family] = {
    "vit": _vit("vit"),
    "deit": _vit("deit"),
    "swin": _hf_swin(),
    "convnext": _convnext(
        "convnext.encoder.stages",
        "downsampling_layer",
        "layers",
        "layer_scale_parameter dwconv layernorm pwconv1 pwconv2",
        writes("convnext.embeddings.(patch_embeddings|layernorm)", "stream0"),
        norm("convnext.layernorm", "stream3"),
        reads("classifier", "stream3"),
    ),
    "resnet": _resnet(),
    "bert": _bert("bert", linear("bert.pooler.dense", "stream", "pooled"), reads("classifier", "pooled")),
    "bert_mlm": _bert(
        "bert",
        linear("cls.predictions.transform.dense", "stream", "stream"),
        norm("cls.predictions.transform.LayerNorm", "stream"),
        reads("cls.predictions.decoder", "stream"),
    ),
    "distilbert": family(
        along("distilbert.embeddings.(word|position)_embeddings.weight", "stream"),
        norm("distilbert.embeddings.LayerNorm", "stream"),
        norm("distilbert.transformer.layer.#.(sa|output)_layer_norm", "stream"),
        attention("distilbert.transformer.layer.#.attention", "q_lin k_lin v_lin out_lin"),
        mlp("distilbert.transformer.layer.#.ffn", "lin1", "lin2"),
        linear("pre_classifier", "stream", "pooled"),
        reads("classifier", "pooled"),
    ),
    "roberta": _bert("roberta", linear("classifier.dense", "stream", "pooled"), reads("classifier.out_proj", "pooled")),
    "gpt2": family(
        along("(transformer.wte|transformer.wpe|lm_head).weight", "stream"),
        norm("transformer.(ln_f|h.#.ln_#)", "stream"),
        transposed("(?P<block>transformer.h.#.attn).c_attn", "stream", "{block}:q {block}:k {block}:v"),
        transposed("(?P<block>transformer.h.#.attn).c_proj", "{block}:o", "stream"),
        transposed("(?P<block>transformer.h.#.mlp).c_fc", "stream", "{block}:mlp"),
        transposed("(?P<block>transformer.h.#.mlp).c_proj", "{block}:mlp", "stream"),
    ),
    "gpt_neox": family(
        along("gpt_neox.embed_in.weight", "stream"),
        norm("gpt_neox.(final_layer_norm|layers.#.(input|post_attention)_layernorm)", "stream"),
        packed("gpt_neox.layers.#.attention", "query_key_value", "dense", layout="{block}:qkv"),
        mlp("gpt_neox.layers.#.mlp", "dense_h_to_4h", "dense_4h_to_h"),
        along("(lm_head|embed_out).weight", "stream"),
        rotary=True,
    ),
    "llama": _llama(),
    "llama_mha": _llama(),
    "qwen2": _llama(),
    "mistral": _llama(),
    "t5": _t5("wi"),
    "t5_gated": _t5("wi_(0|1)"),
    "clip": _clip(),
    "whisper": _whisper(),
    "wav2vec2": _wav2vec2(),
    "nn_encoder": _encoder(),
    "nn_encoder_pre": _encoder(norm("encoder.norm", "stream")),
    "nn_attention": family(writes("enter", "stream"), torch_attention("attention"), reads("head", "stream")),
    "tv_vit": family(
        along("(class_token|encoder.pos_embedding)", "stream"),
        writes("conv_proj", "stream"),
        norm("encoder.(ln|layers.encoder_layer_#.ln_#)", "stream"),
        torch_attention("encoder.layers.encoder_layer_#.self_attention"),
        mlp("encoder.layers.encoder_layer_#.mlp", "0", "3"),
        reads("heads.head", "stream"),
    ),
    "tv_swin": _torchvision_swin(),
    "timm_vit": _timm_vit(mlp("blocks.#.mlp", "fc1", "fc2"), norm("norm", "stream"), reads("head", "stream")),
    "timm_deit": _timm_vit(
        mlp("blocks.#.mlp", "fc1", "fc2"), norm("norm", "stream"), reads("(head|head_dist)", "stream")
    ),
    "timm_mixer": family(
        writes("stem.proj", "stream"),
        norm("(norm|blocks.#.norm#)", "stream"),
        mlp("blocks.#.mlp_channels", "fc1", "fc2"),
        reads("head", "stream"),
        left_alone="the patches, whose order the image gives, and the layers that mix them, which are averaged",
    ),
    "timm_convnext": _convnext(
        "stages",
        "downsample",
        "blocks",
        "gamma conv_dw norm mlp.fc1 mlp.fc2",
        writes("stem.(0|1)", "stream0"),
        norm("head.norm", "stream3"),
        reads("head.fc", "stream3"),
    ),
    "timm_swin": _timm_swin(),
    "timm_eva02": _eva02(),
    "timm_maxvit": _maxvit(),
}
