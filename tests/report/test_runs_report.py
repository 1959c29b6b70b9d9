import html
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from torch_halo import cli
from torch_halo.methods import METHODS
from torch_halo.report.blocks import blocks_of, styles
from torch_halo.report.groups import Values, sections, usable
from torch_halo.report.pictures import COLOURS, TOGETHER, style
from torch_halo.report.runs import read_runs, runs_html
from torch_halo.report.strengths import strengths
from torch_halo.report.tables import tables_of, time_table
from torch_halo.training.config import Config
from torch_halo.training.settings import Compute, Data, Model, Training

LAYERS = {"0.weight": 0.02, "2.weight": -0.02}  # by how much they differ from the sparsity asked for
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def figures(accuracy):
    return {"loss": 1 - accuracy / 100, "accuracy": accuracy}


def level(asked, accuracy, zeros=None):
    zeros = asked if zeros is None else zeros
    layers = [{"name": name, "weights": 100, "zeros": 90, "sparsity": zeros + more} for name, more in LAYERS.items()]
    found = {"asked": asked, "sparsity": zeros, "layers": layers, "recalibrated": None}
    return {**found, "test": figures(accuracy), "validation": figures(accuracy - 1)}


def setup(seed=0, epochs=4, validation=0.0, model="lenet-300-100", **options):
    return Config(
        data=Data(validation=validation), model=Model(model, options), training=Training(epochs=epochs, seed=seed)
    )


def store(root, config, accuracy=98.0, levels=(), *, name=None, **more):
    """A finished run's folder with these figures."""
    folder = root / (name or config.name)
    folder.mkdir(parents=True)
    epochs = config.training.epochs
    rows = [
        {
            "epoch": i + 1,
            "train": figures(90 + i),
            "validation": figures(accuracy - 1 - epochs + i),
            "test": figures(accuracy + 1 - epochs + i),
            "sparsity": i / epochs,
            "seconds": 0.5,
        }
        for i in range(epochs)
    ]
    result = {
        "name": config.name,
        "seconds": 0.5 * epochs,
        "validation": figures(accuracy - 1),
        "test": figures(accuracy),
        "sparsity": 0.0,
        "memory": 512_000_000,
        "pruned": [level(*each) for each in levels],
        "versions": {"torch-halo": "0.1.0", "torch": "2.13.0"},
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config.as_dict()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "result.json").write_text(json.dumps({key: x for key, x in result.items() if x is not None}))
    return folder


def one_section(root):
    (section,) = sections(read_runs([root])[0])
    return section


def cells(table):
    return {row.curve.label: [cell.text for cell in row.cells] for row in table.rows}


def halo(xi, **options):
    return METHODS["halo"](xi=xi).config(setup(**options), 0)


def small_store(root):
    """Three seeds of a dense network and of HALO, and lottery tickets at two sparsities."""
    for seed, more in enumerate((-0.1, 0.0, 0.1)):
        levels = [(0.9, 95 + more), (0.95, 60 + more)]
        store(root, setup(seed), 98.4 + more, levels)
        store(root, halo(1e-5, seed=seed), 98.2 + more, [(0.9, 98 + more), (0.95, 97 + more)])
        for target in (0.9, 0.95):
            store(root, METHODS["lottery"]().config(setup(seed), target), 97 + more, [(target, 97 + more)])
    return root


def test_values_are_shown_alike():
    assert Values((98.3, 98.4, 98.5)).text() == "98.40 ± 0.10"
    assert Values((98.4,)).text() == "98.40"
    assert Values().text() == "–"


