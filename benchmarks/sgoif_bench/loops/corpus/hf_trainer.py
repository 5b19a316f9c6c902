"""The Trainer of transformers with a small ResNet from fresh weights: accumulation, warm-up, and its own AdamW."""

from __future__ import annotations

import tempfile
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from sgoif import indexed, split_holdout
from sgoif.integrations.huggingface import InfluenceCallback
from sgoif_bench.loops.study import Study, Trained


class AsDicts(Dataset[Any]):
    """Pairs as the dicts that models of transformers take."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> dict[str, Any]:
        image, label = self.pairs[i]
        return {"pixel_values": image, "labels": int(label)}


def train(study: Study) -> Trained:
    """Two batches of sixteen to a step."""
    set_seed(study.seed)
    train_set, holdout_set = split_holdout(AsDicts(study.dataset), share=0.1, seed=study.seed)
    config = ResNetConfig(
        num_channels=1, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10
    )
    model = ResNetForImageClassification(config)
    callback = InfluenceCallback(anchors=holdout_set)
    with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=study.epochs,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            dataloader_drop_last=True,
            learning_rate=5e-3,
            warmup_steps=10,
            weight_decay=0.01,
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=study.seed,
        )
        callbacks = [callback] if study.monitored else []
        trainer = Trainer(model, arguments, train_dataset=indexed(train_set), callbacks=callbacks)
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    def answer(images: Tensor) -> Tensor:
        logits: Tensor = model(pixel_values=images).logits
        return logits

    return Trained(model, callback.monitor if study.monitored else None, answer)
