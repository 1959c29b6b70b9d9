"""The comparison at a glance, by results made by hand."""

from functools import partial

import pytest
from stored import finished

from torch_halo.experiments.plan import Plan
from torch_halo.experiments.spec import Spec
from torch_halo.experiments.store import Store
from torch_halo.experiments.summary import summary

LESS = {"dense": 10.0, "lottery": 0.0, "random-init-b": 0.1, "grasp": 0.2}  # at 90 %, under the dense network's


def accuracy(method, seed, sparsity):
    return 98.0 + seed - (LESS[method] if sparsity else 0.0)


def stored(store, *methods, seeds=2, **more):
    plan = Plan(Spec("table1", methods=methods, seeds=seeds, epochs=3, **more), store)
    plan.spec.save(store.path)
    for job in plan.jobs():
        kind = job.name.split("-seed")[0].removeprefix(f"mnist-{plan.spec.models[0]}-")
        kind = "random-init-b" if kind == "random-init" else kind
        finished(store, job, partial(accuracy, kind, job.config.training.seed))
    return plan


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    stored(store, "dense", "lottery", "random-init-b", "grasp", sparsities=(0.9,))
    stored(store, "dense", "lottery", models=("lenet-5",), sparsities=(0.9, 0.95), seeds=1)
    return store


def test_a_row_for_each_method_a_column_for_each_network_and_sparsity(store):
    sheet = summary(store)
    assert sheet.header[2:] == ("lenet-300-100 on mnist<br>90 %", "lenet-5 on mnist<br>90 %", "95 %")
    assert sheet.body == (
        ("dense, not pruned", "1×", "98.50", "98.00", "98.00"),
        ("dense", "1×", "88.50", "88.00", "88.00"),
        ("random-init-b", "3×", "**98.40**", "", ""),  # within 0.15 of the best
        ("lottery", "2×", "**98.50**", "**98.00**", "**98.00**"),
        ("grasp", "1×", "98.30", "", ""),
    )


def test_a_figure_whose_seeds_are_missing_is_a_dash(store):
    lost = next(path for path in store.path.iterdir() if path.name.startswith("mnist-lenet-300-100-grasp-seed1"))
    (lost / "result.json").unlink()
    assert summary(Store(store.path)).body[-1][2] == "–"


def test_nothing_to_compare(tmp_path):
    assert summary(Store(tmp_path)) is None
    Spec("time").save(tmp_path)
    Spec("table1", "full").save(tmp_path)
    assert summary(Store(tmp_path)) is None