def test_runs_are_grouped_over_seeds(tmp_path):
    section = one_section(small_store(tmp_path))
    assert section.title == "lenet-300-100 on digits"
    assert [curve.label for curve in section.finals] == ["dense", "lottery", "halo"]
    assert [[run.config.training.seed for run in group.runs] for group in section.finals[0].groups] == [[0, 1, 2]]
    (table,) = tables_of(section)
    assert table.header == ("unpruned", "90 %", "95 %", "seeds", "epochs", "s per epoch", "memory, MB")
    found = cells(table)
    assert found["dense"] == ["98.40 ± 0.10", "95.00 ± 0.10", "60.00 ± 0.10", "3", "4", "0.50 ± 0.00", "512 ± 0"]
    assert found["halo"][:3] == ["98.20 ± 0.10", "98.00 ± 0.10", "97.00 ± 0.10"]


def test_the_trainings_towards_each_target_are_one_curve(tmp_path):
    section = one_section(small_store(tmp_path))
    lottery = section.finals[1]
    assert [(group.target, len(group.runs)) for group in lottery.groups] == [(0.9, 3), (0.95, 3)]
    assert cells(tables_of(section)[0])["lottery"][:5] == ["–", "97.00 ± 0.10", "97.00 ± 0.10", "3", "8"]


def test_a_target_that_changes_the_length_of_training_is_still_of_one_curve(tmp_path):
    for target in (0.2, 0.9):
        store(tmp_path, METHODS["random-init-b"]().config(setup(epochs=4), target), 97, [(target, 97)])
    (curve,) = one_section(tmp_path).finals
    assert cells(tables_of(one_section(tmp_path))[0])["random-init"][:5] == ["–", "97.00", "97.00", "1", "9 to 12"]
    assert curve.settings == "budget=B"


def test_a_network_that_was_trained_to_its_target_needs_no_threshold(tmp_path):
    store(tmp_path, METHODS["snip"]().config(setup(), 0.9), 96.5, sparsity=0.9)
    assert cells(tables_of(one_section(tmp_path))[0])["snip"][:2] == ["–", "96.50"]


def test_labels_tell_apart_what_differs(tmp_path):
    store(tmp_path, halo(1e-5))
    store(tmp_path, halo(1e-6))
    store(tmp_path, setup())
    store(tmp_path, setup(epochs=6))
    store(tmp_path, METHODS["dst"](alpha=0.1).config(setup(), 0))
    store(tmp_path, METHODS["dst"]().config(setup(), 0))
    labels = [curve.label for curve in one_section(tmp_path).finals]
    assert labels == [
        "dense epochs=4",
        "dense epochs=6",
        "dst (usual)",
        "dst alpha=0.1",
        "halo xi=1e-06",
        "halo xi=1e-05",
    ]


def test_networks_and_data_have_their_own_sections(tmp_path):
    for config in (setup(), setup(model="vgg16", width=0.25), replace(setup(), data=Data(label_noise=0.2))):
        store(tmp_path, config)
    titles = [section.title for section in sections(read_runs([tmp_path])[0])]
    assert titles == [
        "lenet-300-100 on digits",
        "lenet-300-100 on digits, label noise 0.2",
        "vgg16 width 0.25 on digits",
    ]


def test_a_seed_that_was_not_measured_is_told(tmp_path):
    store(tmp_path, setup(0), 98, [(0.9, 90), (0.95, 80)])
    store(tmp_path, setup(1), 98, [(0.9, 91)])
    assert cells(tables_of(one_section(tmp_path))[0])["dense"][1:3] == ["90.50 ± 0.71", "80.00 (1 of 2)"]


def test_another_sparsity_than_was_asked_for_is_told(tmp_path):
    store(tmp_path, METHODS["dst"]().config(setup(), 0), 97, [(0.5, 97, 0.93)], sparsity=0.93)
    (table,) = tables_of(one_section(tmp_path))
    assert cells(table)["dst"][1] == "97.00*"
    assert table.notes == ("* dst at 50 % has 93.00 % zeros.",)


