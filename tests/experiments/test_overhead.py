"""`halo bench overhead`: what it measures, on the smallest network."""

import json
from dataclasses import replace

import pytest

from torch_halo import cli
from torch_halo.experiments.overhead import CASES, ROWS, Overhead, overhead_rows, read_overhead
from torch_halo.selection import select_weights


def test_times_and_memory_of_each_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(CASES, "lenet-300-100", replace(CASES["lenet-300-100"], steps=1))
    out = tmp_path / "overhead.json"
    command = ["bench", "overhead", "--models", "lenet-300-100", "--rounds", "1", "--threads", "1", "-o", str(out)]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "LeNet-300-100, batch 100: 266,200 weights, 1 threads, 1 rounds" in shown
    assert all(row in shown for row in ROWS)
    (found,) = read_overhead(out)
    assert len(found.rounds) == 1
    assert all(seconds > 0 for each in found.rounds for seconds in each.values())
    assert {row: found.bytes_a_weight(row) for row in ROWS} == {
        "plain SGD": 0,
        "L1": 0,
        "HALO, compiled": 8,  # λ and its momentum
        "HALO, not compiled": 8,
        "HALO by profile, compiled": 0,
        "HALO through autograd": 12,  # and λ's gradient
    }
    assert set(json.loads(out.read_text())) == {"torch", "networks"}


def test_ratios_are_of_the_same_round():
    rounds = [dict.fromkeys(ROWS, 1.0) | {"L1": 1.5}, dict.fromkeys(ROWS, 2.0) | {"L1": 2.2}]
    found = Overhead("a network", 4, 1, dict.fromkeys(ROWS, 3.0), dict.fromkeys(ROWS, 8), rounds)
    assert found.ratio("L1") == pytest.approx([1.2, 1.3, 1.4])
    assert overhead_rows(found)[2] == ["L1", "1850.0", "1.300 (1.200 to 1.400)", "2", "3.0 s"]


@pytest.mark.parametrize(("name", "weights"), [("vgg16", 14_715_584), ("resnet", 754_736), ("transformer", 25_170_944)])
def test_sizes(name, weights):
    assert sum(w.parameter.numel() for w in select_weights(CASES[name].make())) == weights


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--models vgg61", "unknown network 'vgg61'"),
        ("--rounds 0", "--rounds must be a whole number"),
        ("--threads 0", "--threads must be"),
        ("-o missing/x.json", "cannot write missing/x.json"),
    ],
)
def test_bad_input(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "overhead", *flags.split()]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
