"""Blueprints: roles, units, kinds and reasons, on networks built to be difficult."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blueprint.registry import RULES
from zoo import STIFF, ZOO, Exhibit, ResNet, error, mlp, permuted_twin, randomised, snapshot, vgg


def roles(space: pf.Space) -> dict[str, list[str]]:
    return {role: space.names(role) for role in ("writes", "reads", "scales")}


@pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())
def test_every_hidden_space_of_the_zoo_is_elastic(exhibit: Exhibit) -> None:
    blueprint = pf.trace(exhibit.model(0), exhibit.inputs())
    assert {s.kind for s in blueprint if "output" not in s.reasons} == {"elastic"}
    assert [s.width for s in blueprint if "output" in s.reasons] == [5]
    assert not blueprint.unknown
    for space in blueprint:
        for binding in space.bindings:
            assert binding.index.shape[0] == space.width
            assert len(set(binding.index.reshape(-1).tolist())) == binding.index.size


def test_roles_of_a_residual_space() -> None:
    blueprint = pf.trace(ResNet(8), torch.randn(2, 3, 8, 8))
    stream = blueprint["conv1"]
    assert stream.width == 8
    assert roles(stream) == {
        "writes": ["conv1", "bn1", "layer1.0.conv2", "layer1.0.bn2", "layer1.1.conv2", "layer1.1.bn2"],
        "reads": ["layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "layer2.0.shortcut.0"],
        "scales": ["bn1", "layer1.0.bn2", "layer1.1.bn2"],
    }
    projected = blueprint["layer2.0.conv2"]
    assert "layer2.0.shortcut.0" in projected.names("writes")
    assert projected.names("reads") == ["layer2.1.conv1", "fc"]
    assert [s.name for s in blueprint][-1] == "fc"


def test_flatten_binds_a_block_of_positions_per_channel() -> None:
    blueprint = pf.trace(vgg(8, norm=False), torch.randn(2, 3, 8, 8))
    flat = next(b for s in blueprint for b in s.bindings if b.role == "reads" and b.index.shape[1] > 1)
    assert flat.index.tolist() == [[4 * c + r for r in range(4)] for c in range(16)]


def test_batch_norms_know_what_computed_their_input() -> None:
    blueprint = pf.trace(ResNet(8), torch.randn(2, 3, 8, 8))
    sources = {n.var: n.sources for n in blueprint.norms}
    assert sources["layer1.0.bn2.running_var"] == ("layer1.0.conv2.weight",)
    stream = pf.trace(ZOO["pre-activation"].model(0), ZOO["pre-activation"].inputs()).norms
    assert stream[-1].sources == ("convs.0.weight", "convs.1.weight", "stem.weight")


def test_training_mode_and_weights_are_restored() -> None:
    model = ResNet(8).train()
    model.layer1[0].eval()
    modes, state = [m.training for m in model.modules()], snapshot(model)
    pf.trace(model, torch.randn(2, 3, 8, 8))
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())


def test_meta_device() -> None:
    with torch.device("meta"):
        model, x = ResNet(64), torch.randn(2, 3, 32, 32)
    blueprint = pf.trace(model, x)
    assert {s.kind for s in blueprint} == {"elastic", "rigid"}
    assert "meta" in blueprint.checked
    real = pf.trace(ResNet(64), torch.randn(2, 3, 32, 32))
    assert [(s.name, s.width, s.kind, s.key) for s in blueprint] == [(s.name, s.width, s.kind, s.key) for s in real]


class Unknown(nn.Module):
    """An operation that orders channels by value."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.cumsum(self.a(x), -1))))


def test_an_operation_without_a_rule_makes_its_space_rigid_and_is_named() -> None:
    blueprint = pf.trace(Unknown(), torch.randn(2, 6))
    assert [(s.name, s.kind) for s in blueprint] == [("a", "rigid"), ("b", "elastic"), ("c", "rigid")]
    assert blueprint["a"].reasons == ("cumsum has no rule",)
    assert blueprint.unknown == {"cumsum": 1}
    assert "operations without a rule: cumsum" in str(blueprint)
    models, x = [randomised(Unknown(), s) for s in (0, 1)], torch.randn(4, 6)
    assert error(pf.fuse([models[0]] * 2, x, alpha=0.5).model(x), models[0](x)) < 1e-5
    assert pf.fuse(models, x, alpha=1.0, allow_shortfall=True).plan["a"].width == 8


