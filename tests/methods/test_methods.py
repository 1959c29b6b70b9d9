"""Every method end to end on the digits, and what each does by hand-computed cases."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from examples_of_methods import example
from torch import nn
from torch.nn import functional as F

from torch_halo.data import load
from torch_halo.figures import sparsity
from torch_halo.methods import METHODS, Method, method_of, sparsify
from torch_halo.methods.dynamic import GMP, RigL
from torch_halo.methods.initialisation import GraSP
from torch_halo.methods.retraining import Lottery, RandomInit
from torch_halo.methods.scores import class_batch, grasp, keep_largest
from torch_halo.methods.thresholding import DST, STR
from torch_halo.models import MODELS
from torch_halo.penalties import HALO, InversePower
from torch_halo.shrinkage import Shrinkage
from torch_halo.training.config import Config
from torch_halo.training.evaluation import measure
from torch_halo.training.fabric import launch
from torch_halo.training.loop import Unwatched, train_steps
from torch_halo.training.optimizers import SGD
from torch_halo.training.schedules import Constant, Steps
from torch_halo.training.session import start
from torch_halo.training.settings import Compute, Shrinking, Training

DATA = load("digits")
SETUP = Config(training=Training(epochs=4, batch_size=64))
WEIGHTS = 64 * 300 + 300 * 100 + 100 * 10


def network(seed=0):
    torch.manual_seed(seed)
    return MODELS["lenet-300-100"](DATA.input_shape, DATA.classes)


def network_like():
    with torch.random.fork_rng():
        return network()


def begun(method, target=0.9, setup=SETUP, net=None, before=None):
    """A session at its beginning, and its network's initial values."""
    config = method.config(setup, target)
    net = net or network()
    first = {name: value.clone() for name, value in net.state_dict().items()}
    session = start(config, launch(Compute()), DATA, net, lambda n, d: method.begin(n, d, config, before))
    return session, first


def steps(session, count):
    batches = session.batches()
    train_steps(session, Unwatched(), (batch for batch, _ in zip(batches, range(count), strict=False)))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_reaches_its_target_to_the_count(name):
    before = network()
    kept = {key: value.clone() for key, value in before.state_dict().items()}
    setup = replace(SETUP, training=Training(epochs=8, batch_size=64))
    found = sparsify(example(name), before, DATA, setup, 0.9)
    assert all(torch.equal(value, kept[key]) for key, value in before.state_dict().items())  # it stays as it was
    zeros = sum(int((value == 0).sum()) for key, value in found.model.state_dict().items() if "weight" in key)
    if name in ("dst", "halo-profile"):  # which cannot aim: they may leave more, and say so
        assert zeros == max(found.own.zeros, round(0.9 * WEIGHTS))
    else:
        assert zeros == round(0.9 * WEIGHTS)
    assert {key: value.shape for key, value in found.model.state_dict().items()} == {
        key: value.shape for key, value in kept.items()
    }
    assert all(torch.equal(mask, found.model.get_parameter(key) != 0) for key, mask in found.masks.items())
    assert measure(found.model, DATA)["test"].accuracy > 60
    config = example(name).config(setup, 0.9)
    assert len(found.history) == method_of(config).total_epochs(config)


@pytest.mark.parametrize("name", METHODS)
def test_a_runs_settings_tell_its_method(name):
    config = example(name).config(SETUP, 0.9)
    again = Config.from_dict(config.as_dict())
    assert again == config
    method = method_of(again)
    assert isinstance(method, Method)
    plain = replace(config, method=None, penalty=None, training=SETUP.training)
    assert method.config(replace(plain, shrinking=SETUP.shrinking), 0.9) == config


