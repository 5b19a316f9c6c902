"""Image sets in many tar files, on many machines: features a shard at a time, labels judged a part at a time."""

from sgoif.sharded.extraction import Extracted, extract_shards
from sgoif.sharded.judging import Judged, judge_features
from sgoif.sharded.ray_pipeline import ray_features

__all__ = ["Extracted", "Judged", "extract_shards", "judge_features", "ray_features"]
