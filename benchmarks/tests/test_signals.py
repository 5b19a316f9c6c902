"""Mean loss and margins over a run, against the same sums written out."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from sgoif_bench.signals import SignalTracker


def test_running_means_equal_the_written_out_ones() -> None:
    tracker = SignalTracker(5)
    labels = torch.tensor([0, 2, 1, 1])
    passes = [torch.randn(4, 3) for _ in range(3)]
    for logits in passes:
        tracker.update(logits, labels, torch.tensor([3, 0, 4, 1]))
    stacked = torch.stack(passes).double()
    suspicion = tracker.suspicion()
    for row, example in enumerate((3, 0, 4, 1)):
        label = int(labels[row])
        others = [k for k in range(3) if k != label]
        losses = [F.cross_entropy(z[row, None], labels[row, None]).item() for z in stacked]
        logit = [(z[row, label] - z[row, others].max()).item() for z in stacked]
        probability = [(p[row, label] - p[row, others].max()).item() for p in stacked.softmax(-1)]
        assert np.isclose(suspicion["loss"][example], np.mean(losses), atol=1e-6)
        assert np.isclose(suspicion["margin"][example], -np.mean(logit), atol=1e-6)
        assert np.isclose(suspicion["prob_margin"][example], -np.mean(probability), atol=1e-6)
    assert all(values[2] == -np.inf for values in suspicion.values())


def test_half_precision_logits_are_averaged_in_full() -> None:
    tracker = SignalTracker(1)
    for _ in range(1000):
        tracker.update(torch.tensor([[0.1, 0.0]], dtype=torch.bfloat16), torch.tensor([0]), torch.tensor([0]))
    expected = -float(torch.tensor(0.1, dtype=torch.bfloat16))
    assert np.isclose(tracker.suspicion()["margin"][0], expected, atol=1e-6)
