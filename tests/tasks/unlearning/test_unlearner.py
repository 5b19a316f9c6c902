"""The unlearner: requests, decisions, removals, checks, and what lives on from one week to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset
from unlearning_cases import L2, blobs, kinds, make, others, slow_optimum, small

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.errors import LayerError, SettingError
from sgoif.tasks import Limits, Unlearner
from sgoif.tasks.unlearning.errors import LogError, RequestError
from sgoif.tasks.unlearning.log import AuditLog, read_log, verify_log

KEY = bytes(range(32))


class TestWork:
    def test_from_a_request_to_a_checked_removal(self, place: Path) -> None:
        unlearner = make()
        star = slow_optimum(unlearner.fitted.data, L2, others(80, torch.tensor([3, 40, 41])))
        first = unlearner.request("img/3.png", reason="asked by mail")
        second = unlearner.request(["img/40.png", "img/41.png"])
        assert (first.number, second.number, second.ids) == (1, 2, ("img/40.png", "img/41.png"))
        assert [decision.number for decision in unlearner.pending()] in ([1, 2], [2, 1])
        assert len(unlearner) == 80

        removal = unlearner.remove()
        assert removal.holds
        assert removal.requests == (1, 2)
        assert len(unlearner) == 77
        assert unlearner.pending() == []
        torch.testing.assert_close(unlearner.fitted.w, star, rtol=1e-4, atol=1e-6)
        assert float((unlearner.fitted.w - star).norm()) <= removal.certificate.bound + 1e-7

        check = unlearner.check()
        assert check.holds
        assert check.closed is not None
        assert check.closed > 0.99
        assert check.differing == 0
        assert kinds() == ["opened", "request", "decision", "request", "decision", "removal", "check"]
        assert verify_log("log.jsonl").head == unlearner.last_hash

    def test_the_decision_tells_the_effect_of_training_again(self, place: Path) -> None:
        unlearner = make(log=None)
        rows = torch.tensor([0, 1, 2, 3])
        decision = unlearner.request([f"img/{row}.png" for row in rows.tolist()])
        star = slow_optimum(unlearner.fitted.data, L2, others(80, rows))
        held = unlearner.queries.data
        real = [float(nn.functional.cross_entropy(held.logits(w), held.labels)) for w in (unlearner.fitted.w, star)]
        effect = decision.effect
        assert effect.loss == pytest.approx(real[0])
        assert effect.low - 1e-7 <= real[1] - real[0] <= effect.high + 1e-7  # L-BFGS stops a little earlier
        assert effect.high - effect.low < 1e-3 * abs(effect.change) + 1e-7
        flips = int((held.logits(unlearner.fitted.w).argmax(1) != held.logits(star).argmax(1)).sum())
        assert effect.flips == flips
        found = unlearner.effect([f"img/{row}.png" for row in rows.tolist()])
        assert float(found.change.mean()) == pytest.approx(effect.change)

    def test_removals_build_on_each_other(self, place: Path) -> None:
        unlearner = make()
        data = unlearner.fitted.data
        for name in ("img/9.png", "img/1.png", "img/30.png"):
            unlearner.request(name)
            unlearner.remove()
        star = slow_optimum(data, L2, others(80, torch.tensor([9, 1, 30])))
        torch.testing.assert_close(unlearner.fitted.w, star, rtol=1e-4, atol=1e-6)

    def test_some_requests_can_be_carried_out_and_the_others_are_judged_again(self, place: Path) -> None:
        unlearner = make()
        for name in ("img/9.png", "img/1.png"):
            unlearner.request(name)
        before = unlearner.requests[0].decision
        unlearner.remove(2)
        assert [request.removed for request in unlearner.requests] == [False, True]
        assert before is not None
        assert unlearner.pending()[0].effect.loss != before.effect.loss
        assert kinds()[-2:] == ["removal", "decision"]
        with pytest.raises(RequestError, match="no pending request 2, 5; pending: 1"):
            unlearner.remove([2, 5])
        unlearner.remove([1])
        with pytest.raises(RequestError, match="nothing to remove"):
            unlearner.remove()

    def test_large_and_small_requests(self, place: Path) -> None:
        limits = Limits(share=0.05, class_share=0.9, loss=10, flips=100)
        unlearner = make(limits=limits)
        small, large = unlearner.request("img/0.png"), unlearner.request([f"img/{n}.png" for n in range(1, 9)])
        assert (small.when, large.when, large.now) == ("can wait", "now", True)
        assert large.urgency == pytest.approx(8 / 80 / 0.05)
        assert [decision.number for decision in unlearner.pending()] == [2, 1]
        later = unlearner.request("img/20.png")
        assert (later.when, later.urgency) == ("now", 1.0)
        assert "since the network was trained it makes 10 examples of 80" in later.reasons[0]
        unlearner.remove()
        assert [decision.number for decision in unlearner.outstanding()] == [2, 3]

    def test_influence_ranks_examples_as_their_effects_do(self, place: Path) -> None:
        unlearner = make(log=None)
        scores = unlearner.influence()
        order = scores.abs().argsort(descending=True)
        top, low = (
            abs(float(unlearner.effect(unlearner.ids[int(row)]).change.mean())) for row in (order[0], order[-1])
        )
        assert top > 10 * low

    def test_the_log_reads_like_prose_and_holds_the_evidence(self, place: Path) -> None:
        unlearner = make()
        unlearner.request("img/3.png", reason='she said "no"\n')
        unlearner.remove()
        opened, request, decision, removal = read_log("log.jsonl")
        assert opened.evidence["limits"]["flips"] == 0
        assert opened.evidence["certificate"]["bound"] < 1e-5
        assert request.evidence == {"request": 1, "ids": ["img/3.png"], "reason": 'she said "no"\n'}
        assert "Reason given: 'she said \"no\"\\u000a'" in request.summary
        assert decision.evidence["decision"]["effect"]["queries"] == 40
        assert "Certificate: the head is within" in removal.summary
        assert removal.evidence["removal"]["head"] == unlearner.head_digest()
        assert removal.evidence["digests"]["data"] == unlearner.data_digest()

    def test_without_held_out_examples_training_ones_judge_and_leave_with_a_removal(self, place: Path) -> None:
        features, labels = blobs(60)
        unlearner = Unlearner.from_features(features, labels, log="log.jsonl")
        assert (unlearner.queries.kind, len(unlearner.queries)) == ("training", 60)
        decision = unlearner.request([0, 1])
        assert decision.effect.queries == 58
        assert "training loss" in " ".join(decision.reasons) or "training ones" in " ".join(decision.reasons)
        unlearner.remove()
        assert len(unlearner.queries) == 58


class TestRefused:
    @pytest.mark.parametrize(
        ("ids", "problem"),
        [
            ("nobody", "no example is called 'nobody'; the 79 known ones are called like 'img/0.png'"),
            (["img/1.png", "x\ny"], r"no example is called 'x\u000ay'"),
            (["img/1.png", "img/1.png"], "names 'img/1.png' more than once"),
            ([], "names no example"),
            ([f"img/{n}.png" for n in range(80) if n not in (5, 6)], "every example"),
            (["img/5.png", "img/7.png"], "'img/5.png' was asked for before, in request 1, which is pending"),
            ("img/6.png", "'img/6.png' was asked for before, in request 2, which was carried out"),
        ],
    )
    def test_a_request_that_cannot_be(self, place: Path, ids: Any, problem: str) -> None:
        unlearner = make()
        for name in ("img/5.png", "img/6.png"):
            unlearner.request(name)
        unlearner.remove(2)
        with pytest.raises(RequestError, match="the request was refused") as caught:
            unlearner.request(ids, reason="a letter")
        assert problem in str(caught.value)
        entry = read_log("log.jsonl")[-1]
        assert (entry.kind, entry.evidence["reason"]) == ("refused", "a letter")
        assert entry.evidence["count"] == (1 if isinstance(ids, str) else len(ids))
        assert problem in entry.summary
        assert verify_log("log.jsonl").head == unlearner.last_hash
        assert len(unlearner.requests) == 2

    def test_a_tampered_log_stops_everything(self, place: Path) -> None:
        unlearner = make()
        unlearner.request("img/1.png")
        path = place / "log.jsonl"
        path.write_text(path.read_text().replace("img/1.png", "img/2.png"))
        for act in (lambda: unlearner.request("img/3.png"), unlearner.remove, unlearner.check):
            with pytest.raises(LogError, match=r"line 2 .* was changed"):
                act()
        assert len(unlearner) == 80
        assert len(unlearner.requests) == 1

    def test_what_cannot_be_logged_is_not_done(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unlearner = make()
        unlearner.request("img/1.png")
        w, ids = unlearner.fitted.w.clone(), list(unlearner.ids)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(AuditLog, "_append", full)
            with pytest.raises(OSError, match="No space"):
                unlearner.remove()
        assert torch.equal(unlearner.fitted.w, w)
        assert (unlearner.ids, unlearner.moved, len(unlearner.pending())) == (ids, None, 1)
        assert unlearner.remove().requests == (1,)
        assert kinds()[-1] == "removal"

    def test_a_log_whose_end_was_cut_off(self, place: Path) -> None:
        unlearner = make()
        unlearner.request("img/1.png")
        path = place / "log.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
        with pytest.raises(LogError, match="not where it was left"):
            unlearner.request("img/2.png")

    def test_an_existing_log_is_not_touched(self, place: Path) -> None:
        make()
        before = (place / "log.jsonl").read_bytes()
        with pytest.raises(LogError, match=r"exists. Load the state"):
            make()
        with pytest.raises(LogError, match=r"no log .* to go on with"):
            make(log="other.jsonl", continue_log=True)
        assert (place / "log.jsonl").read_bytes() == before

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"ids": ["a"] * 20}, "ids must be unique"),
            ({"ids": ["a"]}, "1 ids were given for 20 examples"),
            ({"ids": [1.5] * 20}, "ids must be text or whole numbers"),
            ({"labels": torch.arange(20)[:5]}, "20 examples do not go with 5 labels"),
            ({"labels": torch.rand(20)}, "class numbers"),
            ({"labels": torch.full((20,), -1)}, "labels run from -1"),
            ({"classes": 2}, "but there are 2 classes"),
            ({"class_names": ["a", "b", "c", "d"], "classes": 3}, "4 class names were given for 3 classes"),
            ({"features": torch.zeros(20, 4, dtype=torch.int64)}, "floating numbers"),
            ({"features": torch.full((20, 4), float("inf"))}, "infinite or NaN"),
            ({"features": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}, "empty"),
            ({"held_out": (torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))}, "too few"),
            ({"held_out": (torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))}, "held-out examples have 5 features"),
            ({"l2": 0.0}, "l2=0.0"),
            ({"l2": -1.0}, "positive number"),
            ({"l2": float("nan")}, "positive number"),
            ({"l2": float("inf")}, "positive number"),
            ({"steps": 0}, "at least one step"),
            ({"limits": {"flips": 1}}, "expected Limits"),
            ({"nonsense": 1}, "unknown setting 'nonsense'"),
        ],
    )
    def test_bad_input_is_refused_before_anything_is_written(
        self, place: Path, options: dict[str, Any], problem: str
    ) -> None:
        features, labels = blobs(20)
        given = {"features": features, "labels": labels, **options}
        with pytest.raises(SettingError, match=problem):
            Unlearner.from_features(given.pop("features"), given.pop("labels"), given.pop("ids", None), **given)
        assert list(place.iterdir()) == []


class TestModels:
    def data(self, count: int = 60) -> TensorDataset:
        features, labels = blobs(count)
        return TensorDataset(features.float(), labels)

    @pytest.mark.parametrize("options", [{}, {"scale": 0.125}, {"bias": False}, {"scale": -1.0}, {"classes": 1}])
    def test_the_head_of_a_model(self, place: Path, options: dict[str, Any]) -> None:
        model, data = small(**options), self.data()
        if options.get("scale") == -1.0:
            with pytest.raises(LayerError, match="nor a multiple"):
                Unlearner.fit(model, data, log=None)
            return
        if options.get("classes") == 1:
            data.tensors = (data.tensors[0], data.tensors[1] % 2)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        unlearner = Unlearner.fit(model, data, log=None, l2=1e-3)
        assert model.training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        unlearner.apply_to(model)
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        assert changed == [
            f"head.{part}" for part in ("weight", "bias") if part == "weight" or model.head.bias is not None
        ]

        # With its new head the model is at the optimum of its own loss plus weight decay.
        model.eval()
        logits = model(data.tensors[0])
        head = list(model.head.parameters())
        if options.get("classes") == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], data.tensors[1].float())
            decay = 0.25 * 1e-3  # a single output is shared out between two classes
        else:
            loss, decay = nn.functional.cross_entropy(logits, data.tensors[1]), 0.5 * 1e-3
        loss = loss + decay * sum(part.square().sum() for part in head)
        assert max(float(part.abs().max()) for part in torch.autograd.grad(loss, head)) < 1e-5

    def test_all_ways_to_give_the_data_mean_the_same(self, place: Path) -> None:
        model, data = small(), self.data()
        expected = Unlearner.fit(model, data, log=None)
        x, y = data.tensors
        names = [str(n) for n in range(60)]
        dicts = [{"x": x[n], "label": y[n]} for n in range(60)]

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.inner(x)
                return out

        ways: list[tuple[nn.Module, Any]] = [
            (model, DataLoader(data, batch_size=7, shuffle=True)),
            (model, DataLoader(indexed(data), batch_size=7, shuffle=True)),
            (model, (x, y)),
            (model, [(x[:20], y[:20]), (x[20:], y[20:])]),
            (model, DataLoader([(x[:20], y[:20]), (x[20:], y[20:])], batch_size=None)),  # type: ignore[arg-type]
            (model, [(x[:20], y[:20], torch.arange(20)), (x[20:], y[20:], names[20:])]),
            (Wrapped(), DataLoader(dicts, batch_size=11)),  # type: ignore[arg-type]
        ]
        for which, given in ways:
            found = Unlearner.fit(which, given, log=None)
            assert found.ids == names
            torch.testing.assert_close(found.fitted.w, expected.fitted.w, rtol=1e-5, atol=1e-6)

    def test_parts_of_a_data_set_keep_their_indices(self, place: Path) -> None:
        train, held = split_holdout(self.data(), share=0.2)
        for given in (train, indexed(train), DataLoader(train, batch_size=9), DataLoader(indexed(train), batch_size=9)):
            unlearner = Unlearner.fit(small(), given, held_out=held, log=None)
            assert unlearner.ids == [str(index) for index in train.indices]
            assert len(unlearner.queries) == len(held)
        named = Unlearner.fit(small(), train, ids=[f"p{n}" for n in range(len(train))], log=None)
        assert named.ids[0] == "p0"

    def test_what_a_loader_draws_from_goes_by_its_indices(self, place: Path) -> None:
        data, rows = self.data(), list(range(10, 40))
        chosen = Subset(data, rows)
        for given in (
            chosen,
            indexed(chosen),
            Subset(indexed(data), rows),
            DataLoader(chosen, batch_size=9),
            DataLoader(indexed(chosen), batch_size=9),
            DataLoader(data, batch_size=9, sampler=SubsetRandomSampler(rows)),
            DataLoader(indexed(data), batch_size=9, sampler=SubsetRandomSampler(rows)),
            DataLoader(Subset(data, range(5, 60)), batch_size=9, sampler=SubsetRandomSampler(range(5, 35))),
        ):
            held_out = DataLoader(data, batch_size=9, sampler=SubsetRandomSampler(range(40, 60)))
            unlearner = Unlearner.fit(small(), given, held_out=held_out, log=None)
            assert unlearner.ids == [str(row) for row in rows]
            assert len(unlearner.queries) == 20

    def test_labels_that_are_no_classes_are_refused(self, place: Path) -> None:
        with pytest.raises(SettingError, match="class numbers"):
            Unlearner.from_features(torch.randn(30, 4), torch.arange(30) + 10**9, log=None)

    def test_random_states_are_left_alone(self, place: Path) -> None:
        torch.manual_seed(5)
        state, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[union-attr]  # noqa: NPY002
        unlearner = Unlearner.fit(small(), DataLoader(self.data(), batch_size=8, shuffle=True), log=None)
        unlearner.request(3)
        unlearner.remove()
        unlearner.check()
        assert torch.equal(torch.get_rng_state(), state)
        assert np.array_equal(np.random.get_state()[1], numbers)  # type: ignore[index]  # noqa: NPY002

    def test_from_a_monitor(self, place: Path) -> None:
        train, held = split_holdout(self.data(80), share=0.3)
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with InfluenceMonitor(model, optimizer, held) as monitor:
            for x, y, index in DataLoader(indexed(train), batch_size=16):
                with monitor.step(index):
                    nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        unlearner = Unlearner.from_monitor(monitor, train, log="log.jsonl")
        other = Unlearner.fit(model, train, held_out=held, log=None)
        assert unlearner.ids == [str(index) for index in train.indices]
        torch.testing.assert_close(unlearner.fitted.w, other.fitted.w)
        assert len(unlearner.queries) == len(monitor.anchors)
        assert unlearner.request(unlearner.ids[0]).effect.queries == len(monitor.anchors)

    def test_models_without_such_a_head(self, place: Path) -> None:
        data = self.data()
        headless: list[tuple[nn.Module, str]] = [
            (nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), "nor a multiple"),
            (nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (2, 4)), nn.AvgPool1d(4), nn.Flatten()), "last layer"),
            (nn.Flatten(), "no parameters"),
        ]
        for model, problem in headless:
            with pytest.raises(LayerError, match=problem):
                Unlearner.fit(model, data, log=None)
        with pytest.raises(SettingError, match="not str"):
            Unlearner.fit(small(), "photos", log=None)
        with pytest.raises(SettingError, match="empty"):
            Unlearner.fit(small(), [], log=None)

    def test_a_head_does_not_go_into_another_model(self, place: Path) -> None:
        unlearner = Unlearner.fit(small(), self.data(), log=None)
        for other in (small(classes=4), small(bias=False), nn.Linear(6, 3)):
            with pytest.raises(LayerError, match=r"not the model that this head belongs to|unlike this head"):
                unlearner.apply_to(other)

    def test_writing_the_head_is_logged(self, place: Path) -> None:
        model = small()
        unlearner = Unlearner.fit(model, self.data(), log="log.jsonl")
        unlearner.apply_to(model)
        entry = read_log("log.jsonl")[-1]
        assert entry.kind == "applied"
        assert entry.evidence == {"head": unlearner.head_digest(), "layer": "head", "dtype": "torch.float32"}
