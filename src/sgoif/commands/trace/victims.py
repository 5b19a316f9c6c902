"""Images that a model answers wrongly, read from a folder, a file or an archive."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from sgoif.audit.progress import Progress
from sgoif.commands.image_batches import Preparation, Unreadable, batches
from sgoif.errors import SettingError
from sgoif.images import Collection, ImagesError, UnreadableImageError, open_unlabelled
from sgoif.images.pixels import thumbnail
from sgoif.images.text import few, shown


@dataclass(frozen=True)
class Victims:
    """Victims as the network takes them."""

    images: Tensor
    names: list[str]
    numbers: list[int]
    """Their places in the collection."""
    collection: Collection
    skipped: int

    def picture(self, position: int) -> bytes | None:
        """A thumbnail of one of them."""
        try:
            return thumbnail(self.collection.image(self.numbers[position]))
        except UnreadableImageError:  # it was there a moment ago
            return None


def open_victims(path: Path, prepare: Preparation, batch_size: int, show: Progress) -> Victims:
    """Read victims; files that cannot be read are left out and told."""
    collection = open_unlabelled(path)
    unreadable = Unreadable(show.say)
    for entry in collection.skipped:
        unreadable(entry.name, entry.reason)

    def skip(number: int, reason: str) -> None:
        unreadable(collection.names[number], reason)

    show.stage("looking at the victims", len(collection))
    numbers: list[int] = []
    parts: list[Tensor] = []
    for batch in batches(collection.store, prepare, batch_size, skip):
        numbers += batch.numbers
        parts.append(batch.images)
        show.advance(batch.numbers[-1] + 1, len(collection))
    unreadable.summarise()
    if not parts:
        first = unreadable.found[0]
        raise ImagesError(
            f"none of the victims in {shown(path)} can be read; the first, {shown(first.name)}: {first.reason}"
        )
    names = [collection.names[number] for number in numbers]
    return Victims(torch.cat(parts), names, numbers, collection, len(unreadable.found))


def wrong_label(name: str | None, class_names: list[str]) -> int | None:
    """The number of the class that `--label` names."""
    if name is None:
        return None
    if name in class_names:
        return class_names.index(name)
    near = get_close_matches(name, class_names, n=1)
    hint = f"did you mean {shown(near[0])}?" if near else f"there are {few(class_names, 10)}"
    raise SettingError(f"--label {shown(name)} is no class of the training images; {hint}")
