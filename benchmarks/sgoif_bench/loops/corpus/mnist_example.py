"""PyTorch's first example: a small convolutional network, Adadelta from a rate of one, cut by 0.7 after each epoch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.study import Study, Trained


class Net(nn.Module):
    """Two convolutions, two linear layers, dropout between them; answers with logarithms of probabilities."""

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * ((side - 4) // 2) ** 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def train(study: Study) -> Trained:
    """Negative log likelihood of the logarithms."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=64, shuffle=True)

    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        model.train()
        for data, target, index in loader:
            optimizer.zero_grad()
            with monitor.step(index):
                output = model(data)
                loss = F.nll_loss(output, target)
                loss.backward()
            optimizer.step()
        scheduler.step()
    return Trained(model, monitor)
