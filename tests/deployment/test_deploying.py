"""`deploy`: the same outputs, on engines that were measured, and dense where sparse has nothing to give."""

import copy

import pytest
import torch
from torch import nn

import torch_halo as th
from torch_halo.deployment import deploying
from torch_halo.deployment.attention import Attention
from torch_halo.deployment.comparison import Difference
from torch_halo.deployment.layers import CsrLinear, NumbaChain, NumbaConv2d, NumbaLinear
from torch_halo.models import MODELS

SPARSE = (CsrLinear, NumbaLinear, NumbaConv2d, NumbaChain)


def engines_in(model):
    return {type(module) for module in model.modules()} & set(SPARSE)


def pruned(name, level=0.95):
    torch.manual_seed(0)
    shape = (3, 32, 32) if name in ("vgg16", "resnet") else (1, 28, 28)
    options = {"vgg16": {"width": 0.25}, "resnet": {"depth": 20}}.get(name, {})
    model = MODELS[name](shape, 10, **options).eval()
    th.prune_(model, sparsity=level, scope="layer")
    return model, shape


@pytest.mark.parametrize("engine", list(deploying.ENGINES))
@pytest.mark.parametrize("name", list(MODELS))
def test_the_networks(name, engine):
    model, shape = pruned(name)
    before = copy.deepcopy(model.state_dict())
    fast, times = th.deploy(model, torch.randn(4, *shape), engine)
    with torch.no_grad():
        for batch in (1, 4, 33):
            x = torch.randn(batch, *shape)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    expected = {"dense": set(), "csr": {CsrLinear}, "numba": {NumbaLinear, NumbaConv2d, NumbaChain}}
    if engine in expected:
        assert engines_in(fast) <= expected[engine]
        assert bool(engines_in(fast)) == (engine != "dense")
    assert [row[0] for row in times.rows()][-1] == "all"
    if engine == "auto":
        assert times.now <= times.dense
    assert times.times == times.dense / times.now


def test_batch_norm_is_folded_and_dead_channels_go():
    model, shape = pruned("vgg16")
    with torch.no_grad():
        model.features[0].weight[:8] = 0
    fast, times = th.deploy(model, torch.randn(2, *shape), "dense")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    assert times.parameters[1] < times.parameters[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_an_encoder_with_its_fast_path(batch_first, masked):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    x = torch.randn(3, 7, 64) if batch_first else torch.randn(7, 3, 64)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True
    inputs = (x, None, padding) if masked else (x,)
    fast, times = th.deploy(model, inputs, "numba")
    assert NumbaLinear in engines_in(fast)
    with torch.no_grad():
        found, wanted = fast(*inputs), model(*inputs)
    keep = ~padding if batch_first else ~padding.t()
    torch.testing.assert_close(found[keep], wanted[keep], rtol=1e-4, atol=1e-5)
    assert any(row[0] == "layers.0.self_attn.q_proj" for row in times.rows())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_nests_its_padding_stays():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[:, 5:] = True  # there it returns zeros, or nothing at all
    fast, times = th.deploy(model, (torch.randn(3, 7, 64), None, padding), "csr")
    assert not engines_in(fast)
    assert "deployed dense" in str(times)


ATTENTIONS = [{}, {"bias": False}, {"kdim": 12, "vdim": 20}, {"batch_first": True}]
MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.ones(5, 6).triu(2).bool()},
    "float": {"attn_mask": torch.ones(5, 6)},
    "by head": {"attn_mask": torch.rand(3 * 4, 5, 6)},
    "padding": {"key_padding_mask": torch.tensor([[0, 0, 0, 0, 1, 1]] * 3).bool()},
    "both": {"attn_mask": torch.rand(5, 6), "key_padding_mask": torch.tensor([[0.0, 0, 0, 0, -9, 1]] * 3)},
}


@pytest.mark.parametrize("settings", ATTENTIONS, ids=str)
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("weights", [{"need_weights": False}, {}, {"average_attn_weights": False}], ids=str)
def test_attention_is_torchs(settings, mask, weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, **settings).eval()
    if attention.in_proj_bias is not None:
        nn.init.normal_(attention.in_proj_bias)
    query, key, value = torch.randn(5, 3, 16), torch.randn(6, 3, settings.get("kdim", 16)), None
    value = torch.randn(6, 3, settings.get("vdim", 16))
    if settings.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    with torch.no_grad():
        wanted = attention(query, key, value, **MASKS[mask], **weights)
        found = Attention(attention)(query, key, value, **MASKS[mask], **weights)
    torch.testing.assert_close(found[0], wanted[0])
    if wanted[1] is None:
        assert found[1] is None
    else:
        torch.testing.assert_close(found[1], wanted[1])


