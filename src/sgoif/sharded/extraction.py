"""Features of shards: each process takes its share of them and writes one Parquet file a shard.

Nothing is said between processes. A file is there whole or not at all, so a run that was cut short goes on with the
shards that have none yet, with any number of processes.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sgoif.backbones import Backbone, load_backbone
from sgoif.core.serialization import atomic_write
from sgoif.core.types import Array
from sgoif.errors import SettingError
from sgoif.features.extraction import SPARE, features_of, images_at_once, square_pixels
from sgoif.images.decode import LargeImageError, decode
from sgoif.images.errors import UnreadableImageError, make_writable, written
from sgoif.images.reading import LARGE
from sgoif.images.sources.tar_samples import ConnectionLost, Sample, samples
from sgoif.sharded.addresses import ShardError, addresses_of, name_of, opened
from sgoif.sharded.feature_files import FeatureFolder, as_table, gathered, is_complete, pyarrow_for_shards, schema_of

MOST_AT_ONCE = 1 << 28
"""Bytes of encoded images that wait together to be decoded."""


@dataclass
class Extracted:
    """What one process has done."""

    shards: int = 0
    """Shards of this process, those that were there before included."""
    before: int = 0
    """Of these, the ones that were there before."""
    images: int = 0
    """Images whose features were written now."""
    left_out: int = 0
    """Samples that were left out; the column `problem` says why."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Shards that could not be read, and why. The next run tries them again."""


def share() -> tuple[int, int]:
    """The number of this process, and how many torchrun or its like has started."""
    return int(os.environ.get("RANK", "0")), max(1, int(os.environ.get("WORLD_SIZE", "1")))


def extract_shards(
    shards: Sequence[str],
    out: Path,
    backbone: str = "lite0",
    size: int | None = None,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Extracted:
    """Write the features of the shards that are this process's; all of them where it is alone.

    Args:
        shards: WebDataset tar files, ranges such as `train-{000..999}.tar`, addresses that fsspec opens.
        out: a folder that all processes see.
        backbone: what `load_backbone` takes.
        size: pixels a side; the network's own where not given.
        device: where the network runs.
        progress: called after each shard with the number of shards done, and of all.
    """
    pyarrow = pyarrow_for_shards("Writing features")
    rank, world = share()
    everything = addresses_of(shards)
    looker = Looker(backbone, size, device)
    make_writable(out)
    with written(out):
        folder = FeatureFolder(out).claim(looker.identity)
    done, mine = Extracted(), everything[rank::world]
    for number, address in enumerate(mine):
        done.shards += 1
        target = folder.file_of(address)
        if is_complete(target):
            done.before += 1
            progress(number + 1, len(mine))
            continue
        try:
            with written(out):
                atomic_write(target, partial(looker.write, address))
            problems = pyarrow.parquet.read_table(target, columns=["problem"])["problem"]
            done.images += problems.null_count
            done.left_out += len(problems) - problems.null_count
        except (ShardError, ConnectionLost) as error:
            done.failed.append((address, str(error)))
        progress(number + 1, len(mine))
    return done


class Looker:
    """A network on a device: samples in, rows of a table out."""

    def __init__(self, backbone: str, size: int | None, device: torch.device) -> None:
        found = load_backbone(backbone)
        if found is None:
            raise SettingError(f"--backbone {backbone} names no network; give one, such as lite0, or leave it away")
        self.backbone: Backbone = found
        self.size, self.device = self.backbone.checked_size(size), device
        self.at_once = images_at_once(device)
        self._turn = threading.Lock()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(min(cores, 8), thread_name_prefix="images")

    @property
    def identity(self) -> dict[str, Any]:
        """What the features depend on beside the images."""
        found = self.backbone
        return {"backbone": found.name, "digest": found.digest, "size": self.size, "width": found.width}

    def write(self, address: str, file: Any) -> None:
        """Write the features of a shard to a Parquet file."""
        arrow, schema = pyarrow_for_shards("Writing features"), schema_of(self.backbone.width)
        with opened(address) as shard, arrow.parquet.ParquetWriter(file, schema) as to:
            for table in gathered(self.tables(samples(shard), name_of(address))):
                to.write_table(table)

    def tables(self, stream: Iterable[Sample], shard: str) -> Iterator[Any]:
        """Rows of a shard, a batch at a time; while the network looks at one, threads decode the next."""
        waiting: tuple[list[Sample], list[Future[Array | str]]] | None = None
        for batch in batches(stream, self.at_once):
            begun = batch, self.begin(batch)
            if waiting is not None:
                yield self.table([shard] * len(waiting[0]), *waiting)
            waiting = begun
        if waiting is not None:
            yield self.table([shard] * len(waiting[0]), *waiting)

    def begin(self, batch: Iterable[Sample]) -> list[Future[Array | str]]:
        """Have threads decode some samples: pixels, or why there are none."""
        return [self._pool.submit(self._decoded, sample) for sample in batch]

    def table(self, shards: Sequence[str], batch: Sequence[Sample], begun: Iterable[Future[Array | str]]) -> Any:
        """Rows of a table for samples that were begun."""
        seen = [each.result() for each in begun]
        pixels = [found for found in seen if not isinstance(found, str)]
        return as_table(
            shards,
            [sample.key for sample in batch],
            [sample.label for sample in batch],
            [found if isinstance(found, str) else None for found in seen],
            features_of(self.backbone, pixels, self.size, self.device) if pixels else None,
            self.backbone.width,
        )

    def _decoded(self, sample: Sample) -> Array | str:
        if sample.problem is not None:
            return sample.problem
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about what is dealt with here
            try:
                try:
                    image = decode(sample.image, LARGE, SPARE * self.size)
                except LargeImageError:  # one at a time: several would fill the memory
                    with self._turn:
                        image = decode(sample.image, None, SPARE * self.size)
                return square_pixels(image, self.size)
            except UnreadableImageError as error:
                return str(error)


def batches(stream: Iterable[Sample], most: int) -> Iterator[list[Sample]]:
    """So many samples at a time, or fewer where their files are large."""
    batch, size = list[Sample](), 0
    for sample in stream:
        batch.append(sample)
        size += len(sample.image)
        if len(batch) == most or size >= MOST_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