def test_a_method_of_another_version_is_refused():
    config = replace(SETUP, method={"kind": "gmp", "sparsity": 0.9, "speed": 3})
    with pytest.raises(ValueError, match="gmp has settings of another version"):
        method_of(config)
    with pytest.raises(ValueError, match=r"unknown method 'gpm'.*did you mean gmp"):
        method_of(replace(SETUP, method={"kind": "gpm"}))
    with pytest.raises(ValueError, match="method must have a kind"):
        replace(SETUP, method={"sparsity": 0.9})


def test_a_run_without_a_method_keeps_its_name():
    assert "method" not in SETUP.as_dict()
    assert GMP().config(SETUP, 0.9).name.startswith("digits-lenet-300-100-gmp-seed0-")


# Lottery


def test_the_lottery_goes_back_to_the_very_initial_values():
    trained = sparsify(METHODS["dense"](), network(), DATA, SETUP, 0.0).model.state_dict()
    session, first = begun(Lottery(), 0.9, before=trained)
    magnitudes = torch.cat([trained[key].abs().flatten() for key in session.masks])
    threshold = magnitudes.sort().values[round(0.9 * WEIGHTS)]
    for key, mask in session.masks.items():
        assert torch.equal(mask, trained[key].abs() >= threshold)
        assert torch.equal(session.module.get_parameter(key).detach(), first[key] * mask)
    assert torch.equal(session.module.state_dict()["1.bias"], first["1.bias"])


def test_the_lottery_rewinds_to_a_step_of_the_dense_training():
    trained = sparsify(METHODS["dense"](), network(), DATA, SETUP, 0.0).model.state_dict()
    dense, _ = begun(METHODS["dense"]())
    steps(dense, 5)
    session, _ = begun(Lottery(rewind_step=5), 0.9, before=trained)
    steps(session, 4)
    assert session.masks is None
    session.progress.position = 4
    steps(session, 1)
    for key, mask in session.masks.items():
        assert torch.equal(session.module.get_parameter(key), dense.module.get_parameter(key) * mask)
    assert not session.torch_optimizer.state
    steps(session, 2)
    assert session.masks.sparsity == pytest.approx(0.9, abs=1e-4)


def test_iterative_rounds_cut_a_fifth_of_what_remains():
    config, chain = Lottery(share=0.2).config(SETUP, 0.6), []
    while (config := method_of(config).before(config)).method is not None:
        chain.append(config.method["sparsity"])
    assert chain == pytest.approx([0.5904, 0.488, 0.36, 0.2])
    assert config == SETUP
    assert Lottery(share=0.2).total_epochs(Lottery(share=0.2).config(SETUP, 0.6)) == 6 * 4
    assert Lottery(share=0.2).before(Lottery(share=0.2).config(SETUP, 0.2)) == SETUP


# Random initialisation


def test_survivors_are_drawn_anew_with_what_is_left_of_their_fan():
    trained = network(5).state_dict()
    session, first = begun(RandomInit(), 0.5, before=trained)
    mask = session.masks["1.weight"]
    values = session.module.get_parameter("1.weight").detach()[mask]
    assert values.std() == pytest.approx(math.sqrt(2 / (int(mask.sum()) / 300)), rel=0.03)
    assert not torch.equal(values, first["1.weight"][mask])


@pytest.mark.parametrize(("target", "epochs"), [(0.0, 4), (0.25, 5), (0.5, 8), (0.99, 8)])
def test_scratch_b_has_at_most_twice_the_epochs(target, epochs):
    method = METHODS["random-init-b"]()
    config = method.config(SETUP, target)
    assert config.training.epochs == epochs
    assert method_of(config).before(config) == SETUP
    assert method_of(config).total_epochs(config) == 4 + epochs


def test_milestones_keep_their_share_of_a_longer_training():
    setup = replace(SETUP, schedule=Steps((2, 3), unit="epoch"))
    config = METHODS["random-init-b"]().config(setup, 0.9)
    assert config.schedule.milestones == (4, 6)
    assert method_of(config).before(config) == setup
    for target in (0.1, 0.3, 0.45):  # factors that are no round numbers
        config = METHODS["random-init-b"]().config(setup, target)
        assert method_of(config).before(config) == setup
    setup = replace(SETUP, schedule=Steps(every=50, unit="batch"))
    config = METHODS["random-init-b"]().config(setup, 0.9)
    assert config.schedule.every == 100
    assert method_of(config).before(config) == setup