def test_trials_are_kept_apart(tmp_path):
    store(tmp_path, halo(1e-5), 98, [(0.9, 97)])
    for xi in (1e-5, 1e-6):
        store(tmp_path, halo(xi, validation=0.1), 96, [(0.9, 95)])
    section = one_section(tmp_path)
    final, trials = tables_of(section)
    assert cells(final)["halo"][:2] == ["98.00", "97.00"]
    assert cells(trials)["halo xi=1e-06"][:2] == ["95.00", "94.00"]  # of the validation split
    assert [curve.label for curve in section.pictured] == ["halo"]
    assert section.split == "test"


def test_only_trials_are_pictured_by_validation_accuracy(tmp_path):
    store(tmp_path, setup(validation=0.1), 96, [(0.9, 95)])
    section = one_section(tmp_path)
    titles = [p.title for b in blocks_of(section, styles([section])) for panel in b.panels for p in panel.pictures]
    assert titles[0] == "Validation accuracy in percent by sparsity"
    assert "There are only trials here" in runs_html(*read_runs([tmp_path]))


def test_a_copy_counts_once(tmp_path):
    store(tmp_path / "kept", setup(), 98, [(0.9, 90)])
    newer = store(tmp_path / "runs", setup(), 98, [(0.9, 90), (0.95, 80)])
    runs, problems = read_runs([tmp_path])
    assert [run.path for run in runs] == [newer]
    assert list(problems.values()) == [f"{tmp_path / 'kept' / setup().name}: the same run as {newer}"]


def test_a_method_of_another_version_is_left_out(tmp_path):
    config = replace(setup(), method={"kind": "gmp", "sparsity": 0.9, "colour": "red"})
    store(tmp_path, config)
    store(tmp_path, setup())
    runs, problems = read_runs([tmp_path])
    assert [run.name for run in runs] == [setup().name]
    assert "its method cannot be read (the method gmp has settings of another version" in next(iter(problems.values()))
    assert usable([])[0] == []


def test_older_results_have_dashes(tmp_path):
    store(tmp_path, setup(), 98, [(0.9, 90)], memory=None, sparsity=None)
    section = one_section(tmp_path)
    assert cells(tables_of(section)[0])["dense"][-1] == "–"
    assert cells(time_table(section))["dense"] == ["0.50", "4", "2.0", "4", "–"]
    assert "<svg" in runs_html(*read_runs([tmp_path]))


def test_recalibrated_networks_have_their_own_table(tmp_path):
    folder = store(tmp_path, setup(), 98, [(0.9, 50)])
    result = json.loads((folder / "result.json").read_text())
    result["pruned"][0]["recalibrated"] = {"test": figures(88.0), "validation": None}
    (folder / "result.json").write_text(json.dumps(result))
    raw, again = tables_of(one_section(tmp_path))
    assert cells(raw)["dense"][:2] == ["98.00", "50.00"]
    assert cells(again)["dense"][0] == "88.00"


def test_layers_are_shown_where_all_can_be(tmp_path):
    store(tmp_path, setup(), 98, [(0.9, 90), (0.95, 80), (0.98, 30)])
    store(tmp_path, halo(1e-5), 98, [(0.9, 90), (0.95, 80)])
    section = one_section(tmp_path)
    assert blocks_of(section, styles([section]))[-1].text.startswith("At 95 % overall, the highest sparsity that all")
    store(tmp_path, METHODS["gmp"]().config(setup(), 0.5), 98, [(0.5, 90)])
    section = one_section(tmp_path)
    assert "that most were measured at; not gmp." in blocks_of(section, styles([section]))[-1].text


def test_strengths_make_a_curve(tmp_path):
    for xi, accuracy in {1e-6: 95.0, 1e-5: 97.0, 1e-4: 96.0}.items():
        store(tmp_path, METHODS["l1"](xi=xi).config(setup(), 0.9), levels=[(0.9, accuracy)])
    section = one_section(tmp_path)
    (block,) = [block for block in blocks_of(section, styles([section])) if block.title == "Accuracy over strengths"]
    assert [label for label, _ in block.panels[0].legend] == ["l1, test"]
    assert block.panels[0].pictures[0].title == "Accuracy in percent by strength ξ, at 90 %"
    shutil.rmtree(next(tmp_path.iterdir()))  # two are none
    section = one_section(tmp_path)
    assert "Accuracy over strengths" not in [block.title for block in blocks_of(section, styles([section]))]