def test_attention_of_one_sequence():
    attention = nn.MultiheadAttention(16, 4).eval()
    x = torch.randn(5, 16)
    with torch.no_grad():
        for found, wanted in zip(Attention(attention)(x, x, x), attention(x, x, x), strict=True):
            torch.testing.assert_close(found, wanted)
    with pytest.raises(RuntimeError, match="is_causal is a hint about attn_mask, which is missing"):
        Attention(attention)(x, x, x, is_causal=True)


def test_attention_that_cannot_be_split_stays():
    model = nn.MultiheadAttention(16, 4, add_zero_attn=True, batch_first=True).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    x = torch.randn(2, 5, 16)
    fast, _ = th.deploy(model, (x, x, x), "numba")
    assert isinstance(fast, nn.MultiheadAttention)


@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_transformers(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "Bert":
        config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                         intermediate_size=64)  # fmt: skip
        model = transformers.BertModel(config).eval()
    else:
        model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2)).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    tokens = torch.randint(50, (2, 9))
    fast, _ = th.deploy(model, tokens, "csr")
    assert CsrLinear in engines_in(fast)
    with torch.no_grad():
        torch.testing.assert_close(
            fast(tokens).last_hidden_state, model(tokens).last_hidden_state, rtol=1e-3, atol=1e-4
        )


def test_a_model_that_is_not_sparse():
    model = MODELS["lenet-5"]((1, 28, 28), 10)
    fast, times = th.deploy(model, torch.randn(4, 1, 28, 28))
    assert not engines_in(fast)
    assert "no layer has 60% zeros (the most is 0.0%): prune it first" in str(times)


def test_without_numba(monkeypatch):
    monkeypatch.setattr(deploying, "has_numba", lambda: False)
    model, shape = pruned("lenet-5-caffe")
    fast, times = th.deploy(model, torch.randn(4, *shape))
    assert engines_in(fast) <= {CsrLinear}
    assert "numba is not installed (pip install 'torch-halo[numba]'): convolutions stay dense" in str(times)
    with pytest.raises(ImportError, match=r"pip install 'torch-halo\[numba\]'"):
        th.deploy(model, torch.randn(4, *shape), "numba")


def test_what_is_slower_or_wrong_comes_back_dense(monkeypatch):
    model, shape = pruned("lenet-300-100")
    x = torch.randn(4, *shape)
    slow = {"dense": 1.0, "csr": 0.1, "numba": 0.2, "one by one": 0.1, "now": 2.0}
    monkeypatch.setattr(deploying, "medians", lambda functions, **_: {name: slow[name] for name in functions})
    fast, times = th.deploy(model, x)
    assert not engines_in(fast)
    assert times.now == times.dense == 1.0
    assert "as a whole it took 2000.000 ms, which is slower: deployed dense" in times.notes
    slow["now"] = 0.5
    fast, times = th.deploy(model, x)
    assert engines_in(fast) == {CsrLinear}
    assert times.times == 2.0
    whole = iter([Difference(1.0, 0.1)])  # of the model; layers have a difference of their own
    real = deploying.difference
    monkeypatch.setattr(deploying._Work, "done", lambda self, **_: (setattr(self, "small", model), (model, []))[1])
    monkeypatch.setattr(deploying, "difference", lambda a, b: next(whole))
    fast, times = th.deploy(model, x)
    assert "the outputs differed by 1, where 0.1 is allowed: deployed dense" in times.notes
    assert real([x], [x]).largest == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_stay_dense(dtype):
    model, shape = pruned("lenet-300-100")
    fast, _ = th.deploy(model.to(dtype), torch.randn(4, *shape, dtype=dtype))
    assert not engines_in(fast)


def test_a_model_in_training_is_deployed_for_evaluation():
    model = nn.Sequential(nn.Linear(100, 100), nn.Dropout(0.5), nn.Linear(100, 10)).train()
    th.prune_(model, sparsity=0.95, scope="layer")
    fast, _ = th.deploy(model, torch.randn(64, 100))
    assert model.training
    assert not fast.training
    x = torch.randn(3, 100)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-4, atol=1e-5)


def test_inputs_that_do_not_fit():
    model, shape = pruned("lenet-300-100")
    fast, _ = th.deploy(model, torch.randn(64, *shape), "numba")
    with pytest.raises(ValueError, match=r"this layer reads 784 channels .* received \(2, 900\)"):
        fast(torch.randn(2, 1, 30, 30))
    with pytest.raises(ValueError, match="unknown engine 'cuda'; known: auto, dense, csr, numba"):
        th.deploy(model, torch.randn(2, *shape), "cuda")
