"""Tiny random transformers, and inputs as their users have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .needs import allow_torchvision

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS = 97, 12, 2, 64, 4

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: how to build it, what it is fed, and which entry of what it returns is the result."""

    name: str
    package: str
    make: Callable[[], nn.Module]
    feed: Callable[[torch.Generator], Inputs]
    output: str = ""  # nothing: it returns a tensor

    def build(self, seed: int) -> nn.Module:
        """In evaluation mode, every parameter and statistic random."""
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)
            model = randomised(self.make(), seed)
            return measured(model, self._run_through, torch.Generator().manual_seed(2000 + seed))

    def inputs(self, seed: int = 0) -> Inputs:
        return self.feed(torch.Generator().manual_seed(seed))

    def run(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The logits, or what takes their place."""
        found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        return found[self.output] if self.output else found

    def _run_through(self, model: nn.Module) -> None:
        self.run(model, _joined([self.inputs(seed) for seed in range(1, 7)]))


def _joined(batches: list[Inputs]) -> Inputs:
    """One batch of several."""
    if isinstance(batches[0], dict):
        return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}  # type: ignore[index]
    return torch.cat(batches)  # type: ignore[arg-type]


def randomised(model: nn.Module, seed: int) -> nn.Module:
    """Every parameter random, so that branches that start at zero and norms that start as the identity hide nothing;
    activations stay of the order of one."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def noise(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).clamp_(-3, 3)

    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if id(p) in tables:
                p.copy_(0.5 * noise(p))
            elif p.dim() > 1:
                gain = 0.1 if name.endswith("Attention.q.weight") else 1.5  # T5 does not scale its products
                p.copy_(noise(p) * (gain / max(1, p[0].numel())) ** 0.5)
            else:
                p.copy_(0.2 * noise(p) + (0.0 if "bias" in name.rpartition(".")[2] else 1.0))
    return model.eval()


def measured(model: nn.Module, run: Callable[[nn.Module], None], generator: torch.Generator) -> nn.Module:
    """Batch norms measure their statistics, as after training, and are then disturbed; without them a deep model with
    random weights would explode."""
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None
    ]
    if not norms:
        return model
    momenta = [m.momentum for m in norms]
    with torch.no_grad():
        for m in norms:
            m.momentum = 1.0
            m.train()
        run(model)
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
            m.eval()
            noise = torch.randn(m.running_mean.shape, generator=generator)
            m.running_mean += 0.3 * noise * m.running_var.sqrt()
            m.running_var *= 0.6 + 0.8 * torch.rand(m.running_var.shape, generator=generator)
            m.running_var.clamp_(min=1e-2)  # a channel that was silent would turn rounding into signal
    return model


def tokens(generator: torch.Generator, length: int = LENGTH) -> Tensor:
    """Random words; none of them is a special one."""
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=generator)


