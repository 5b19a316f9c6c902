"""One small folder of images for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_cases import make_folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """180 images of three classes; a tenth lies in the wrong folder."""
    return make_folder(tmp_path_factory.mktemp("data") / "photos")