# GMP


def test_gmp_follows_the_cubic_and_zeros_stay():
    session, _ = begun(GMP(rise=0.25, end=0.75, every=11), 0.9)
    assert session.total == 4 * 23
    found = []
    while session.step < session.total:
        steps(session, 23)
        session.progress.next_epoch()
        found.append(sparsity(session.module).sparsity)
    # Cut at steps 23 (to 0), 34, 45; 56, 67; 69; the epochs end at 23, 46, 69, 92.
    rise = [0.9 * (1 - (1 - share / 46) ** 3) for share in (22, 44)]
    assert found == pytest.approx([0, rise[0], rise[1], 0.9], abs=1e-4)
    assert round(session.masks.sparsity * WEIGHTS) == round(0.9 * WEIGHTS)


# RigL


def test_rigl_exchanges_without_another_update():
    session, _ = begun(RigL(every=3, fraction=0.5, end=0.9), 0.9)
    counts = {key: int(mask.sum()) for key, mask in session.masks.items()}
    steps(session, 3)
    before = {key: (session.module.get_parameter(key).detach().clone(), mask) for key, mask in session.masks.items()}
    bias = session.module.state_dict()["1.bias"].clone()
    steps(session, 1)  # number 3: the first exchange
    assert torch.equal(session.module.state_dict()["1.bias"], bias)
    for key, mask in session.masks.items():
        weight, old = before[key]
        assert int(mask.sum()) == counts[key]
        grown = mask & ~old
        assert int(grown.sum()) > 0
        parameter = session.module.get_parameter(key)
        assert torch.equal(parameter[mask & old], weight[mask & old])
        assert not parameter[grown].any()
        assert not session.torch_optimizer.state[parameter]["momentum_buffer"][grown].any()
        dropped = old & ~mask
        kept = weight[old & mask].abs().min()
        # Those that came back at once are the smallest too.
        assert weight[dropped].abs().max() <= weight[old].abs().sort().values[round(0.5 * counts[key]) + 1]
        assert kept >= 0
    steps(session, 1)
    assert session.module.get_parameter("1.weight")[session.masks["1.weight"]].count_nonzero() > 0


def test_rigl_that_cannot_be_uniform_says_so():
    with pytest.raises(ValueError, match=r"not enough to keep 1\.weight whole"):
        begun(RigL(density="uniform"), 0.9)


# Thresholds


def tiny():
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.5, -0.2], [0.3, 2.0]]))
    return net


def test_dst_by_hand():
    from torch_halo.methods.thresholding import _layers, _Stepped
    from torch_halo.methods.thresholds import masked_by_threshold

    net = tiny()
    sparsifier = _Stepped(_layers(net, SETUP, masked_by_threshold, lambda w: torch.tensor([[0.3], [0.1]])), alpha=0.5)
    x = torch.tensor([[1.0, 3.0]])
    out = net(x)
    assert torch.allclose(out, torch.tensor([[0.5, 6.3]]))  # |−0.2| is under its threshold of 0.3
    assert sparsifier.loss().item() == pytest.approx(0.5 * (math.exp(-0.3) + math.exp(-0.1)))
    (out.sum() + sparsifier.loss()).backward()
    # dL/dm·slope(|w| − t)·(−1), summed over a channel: at 0.2 and −0.1 the slopes are 1.2 and 1.6.
    expected = -(0.5 * 1.2 - 0.2 * 3 * 1.6) - 0.5 * math.exp(-0.3)
    # The second: at 0.2 it is 1.2; at 1.9 there is none.
    other = -(0.3 * 1.2) - 0.5 * math.exp(-0.1)
    assert net[0].threshold.grad.flatten().tolist() == pytest.approx([expected, other], abs=1e-6)
    assert list(net.state_dict()) == ["0.weight", "0.threshold"]
    before = net[0].weight.detach().clone()
    with sparsifier.plain():
        assert net[0].weight.count_nonzero() == 3
        assert torch.equal(net(x), out)
    assert torch.equal(net[0].weight, before)
    sparsifier.hand_back()
    assert list(net.state_dict()) == ["0.weight"]
    assert torch.equal(net(x), out)
    assert torch.equal(net[0].weight, torch.tensor([[0.5, 0.0], [0.3, 2.0]]))