def images(edge: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(BATCH, 3, edge, edge, generator=generator)


def text(generator: torch.Generator) -> dict[str, Tensor]:
    """As a tokenizer gives them: the last sentence is shorter and padded."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[-1, -4:] = 0
    return {"input_ids": tokens(generator), "attention_mask": mask}


def _pixels(edge: int) -> Callable[[torch.Generator], Inputs]:
    return lambda generator: {"pixel_values": images(edge)(generator)}


def _typed(generator: torch.Generator) -> Inputs:
    words = text(generator)
    return {**words, "token_type_ids": (torch.arange(LENGTH) > 6).long().expand(BATCH, -1).clone()}


def _two_texts(generator: torch.Generator) -> Inputs:
    return {**text(generator), "decoder_input_ids": tokens(generator, 7)}


def _captions(generator: torch.Generator) -> Inputs:
    words = text(generator)
    words["input_ids"][:, 9] = 2  # where the sentence ends: CLIP reads it there
    return {**words, "pixel_values": images(32)(generator)}


def _speech(generator: torch.Generator) -> Inputs:
    spectrum = torch.randn(BATCH, 16, 40, generator=generator)
    return {"input_features": spectrum, "decoder_input_ids": tokens(generator, 7)}


def _waves(generator: torch.Generator) -> Inputs:
    return {"input_values": torch.randn(BATCH, 1200, generator=generator)}


def _hugging_face(kind: str, head: str, **fields: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        allow_torchvision()
        package = importlib.import_module("transformers")
        return getattr(package, f"{kind}{head}")(getattr(package, f"{kind}Config")(**fields))

    return make


def from_timm(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        allow_torchvision()
        return importlib.import_module("timm").create_model(name, pretrained=False, num_classes=5, **arguments)

    return make


def _mixer() -> nn.Module:
    allow_torchvision()
    mixer = importlib.import_module("timm.models.mlp_mixer").MlpMixer
    return mixer(num_classes=5, img_size=32, patch_size=8, embed_dim=WIDTH, num_blocks=2)


def _torchvision(kind: str, *arguments: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        allow_torchvision()
        return getattr(importlib.import_module("torchvision.models"), kind)(*arguments, num_classes=5)

    return make


class Encoder(nn.Module):
    """nn.TransformerEncoder between an embedding and a head."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(WIDTH) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(x)).mean(1))


class Attention(nn.Module):
    """nn.MultiheadAttention with a shortcut, and no norm anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(10, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(1))


LAYERS: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 128,
}
WORDS: dict[str, Any] = {"vocab_size": VOCABULARY, **LAYERS}
PATCHES: dict[str, Any] = {"image_size": 32, "patch_size": 8, **LAYERS}
DECODER: dict[str, Any] = {
    **WORDS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": WIDTH // HEADS,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": HEADS,
    "decoder_start_token_id": 0,
}
PYRAMID: dict[str, Any] = {"depths": [1, 1, 2, 1], "num_labels": 5}
TIMM_VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS}


def _from_transformers() -> list[Entry]:
    def entry(name: str, make: Callable[[], nn.Module], feed: Any, output: str = "logits") -> Entry:
        return Entry(name, "transformers", make, feed, output)

    image, classes = "ForImageClassification", "ForSequenceClassification"
    tower = {k: v for k, v in WORDS.items() if k != "vocab_size"}
    clip = {
        "text_config": {**WORDS, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 2},
        "vision_config": {**tower, "image_size": 32, "patch_size": 8},
        "projection_dim": 32,
    }
    whisper = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "num_mel_bins": 16,
        "max_source_positions": 20,
        "max_target_positions": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 128 for side in ("encoder", "decoder")},
    }
    wav2vec2 = {
        **WORDS,
        "conv_dim": (32, 32, 32),
        "conv_stride": (5, 2, 2),
        "conv_kernel": (10, 3, 3),
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "classifier_proj_size": 32,
        "num_labels": 5,
    }
    swin = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    distilbert = {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 128}
    gpt2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    make = _hugging_face
    return [
        entry("vit", make("ViT", image, **PATCHES, num_labels=5), _pixels(32)),
        entry("deit", make("DeiT", image, **PATCHES, num_labels=5), _pixels(32)),
        entry("swin", make("Swin", image, **swin, num_labels=5), _pixels(32)),
        entry("convnext", make("ConvNext", image, **PYRAMID, hidden_sizes=[16, 32, 48, 64]), _pixels(64)),
        entry(
            "resnet", make("ResNet", image, **PYRAMID, embedding_size=16, hidden_sizes=[32, 48, 64, 96]), _pixels(64)
        ),
        entry("bert", make("Bert", classes, **WORDS, num_labels=5), _typed),
        entry("bert_mlm", make("Bert", "ForMaskedLM", **WORDS), text),
        entry("distilbert", make("DistilBert", classes, **distilbert, num_labels=5), text),
        entry("roberta", make("Roberta", classes, **WORDS, num_labels=5, pad_token_id=1), text),
        entry("gpt2", make("GPT2", "LMHeadModel", vocab_size=VOCABULARY, **gpt2), text),
        entry("gpt_neox", make("GPTNeoX", "ForCausalLM", **WORDS, bos_token_id=0, eos_token_id=0), text),
        entry("llama", make("Llama", "ForCausalLM", **DECODER), text),
        entry("llama_mha", make("Llama", "ForCausalLM", **{**DECODER, "num_key_value_heads": HEADS}), text),
        entry("qwen2", make("Qwen2", "ForCausalLM", **DECODER), text),
        entry("mistral", make("Mistral", "ForCausalLM", **DECODER), text),
        entry("t5", make("T5", "ForConditionalGeneration", **T5), _two_texts),
        entry(
            "t5_gated",
            make("T5", "ForConditionalGeneration", **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
            _two_texts,
        ),
        entry("clip", make("CLIP", "Model", **clip), _captions, "logits_per_image"),
        entry("whisper", make("Whisper", "ForConditionalGeneration", **whisper), _speech),
        entry("wav2vec2", make("Wav2Vec2", classes, **wav2vec2), _waves),
    ]


def _from_elsewhere() -> list[Entry]:
    def torch_nn(name: str, make: Callable[[], nn.Module], feed: Any) -> Entry:
        return Entry(name, "torch", make, feed)

    def torchvision(name: str, kind: str, *arguments: Any) -> Entry:
        return Entry(name, "torchvision", _torchvision(kind, *arguments), images(32))

    def timm(name: str, model: str, edge: int = 32, **arguments: Any) -> Entry:
        return Entry(f"timm_{name}", "timm", from_timm(model, **arguments), images(edge))

    return [
        torch_nn("nn_encoder", lambda: Encoder(norm_first=False), tokens),
        torch_nn("nn_encoder_pre", lambda: Encoder(norm_first=True), tokens),
        torch_nn("nn_attention", Attention, lambda generator: torch.randn(BATCH, 6, 10, generator=generator)),
        torchvision("tv_vit", "VisionTransformer", 32, 8, 2, HEADS, WIDTH, 128),
        torchvision("tv_swin", "SwinTransformer", [2, 2], 32, [2, 2], [2, 4], [4, 4]),
        timm("vit", "vit_tiny_patch16_224", **TIMM_VIT),
        timm("deit", "deit_tiny_distilled_patch16_224", **TIMM_VIT),
        Entry("timm_mixer", "timm", _mixer, images(32)),
        timm("convnext", "convnext_atto", 64, depths=(1, 1, 2, 1), dims=(16, 32, 48, 64)),
        timm(
            "swin",
            "swin_tiny_patch4_window7_224",
            img_size=32,
            patch_size=2,
            window_size=4,
            embed_dim=32,
            depths=(2, 2),
            num_heads=(2, 4),
        ),
        timm("eva02", "eva02_tiny_patch14_224", **TIMM_VIT),
        timm("maxvit", "maxvit_rmlp_pico_rw_256", 64, img_size=64, embed_dim=(32, 64), depths=(1, 1)),
    ]


ZOO: dict[str, Entry] = {e.name: e for e in [*_from_transformers(), *_from_elsewhere()]}
