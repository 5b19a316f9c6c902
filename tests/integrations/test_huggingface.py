"""The Trainer callback against a plain loop, its checkpoints, and what it says about mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration_cases import (
    BATCH,
    CLASSES,
    SETTINGS,
    Dicts,
    assert_same,
    assert_same_weights,
    hooks_of,
    images,
    sgd,
)
from torch import nn
from torch.utils.data import Dataset, default_collate

from sgoif import InfluenceMonitor, indexed
from sgoif.core.score_table import ScoreTable
from sgoif.errors import IndexingError, SettingError

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
from sgoif.integrations.huggingface import STATE, InfluenceCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def vit() -> Any:
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 16, "intermediate_size": 16}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_dropout_prob": 0.0}
    config = transformers.ViTConfig(**sizes, **depth, attention_probs_dropout_prob=0.0, num_labels=CLASSES)
    return transformers.ViTForImageClassification(config)


def resnet() -> Any:
    torch.manual_seed(0)
    sizes = {"num_channels": 1, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=CLASSES))


def holdout() -> Dicts:
    return Dicts(*images(30, seed=1))


class Collator:
    """Writes down which batches the Trainer made."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        batch = default_collate(items)
        if "index" in batch:
            self.batches.append({key: value.clone() for key, value in batch.items()})
        return batch  # type: ignore[no-any-return]


def trainer(
    model: nn.Module, folder: Path, callback: Any = None, data: Dataset[Any] | None = None, **options: Any
) -> Any:
    given = {"num_train_epochs": 2, "save_strategy": "no", "report_to": "none", "logging_steps": 2} | options
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"remove_unused_columns": False, **given},
    )
    optimizer = sgd(model)
    return transformers.Trainer(
        model,
        arguments,
        data_collator=Collator(),
        train_dataset=data or indexed(Dicts(*images())),
        eval_dataset=Dicts(*images(16, seed=2)),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        callbacks=None if callback is None else [callback],
    )


def plain_loop(model: Any, batches: list[dict[str, Any]], accumulate: int = 1, accelerator: Any = None) -> Any:
    """What the Trainer does, by hand: a mean over the accumulated batches where the model's loss can give one."""
    optimizer = sgd(model)
    if accelerator is not None:
        model, optimizer = accelerator.prepare(model, optimizer)
    monitor = InfluenceMonitor(model, optimizer, holdout(), **SETTINGS)
    model.train()
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        items = sum(batch["labels"].ne(-100).sum() for batch in group)
        for batch in group:
            inputs = {key: value for key, value in batch.items() if key != "index"}
            with monitor.step(batch["index"]):
                model(**inputs, num_items_in_batch=items).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()
    monitor.close()
    return monitor


def test_the_health_of_the_run_is_logged_when_training_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = InfluenceCallback(anchors=holdout(), **SETTINGS)
    trainer(vit(), tmp_path, callback).train()
    (told,) = [entry for entry in caplog.records if entry.name.startswith("sgoif.")]
    assert told.levelname == "WARNING"
    assert "after 12 steps" in told.getMessage()
    assert str(callback.health()) in told.getMessage()


@pytest.mark.parametrize(("make", "accumulate"), [(vit, 1), (vit, 2), (resnet, 2)])
def test_the_table_is_that_of_a_plain_loop(tmp_path: Path, make: Any, accumulate: int) -> None:
    callback, model = InfluenceCallback(anchors=holdout(), **SETTINGS), make()
    running = trainer(model, tmp_path, callback, gradient_accumulation_steps=accumulate, eval_strategy="epoch")
    running.train()
    again = make()
    assert len(running.data_collator.batches) == 12
    assert_same(callback.monitor, plain_loop(again, running.data_collator.batches, accumulate))
    assert_same_weights(model, again)
    assert hooks_of(model) == 0
    assert np.array_equal(callback.scores()["index"], np.arange(48))
    assert len(callback.errors().table()) == 48
    assert sum("eval_loss" in entry for entry in running.state.log_history) == 2


CHECKPOINTING = [
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    for reentrant in (False, True)
]


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
def test_gradient_checkpointing_changes_no_score(tmp_path: Path, layers: str) -> None:
    tables = []
    for options in ({}, *CHECKPOINTING):
        callback, model = InfluenceCallback(holdout(), layers=layers, **SETTINGS), vit()
        trainer(model, tmp_path, callback, **options).train()
        assert model.is_gradient_checkpointing == bool(options)
        tables.append(callback.scores())
    for found in tables[1:]:
        assert_close(found, tables[0])


