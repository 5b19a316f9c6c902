"""Labelled images from wherever they lie, read once into an array of one size."""

from sgoif.errors import MissingExtraError

try:
    import PIL  # noqa: F401
except ImportError as error:
    raise MissingExtraError("pillow", "audit", "Reading images") from error

from sgoif.images.collection import Collection, Skipped
from sgoif.images.errors import ImagesError, UnreadableImageError
from sgoif.images.open import open_images, open_unlabelled
from sgoif.images.pixels import Duplicate, Pixels, open_pixels
from sgoif.images.preparation import prepare

__all__ = [
    "Collection",
    "Duplicate",
    "ImagesError",
    "Pixels",
    "Skipped",
    "UnreadableImageError",
    "open_images",
    "open_pixels",
    "open_unlabelled",
    "prepare",
]