def test_strengths_of_other_trainings_make_curves_of_their_own(tmp_path):
    for epochs in (2, 3):
        for xi in (1e-6, 1e-5, 1e-4):
            store(tmp_path, halo(xi, epochs=epochs), levels=[(0.9, 90.0 + epochs)])
    store(tmp_path, halo(1e-3, epochs=4), levels=[(0.9, 50.0)])  # one is none
    found = strengths(one_section(tmp_path), 0.9)
    assert {each.label: {xi: v.of for xi, v in each.accuracies.items()} for each in found} == {
        f"halo epochs={epochs}, test": dict.fromkeys((1e-06, 1e-05, 0.0001), (90.0 + epochs,)) for epochs in (2, 3)
    }
    assert strengths(one_section(tmp_path), 0.95) == []


def test_strengths_with_another_psi_or_knot_are_others(tmp_path):
    for xi in (1e-6, 1e-5, 1e-4):
        store(tmp_path, METHODS["halo"](xi=xi).config(setup(), 0.9), levels=[(0.9, 90.0)])
        store(tmp_path, METHODS["halo"](xi=xi, psi=100 * xi).config(setup(), 0.9), levels=[(0.9, 80.0)])
        store(tmp_path, METHODS["mcp"](xi=xi, gamma=0.1 / xi).config(setup(), 0.9), levels=[(0.9, 70.0)])
        store(tmp_path, METHODS["mcp"](xi=xi, gamma=1 / xi).config(setup(), 0.9), levels=[(0.9, 60.0)])
    found = strengths(one_section(tmp_path), 0.9)
    assert sorted(tuple(v.of for v in each.accuracies.values()) for each in found) == [
        3 * ((accuracy,),) for accuracy in (60.0, 70.0, 80.0, 90.0)
    ]


def test_strengths_of_cut_networks_have_their_own_batch_norm_statistics(tmp_path):
    for xi in (1e-6, 1e-5, 1e-4):
        folder = store(tmp_path, halo(xi), levels=[(0.9, 10.0)])
        result = json.loads((folder / "result.json").read_text())
        result["pruned"][0]["recalibrated"] = {"test": {"loss": 0.1, "accuracy": 80.0}, "validation": None}
        (folder / "result.json").write_text(json.dumps(result))
    (found,) = strengths(one_section(tmp_path), 0.9)
    assert [v.of for v in found.accuracies.values()] == 3 * [(80.0,)]


def test_settings_that_are_as_usual_tell_curves_apart(tmp_path):
    for is_last in (False, True):
        store(tmp_path, replace(setup(), compute=Compute(channels_last=is_last)), levels=[(0.9, 90.0)])
    labels = [curve.label for curve in one_section(tmp_path).finals]
    assert len(set(labels)) == 2


def pictured(path):
    section = one_section(path)
    return [p.title for b in blocks_of(section, styles([section])) for panel in b.panels for p in panel.pictures]


