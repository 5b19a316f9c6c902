"""Models, loaders and losses that people write and that were once read wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import BatchSampler, DataLoader, Sampler, SubsetRandomSampler, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.errors import AnchorError, LayerError, SettingError, StepError

X, Y = torch.randn(100, 8, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 3
HELD_OUT = X[80:], Y[80:]
INDEX = torch.arange(8)


def network(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, classes))


def watched(model: nn.Module, anchors: Any = HELD_OUT, **settings: Any) -> InfluenceMonitor:
    return InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=anchors, **settings)


# --- labels read off the gradient -----------------------------------------------------------------------------------


def test_a_single_logit_that_is_sure_beyond_rounding_keeps_its_label() -> None:
    model = network(1)
    nn.init.constant_(model[2].bias, 40.0)
    monitor = watched(model, (X[80:], (Y[80:] > 0).long()))
    with monitor.step(INDEX):
        F.binary_cross_entropy_with_logits(model(X[:8]).squeeze(1), torch.ones(8)).backward()
    table = monitor.scores()
    assert monitor.last is not None
    assert monitor.last.label.tolist() == [1] * 8
    assert (table["margin"] > 0.99).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_labels_of_examples_that_are_fitted_perfectly(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    labels = model(X[:8].to(dtype)).argmax(1)
    with torch.no_grad():
        model[2].weight.mul_(1e4)
        model[2].bias.mul_(1e4)
    monitor = watched(model, (X[80:].to(dtype), Y[80:]))
    with monitor.step(INDEX):
        F.cross_entropy(model(X[:8].to(dtype)), labels).backward()
    assert monitor.last is not None
    assert torch.equal(monitor.last.label, labels)


def test_log_probabilities_and_their_loss_are_scored_like_cross_entropy() -> None:
    """By the gradients of single examples, in a model that is nearly sure of its labels."""
    model = nn.Sequential(*network(), nn.LogSoftmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        F.nll_loss(model(X[:80]), Y[:80]).backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor = watched(model, temperature=None)
    with monitor.step(INDEX):
        F.nll_loss(model(X[:8]), Y[:8]).backward()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(functional_call(model, {**parameters, **weights}, (x[None],)), y[None])

    head = {name: parameters[name] for name in ("2.weight", "2.bias")}
    found = vmap(grad(loss), in_dims=(None, 0, 0))(head, X[:8], Y[:8])
    gradient = torch.cat([found["2.weight"], found["2.bias"].unsqueeze(2)], dim=2).flatten(1)
    assert monitor.last is not None
    assert monitor.directions.psi is not None
    expected = -(gradient @ monitor.directions.psi.sum(0))
    torch.testing.assert_close(monitor.last.influence.cpu(), expected, rtol=1e-3, atol=1e-7)


# --- which outputs are the logits -----------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.main, self.aux = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.main(hidden), self.aux(hidden)


@pytest.mark.parametrize("layers", ["all", ["main", "aux"], ["*"]])
def test_the_head_is_the_one_that_answers_though_another_runs_after_it(layers: Any) -> None:
    model = TwoHeads()
    monitor = watched(model, layers=layers)
    assert monitor.head.name == "main"
    with monitor.step(INDEX):
        answer, other = model(X[:8])
        (F.cross_entropy(answer, Y[:8]) + F.cross_entropy(other, Y[:8] % 2)).backward()
    assert monitor.last is not None
    assert monitor.last.groups is not None
    assert monitor.last.groups.abs().max() > 0
    with monitor.step(INDEX):  # the other head has no part in this loss
        F.cross_entropy(model(X[:8])[0], Y[:8]).backward()


class LossFirst(nn.Module):
    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.inner, self.alone = network(), alone

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.inner(x)
        if labels is None:
            return (logits,)
        loss = F.cross_entropy(logits, labels)
        return loss if self.alone else (loss, logits)


@pytest.mark.parametrize("alone", [True, False])
def test_a_model_that_answers_with_its_loss(alone: bool) -> None:
    plain, model = network(), LossFirst(alone)
    usual, monitor = watched(plain), watched(model)
    with usual.step(INDEX):
        F.cross_entropy(plain(X[:8]), Y[:8]).backward()
    with monitor.step(INDEX):
        found = model(X[:8], Y[:8])
        (found if alone else found[0]).backward()
    assert monitor.scores()["influence"].tolist() == usual.scores()["influence"].tolist()


def test_a_single_logit_without_an_axis_in_a_batch_of_one() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(1)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.inner(x).squeeze()
            return found

    model = Squeezed()
    monitor = watched(model, (X[80:], Y[80:].clamp(max=1)))
    with monitor.step(INDEX[:1]):
        F.binary_cross_entropy_with_logits(model(X[:1]), torch.tensor(1.0)).backward()
    assert monitor.last is not None
    assert monitor.last.label.tolist() == [1]


def test_logits_that_the_model_overwrites_are_the_ones_it_answers_with() -> None:
    class Tempered(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.inner, self.in_place = network(), in_place

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            return logits.div_(4) if self.in_place else logits / 4

    found = []
    for in_place in (False, True):
        model = Tempered(in_place)
        monitor = watched(model, temperature=None)
        with monitor.step(INDEX):
            F.cross_entropy(model(X[:8]), Y[:8]).backward()
        assert monitor.last is not None
        found.append(monitor.last.influence)
    torch.testing.assert_close(found[0], found[1])


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_normed_head_is_watched_after_a_pass_without_gradients() -> None:
    model = network()
    nn.utils.weight_norm(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(X[:2])
    assert InfluenceMonitor(model, optimizer, anchors=HELD_OUT).head.name == "2"


def test_a_transformer_encoder_with_a_padding_mask() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 16, padding_idx=0)
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1)
            self.head = nn.Linear(16, 3)

        def forward(self, words: Tensor) -> Tensor:
            found: Tensor = self.head(self.body(self.words(words), src_key_padding_mask=words == 0)[:, 0])
            return found

    words = torch.randint(1, 20, (28, 6), generator=torch.Generator().manual_seed(0))
    words[::2, 4:] = 0
    fast = torch.backends.mha.get_fastpath_enabled()
    model = Reader()
    monitor = watched(model, (words[8:], Y[:20]))
    with monitor.step(INDEX):
        F.cross_entropy(model(words[:8]), Y[:8]).backward()
    assert len(monitor.scores()["influence"]) == 8
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_the_error_budget_of_weights_that_are_computed_says_so() -> None:
    model = network()
    nn.utils.parametrizations.weight_norm(model[2])
    monitor = watched(model)
    with monitor.step(INDEX):
        F.cross_entropy(model(X[:8]), Y[:8]).backward()
    with pytest.raises(LayerError, match="computed from other parameters"):
        monitor.error_budget()


def test_the_error_budget_of_a_head_that_shares_its_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
            self.head.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(torch.tanh(self.first(x)))
            return found

    model = Tied()
    monitor = watched(model)
    with monitor.step(INDEX):
        F.cross_entropy(model(X[:8]), Y[:8]).backward()
    assert monitor.error_budget().total >= 0


def test_the_error_budget_of_a_model_with_several_inputs() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(8, 300), nn.Linear(300, 300)), nn.Linear(300, 3)

        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            found: Tensor = self.head(torch.relu(self.body(pair[0] + pair[1])))
            return found

    model = Both()
    held_out = [((X[k], X[k]), int(Y[k])) for k in range(80, 100)]
    monitor = watched(model, held_out, layers="all", projection=4)
    with monitor.step(INDEX):
        F.cross_entropy(model((X[:8], X[:8])), Y[:8]).backward()
    assert monitor.error_budget().projection > 0


# --- hold-outs --------------------------------------------------------------------------------------------------------


class Evens(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(0, 100, 2))

    def __len__(self) -> int:
        return 50


class Batched(Sampler[list[int]]):
    def __iter__(self) -> Any:
        return iter([[90, 91], [92, 95]])

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        ({"batch_size": 10, "sampler": SubsetRandomSampler(range(80, 100))}, list(range(80, 100))),
        ({"batch_size": 10, "sampler": Evens()}, list(range(0, 100, 2))),
        ({"batch_sampler": Batched()}, [90, 91, 92, 95]),
        ({"batch_sampler": BatchSampler(Evens(), 10, drop_last=False)}, list(range(0, 100, 2))),
        ({"batch_size": 10, "shuffle": True}, list(range(100))),
        ({"batch_size": 10}, list(range(100))),
    ],
)
def test_a_loader_holds_out_what_its_sampler_draws(loader: dict[str, Any], expected: list[int]) -> None:
    monitor = watched(network(), DataLoader(TensorDataset(X, torch.arange(100) % 3), **loader))
    bank = monitor.anchors
    assert len(bank) == len(expected)
    found = torch.stack([bank.dataset[k][0] for k in range(len(expected))])
    assert torch.equal(found, X[expected])


def test_an_indexed_hold_out_keeps_its_place_in_the_data() -> None:
    data = TensorDataset(X, Y)
    training, held_out = split_holdout(data, 0.2)
    expected = None
    for anchors in (held_out, indexed(held_out), DataLoader(indexed(held_out), batch_size=10)):
        model = network()
        monitor = watched(model, anchors)
        for x, y, index in DataLoader(indexed(training), batch_size=20):
            with monitor.step(index):
                F.cross_entropy(model(x), y).backward()
        found = monitor.scores()["index"].tolist()
        expected = expected or found
        assert found == expected
        assert len(found) == 100


def test_another_default_dtype_is_refused() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = network()
        with pytest.raises(SettingError, match="set_default_dtype"):
            watched(model, (X[80:].double(), Y[80:]))
    finally:
        torch.set_default_dtype(torch.float32)
    watched(model, (X[80:].double(), Y[80:]))


# --- a look afterwards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_closed_monitor_is_still_read(layers: str) -> None:
    model = network()
    monitor = watched(model, layers=layers)
    with monitor.step(INDEX):
        F.cross_entropy(model(X[:8]), Y[:8]).backward()
    before = monitor.error_budget()
    monitor.close()
    assert monitor.error_budget() == before
    assert monitor.most_harmed(X[:4], Y[:4]).shape == (4, 4)
    with pytest.raises(StepError, match="closed"):
        monitor.refresh()


def test_examples_that_are_asked_about_have_a_label_each() -> None:
    model = network()
    monitor = watched(model)
    with monitor.step(INDEX):
        F.cross_entropy(model(X[:8]), Y[:8]).backward()
    expected = monitor.expected_error(X[:4], Y[:4])
    assert torch.equal(monitor.expected_error(X[:4], Y[:4].tolist()), expected)  # type: ignore[arg-type]
    assert torch.equal(monitor.expected_error(X[:4], Y[:4].numpy()), expected)  # type: ignore[arg-type]
    for ask in (monitor.expected_error, monitor.most_harmed):
        with pytest.raises(StepError, match="one class number per example"):
            ask(X[:4], Y[:1])
        with pytest.raises(SettingError, match="no examples"):
            ask(X[:0], Y[:0])
    with pytest.raises(SettingError, match="count"):
        monitor.most_harmed(X[:4], Y[:4], -1)


@pytest.mark.parametrize("groups", [[float("nan")] * 20, torch.full((20,), torch.nan), [[1]] * 20])
def test_groups_without_a_name_are_refused(groups: Any) -> None:
    with pytest.raises(AnchorError, match="groups"):
        watched(network(), groups=groups)
