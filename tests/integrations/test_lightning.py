"""The Lightning callback against a plain loop, its checkpoints, and what it says about mistakes."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration_cases import (
    BATCH,
    SETTINGS,
    Dicts,
    anchors,
    assert_same,
    assert_same_weights,
    batches_of,
    hooks_of,
    images,
    network,
    plain_loop,
    sgd,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import indexed
from sgoif.errors import IndexingError, SettingError, StepError

L = pytest.importorskip("lightning.pytorch")
from sgoif.integrations.lightning import InfluenceCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(L.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.trained = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained += 1
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return sgd(self)


def trainer(callback: Any, folder: Path, epochs: int = 2, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    kept = {"enable_checkpointing": False, "default_root_dir": folder, "accelerator": "cpu", "devices": 1}
    return L.Trainer(max_epochs=epochs, callbacks=[callback], **{**quiet, **kept, **options})


def loader(data: Dataset[Any] | None = None) -> DataLoader[Any]:
    return DataLoader(data or indexed(TensorDataset(*images())), batch_size=BATCH)


def validation() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*images(16, seed=2)), batch_size=BATCH)


def test_the_health_of_the_run_is_logged_when_training_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = InfluenceCallback(anchors=anchors(), **SETTINGS)
    trainer(callback, tmp_path).fit(Module(), loader())
    (told,) = [entry for entry in caplog.records if entry.name.startswith("sgoif.")]
    assert told.levelname == "WARNING"
    assert "after 12 steps" in told.getMessage()
    assert "anchors    warning  30, fewer than 50" in told.getMessage()
    assert str(callback.health()) in told.getMessage()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_table_is_that_of_a_plain_loop(tmp_path: Path, accumulate: int) -> None:
    callback, module = InfluenceCallback(anchors=anchors(), **SETTINGS), Module()
    options = {"accumulate_grad_batches": accumulate, "val_check_interval": 3}
    trainer(callback, tmp_path, **options).fit(module, loader(), validation())
    model = network()
    assert_same(callback.monitor, plain_loop(model, batches_of(2, *images()), accumulate=accumulate))
    assert_same_weights(module.net, model)
    assert hooks_of(module) == 0
    assert np.array_equal(callback.scores()["index"], np.arange(48))
    assert len(callback.errors(dataset=TensorDataset(*images())).table()) == 48


def test_in_mixed_precision(tmp_path: Path) -> None:
    callback, module = InfluenceCallback(anchors=anchors(), **SETTINGS), Module()
    trainer(callback, tmp_path, precision="bf16-mixed").fit(module, loader())
    model = network()
    assert_same(callback.monitor, plain_loop(model, batches_of(2, *images()), autocast=torch.bfloat16))
    assert_same_weights(module.net, model)


class Named(Module):
    """Dicts for batches, and logits from a submodule that is called directly."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": nn.functional.cross_entropy(self.net(batch["pixel_values"]), batch["labels"])}


@pytest.mark.parametrize("index", [None, "index", lambda batch: batch["index"]])
def test_dicts_and_a_submodule(tmp_path: Path, index: Any) -> None:
    callback, module = InfluenceCallback(anchors(), index=index, model="net", target="labels", **SETTINGS), Named()
    trainer(callback, tmp_path).fit(module, loader(indexed(Dicts(*images()))))
    assert_same(callback.monitor, plain_loop(network(), batches_of(2, *images())))


