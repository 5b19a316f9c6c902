"""Readings without curvature: what anybody could hold an expected error against."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sgoif.core.losses import margin
from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.plain import plain_readings
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.study import make_study
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")


def test_readings_are_those_of_the_queries_averaged_over_checkpoints():
    training = training_for("digits", limit=100, epochs=5, batch_size=25)
    study = make_study(
        load("digits", limit=100), load("digits", train=False), training, 0.0, 60, torch.device("cpu"), seed=0
    )
    trained = train_once(study)
    last = replace(trained, checkpoints=trained.checkpoints[-1:])
    found = plain_readings(last)
    p = torch.from_numpy(study.answers(trained.model)).softmax(-1)
    np.testing.assert_allclose(found["doubt"], 1 - p.amax(1), atol=1e-5)
    np.testing.assert_allclose(found["entropy"], -(p * p.log()).sum(1), atol=1e-4)
    x, y = study.query_tensors()
    model = trained.model.eval()
    f = margin(model(x[57:58]), y[57:58])[0]
    assert found["near zero"][57] == pytest.approx(-abs(float(f.detach())), rel=1e-4)
    slopes = torch.autograd.grad(f, list(model.parameters()))
    squares = [float(slope.square().sum()) for slope in slopes]
    assert found["gradient"][57] == pytest.approx(sum(squares) ** 0.5, rel=1e-4)
    assert found["gradient of the head"][57] == pytest.approx(sum(squares[-2:]) ** 0.5, rel=1e-4)
    apart = [plain_readings(replace(trained, checkpoints=[one]))["gradient"] for one in trained.checkpoints]
    np.testing.assert_allclose(plain_readings(trained)["gradient"], np.mean(apart, 0), rtol=1e-5)