def test_a_frozen_body_with_gradient_checkpointing(tmp_path: Path) -> None:
    tables = []
    for options in ({}, *CHECKPOINTING):
        callback, model = InfluenceCallback(holdout(), **SETTINGS), vit()
        model.vit.requires_grad_(False)
        before = {name: weight.clone() for name, weight in model.vit.state_dict().items()}
        trainer(model, tmp_path, callback, **options).train()
        assert all(torch.equal(weight, before[name]) for name, weight in model.vit.state_dict().items())
        tables.append(callback.scores())
    for found in tables[1:]:
        assert_close(found, tables[0])


def assert_close(found: ScoreTable, expected: ScoreTable) -> None:
    for name in expected.columns:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(np.unique(expected["influence"])) > 24


@pytest.fixture
def same_kernels() -> Iterator[None]:
    """Mixed precision of a Trainer leaves oneDNN switched off, and later tests would compute with other last digits."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.set_flags(before)


@pytest.mark.usefixtures("same_kernels")
def test_in_mixed_precision(tmp_path: Path) -> None:
    from accelerate import Accelerator

    callback, model = InfluenceCallback(holdout(), **SETTINGS), vit()
    running = trainer(model, tmp_path, callback, bf16=True)
    running.train()
    again = vit()
    by_hand = plain_loop(
        again, running.data_collator.batches, accelerator=Accelerator(cpu=True, mixed_precision="bf16")
    )
    assert_same(callback.monitor, by_hand)
    assert_same_weights(model, again)


def test_a_resumed_training_ends_with_the_same_table(tmp_path: Path) -> None:
    # Not with a ViT: transformers 5.22 saves its layers under other names than those its Trainer loads again.
    whole, model = InfluenceCallback(holdout(), **SETTINGS), resnet()
    trainer(model, tmp_path, whole, save_strategy="steps", save_steps=4).train()
    rest, again = InfluenceCallback(holdout(), **SETTINGS), resnet()
    folder = tmp_path / "checkpoint-4"
    assert (folder / STATE).is_file()
    trainer(again, tmp_path, rest).train(resume_from_checkpoint=str(folder))
    assert_same_weights(model, again)
    assert_same(whole.monitor, rest.monitor)


def test_resuming_without_a_state_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(vit(), tmp_path, save_strategy="steps", save_steps=4, data=Dicts(*images())).train()
    callback = InfluenceCallback(holdout(), **SETTINGS)
    trainer(vit(), tmp_path, callback).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "scores start anew at step 4" in caplog.text
    assert callback.monitor.steps == 8


def test_attached_it_keeps_the_column_and_reports(tmp_path: Path) -> None:
    model = vit()
    running = trainer(model, tmp_path, remove_unused_columns=True)
    callback = InfluenceCallback(holdout(), log=True, **SETTINGS).attach(running)
    assert callback.attach(running) is callback
    running.train()
    assert running.callback_handler.callbacks.count(callback) == 1
    reported = [entry["sgoif/tau"] for entry in running.state.log_history if "sgoif/tau" in entry]
    assert reported == [entry["tau"] for entry in callback.monitor.history]
    assert sum("loss" in entry for entry in running.state.log_history) == 6  # every second step, as without it


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"would drop the column 'index'. Pass .*remove_unused_columns=False"):
        trainer(vit(), tmp_path, InfluenceCallback(holdout()), remove_unused_columns=True).train()
    with pytest.raises(SettingError, match=r"log=True needs the trainer: .*attach\(trainer\)"):
        trainer(vit(), tmp_path, InfluenceCallback(holdout(), log=True)).train()
    model, callback = vit(), InfluenceCallback(holdout(), **SETTINGS)
    with pytest.raises(SettingError, match="there is no monitor yet"):
        callback.scores()
    with pytest.raises(IndexingError, match="the batch has no 'index': its keys are pixel_values, labels"):
        trainer(model, tmp_path, callback, data=Dicts(*images())).train()
    assert hooks_of(model) == 0


def test_after_an_error_of_others_close_removes_the_hooks(tmp_path: Path) -> None:
    class Failing(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                raise ZeroDivisionError("on purpose")

    model, callback = vit(), InfluenceCallback(holdout(), **SETTINGS)
    running = trainer(model, tmp_path, gradient_accumulation_steps=2)
    running.add_callback(Failing())
    callback.attach(running)  # comes later than the one that fails, so that a step is open
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        running.train()
    assert hooks_of(model) > 0
    callback.close()
    assert hooks_of(model) == 0
    assert callback.monitor.steps == 2
    assert len(callback.scores()) == 16
