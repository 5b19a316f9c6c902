"""The same features by Ray Data: tasks read shards, actors hold a network each, Parquet files are the end of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from sgoif.errors import MissingExtraError
from sgoif.images.errors import make_writable
from sgoif.images.sources.tar_samples import Sample, samples
from sgoif.sharded.addresses import ShardError, addresses_of, name_of, opened
from sgoif.sharded.extraction import Looker, batches
from sgoif.sharded.feature_files import FeatureFolder, pyarrow_for_shards

READ_AT_ONCE = 128
"""Samples that a task hands on at a time."""


def ray_features(
    shards: Sequence[str], out: Path, backbone: str = "lite0", size: int | None = None, actors: int = 1, gpus: float = 0
) -> None:
    """Write features of shards, as `extract_shards` does, on the Ray cluster that this process is connected to.

    Args:
        shards: as for `extract_shards`.
        out: an empty folder that all machines see.
        backbone: what `load_backbone` takes; every machine needs its package.
        size: pixels a side; the network's own where not given.
        actors: how many copies of the network work at a time.
        gpus: of each.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "ray_features") from error
    pyarrow_for_shards("Writing features")
    addresses = addresses_of(shards)
    make_writable(out)
    if any(out.iterdir()):
        raise ShardError(f"{out} is not empty; Ray writes all features anew, so give it a folder of their own")
    FeatureFolder(out).claim(Looker(backbone, size, torch.device("cpu")).identity)
    rows = ray.data.from_items([{"address": address} for address in addresses], override_num_blocks=len(addresses))
    read = rows.map_batches(_read, batch_size=1)
    seen = read.map_batches(
        _Actor,
        fn_constructor_args=(backbone, size, gpus > 0),
        batch_format="pyarrow",
        batch_size=READ_AT_ONCE,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_gpus=gpus or None,
    )
    seen.write_parquet(str(out.absolute()))


def _read(batch: dict[str, Any]) -> Iterator[Any]:
    """The samples of a shard as tables."""
    arrow = pyarrow_for_shards("Reading shards")
    texts = ("shard", "key", "label", "problem")
    schema = arrow.schema([*((name, arrow.string()) for name in texts), ("image", arrow.binary())])
    for address in batch["address"].tolist():
        with opened(address) as file:
            for some in batches(samples(file), READ_AT_ONCE):
                shard = name_of(address)
                found = [{**vars(sample), "shard": shard} for sample in some]
                yield arrow.Table.from_pylist(found, schema=schema)


class _Actor:
    """A network that stays while tables come and go."""

    def __init__(self, backbone: str, size: int | None, on_gpu: bool) -> None:
        self._looker = Looker(backbone, size, torch.device("cuda" if on_gpu else "cpu"))

    def __call__(self, table: Any) -> Any:
        rows = table.to_pylist()
        batch = [Sample(row["key"], row["image"], row["label"], row["problem"]) for row in rows]
        return self._looker.table([row["shard"] for row in rows], batch, self._looker.begin(batch))
