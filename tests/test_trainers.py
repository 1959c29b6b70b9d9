"""Lightning's Trainer and Transformers' Trainer give the plain loop's weights."""

import warnings

import pytest
import torch
from small import adamw, assert_same, batches, network, sgd, train
from torch import nn
from torch.nn import functional as F

import torch_halo as th

DATA = list(batches(12, torch.float32))


def plain(make, accumulate=1, clip=None):
    model = network(torch.float32)
    optimizer = make(model)
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    if accumulate == 1 and clip is None:
        train(model, optimizer, DATA)
        return model, shrink
    for i, (x, y) in enumerate(DATA):
        (F.cross_entropy(model(x), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model, shrink


@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}], ids=["plain", "clip"]
)
@pytest.mark.parametrize("make", [sgd, adamw])
def test_lightning(make, options, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = network(torch.float32)

            def training_step(self, batch, index):
                x, y = batch
                return F.cross_entropy(self.net(x), y)

            def configure_optimizers(self):
                optimizer = make(self.net)
                self.shrink = th.Shrinkage(self.net, th.HALO(1e-3), optimizer)
                return optimizer

        module = Module()
        loader = torch.utils.data.DataLoader(DATA, batch_size=None)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **options,
        )
        trainer.fit(module, loader)
        saved = tmp_path / "lightning.ckpt"
        trainer.save_checkpoint(saved)
    expected, shrink = plain(make, options.get("accumulate_grad_batches", 1), options.get("gradient_clip_val"))
    assert_same(module.net, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(module.shrink.coefficients, shrink.coefficients, rtol=1e-5, atol=1e-7)
    states = torch.load(saved, weights_only=False)["optimizer_states"][0]["state"]
    assert torch.equal(states[0]["halo_coefficient"], module.shrink.coefficients["0.weight"])


class Wrapped(nn.Module):
    """As Transformers wants a model: its loss comes out of it."""

    def __init__(self):
        super().__init__()
        self.net = network(torch.float32)

    def forward(self, x, labels):
        return {"loss": F.cross_entropy(self.net(x), labels)}


@pytest.mark.parametrize("make", [sgd, adamw])
def test_transformers(make, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        rows = [{"x": x, "labels": y} for xs, ys in DATA for x, y in zip(xs, ys, strict=True)]
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=1,
            per_device_train_batch_size=16,
            train_sampling_strategy="sequential",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        model = Wrapped()
        optimizer = make(model)
        shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
        trainer = transformers.Trainer(model, options, train_dataset=rows, optimizers=(optimizer, None))
        trainer.train()
    expected, expected_shrink = plain(make)
    assert_same(model.net, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(
        {name.removeprefix("net."): lam for name, lam in shrink.coefficients.items()},
        expected_shrink.coefficients,
        rtol=1e-5,
        atol=1e-7,
    )


def test_accelerates_wrapped_optimizer_is_unwrapped():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerate = pytest.importorskip("accelerate")
        accelerator = accelerate.Accelerator(cpu=True)
    model = network(torch.float32)
    wrapped, optimizer = accelerator.prepare(model, sgd(model))
    shrink = th.Shrinkage(wrapped, th.HALO(1e-3), optimizer)
    for x, y in DATA:
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(wrapped(x), y))
        optimizer.step()
    expected, expected_shrink = plain(sgd)
    assert_same(model, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(shrink.coefficients, expected_shrink.coefficients, rtol=1e-5, atol=1e-7)
