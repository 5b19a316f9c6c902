"""Twenty thousand classes: what is kept of their confusion is small, and the same as of few classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from warm_processes import python

from sgoif.reports.page_data import Pairs
from sgoif.reports.page_json import class_pairs
from sgoif.tasks.labels.evidence import Evidence, Rows

AUDITED = """
import resource, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.reports import write_label_report
from sgoif.tasks import LabelErrors

classes, count = 20_000, 3000
torch.manual_seed(0)
labels = torch.arange(count) // 2 * 13
data = TensorDataset(torch.randn(count, 4), labels)
train, held_out = split_holdout(data, share=0.5)
model = nn.Linear(4, classes)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = InfluenceMonitor(model, optimizer, anchors=held_out, groups="one", size=count, refresh_every=4)
for x, y, index in DataLoader(indexed(train), batch_size=128):
    with monitor.step(index):
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
errors = LabelErrors(monitor)
errors.notes()
write_label_report(errors, sys.argv[1])
size = sum(value.numel() * value.element_size() for value in monitor.state_dict().values() if hasattr(value, "numel"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, size / 2**20)
"""


def test_a_report_on_twenty_thousand_classes_fits_into_two_gigabytes(tmp_path: Path) -> None:
    # With a full matrix of classes the monitor alone took seven.
    process = python(AUDITED, str(tmp_path / "report.html"))
    told, messages = process.communicate()
    assert process.returncode == 0, messages
    peak, state = map(float, told.split())
    assert peak < 2, f"{peak:.2f} GiB"
    assert state < 100, f"a state of {state:.0f} MiB"
    assert (tmp_path / "report.html").stat().st_size > 10_000


def examples(count: int, classes: int, slots: int = 8, seed: int = 0) -> Evidence:
    """Examples whose probabilities are remembered in slots, some of them empty, some labels outside of them."""
    random = np.random.default_rng(seed)
    given = random.integers(0, classes - 3, count)  # three classes nobody has
    found = np.stack([random.permutation(classes)[:slots] for _ in range(count)])
    right = random.random(count) < 0.8
    found[right, 0] = np.where((found[right] == given[right, None]).any(1), found[right, 0], given[right])
    p = random.dirichlet(np.r_[4.0, np.full(slots - 1, 0.3)], count)
    empty = random.random((count, slots)) < 0.2
    found, p = np.where(empty, -1, found), np.where(empty, 0, p)
    zero = np.zeros(count)
    rows = Rows(p.astype(np.float32), found.astype(np.int32))
    return Evidence(np.arange(count), given, zero, zero, zero, zero, rows, rows)


def test_the_likeliest_classes_are_read_off_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    some = examples(100, 20)
    p = some.probabilities(20)
    monkeypatch.setattr(Rows, "dense", lambda *_: pytest.fail("all classes were opened"))
    likeliest, probability = some.likeliest
    assert some.likeliest[0] is likeliest, "worked out once"
    assert np.array_equal(likeliest, p.argmax(1))
    assert np.array_equal(probability, p.max(1))


@pytest.mark.parametrize("classes", [12, 40])
def test_the_page_shows_of_pairs_what_a_matrix_holds(classes: int) -> None:
    random = np.random.default_rng(0)
    given, true = random.integers(0, classes, 4000), random.integers(0, classes, 4000)
    number = random.random(4000) ** 2
    number[5] = np.nan
    matrix = np.zeros((classes, classes))
    np.add.at(matrix, (given, true), np.nan_to_num(number))
    errors = matrix - np.diag(np.diag(matrix))
    found = class_pairs(Pairs(given, true, number), classes)
    top = np.argsort(-errors, axis=None, kind="stable")[:60]
    assert [[a, b] for a, b, _ in found["pairs"]] == np.transpose(np.divmod(top, classes)).tolist()
    assert np.allclose([count for _, _, count in found["pairs"]], errors.flat[top])
    most = np.argsort(-(errors.sum(0) + errors.sum(1)), kind="stable")[:12]
    assert found["matrix"]["classes"] == sorted(most.tolist())
    shown = found["matrix"]["classes"]
    assert np.allclose(found["matrix"]["cells"], matrix[np.ix_(shown, shown)])
