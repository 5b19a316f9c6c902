"""Fine-tuning: checkpointed activations, frozen bodies, rates of their own, unfreezing on the way."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor
from sgoif.core.score_table import ScoreTable
from sgoif.errors import LayerError, StepError

CLASSES, COUNT, HELD, BATCH, RATE = 3, 48, 15, 11, 0.05
pytestmark = pytest.mark.filterwarnings("ignore")
Run = Callable[[Callable[..., Any], Tensor], Tensor]


def images() -> tuple[Tensor, Tensor]:
    y = torch.arange(COUNT) % CLASSES
    x = torch.randn(COUNT, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[torch.arange(COUNT), 0, y] += 1.5
    return x, y


X, Y = images()


def plainly(part: Callable[..., Any], x: Tensor) -> Any:
    return part(x)


def saved(part: Callable[..., Any], x: Tensor) -> Any:
    return checkpoint(part, x, use_reentrant=False)


def reentrant(part: Callable[..., Any], x: Tensor) -> Any:
    return checkpoint(part, x, use_reentrant=True)


def nested(outer: Run, inner: Run) -> Run:
    return lambda part, x: outer(lambda y: inner(part, y), x)


class Net(nn.Module):
    """A stem, two blocks that may be checkpointed, a head."""

    def __init__(self, run: Run = plainly, in_training: bool = False, first: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Dropout(0.2), nn.ReLU())
            for _ in range(2)
        )
        self.head = nn.Linear(4, CLASSES)
        self.run, self.in_training, self.first = run, in_training, first

    @property
    def body(self) -> list[nn.Parameter]:
        return [*self.stem.parameters(), *self.blocks.parameters()]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            checkpointed = number >= self.first and (self.training or not self.in_training)
            x = self.run(block, x) if checkpointed else block(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def monitored(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> InfluenceMonitor:
    held_out = TensorDataset(X[:HELD], Y[:HELD])
    return InfluenceMonitor(model, optimizer, held_out, **{"refresh_every": 3, **options})


def epoch(monitor: InfluenceMonitor, loss: Callable[[Tensor, Tensor], None] | None = None) -> None:
    for index in torch.arange(HELD, COUNT).split(BATCH):
        with monitor.step(index):
            if loss is None:
                nn.functional.cross_entropy(monitor.model(X[index]), Y[index]).backward()
            else:
                loss(X[index], Y[index])
        monitor.optimizer.step()
        monitor.optimizer.zero_grad()


def trained(model: nn.Module, **options: Any) -> ScoreTable:
    with monitored(model, sgd(model), **options) as monitor:
        for _ in range(3):
            epoch(monitor)
    return monitor.scores()


def assert_alike(found: ScoreTable, expected: ScoreTable) -> None:
    for name in expected.columns:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(np.unique(expected["influence"])) > COUNT // 2


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
@pytest.mark.parametrize("run", [saved, reentrant])
@pytest.mark.parametrize("in_training", [True, False], ids=["in training", "always"])
def test_checkpoints_change_no_score(run: Run, layers: str, in_training: bool) -> None:
    assert_alike(trained(Net(run, in_training), layers=layers), trained(Net(), layers=layers))


@pytest.mark.parametrize("run", [saved, reentrant])
def test_nor_where_steps_are_deferred(run: Run) -> None:
    late = {"layers": "all", "execution": "deferred", "body_share": 1.0}
    assert_alike(trained(Net(run), **late), trained(Net(), **late))


@pytest.mark.parametrize(
    "run",
    [nested(saved, saved), nested(reentrant, reentrant), nested(reentrant, saved)],
    ids=["saved", "reentrant", "mixed"],
)
def test_nor_does_a_checkpoint_in_a_checkpoint(run: Run) -> None:
    assert_alike(trained(Net(run), layers="all"), trained(Net(), layers="all"))


def test_an_anchor_sees_through_a_last_block_that_is_checkpointed() -> None:
    """The graph of a pass over anchors begins inside the block."""
    layers = ["blocks.1.0", "head"]
    assert_alike(trained(Net(reentrant, first=1), layers=layers), trained(Net(first=1), layers=layers))


class Whole(nn.Module):
    """A model that is checkpointed with its head."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.inner, self.run = Net(), run

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.run(self.inner, x.requires_grad_(self.training))
        return out


@pytest.mark.parametrize("run", [saved, reentrant])
@pytest.mark.parametrize("execution", ["eager", "deferred"])
def test_a_checkpointed_head_is_watched(run: Run, execution: str) -> None:
    assert_alike(trained(Whole(run), layers="all", execution=execution), trained(Whole(plainly), layers="all"))


@pytest.mark.parametrize("run", [saved, reentrant])
def test_two_backward_passes_through_a_checkpoint_add_up(run: Run) -> None:
    tables = []
    for way in (run, plainly):
        model = Net(way)
        with monitored(model, sgd(model), layers="all") as monitor:

            def twice(x: Tensor, y: Tensor, model: nn.Module = model) -> None:
                loss = nn.functional.cross_entropy(model(x), y)
                (0.25 * loss).backward(retain_graph=True)
                (0.75 * loss).backward()

            for _ in range(2):
                epoch(monitor, twice)
        tables.append(monitor.scores())
    assert_alike(*tables)


