# ruff: noqa: E402  the imports come after the checks for optional packages
"""Adapter states, their algebra, and the way through Flower's records and PEFT's layers."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")
pytest.importorskip("peft")

from neurips26.shared.federated import AdapterState, LoraFactors, LoraModel
from neurips26.shared.federated.linalg import factor_svd, stable_rank
from neurips26.shared.federated.records import from_content, sizes, to_content


def state(r=3, m=6, n=5, seed=0, scaling=1.0):
    g = torch.Generator().manual_seed(seed)
    return AdapterState({"w": LoraFactors(torch.randn(r, n, generator=g), torch.randn(m, r, generator=g), scaling)})


@pytest.mark.parametrize("m, n, r", [(50, 40, 7), (5, 4, 7), (4, 9, 4)])
def test_svd_through_factors_has_the_products_triplets(m, n, r):
    s = state(r, m, n)
    u, values, vt = s.lowrank_svd("w")
    torch.testing.assert_close(values, torch.linalg.svdvals(s.delta("w"))[: len(values)], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(u * values @ vt, s.delta("w"), rtol=1e-4, atol=1e-5)


def test_svd_of_a_zero_or_deficient_product_has_no_nan():
    u, values, vt = factor_svd(torch.zeros(6, 3), torch.randn(3, 5))
    assert values.abs().max() == 0 and torch.isfinite(u).all() and torch.isfinite(vt).all()
    b = torch.randn(6, 3)
    b[:, 2] = 0
    assert factor_svd(b, torch.randn(3, 5))[1][2] < 1e-6


def test_stack_pad_truncate_and_scaling_keep_the_product():
    one, two = state(2, seed=1, scaling=0.5), state(4, seed=2, scaling=2.0)
    stacked = AdapterState.stack([one, two], [0.3, 0.7])
    torch.testing.assert_close(stacked.delta("w"), 0.3 * one.delta("w") + 0.7 * two.delta("w"))
    assert stacked.factors["w"].rank == 6
    torch.testing.assert_close(one.pad(5).delta("w"), one.delta("w"))
    torch.testing.assert_close(one.with_scaling(3.0).delta("w"), one.delta("w"))
    assert one.pad(5).truncate(2).allclose(one)


def test_stable_rank():
    assert stable_rank(torch.eye(4)) == pytest.approx(4)
    assert stable_rank(torch.ones(4, 4)) == pytest.approx(1)
    assert stable_rank(torch.zeros(2, 2)) == 0


def test_ill_shaped_factors_and_lone_factors_are_named():
    with pytest.raises(ValueError, match=r"A, B: expected shapes \(r, n\) and \(m, r\)"):
        LoraFactors(torch.zeros(2, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="one is missing of .'w'"):
        AdapterState.from_tensors({"A/w": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match="differ in .'v', 'w'"):
        AdapterState.stack([state(), AdapterState({"v": state().factors["w"]})], [0.5, 0.5])


def test_records_keep_every_bit_of_every_type():
    tensors = {
        "A/w": torch.tensor([1.0, float("nan"), -0.0]),
        "B/w": torch.randn(3, 2).to(torch.bfloat16),
        "B/f8": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
        "head/n": torch.tensor(7),
        "A/empty": torch.zeros(0, 3),
    }
    back, config = from_content(to_content(tensors, {"round": 3}))
    assert config == {"round": 3}
    for key, value in tensors.items():
        assert back[key].dtype == value.dtype and back[key].shape == value.shape
        assert back[key].flatten().view(torch.uint8).tolist() == value.flatten().view(torch.uint8).tolist()


def test_sizes_of_a_message():
    got = sizes(to_content({"A/w": torch.zeros(8, 384)}, {}))
    assert got.tensor_bytes == 4 * 8 * 384
    # Flower's own count: the values, numpy's header of 128 bytes, and the key.
    json = len('{"config": {}, "views": {}}')
    assert got.record_bytes == 4 * 8 * 384 + 128 + len("A/w") + json + len("json")
    assert got.wire_bytes > got.tensor_bytes


def two_layers():
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"a": torch.nn.Linear(5, 6), "b": torch.nn.Linear(6, 3)})


def test_model_takes_any_rank_and_gives_it_back():
    model = LoraModel(two_layers(), ["a"], ["b.weight", "b.bias"])
    x = torch.randn(4, 5)
    plain = model.module["a"](x)
    for r in (3, 1, 3):
        s = AdapterState({"a": state(r, seed=r, scaling=0.5).factors["w"]})
        model.set_adapters(s)
        torch.testing.assert_close(model.module["a"](x), plain + x @ s.delta("a").T)
        assert model.adapters().allclose(s)
        assert AdapterState.from_peft(model.module, f"r{r}").allclose(s)
    model.set_adapters(AdapterState())
    torch.testing.assert_close(model.module["a"](x), plain)
    model.set_delta({"a": torch.ones(6, 5)})
    torch.testing.assert_close(model.module["a"](x), plain + x.sum(1, keepdim=True))
    model.set_delta(None)
    assert torch.equal(model.module["a"](x), plain)


def test_only_the_asked_fields_train():
    model = LoraModel(two_layers(), ["a"], ["b.weight"])
    model.set_adapters(AdapterState({"a": state(2).factors["w"]}))
    chosen = model.trainable(("B", "head"))
    assert list(chosen) == ["B/a", "head/b.weight"]
    on = {name for name, p in model.module.named_parameters() if p.requires_grad}
    assert on == {"a.lora_B.r2.weight", "b.weight"}


def test_conv1d_of_gpt2_is_adapted_in_the_right_orientation():
    from transformers.pytorch_utils import Conv1D

    module = torch.nn.ModuleDict({"c": Conv1D(6, 5)})
    model = LoraModel(module, ["c"])
    assert model.shapes == {"c": (6, 5)}
    x = torch.randn(2, 5)
    plain = model.module["c"](x)
    delta = torch.randn(6, 5)
    model.set_delta({"c": delta})
    torch.testing.assert_close(model.module["c"](x), plain + x @ delta.T)
    model.set_delta(None)
    s = AdapterState({"c": LoraFactors(torch.randn(2, 5), torch.randn(6, 2))})
    model.set_adapters(s)
    torch.testing.assert_close(model.module["c"](x), plain + x @ s.delta("c").T)


def test_factors_stay_float32_on_a_bfloat16_base():
    layer = torch.nn.Linear(5, 6, bias=False).to(torch.bfloat16)
    model = LoraModel(torch.nn.ModuleDict({"a": layer}), ["a"])
    model.set_adapters(AdapterState({"a": state().factors["w"]}))
    assert {p.dtype for p in model.trainable(("A", "B")).values()} == {torch.float32}
    assert model.module["a"](torch.randn(2, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert model.adapters().allclose(AdapterState({"a": state().factors["w"]}))


class EightBit(torch.nn.Linear):
    """Weights in integers with one scale, as a quantised base stores them."""

    def __init__(self, n, m):
        super().__init__(n, m, bias=False)
        self.weight = torch.nn.Parameter(torch.randint(-127, 128, (m, n), dtype=torch.int8), requires_grad=False)

    def forward(self, x):
        return x @ (self.weight.float() / 100).T


def test_a_quantised_base_is_never_merged_into():
    model = LoraModel(torch.nn.ModuleDict({"a": EightBit(5, 6)}), ["a"])
    assert model.shapes == {"a": (6, 5)}
    x, delta = torch.randn(4, 5), torch.randn(6, 5)
    plain, bits = model.module["a"](x), model.module["a"].weight.clone()
    s = AdapterState({"a": state(2).factors["w"]})
    model.set_delta({"a": delta})
    model.set_adapters(s)
    torch.testing.assert_close(model.module["a"](x), plain + x @ delta.T + x @ s.delta("a").T)
    assert {p.dtype for p in model.trainable(("A", "B")).values()} == {torch.float32}
    model.set_delta(None)
    model.set_adapters(AdapterState())
    assert torch.equal(model.module["a"](x), plain) and torch.equal(model._linear["a"].weight, bits)


def test_tied_weights_are_refused_by_name():
    """A merged update of one of two layers that share a weight would change the other."""
    module = two_layers()
    module["c"] = torch.nn.Linear(5, 6)
    module["c"].weight = module["a"].weight
    with pytest.raises(ValueError, match="no other module shares, a.weight is one of .'a.weight', 'c.weight'"):
        LoraModel(module, ["a"])
    assert LoraModel(module, ["b"]).shapes == {"b": (3, 6)}


def test_wrong_names_and_shapes_are_named_with_what_is_near():
    with pytest.raises(ValueError, match="targets: expected a name in the model, got 'aa' .near: a"):
        LoraModel(two_layers(), ["aa"])
    model = LoraModel(two_layers(), ["a"], ["b.bias"])
    with pytest.raises(ValueError, match=r"expected a \(6, 5\) update at a, got \(2, 2\)"):
        model.set_adapters(AdapterState({"a": LoraFactors(torch.zeros(1, 2), torch.zeros(2, 1))}))
    with pytest.raises(ValueError, match="head: expected shape .3,. of b.bias"):
        model.set_head({"b.bias": torch.zeros(4)})
    model.set_adapters(AdapterState({"a": state(2).factors["w"]}))
    with pytest.raises(ValueError, match="expected rank 3 at a, got 2"):
        AdapterState({"a": state(3).factors["w"]}).into_peft(model.module, "r2")
    with pytest.raises(ValueError, match="they differ in .'a', 'x'"):
        AdapterState({"x": state(2).factors["w"]}).into_peft(model.module, "r2")