class Tied(nn.Module):
    """An auto-encoder whose decoder is the encoder's transpose."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.encode = nn.Linear(6, width)
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.encode(x))
        return (h + torch.relu(self.inner(h))) @ self.encode.weight


class TiedModules(nn.Module):
    """Two layers that hold one weight."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = (
            nn.Linear(6, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 3),
        )
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.b(torch.relu(self.a(torch.relu(self.first(x)))))))


def test_a_weight_that_writes_and_reads_a_space_keeps_its_width() -> None:
    models, x = [randomised(Tied(), s) for s in (0, 1)], torch.randn(4, 6)
    blueprint = pf.trace(models[0], x)
    assert blueprint["encode"].kind == "permutable"
    assert "encode.weight is tied" in blueprint["encode"].reasons
    twin = permuted_twin(models[0], x, 3)
    assert error(pf.fuse([twin, models[0]], x, alpha=0.4).model(x), models[0](x)) < 1e-5
    average = pf.fuse(models, x, method="average", mix=(0.25, 0.75)).model
    for name, p in average.named_parameters():
        a, b = (dict(m.named_parameters())[name] for m in models)
        assert torch.allclose(p, 0.25 * a + 0.75 * b, atol=1e-6)


def test_tied_modules_stay_tied() -> None:
    models, x = [randomised(TiedModules(), s) for s in (0, 1)], torch.randn(4, 6)
    assert {s.kind for s in pf.trace(models[0], x)} == {"elastic", "rigid"}
    fused = pf.fuse(models, x, alpha=1.0).model
    assert fused.a.weight is fused.b.weight
    assert error(fused(x), (models[0](x) + models[1](x)) / 2) < 1e-5


class HardCoded(nn.Module):
    """A width written into the code: labels cannot see it, the check can."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Linear(8 * 16, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)).view(-1, 8 * 16))))


def test_a_width_written_into_the_code_is_found_out() -> None:
    models, x = [randomised(HardCoded(), s) for s in (0, 1)], torch.randn(4, 3, 4, 4)
    blueprint = pf.trace(models[0], x)
    assert blueprint["a"].kind == "permutable"
    assert blueprint["a"].reasons == ("the code does not follow its width",)
    assert blueprint["b"].kind == "elastic"
    unchecked = pf.trace(models[0], x, check=False)
    assert unchecked["a"].kind == "elastic"
    fused = pf.fuse(models, x, alpha=0.5, blueprint=unchecked)
    assert fused.blueprint["a"].kind == "permutable"
    assert fused.plan["b"].width == 9


class Offset(nn.Module):
    """Channels that meet the input, and channels that meet a constant of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("steps", torch.arange(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(torch.relu(self.a(x) + x))
        return self.c(torch.relu(y * self.steps))


def test_channels_that_meet_the_outside_are_rigid() -> None:
    blueprint = pf.trace(Offset(), torch.randn(2, 6))
    assert [s.kind for s in blueprint] == ["rigid", "rigid", "rigid"]
    assert blueprint["b"].reasons == ("meets a constant that differs between channels",)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 6)
        self.groups = nn.GroupNorm(2, 6)
        self.c = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.groups(self.b(self.norm(self.a(x)))))


def test_spaces_behind_norms_across_channels_are_elastic() -> None:
    model, x = randomised(Normed(), 0), torch.randn(4, 6)
    blueprint = pf.trace(model, x)
    kinds = [(s.name, s.width, s.kind) for s in blueprint]
    assert kinds == [
        ("a", 8, "elastic"),
        ("b", 6, "elastic"),
        ("c", 3, "rigid"),
    ]
    assert blueprint["b"].blocks.tolist() == [0, 0, 0, 1, 1, 1]
    twin = permuted_twin(model, x, 2)
    assert error(twin(x), model(x)) < 1e-5
    assert error(pf.fuse([twin, model], x).model(x), model(x)) < 1e-5


def test_the_table_says_what_it_should() -> None:
    text = str(pf.trace(mlp(), torch.randn(2, 10)))
    assert text.splitlines()[0].split("  ")[0] == "space"
    for word in ("elastic", "rigid", "output", "self-check: channels reordered and widened"):
        assert word in text


