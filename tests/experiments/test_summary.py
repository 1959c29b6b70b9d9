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


def lines(store):
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in summary(store)[:-2]]


def test_a_row_for_each_method_a_column_for_each_network_and_sparsity(store):
    first, second = (
        "lenet-300-100 on mnist<br>3 epochs, 2 seeds<br>90 %",
        "lenet-5 on mnist<br>3 epochs, 1 seed<br>90 %",
    )
    header, _, *body = lines(store)
    assert header == ("method", "epochs", first, second, "95 %")
    assert body == [
        ("dense, not pruned", "1×", "98.50", "98.00", "98.00"),
        ("dense", "1×", "88.50", "88.00", "88.00"),
        ("random-init-b", "3×", "**98.40**", "", ""),  # 0.17 is what 10,000 images cannot tell from 98.50
        ("lottery", "2×", "**98.50**", "**98.00**", "**98.00**"),
        ("grasp", "1×", "98.30", "", ""),
    ]


@pytest.mark.parametrize(("lost", "bold"), [("grasp", "**98.40**"), ("lottery", "**98.40**")])
def test_what_lacks_a_seed_is_a_dash_and_not_the_best(store, lost, bold):
    folder = next(path for path in store.path.iterdir() if path.name.startswith(f"mnist-lenet-300-100-{lost}-seed1"))
    (folder / "result.json").unlink()
    found = {row[0]: row[2] for row in lines(Store(store.path))}
    assert found[lost] == "–"
    assert found["random-init-b"] == bold


def test_a_star_where_a_figure_is_not_quite_what_its_column_says(tmp_path):
    plan = Plan(Spec("table1", methods=("lottery-iterative", "str"), epochs=3), Store(tmp_path))
    plan.spec.save(tmp_path)
    for _ in range(2):  # trials, then final runs
        for job in plan.jobs():
            if not plan.is_done(job):
                finished(plan.store, job, lambda s: 98.0, lambda s: 98.0, own=0.96)
    assert {row[0]: row[2:] for row in lines(plan.store)[2:]} == {
        "lottery-iterative": (r"**98.00**\*", "", ""),  # one seed, at the first sparsity
        "str": (r"**98.00**\*",) * 3,  # 96 % zeros of its own, for 95, 98 and 99 %
    }


def test_nothing_to_compare(tmp_path):
    assert summary(Store(tmp_path)) == []
    Spec("time").save(tmp_path)
    Spec("table1", "full").save(tmp_path)
    assert summary(Store(tmp_path)) == []
