"""Features of images by pretrained networks, computed once and kept on disk."""

from sgoif.features.extraction import Features, extract_features
from sgoif.features.resolution import choose_resolution
from sgoif.features.store import CacheError, cache_folder

__all__ = ["CacheError", "Features", "cache_folder", "choose_resolution", "extract_features"]
