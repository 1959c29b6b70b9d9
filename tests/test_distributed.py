"""Two processes with gloo: DDP, FSDP2 and distributed checkpoints give what one process gives."""

import pytest
import torch
import torch.multiprocessing as mp
from distributed_workers import alone, run, target
from examples_of_penalties import named

import torch_halo as th

PENALTIES = [
    th.HALO(1e-3),
    th.L1(1e-3),
    th.SWS(1e-3),
    th.Grouped(th.HALO(1e-2), "out"),
    th.Grouped(th.HALO(1e-2), "in"),
    th.Grouped(th.SWS(1e-3), "in"),
    th.SHALO(1e-3, inner="halo", groups="in"),
    th.SHALO(1e-3, inner="halo", groups="kernel"),
]
DDP = [(penalty, make) for penalty in PENALTIES[:3] for make in ("sgd", "adamw")]
FSDP = [(PENALTIES[0], "adamw"), *((penalty, "sgd") for penalty in PENALTIES)]
SAVED = [(PENALTIES[i], make) for i in (0, 2, 4) for make in ("sgd", "sgd-plain", "adamw")]


def case(value):
    return named(value) if isinstance(value, th.Penalty) else value


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of two processes found, for all jobs at once: starting them is what takes time."""
    folder = tmp_path_factory.mktemp("distributed")
    jobs = [(("ddp", i), "ddp", (*DDP[i], 0.6)) for i in range(len(DDP))]
    jobs += [(("fsdp", i), "fsdp", (*FSDP[i], 0.6)) for i in range(len(FSDP))]
    jobs += [(("saved", i), "fsdp_checkpoint", (*SAVED[i], f"{folder}/saved{i}")) for i in range(len(SAVED))]
    jobs += [("ties", "fsdp", (PENALTIES[0], "sgd", 0.985, True))]
    jobs += [("refused", "fsdp_refuses", ()), ("not finite", "fsdp_not_finite", ())]
    jobs += [("stops", "fsdp_stops_together", ()), ("whole masks", "fsdp_whole_masks", ())]
    jobs += [(("target", kind), "target", (kind,)) for kind in ("ddp", "fsdp")]
    mp.spawn(run, (2, str(folder), jobs), nprocs=2)
    both = [torch.load(folder / f"result.{rank}", weights_only=False) for rank in range(2)]
    return {key: (both[0][key], both[1][key]) for key in both[0]}


def assert_all_close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("penalty", "make"), DDP, ids=case)
def test_ddp(penalty, make, results):
    first, second = results["ddp", DDP.index((penalty, make))]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert_all_close(first, alone(penalty, make, 0.6))


@pytest.mark.parametrize(("penalty", "make"), FSDP, ids=case)
def test_fsdp2(penalty, make, results):
    first, second = results["fsdp", FSDP.index((penalty, make))]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert_all_close(first, alone(penalty, make, 0.6))
    total = sum(mask.numel() for mask in first[1]["masks"].values())
    assert sum(int((~mask).sum()) for mask in first[1]["masks"].values()) == round(0.6 * total)


@pytest.mark.filterwarnings("ignore:.* of the weights are zero where")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_target_is_steered_alike_on_all_processes(kind, results):
    first, second = results["target", kind]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert_all_close(first, target(0, 1, "alone"))
    weights = [value for name, value in first[0]["weights"].items() if name.endswith("weight")]
    zeros = sum(int((value == 0).sum()) for value in weights)
    assert zeros == round(0.8 * sum(value.numel() for value in weights))


def test_fsdp2_cuts_the_same_of_equal_weights_and_spares_the_same_layers(results):
    with pytest.warns(UserWarning, match="would have lost every weight"):
        expected = alone(PENALTIES[0], "sgd", 0.985, True)
    first, second = results["ties"]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert_all_close(first[1], expected[1])


@pytest.mark.parametrize(("penalty", "make"), SAVED, ids=case)
def test_distributed_checkpoints_hold_lambda(penalty, make, results):
    for expected, resumed in results["saved", SAVED.index((penalty, make))]:
        torch.testing.assert_close(resumed, expected, rtol=0, atol=0)
        assert all(float((lam - 1).abs().max()) > 1e-6 for lam in expected["lam"].values())


def test_what_cannot_be_sharded_says_so(results):
    for message in results["refused"]:
        assert "weight: groups of a grouped convolution (groups=2) cannot be formed when its shards cut" in message


def test_all_processes_learn_of_a_weight_that_is_not_finite(results):
    assert results["not finite"] == ("cannot prune: 3.weight has weights that are not finite",) * 2


def test_all_processes_stop_for_a_number_that_is_not_finite(results):
    for message in results["stops"]:
        assert message.startswith("3.weight: the weight is not finite at step 0")


def test_whole_masks_fit_a_sharded_model(results):
    assert results["whole masks"] == (True, True)