class Manual(Module):
    """Optimizes by hand; `seen` says whether Lightning knows of the backward pass."""

    def __init__(self, seen: bool = True, backward: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.seen, self.backward_too = seen, backward

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.optimizers().zero_grad()
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        if self.seen:
            self.manual_backward(loss)
        elif self.backward_too:
            loss.backward()
        self.optimizers().step()


def test_manual_optimization(tmp_path: Path) -> None:
    callback = InfluenceCallback(anchors(), **SETTINGS)
    trainer(callback, tmp_path).fit(Manual(), loader())
    assert_same(callback.monitor, plain_loop(network(), batches_of(2, *images())))
    unseen = InfluenceCallback(anchors(), **SETTINGS)
    trainer(unseen, tmp_path).fit(Manual(seen=False), loader())
    assert unseen.monitor.steps == callback.monitor.steps
    never = InfluenceCallback(anchors(), **SETTINGS)
    module = Manual(seen=False, backward=False)
    with pytest.raises(StepError, match=r"under manual optimization .* Call self.manual_backward\(loss\)"):
        trainer(never, tmp_path).fit(module, loader())
    assert hooks_of(module) == 0


class Several(Module):
    """Another network has its backward pass first, in a batch of its own optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        other, own = self.optimizers()
        other.zero_grad()
        self.manual_backward(self.other(batch[1].float().unsqueeze(1)).square().mean())
        other.step()
        own.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self(batch[0]), batch[1]))
        own.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.other.parameters(), lr=0.1), super().configure_optimizers()]


def test_a_backward_pass_of_another_network_is_not_the_step(tmp_path: Path) -> None:
    callback = InfluenceCallback(anchors(), optimizer=1, **SETTINGS)
    trainer(callback, tmp_path).fit(Several(), loader())
    assert callback.monitor.steps > 0
    assert len(callback.scores()["influence"]) == len(images()[1])
    assert callback.monitor.error_budget().total >= 0, "also once it is closed"


def test_a_resumed_fit_ends_with_the_same_table(tmp_path: Path) -> None:
    def fit(epochs: int, **options: Any) -> tuple[InfluenceCallback, Module, Any]:
        callback, module = InfluenceCallback(anchors(), **SETTINGS), Module()
        with_checkpoints = trainer(callback, tmp_path, epochs)
        with_checkpoints.fit(module, loader(), **options)
        return callback, module, with_checkpoints

    whole, trained, _ = fit(4)
    *_, first = fit(2)
    first.save_checkpoint(tmp_path / "half.ckpt")
    rest, again, _ = fit(4, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert again.trained == 12
    assert_same(whole.monitor, rest.monitor)
    assert_same_weights(trained, again)


def test_a_checkpoint_before_training_keeps_what_was_loaded() -> None:
    callback = InfluenceCallback(anchors())
    assert callback.state_dict() == {}
    callback.load_state_dict({"monitor": {"version": 3}})
    assert callback.state_dict() == {"monitor": {"version": 3}}
    with pytest.raises(SettingError, match="there is no monitor yet"):
        callback.scores()


class Failing(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.trained == 5:
            raise ZeroDivisionError("on purpose")
        return loss


def test_after_an_error_no_hook_is_left(tmp_path: Path) -> None:
    callback, module = InfluenceCallback(anchors(), **SETTINGS), Failing()
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        trainer(callback, tmp_path).fit(module, loader())
    assert hooks_of(module) == 0
    assert_same(callback.monitor, plain_loop(network(), batches_of(2, *images())[:4]))
    trainer(callback, tmp_path).fit(Module(), loader())  # and it can be used again
    assert callback.monitor.steps == 12


class Skipping(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 2 else loss


def test_batches_that_are_skipped_are_not_scored(tmp_path: Path) -> None:
    callback = InfluenceCallback(anchors(), **SETTINGS)
    trainer(callback, tmp_path, 1).fit(Skipping(), loader())
    assert callback.monitor.steps == 5
    assert not np.isin(np.arange(16, 24), callback.scores()["index"]).any()


class TwoOptimizers(Manual):
    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return super().optimizers(use_pl_optimizer)[1]

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), sgd(self)]


def test_several_optimizers(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"has 2 optimizers; .* optimizer=0 to optimizer=1"):
        trainer(InfluenceCallback(anchors(), **SETTINGS), tmp_path).fit(TwoOptimizers(), loader())
    with pytest.raises(SettingError, match="optimizer=2 is out of range"):
        trainer(InfluenceCallback(anchors(), optimizer=2, **SETTINGS), tmp_path).fit(TwoOptimizers(), loader())
    callback = InfluenceCallback(anchors(), optimizer=1, **SETTINGS)
    trainer(callback, tmp_path).fit(TwoOptimizers(), loader())
    assert_same(callback.monitor, plain_loop(network(), batches_of(2, *images())))


def test_mistakes_are_explained(tmp_path: Path) -> None:
    module = Module()
    with pytest.raises(IndexingError, match=r"no index: expected a batch of \(x, y, index\), got 2 parts"):
        trainer(InfluenceCallback(anchors(), **SETTINGS), tmp_path).fit(module, loader(TensorDataset(*images())))
    assert hooks_of(module) == 0
    with pytest.raises(
        IndexingError, match=r"with an index at 'index', got a mapping with the keys pixel_values, labels"
    ):
        trainer(InfluenceCallback(anchors(), model="net"), tmp_path).fit(Named(), loader(Dicts(*images())))
    with pytest.raises(IndexingError, match="with an index at 7, got 3 parts"):
        trainer(InfluenceCallback(anchors(), index=7), tmp_path).fit(Module(), loader())
    with pytest.raises(SettingError, match="model='head' is not a submodule of Module; its submodules are net"):
        trainer(InfluenceCallback(anchors(), model="head"), tmp_path).fit(Module(), loader())
    with pytest.raises(SettingError, match="gate"):
        trainer(InfluenceCallback(anchors(), gate="none at all"), tmp_path).fit(Module(), loader())


def test_the_history_goes_to_the_loggers(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    callback = InfluenceCallback(anchors(), log=True, **SETTINGS)
    trainer(callback, tmp_path, logger=CSVLogger(tmp_path, name="", version="")).fit(Module(), loader())
    with (tmp_path / "metrics.csv").open() as handle:
        rows = [row for row in csv.DictReader(handle) if row.get("sgoif/tau")]
    assert [float(row["sgoif/tau"]) for row in rows] == [entry["tau"] for entry in callback.monitor.history]
    assert callback.monitor.observers == []


@pytest.mark.slow
def test_two_processes_score_as_one(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1] / 'src'}", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, tmp_path / "two.py", tmp_path], check=True, env=environment, timeout=280)
    x, y = images()
    order = torch.from_numpy(np.concatenate([np.load(tmp_path / f"order-{rank}.npy") for rank in (0, 1)], axis=1))
    assert order.shape == (6, 2 * BATCH)
    model = network()
    model[1] = nn.GroupNorm(2, 4)  # type: ignore[index]
    expected = plain_loop(model, [(x[i], y[i], i) for i in order]).scores()
    found = np.load(tmp_path / "table.npz")
    assert np.array_equal(found["index"], expected["index"])
    assert np.array_equal(found["n_observations"], expected["n_observations"])
    np.testing.assert_allclose(found["influence"], expected["influence"], rtol=1e-3, atol=1e-3)


TWO = """
import sys
from pathlib import Path

import numpy as np
import torch
from test_lightning import SETTINGS, InfluenceCallback, Module, anchors, loader, trainer
from torch import nn

FOLDER = Path(sys.argv[1])


class Saving(InfluenceCallback):
    def on_train_batch_start(self, trainer, module, batch, number):
        self.order = [*getattr(self, "order", []), batch[2].tolist()]
        super().on_train_batch_start(trainer, module, batch, number)

    def on_train_end(self, trainer, module):
        super().on_train_end(trainer, module)
        assert self.monitor.communicator.size == 2
        table = self.scores()
        np.save(FOLDER / f"order-{trainer.global_rank}.npy", self.order)
        if trainer.global_rank == 0:
            np.savez(FOLDER / "table.npz", **{n: table[n] for n in ("index", "influence", "n_observations")})


class Alike(Module):
    # Statistics of single examples: two ranks compute what one would.
    def __init__(self):
        super().__init__()
        self.net[1] = nn.GroupNorm(2, 4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer(Saving(anchors(), **SETTINGS), FOLDER, devices=2, strategy="ddp_spawn").fit(Alike(), loader())
"""