def test_dst_starts_again_where_almost_nothing_is_left():
    session, _ = begun(DST(), setup=replace(SETUP, schedule=Constant(), optimizer=SGD(lr=1e-9)))
    first, second = session.module[1], session.module[3]
    with torch.no_grad():
        first.threshold.fill_(9.0)
        second.threshold.fill_(0.01)
    inputs = next(session.batches())[0]
    session.module(inputs)  # in the forward pass, before the mask is used
    assert not first.threshold.any()
    assert second.threshold.min() > 0.009
    with torch.no_grad():
        first.threshold.fill_(9.0)
    session.sparsifier.hand_back()
    assert first.weight.count_nonzero() > 0


def test_a_transposed_convolution_has_its_channels_second():
    net = nn.Sequential(nn.ConvTranspose2d(3, 8, 2))
    DST().begin(net, DATA, SETUP, None)
    assert net[0].threshold.shape == (1, 8, 1, 1)
    assert net(torch.zeros(1, 3, 4, 4)).shape == (1, 8, 5, 5)


def test_a_rewind_beyond_the_training_is_refused():
    session, _ = begun(Lottery(rewind_step=92), before=network().state_dict())
    with pytest.raises(ValueError, match="rewind_step must be below the training's 92 steps; received 92"):
        steps(session, 1)


def test_the_callers_random_numbers_go_on():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = torch.rand(1)
    sparsify(METHODS["snip"](), network_like(), DATA, replace(SETUP, training=Training(epochs=1)), 0.9)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


def test_the_set_ups_decay_of_coefficients_stays():
    setup = replace(SETUP, shrinking=Shrinking(coefficient_weight_decay=0.01))
    assert METHODS["halo"](xi=1e-6).config(setup, 0.9).shrinking.coefficient_weight_decay == 0.01
    assert (
        METHODS["halo"](xi=1e-6, coefficient_weight_decay=0.02).config(setup, 0.9).shrinking.coefficient_weight_decay
        == 0.02
    )


def test_str_is_driven_by_weight_decay():
    setup = replace(SETUP, schedule=Constant(), optimizer=SGD(lr=0.1, momentum=0.0, weight_decay=0.1))
    session, _ = begun(STR(initial=-50.0), setup=setup)
    steps(session, 10)
    # Too far out for its gradient to matter: s(1 − 0.01)^10.
    assert session.module[1].threshold.item() == pytest.approx(-50 * 0.99**10, rel=1e-5)


def test_grasp_scores_linear_layers_by_values_of_their_own():
    before = network()
    config = GraSP().config(SETUP, 0.9)
    found = GraSP().begin(before, DATA, config, None).masks
    scored = copy.deepcopy(before)
    generator = torch.Generator().manual_seed(0)
    for layer in (scored[1], scored[3], scored[5]):
        nn.init.xavier_normal_(layer.weight, generator=generator)
    scores = grasp(scored, *class_batch(DATA, 10, seed=0))
    assert all(torch.equal(mask, found[name]) for name, mask in keep_largest(scores, 0.9).items())
    assert all(torch.equal(value, network().state_dict()[name]) for name, value in before.state_dict().items())


