"""Images on their way to the network, against Pillow and against the audit's own preparation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sentinel_cases import write

from sgoif.audit.batches import Normalisation
from sgoif.commands.image_batches import Unreadable, batches, in_channels, preparation_for
from sgoif.commands.settings import ModelSettings
from sgoif.images import open_images, prepare


def test_channels_are_repeated_or_weighed_as_pillow_does() -> None:
    random = np.random.default_rng(0)
    grey = random.integers(256, size=(1, 5, 5), dtype=np.uint8)
    assert (in_channels(grey, 3) == grey).all()
    assert in_channels(grey, 1) is grey
    colour = random.integers(256, size=(3, 5, 5), dtype=np.uint8)
    pillow = np.asarray(Image.fromarray(np.ascontiguousarray(colour.transpose(1, 2, 0))).convert("L"))
    assert np.abs(in_channels(colour, 1)[0].astype(int) - pillow).max() <= 1


@pytest.mark.parametrize("shape", [(40, 30), (30, 70, 3)])
def test_images_are_prepared_as_for_an_audit(tmp_path: Path, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    for number in range(12):
        image = random.integers(256, size=shape, dtype=np.uint8)
        write(tmp_path / "data" / f"class{number % 2}" / f"{number}.png", image)
    (tmp_path / "data" / "class0" / "broken.png").write_bytes(b"no image")
    collection = open_images(tmp_path / "data")
    pixels = prepare(collection, tmp_path / "cache")
    got = preparation_for(collection.store, ModelSettings())
    assert (got.size, got.channels) == (pixels.size, pixels.channels)
    assert got.normalise == Normalisation.of(pixels.array)
    said: list[str] = []
    unreadable = Unreadable(said.append)
    found = list(batches(collection.store, got, 5, lambda n, reason: unreadable(collection.names[n], reason)))
    assert [len(batch.numbers) for batch in found] == [5, 5, 2]
    assert [collection.names[n] for batch in found for n in batch.numbers] == pixels.names
    whole = torch.cat([batch.images for batch in found])
    assert torch.equal(whole, got.normalise(torch.from_numpy(np.array(pixels.array))))
    assert said == ["left out 'class0/broken.png': not an image in a known format"]


def test_many_unreadable_images_are_counted_not_listed() -> None:
    said: list[str] = []
    unreadable = Unreadable(said.append)
    for number in range(20):
        unreadable(str(number), "damaged")
    unreadable.summarise()
    assert len(said) == 6
    assert said[-1] == "left out 15 more that could not be read"
