"""Wrong labels among handwritten digits, found while a Hugging Face Trainer fits a small ResNet; under a minute.

    python examples/trainer_digits.py [--epochs N] [--seed N] [--folder FOLDER]

scikit-learn carries the digits and the network starts from random weights, so nothing is downloaded. A tenth of the
labels is made wrong first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from digits import hits, noisy_digits
from torch.utils.data import Dataset
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments, set_seed

from sgoif import indexed, split_holdout
from sgoif.integrations.huggingface import InfluenceCallback


class AsDicts(Dataset[Any]):
    """Pairs as the dicts that models of transformers take."""

    def __init__(self, pairs: Dataset[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)  # type: ignore[arg-type]

    def __getitem__(self, i: int) -> dict[str, Any]:
        image, label = self.pairs[i]
        return {"pixel_values": image, "labels": int(label)}


def main() -> float:
    """Train, look at what is found; returns the share of wrong labels at the top of the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/trainer"), help="where the Trainer may write")
    given = parser.parse_args()
    set_seed(given.seed)
    pairs, wrong = noisy_digits(given.seed)
    data = AsDicts(pairs)
    train_set, holdout = split_holdout(data, share=0.1, seed=given.seed)
    sizes = {"num_channels": 1, "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
    model = ResNetForImageClassification(ResNetConfig(**sizes, layer_type="basic", num_labels=10))
    arguments = TrainingArguments(
        output_dir=str(given.folder),
        num_train_epochs=given.epochs,
        per_device_train_batch_size=64,
        learning_rate=3e-3,
        remove_unused_columns=False,  # keeps the index in the batch
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    callback = InfluenceCallback(anchors=holdout)
    Trainer(model, arguments, train_dataset=indexed(train_set), callbacks=[callback]).train()
    return hits(callback.errors(dataset=data), wrong)


if __name__ == "__main__":
    main()