def test_strs_thresholds_may_decay_by_themselves():
    setup = replace(SETUP, schedule=Constant(), optimizer=SGD(lr=0.1, momentum=0.0, weight_decay=0.1))
    session, _ = begun(STR(initial=-50.0, decay=0.2), setup=setup)
    steps(session, 10)
    assert session.module[1].threshold.item() == pytest.approx(-50 * 0.98**10, rel=1e-5)


def test_a_layer_that_fails_in_its_forward_pass_is_left_clean():
    session, _ = begun(STR(initial=-5.0))
    with pytest.raises(RuntimeError):
        session.module(torch.zeros(2, 3))
    assert "weight" not in session.module[1].__dict__
    assert F.linear(torch.zeros(1, 64), session.module[1].weight).shape == (1, 300)


def test_thresholds_refuse_shards():
    setup = replace(SETUP, compute=Compute(strategy="fsdp"))
    with pytest.raises(ValueError, match="need whole layers"):
        DST().begin(network(), DATA, setup, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GMP(rise=0.9, end=0.5), "end must be a finite number at least 0.9"),
        (lambda: GMP(every=0), "every must be a whole number, at least 1"),
        (lambda: RigL(density="erdos"), "unknown density 'erdos'; known: erk, uniform"),
        (lambda: RigL(fraction=1.0), "fraction must be a finite number at least 0 and below 1"),
        (lambda: Lottery(share=1.0), "share must be"),
        (lambda: RandomInit("C"), "budget must be E or B"),
        (lambda: DST(alpha=-1), "alpha must be"),
        (lambda: GMP().config(SETUP, 1.0), "sparsity must be a finite number at least 0 and below 1"),
        (lambda: METHODS["halo"](xi=-1.0), "xi"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_penalty_as_a_method_is_the_run_that_halo_train_makes():
    assert METHODS["halo"](xi=1e-6).config(SETUP, 0.9) == replace(SETUP, penalty=HALO(1e-6))


@pytest.mark.parametrize(
    "method",
    [
        METHODS["l1"](xi=1e-3),
        METHODS["mcp"](xi=1e-3, gamma=400.0),
        METHODS["scad"](xi=1e-3, a=400.0),
        METHODS["sws"](xi=1e-3, coefficient_weight_decay=1e-2),
        METHODS["halo"](xi=1e-3, coefficient_weight_decay=1e-2),
        METHODS["halo-profile"](xi=1e-3),
        METHODS["halo-profile"](xi=1e-3, h=InversePower(1.0)),
    ],
    ids=lambda method: f"{type(method.penalty).__name__} {getattr(method.penalty, 'solve', '')}",
)
def test_in_fewer_steps_a_stronger_penalty_goes_the_same_way(method):
    def shrunk(method, count):
        layer = nn.Linear(3, 1, bias=False)
        layer.weight.data.copy_(torch.tensor([[0.15, 0.2, 0.3]]))
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, weight_decay=0.0)
        Shrinkage(
            layer, method.penalty, optimizer, coefficient_weight_decay=method.coefficient_weight_decay, ramp_steps=0
        )
        for _ in range(count):
            layer.weight.grad = torch.zeros_like(layer.weight)
            optimizer.step()
        return layer.weight.detach().squeeze()

    first, far = shrunk(method, 0), shrunk(method, 2000)
    torch.testing.assert_close(shrunk(method.shortened(0.4), 800), far, rtol=0.01, atol=0)
    assert all(0.004 < moved < 0.15 for moved in first - far)


@pytest.mark.parametrize("name", METHODS)
def test_only_what_works_by_its_strength_is_stronger_in_a_shorter_training(name):
    method = example(name)
    assert (method.shortened(0.5) == method) == (
        name not in ("dst", "l1", "mcp", "scad", "sws", "halo", "halo-profile")
    )
    assert DST(alpha=3e-5).shortened(0.4) == DST(alpha=7.5e-5)
