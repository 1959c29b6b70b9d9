"""Settings as JSON, and the name that is made from them."""

import dataclasses
import json

import pytest
from examples_of_penalties import EXAMPLES, named

import torch_halo as th
from torch_halo.models import MODELS
from torch_halo.training.config import SCHEMA, Config, differences
from torch_halo.training.optimizers import OPTIMIZERS, SGD, AdamW
from torch_halo.training.schedules import SCHEDULES, Steps
from torch_halo.training.settings import Compute, Data, Model, Pruning, Shrinking, Training

STORABLE = [
    penalty
    for examples in EXAMPLES.values()
    for penalty in examples
    if not isinstance(penalty, th.WeightedL1) and "function" not in repr(penalty)
]
CONFIGS = [
    *(Config(penalty=penalty) for penalty in STORABLE),
    *(Config(optimizer=make()) for make in OPTIMIZERS.values()),
    *(Config(schedule=make()) for make in SCHEDULES.values()),
    *(Config(model=Model(name)) for name in MODELS),
    Config(shrinking=Shrinking(select=("!1", "3"), biases=True), pruning=Pruning((0.9, 0.95), "layer")),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_json_and_back(config):
    again = Config.from_dict(json.loads(json.dumps(config.as_dict())))
    assert again == config
    assert again.name == config.name


def test_every_setting_is_in_the_name():
    base = Config(penalty=th.HALO(1e-6))
    changed = [
        dataclasses.replace(base, **change)
        for change in (
            {"data": Data("mnist")},
            {"data": Data(validation=0.1)},
            {"data": Data(label_noise=0.1)},
            {"model": Model("lenet-5")},
            {"penalty": None},
            {"penalty": th.HALO(1e-6, 1e-5)},
            {"penalty": th.HALO(1e-6, h=th.InversePower(3))},
            {"penalty": th.HALO(1e-6, h=th.LogSquared())},
            {"shrinking": Shrinking(coefficient_weight_decay=1e-3)},
            {"optimizer": SGD(lr=0.2)},
            {"optimizer": AdamW()},
            {"schedule": Steps(lr_decay=(0.2,))},
            {"training": Training(seed=1)},
            {"training": Training(masks="sha256:0")},
            {"pruning": Pruning((0.9,))},
            {"compute": Compute(precision="bf16-mixed")},
        )
    ]
    assert len({config.name for config in [base, *changed]}) == len(changed) + 1
    assert base.name.startswith("digits-lenet-300-100-halo-seed0-")
    assert changed[4].name.startswith("digits-lenet-300-100-dense-seed0-")


def test_defaults_are_stored_so_that_a_changed_default_makes_another_name():
    stored = Config(model=Model("vgg16"), penalty=th.HALO(1e-6)).as_dict()
    assert stored["schema"] == SCHEMA
    assert stored["model"]["options"] == {"width": 1.0}
    assert stored["penalty"] == {"kind": "halo", "xi": 1e-6, "psi": 1e-6, "h": {"kind": "inverse_power", "k": 2.0}}
    assert stored["optimizer"] == {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}


def test_what_cannot_be_stored_says_so():
    for penalty in (th.HALO(0.1, h=lambda lam: 1 / lam), th.WeightedL1(0.1, {})):
        with pytest.raises(ValueError, match=r"(h|weights): \w+ cannot be stored with a run; it is for Python only"):
            Config(penalty=penalty).as_dict()


def test_another_schema_or_setting_is_refused():
    stored = Config().as_dict()
    with pytest.raises(ValueError, match="of schema 0; this version reads 1"):
        Config.from_dict({**stored, "schema": 0})
    with pytest.raises(ValueError, match="settings of another version"):
        Config.from_dict({**stored, "training": {**stored["training"], "colour": "red"}})


def test_differences_are_named():
    one, other = Config(), Config(training=Training(epochs=10), penalty=th.L1(0.1))
    found = differences(one.as_dict(), other.as_dict())
    assert "training.epochs: 30 there, 10 here" in found
    assert found[0] == 'penalty: null there, {"kind": "l1", "xi": 0.1} here'


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data("minst"), "unknown data set 'minst'; known: digits, mnist.*did you mean mnist"),
        (lambda: Data(validation=1), "validation must be a finite number at least 0 and below 1; received 1"),
        (lambda: Data(label_noise=1.5), r"label_noise must be a probability, from 0 to 1; received 1.5"),
        (lambda: Data(label_noise=-0.1), "label_noise must be a finite number at least 0"),
        (lambda: Model("vgg"), "unknown model 'vgg'; known: .*did you mean vgg16"),
        (lambda: Model("vgg16", {"widht": 2}), "vgg16 has no option 'widht'; it has width; did you mean width"),
        (lambda: Model("lenet-5", {"width": 2}), "lenet-5 has no option 'width'; it has none"),
        (lambda: Shrinking(coefficient_lr=-1), "coefficient_lr must be"),
        (lambda: Shrinking(select=()), "select must name at least one layer; received none"),
        (lambda: Training(seed=2**63), r"seed must be a whole number below 2\^63"),
        (lambda: Shrinking(ramp_steps=-1), "ramp_steps must be a whole number"),
        (lambda: Training(epochs=-1), "epochs must be a whole number, at least 0"),
        (lambda: Training(batch_size=0), "batch_size must be a whole number, at least 1"),
        (lambda: Pruning((1.0,)), "sparsity must be a finite number at least 0 and below 1; received 1.0"),
        (lambda: Pruning(scope="local"), "unknown scope 'local'"),
        (lambda: Pruning(of="some"), "of must be all or nonzero"),
        (lambda: Compute(devices=0), "devices must be a whole number, at least 1"),
        (lambda: Compute(strategy="dp"), "unknown strategy 'dp'; known: auto, ddp, fsdp"),
        (lambda: Compute(precision="bf16"), "unknown precision 'bf16'; known: 32-true"),
        (lambda: Compute(accelerator="gpu"), "unknown accelerator 'gpu'"),
        (lambda: Config(compute=Compute(devices=3)), "batch_size must be a multiple of the 3 processes; received 100"),
        (lambda: SGD(lr=0), "lr must be a finite number above 0"),
        (lambda: SGD(momentum=1), "momentum must be a finite number below 1"),
        (lambda: AdamW(beta2=1.5), "beta2 must be a finite number below 1"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_two_devices_mean_ddp():
    assert Compute(devices=2) == Compute(devices=2, strategy="ddp")


def test_the_examples_cover_the_table():
    assert {type(p) for p in STORABLE} == {kind for name, kind in th.PENALTIES.items() if name != "weighted_l1"}
    assert all(named(p) for p in STORABLE)
