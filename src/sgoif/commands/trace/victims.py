"""Images that a model answers wrongly, read from a folder, a file or an archive."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from sgoif.audit.progress import Progress
from sgoif.commands.image_batches import Preparation, Unreadable, collection_batches, thumbnail_of
from sgoif.errors import SettingError
from sgoif.images import Collection, ImagesError, open_unlabelled
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
        return thumbnail_of(self.collection, self.numbers[position])


def open_victims(path: Path, prepare: Preparation, batch_size: int, show: Progress) -> Victims:
    """Read victims; files that cannot be read are left out and told."""
    collection = open_unlabelled(path)
    unreadable = Unreadable(show.say)
    numbers: list[int] = []
    parts: list[Tensor] = []
    for batch in collection_batches(collection, prepare, batch_size, "looking at the victims", unreadable, show):
        numbers += batch.numbers
        parts.append(batch.images)
    unreadable.summarise()
    if not parts:
        raise ImagesError(f"none of the victims in {shown(path)} can be read; {unreadable.first()}")
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