def test_weights_under_the_final_threshold_are_drawn_where_they_were_counted(tmp_path):
    name = "Weights under the threshold that leaves 90 % zeros in the end, in percent, by epoch"
    folder = store(tmp_path, setup(), levels=[(0.9, 90)])
    assert name not in pictured(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row["magnitudes"] = [min(1.0, (i + 1) / 4 * k / 110) for k in range(111)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert name in pictured(tmp_path)


def test_with_wrong_labels_the_train_accuracy_is_drawn(tmp_path):
    name = "Train accuracy in percent by epoch, wrong labels among them"
    folder = store(tmp_path, setup())
    assert name not in pictured(tmp_path)
    shutil.rmtree(folder)
    store(tmp_path, replace(setup(), data=Data(label_noise=0.2)))
    assert name in pictured(tmp_path)


def test_many_curves_are_dealt_out_to_readable_pictures(tmp_path):
    for i in range(20):
        for seed in range(15):
            store(tmp_path, halo(1e-6 * (i + 1), seed=seed, epochs=2), 98 - i, [(0.9, 90 - i)], name=f"{i}-{seed}")
    page = runs_html(*read_runs([tmp_path]))
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', page, re.DOTALL)
    # Accuracy, over strengths (one line), training, layers.
    assert [legend.count("<li>") for legend in legends] == [8, 8, 4, 1, *2 * [8, 8, 4]]
    assert len(page) < 2e6
    assert page.count("<pre") == 300


def test_styles_differ_and_can_be_seen_on_both_pages():
    assert len({style(i) for i in range(80)}) == 80
    assert all(len({style(i + j).colour for j in range(TOGETHER)}) == TOGETHER for i in range(80))
    for colour in COLOURS:
        for page in ("#ffffff", "#15181d"):
            assert contrast(colour, page) > 3


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class Page(HTMLParser):
    """All tags of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def test_the_page_is_whole_and_needs_no_network(tmp_path):
    store(small_store(tmp_path), setup(model="lenet-5"), 98, [(0.9, 90)])
    text = runs_html(*read_runs([tmp_path]))
    page = Page(text)
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"@import|url\((?!#)", text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [value for _, attributes in page.tags for key, value in attributes.items() if key.endswith("href")]
    links += [f"#{name}" for name in re.findall(r"url\(#([^)]*)\)", text)]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("caption")) == len(page.all("table")) == 4
    assert all("scope" in attributes for attributes in page.all("th"))
    assert all("aria-label" in svg or svg["aria-hidden"] == "true" for svg in page.all("svg"))
    assert len(page.all("pre")) == 13  # a configuration for each run
    assert all(run.path.name in text for run in read_runs([tmp_path])[0])
    assert text == runs_html(*read_runs([tmp_path]))


def test_names_are_text_and_not_markup(tmp_path):
    store(tmp_path, setup(), 98, [(0.9, 90)], name="<img src=x>&amp;", versions={"torch": "<s>1</s>"})
    result = tmp_path / "<img src=x>&amp;" / "result.json"
    result.write_text(result.read_text().replace("0.weight", "<i>$\\\\frac$"))
    (tmp_path / "<u>no run").write_text("")
    text = runs_html(*read_runs([tmp_path]))
    assert not {tag for tag, _ in Page(text).tags} & {"img", "s", "i", "u"}
    assert html.escape("<img src=x>&amp;") in text
    assert html.escape("<i>$\\frac$") in text
    assert html.escape("<u>no run") in text


def test_a_run_without_epochs_or_levels_has_a_page(tmp_path):
    store(tmp_path, setup(epochs=0), 10)
    text = runs_html(*read_runs([tmp_path]))
    assert "10.00" in text
    assert not Page(text).all("figure")


def test_the_command_writes_a_page_and_names_what_it_left_out(tmp_path, capsys):
    store(tmp_path / "runs", setup(), 98, [(0.9, 90)])
    unfinished = store(tmp_path / "runs", setup(1))
    (unfinished / "result.json").unlink()
    broken = store(tmp_path / "runs", setup(2))
    (broken / "result.json").write_text("{")
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path / "runs"), "-o", str(page)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"1 run. The report: {page}\n"
    assert f"left out: {unfinished}: it is not finished" in printed.err
    text = page.read_text()
    assert f"<code>{unfinished.name}</code>: {unfinished}: it is not finished" in text
    assert f"{broken / 'result.json'}: expected JSON" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs"], "halo: no finished run in runs\nleft out: runs/{name}: it is not finished\n"),
        (["empty"], "halo: no finished run in empty\nleft out: empty: it is empty\n"),
        (["missing"], "halo: missing: no such run or folder of runs\n"),
        (["runs", "-o", "no/page.html"], "halo: cannot write no/page.html: no is not a writable directory\n"),
    ],
)
def test_without_a_finished_run_nothing_is_written(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (store(tmp_path / "runs", setup()) / "result.json").unlink()
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", *arguments]) == 1
    assert capsys.readouterr().err == message.format(name=setup().name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "runs"]


def test_a_missing_extra_is_named(tmp_path):
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')")
    command = [sys.executable, "-m", "torch_halo", "report", "."]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.strip() == "halo: the report needs jinja2: pip install 'torch-halo[report]'"


LOOK = """<!doctype html><meta name="color-scheme" content="light dark"><body style="margin: 0">
<iframe srcdoc="{page}" width="360" height="800" style="border: 0"></iframe>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(details => details.open = true);
  const texts = [...page.querySelectorAll("figure text")];
  document.title = JSON.stringify({{
    width: root.clientWidth, needed: root.scrollWidth,
    background: getComputedStyle(page.body).backgroundColor,
    text: getComputedStyle(page.body).color,
    pictured: getComputedStyle(texts[0]).fill,
    letters: Math.min(...texts.map(text => text.getBoundingClientRect().height)),
    columns: new Set([...page.querySelectorAll("figure")].map(f => f.getBoundingClientRect().left)).size,
  }});
}}</script>"""


@pytest.fixture
def browser(tmp_path):
    """Chromium, with these flags, on a page that is preferred dark or light; returns what it prints."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium, chromium-browser or google-chrome to look at the page with")

    def run(page, *flags, dark=False):
        usual = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/own"]
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        command = [CHROMIUM, *usual, scheme, *flags, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout

    return run


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(runs_html(*read_runs([small_store(tmp_path / "runs")])))
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_on_a_phone(dark, page, browser, tmp_path):
    wrapper = tmp_path / "phone.html"  # a window is never narrower than 500, a frame may be
    wrapper.write_text(LOOK.format(page=html.escape(page.read_text())))
    found = re.search("<title>(.*?)</title>", browser(wrapper, "--dump-dom", dark=dark))
    seen = json.loads(html.unescape(found[1]))
    assert seen["width"] == seen["needed"] == 360
    assert seen["background"] == ("rgb(21, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert seen["pictured"] == seen["text"] == ("rgb(228, 231, 235)" if dark else "rgb(29, 33, 38)")
    assert seen["letters"] > 10
    assert seen["columns"] == 1


@pytest.mark.parametrize("dark", [False, True])
def test_a_screen_shows_it_in_the_preferred_colours(dark, page, browser, tmp_path):
    from matplotlib.image import imread

    shot = tmp_path / "shot.png"
    browser(page, f"--screenshot={shot}", "--window-size=1280,1600", dark=dark)
    pixels = imread(shot)[..., :3]
    assert pixels.shape == (1600, 1280, 3)
    corner = (0x15 / 255, 0x18 / 255, 0x1D / 255) if dark else (1, 1, 1)
    assert pixels[2, 2] == pytest.approx(corner, abs=0.01)
    ink = pixels.mean(axis=2) > 0.8 if dark else pixels.mean(axis=2) < 0.2
    assert 0.002 < ink.mean() < 0.2  # there is text, and it is no full picture of it
    drawn = [int(colour[i : i + 2], 16) / 255 for colour in COLOURS[2:3] for i in (1, 3, 5)]
    assert (abs(pixels - drawn).max(axis=2) < 0.02).sum() > 100  # a line


def test_it_can_be_printed(page, browser, tmp_path):
    printed = tmp_path / "page.pdf"
    browser(page, f"--print-to-pdf={printed}", dark=True)
    assert printed.read_bytes().startswith(b"%PDF")
    assert printed.stat().st_size > 20_000
