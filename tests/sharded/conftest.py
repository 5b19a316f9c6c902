"""Shards whose features were written and judged by one process, once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from backbone_cases import NAME, offer
from shard_cases import PART_ROWS, make_shards

from sgoif.sharded import Judged, extract_shards, judge_features


@dataclass(frozen=True)
class Alone:
    shards: str
    features: Path
    judged: Judged


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    root = tmp_path_factory.mktemp("alone")
    shards = make_shards(root / "shards")
    with pytest.MonkeyPatch.context() as patch:
        offer(patch)
        extract_shards([shards], root / "features", NAME)
    return Alone(shards, root / "features", judge_features(root / "features", root / "found", part_rows=PART_ROWS))
