"""The same features from a local Ray cluster of two actors, and the same table from them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backbone_cases import NAME, offer
from shard_cases import PART_ROWS, tables

from sgoif.sharded import judge_features, ray_features


def _offer_for_good() -> None:
    offer(pytest.MonkeyPatch())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    variables = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    setup = {"worker_process_setup_hook": _offer_for_good, "env_vars": variables}
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100_000_000, runtime_env=setup)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_actors_find_what_one_process_finds(alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    ray_features([alone.shards], tmp_path / "features", NAME, actors=2)
    expected, found = ({row["key"]: row for table in tables(folder).values() for row in table}
                       for folder in (alone.features, tmp_path / "features"))  # fmt: skip
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert {**found[key], "features": None} == {**row, "features": None}
        np.testing.assert_allclose(found[key]["features"], row["features"], rtol=2e-3, atol=1e-3)
    judge_features(tmp_path / "features", tmp_path / "found", part_rows=PART_ROWS)
    first, second = (next(rows for name, rows in tables(out).items()) for out in (alone.judged.out, tmp_path / "found"))
    p = {row["key"]: row["probability_wrong"] for row in first}
    assert {row["key"]: row["probability_wrong"] for row in second} == pytest.approx(p, abs=0.02)
    assert {row["key"] for row in second[:12]} == {row["key"] for row in first[:12]}
    with pytest.raises(ValueError, match="is not empty"):
        ray_features([alone.shards], tmp_path / "features", NAME)


def test_ray_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"'sgoif\[ray\]'"):
        ray_features(["a.tar"], tmp_path)