@pytest.mark.parametrize("run", [saved, reentrant])
def test_the_backward_pass_may_have_a_thread_of_its_own(run: Run) -> None:
    """As on a GPU, where checkpointed parts run again in the thread of the device."""
    model = Net(run)

    def threaded(x: Tensor, y: Tensor) -> None:
        backward = Thread(target=nn.functional.cross_entropy(model(x), y).backward)
        backward.start()
        backward.join()

    with monitored(model, sgd(model), layers="all") as monitor:
        for _ in range(3):
            epoch(monitor, threaded)
    assert_alike(monitor.scores(), trained(Net(), layers="all"))


@pytest.mark.parametrize("run", [saved, reentrant])
def test_two_forward_passes_are_still_refused(run: Run) -> None:
    model = Net(run)
    with monitored(model, sgd(model), layers="all") as monitor:  # noqa: SIM117
        with pytest.raises(LayerError, match="ran twice in one step"), monitor.step(torch.arange(HELD, COUNT)):
            (model(X[HELD:]) + model(X[HELD:])).sum().backward()


def test_torch_checkpoints_as_before_once_anchors_were_looked_at() -> None:
    before = torch_checkpoint.CheckpointFunction
    trained(Net(reentrant))
    assert torch_checkpoint.CheckpointFunction is before


# --- frozen bodies ----------------------------------------------------------------------------------------------------


class Features(nn.Module):
    """A network without its head."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.net.stem, *self.net.blocks):
            x = part(x)
        return x.mean((2, 3))


def frozen() -> Net:
    """Without dropout, so that features are the same each time."""
    model = Net().requires_grad_(False)
    for block in model.blocks:
        block[2].p = 0.0
    model.head.requires_grad_(True)
    return model


def test_a_frozen_body_scores_as_its_head_on_features() -> None:
    model = frozen()
    found = trained(model)
    fresh = frozen()
    with torch.no_grad():
        features = Features(fresh)(X)
    head = nn.Sequential(fresh.head)
    with InfluenceMonitor(head, sgd(head), TensorDataset(features[:HELD], Y[:HELD]), refresh_every=3) as monitor:
        for _ in range(3):
            epoch(monitor, lambda x, y: nn.functional.cross_entropy(head(Features(fresh)(x)), y).backward())
    assert_alike(found, monitor.scores())


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
def test_of_a_frozen_body_the_head_is_watched(layers: str) -> None:
    model = frozen()
    with monitored(model, sgd(model), layers=layers) as monitor:
        assert [layer.name for layer in monitor.layers] == ["head"]


def layered(model: Net, body: float) -> torch.optim.Optimizer:
    """Rates that differ by layer."""
    groups = [{"params": model.body, "lr": body}, {"params": model.head.parameters()}]
    return torch.optim.SGD(groups, lr=RATE, momentum=0.9)


def test_the_rate_of_the_head_is_the_one_that_counts() -> None:
    """A body that does not move is a frozen one, whatever group comes first in the optimizer."""
    tables, rates = [], []
    for still in (frozen(), frozen().requires_grad_(True)):
        with monitored(still, layered(still, 0.0), kappa=1.0) as monitor:
            for _ in range(3):
                epoch(monitor)
        tables.append(monitor.scores())
        rates.append([entry["beta"] for entry in monitor.history])
    assert_alike(*tables)
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-4)
    assert min(rates[0]) > 0


@pytest.mark.parametrize("run", [plainly, saved])
def test_the_body_can_be_unfrozen_on_the_way(run: Run) -> None:
    """As if it had never been frozen, but learned nothing until then."""
    tables = []
    for freeze in (True, False):
        model = frozen().requires_grad_(True)
        model.run = run
        head = {"params": list(model.head.parameters())}
        body = {"params": model.body, "lr": RATE / 10}
        optimizer = torch.optim.SGD([head], lr=RATE, momentum=0.9)
        for weight in model.body:
            weight.requires_grad_(not freeze)
        with monitored(model, optimizer) as monitor:
            epoch(monitor)
            for weight in model.body:
                weight.requires_grad_(True)
            optimizer.add_param_group(body)
            before = model.stem.weight.detach().clone()
            model.zero_grad()
            epoch(monitor)
            assert not torch.equal(model.stem.weight, before)
        tables.append(monitor.scores())
    assert_alike(*tables)


def test_watched_layers_may_be_frozen_on_the_way() -> None:
    """From then on they say nothing, as if their gradient were zero."""
    model = frozen().requires_grad_(True)
    with monitored(model, sgd(model), layers="all", body_share=1.0) as monitor:
        epoch(monitor)
        assert len(monitor.layers) > 1
        for weight in model.body:
            weight.requires_grad_(False)
        epoch(monitor)
        table = monitor.scores()
    assert np.isfinite(table["influence"]).all()
    assert (table["n_observations"][:-HELD] == 2).all()


def test_a_frozen_head_is_refused_with_what_to_do() -> None:
    model = Net().requires_grad_(False)
    with pytest.raises(LayerError, match=r"Unfreeze the head \(requires_grad_\(True\)\) or name layers"):
        monitored(model, torch.optim.SGD(model.parameters(), lr=RATE))


def test_a_network_frozen_on_the_way_is_refused_at_its_step() -> None:
    model = frozen()
    with monitored(model, sgd(model)) as monitor:
        epoch(monitor)
        model.requires_grad_(False)
        with pytest.raises(StepError, match="without a backward pass"), monitor.step(torch.arange(HELD, COUNT)):
            model(X[HELD:])
