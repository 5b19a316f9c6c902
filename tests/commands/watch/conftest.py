"""A run directory as an audit leaves it, without the audit."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgoif.audit.live_status import CURVES, LIVE
from sgoif.audit.run_directory import CACHE, RUN
from sgoif.commands.watch.server import WatchServer
from sgoif.images import open_images, prepare

Tell = Callable[..., None]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of two classes, one with a hostile name, prepared."""
    root = tmp_path_factory.mktemp("watched")
    generator = np.random.default_rng(0)
    for number, name in enumerate(("a&b", "c")):
        (root / "in" / name).mkdir(parents=True)
        for k in range(6):
            pixels = generator.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "in" / name / f"{number}<b>{k}.png")
    prepare(open_images(root / "in"), root / "run" / CACHE)
    (root / "run" / RUN).write_text("{}")
    return root / "run"


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    """A run directory of its own for each test."""
    return Path(shutil.copytree(prepared, tmp_path / "run"))


@pytest.fixture
def tell(run: Path) -> Tell:
    """`tell(step=…, **changes)` writes live.json."""

    def write(step: int = 0, entries: int = 0, **changes: Any) -> None:
        history = {name: [float(k + 1) / 10 for k in range(entries)] for name in CURVES}
        live = {
            "state": "training", "stopped": "", "step": step, "steps": 100, "epoch": 1, "epochs": 4, "loss": 0.5,
            "seconds": 20.0, "model": "resnet9", "images": 12, "classes": 2, "history": history, "estimate": None,
            "worst_step": None, "worst": [], "alarms": [],
        }  # fmt: skip
        (run / LIVE).write_text(json.dumps({**live, **changes}), encoding="utf-8")

    return write


@pytest.fixture
def serve(run: Path) -> Iterator[Callable[..., WatchServer]]:
    """`serve(host)` starts a server of the run."""
    servers: list[WatchServer] = []

    def start(host: str = "127.0.0.1") -> WatchServer:
        server = WatchServer(run, host)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