def test_activations_pools_and_dropouts_have_rules() -> None:
    """Everything the usual small networks are made of, in one."""
    activations = [
        nn.ReLU6,
        nn.SiLU,
        nn.Mish,
        nn.ELU,
        nn.SELU,
        nn.LeakyReLU,
        nn.Hardswish,
        nn.Softplus,
        nn.Tanh,
    ]
    layers: list[nn.Module] = []
    for k, act in enumerate(activations):
        layers += [nn.Conv2d(3 if k == 0 else 4, 4, 1), act(), nn.Dropout2d()]
    layers += [nn.AvgPool2d(2), nn.AdaptiveMaxPool2d(2), nn.Upsample(scale_factor=2), nn.ZeroPad2d(1)]
    layers += [nn.InstanceNorm2d(4, affine=True), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Linear(8, 3)]
    model = randomised(nn.Sequential(*layers), 0)
    blueprint = pf.trace(model, torch.randn(2, 3, 8, 8))
    assert not blueprint.unknown
    assert [s.kind for s in blueprint] == ["elastic"] * len(activations) + ["rigid"]


def test_heads_of_attention_are_blocks() -> None:
    blueprint = pf.trace(STIFF["transformer"].model(0), STIFF["transformer"].inputs())
    assert not blueprint.unknown
    queries, values = (blueprint[n] for n in ("fused", "fused#2"))
    assert queries.kind == values.kind == "elastic"
    assert queries.blocks.tolist() == values.blocks.tolist() == [h for h in range(3) for _ in range(4)]
    assert queries.bundle == values.bundle
    assert [b.index.shape for b in queries.bindings] == [(12, 2), (12, 2)]
    tables = [s for s in blueprint if any(b.parameter == "written.0.table" for b in s.bindings)]
    assert [(s.width, s.blocks.tolist()) for s in tables] == [(4, [0, 1, 2, 3])]
    assert {s.name: s.kind for s in blueprint if s.kind != "elastic"} == {"head": "rigid"}


def test_groups_of_a_convolution_are_units() -> None:
    blueprint = pf.trace(ZOO["grouped"].model(0), ZOO["grouped"].inputs())
    units = next(s for s in blueprint if "grouped" in s.names("writes"))
    assert units.width == 4
    shapes = {b.parameter: b.index.shape for b in units.bindings}
    assert shapes["enter.0.weight"] == (4, 3)
    assert shapes["grouped.weight"] == shapes["norm.weight"] == shapes["leave.weight"] == (4, 2)


class Remembers(nn.Module):
    """Keeps its width in an attribute of its own and uses it in forward."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width, self.classes = width, 3
        self.a, self.b = nn.Conv2d(3, width, 1), nn.Linear(width * 16, 6)
        self.c = nn.Linear(6, self.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)).view(-1, self.width * 16)))).view(-1, self.classes)


def test_attributes_that_repeat_a_width_follow_it() -> None:
    models, x = [randomised(Remembers(), s) for s in (0, 1)], torch.randn(4, 3, 4, 4)
    assert pf.trace(models[0], x)["a"].kind == "elastic"
    fused = pf.fuse(models, x, alpha=1.0).model
    assert (fused.width, fused.classes, models[1].width) == (16, 3, 8)
    assert error(fused(x), (models[0](x) + models[1](x)) / 2) < 1e-5


@torch.library.custom_op("zootest::tilt", mutates_args=())
def tilt(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@tilt.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(tilt(self.a(x)))


@pytest.mark.parametrize("name", ["with_nonlinearity", "bent_by"])
def test_a_rule_of_ones_own(name: str) -> None:
    model, x = randomised(Custom(), 0), torch.randn(4, 6)
    assert pf.trace(model, x)["a"].kind == "rigid"
    try:
        pf.register_rule("zootest.tilt")(lambda t, x: getattr(t.merge(x), name)(t.operation))
        assert pf.trace(model, x)["a"].kind == "elastic"
        assert error(pf.fuse([model, model], x, alpha=0.5).model(x), model(x)) < 1e-5
    finally:
        del RULES["zootest.tilt"]
