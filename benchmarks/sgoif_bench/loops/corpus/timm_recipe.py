"""timm's recipe in our own lines: mixup or CutMix, smoothed soft labels, layer-wise rates, a moving average."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.corpus.cifar_resnet import ResNet
from sgoif_bench.loops.corpus.mixing import cutmix_data, mixup_data
from sgoif_bench.loops.study import Study, Trained

SMOOTHING = 0.1


class ModelEma:
    """A copy of the model whose weights follow it slowly, faster at first."""

    def __init__(self, model: nn.Module, decay: float = 0.98) -> None:
        self.module, self.decay, self.updates = copy.deepcopy(model).eval(), decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """After every step of the optimizer."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for mine, new in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(decay * mine + (1 - decay) * new if mine.is_floating_point() else new)


def mixup_target(y: Tensor, other: Tensor, lam: float, classes: int = 10) -> Tensor:
    """Probabilities of all classes: both labels, smoothed."""

    def smooth(labels: Tensor) -> Tensor:
        return (1 - SMOOTHING) * F.one_hot(labels, classes).float() + SMOOTHING / classes

    return lam * smooth(y) + (1 - lam) * smooth(other)


def layer_groups(model: nn.Module, lr: float, layer_decay: float = 0.75) -> list[dict[str, object]]:
    """A group for every tensor: what comes earlier learns more slowly, norms and biases do not decay."""
    stages = [name for name, _ in model.named_children()]

    def scale(name: str) -> float:
        return layer_decay ** (len(stages) - 1 - stages.index(name.partition(".")[0]))

    return [
        {"params": [weight], "lr": lr * scale(name), "weight_decay": 0.05 if weight.dim() > 1 else 0.0}
        for name, weight in model.named_parameters()
    ]


def train(study: Study) -> Trained:
    """Soft-target cross-entropy; the moving average is what is used in the end."""
    torch.manual_seed(study.seed)
    np.random.seed(study.seed)  # noqa: NPY002
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True, drop_last=True)

    model = ResNet()
    optimizer = torch.optim.AdamW(layer_groups(model, lr=4e-3))
    steps = study.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (0.1 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    ema = ModelEma(model)
    monitor = study.monitor(model, optimizer, anchors=holdout_set, loss=nn.CrossEntropyLoss(label_smoothing=SMOOTHING))
    for _ in range(study.epochs):
        model.train()
        for images, labels, index in loader:
            mix = mixup_data if np.random.rand() < 0.5 else cutmix_data  # noqa: NPY002
            mixed, y, other, lam = mix(images, labels)
            target = mixup_target(y, other, lam)
            optimizer.zero_grad()
            with monitor.step(index, target=(y, other, lam)):
                loss = torch.sum(-target * F.log_softmax(model(mixed), dim=-1), dim=-1).mean()
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            ema.update(model)
    return Trained(model, monitor, answer=ema.module)
