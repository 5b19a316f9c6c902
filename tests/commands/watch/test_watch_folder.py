"""Run directories that somebody else has made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from watch_visits import visit

from sgoif.audit.live_status import LIVE
from sgoif.audit.run_directory import CACHE
from sgoif.commands.watch.server import WatchServer
from sgoif.images import ImagesError, open_pixels
from sgoif.images.pixels import IMAGES, PIXELS, THUMBS

Serve = Callable[..., WatchServer]
SCRIPT = b"<script>alert(document.domain)</script>"
SECRET = b"nobody else's business"


def rewrite(run: Path, content: bytes, kind: str) -> None:
    """Make some bytes the thumbnail of the first image, of a type."""
    record = json.loads((run / CACHE / IMAGES).read_text())
    lengths = [len(content)] + [0] * (len(record["names"]) - 1)
    record["thumbnails"] = {"type": kind, "lengths": lengths}
    record["bytes"][THUMBS] = len(content)
    (run / CACHE / IMAGES).write_text(json.dumps(record))
    (run / CACHE / THUMBS).write_bytes(content)


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "image/webp\r\nX-Injected: yes", "", 3, ["image/webp"]])
def test_a_type_that_is_no_picture(run: Path, serve: Serve, kind: str) -> None:
    rewrite(run, SCRIPT, kind)
    status, headers, content = visit(serve(), "/thumb/0")
    assert status == 404
    assert headers["content-type"].startswith("text/plain")
    assert SCRIPT not in content
    with pytest.raises(ImagesError, match="complete set"):
        open_pixels(run / CACHE)


@pytest.mark.parametrize("kind", ["image/webp", "image/jpeg"])
def test_a_picture_that_is_none(run: Path, serve: Serve, kind: str) -> None:
    """What the model saw is shown instead."""
    rewrite(run, SCRIPT, kind)
    status, headers, content = visit(serve(), "/thumb/0")
    assert status == 200
    assert SCRIPT not in content
    assert (headers["content-type"], content[:4]) in (("image/webp", b"RIFF"), ("image/jpeg", b"\xff\xd8\xff\xe0"))
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]


def test_the_type_is_that_of_the_bytes(run: Path, serve: Serve) -> None:
    jpeg = b"\xff\xd8\xff\xe0 some picture"
    rewrite(run, jpeg, "image/jpeg")
    _, headers, content = visit(serve(), "/thumb/0")
    assert (headers["content-type"], content) == ("image/jpeg", jpeg)
    rewrite(run, jpeg, "image/webp")
    _, headers, content = visit(serve(), "/thumb/0")
    assert content != jpeg


def test_the_state_is_not_read_through_a_link(run: Path, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_bytes(SECRET)
    server = serve()
    for target in (tmp_path / "secret.json", Path("../secret.json"), Path("cache/../../secret.json")):
        (run / LIVE).symlink_to(target)
        status, _, content = visit(server, f"/{LIVE}")
        assert status == 404
        assert SECRET not in content
        assert "is a link out of the folder" in json.loads(content)["state"]
        (run / LIVE).unlink()
    (run / LIVE).symlink_to(LIVE)
    assert visit(server, f"/{LIVE}")[0] == 404


def test_a_run_that_is_reached_through_a_link_is_watched(run: Path, serve: Serve, tell: Callable[..., None]) -> None:
    tell(step=3)
    run.rename(run.parent / "elsewhere")
    run.symlink_to("elsewhere")
    server = serve()
    assert json.loads(visit(server, f"/{LIVE}")[2])["step"] == 3
    assert visit(server, "/thumb/0")[0] == 200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", [LIVE, f"{CACHE}/{IMAGES}", f"{CACHE}/{PIXELS}"])
def test_a_pipe_does_not_keep_the_server_waiting(run: Path, serve: Serve, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert visit(serve(), f"/{LIVE}" if name == LIVE else "/thumb/0")[0] == 404


def test_a_state_that_no_audit_writes(run: Path, serve: Serve) -> None:
    with (run / LIVE).open("wb") as file:
        file.truncate(2**40)
    status, _, content = visit(serve(), f"/{LIVE}")
    assert status == 404
    assert len(content) < 1000


@pytest.mark.parametrize("name", [CACHE, f"{CACHE}/{IMAGES}", f"{CACHE}/{PIXELS}", f"{CACHE}/{THUMBS}"])
def test_pictures_are_not_read_through_a_link(run: Path, serve: Serve, name: str) -> None:
    rewrite(run, b"RIFF1234WEBP" + SECRET, "image/webp")
    assert SECRET in visit(serve(), "/thumb/0")[2]
    (run / name).rename(run.parent / "outside")
    (run / name).symlink_to(run.parent / "outside")
    status, _, content = visit(serve(), "/thumb/0")
    assert status == 404
    assert SECRET not in content
    if name != CACHE:
        with pytest.raises(ImagesError, match="link out of the folder"):
            open_pixels(run / CACHE)


def test_lengths_that_lead_elsewhere(run: Path, serve: Serve) -> None:
    """Negative lengths give slices from the end; what is not a picture is not handed out."""
    rewrite(run, SCRIPT, "image/webp")
    record = json.loads((run / CACHE / IMAGES).read_text())
    count = len(record["names"])
    record["thumbnails"]["lengths"] = [-5, 5 + len(SCRIPT)] + [0] * (count - 2)
    (run / CACHE / IMAGES).write_text(json.dumps(record))
    assert np.sum(record["thumbnails"]["lengths"]) == len(SCRIPT)
    server = serve()
    for number in range(2):
        assert b"script" not in visit(server, f"/thumb/{number}")[2]


@pytest.mark.parametrize(("channels", "side"), [(0, 12), (2, 12), (7, 12), (3, 0), (1, 1025)])
def test_pixels_that_are_no_pictures(run: Path, serve: Serve, channels: int, side: int) -> None:
    rewrite(run, b"", "image/webp")
    record = json.loads((run / CACHE / IMAGES).read_text())
    array = np.zeros((len(record["names"]), channels, side, side), dtype=np.uint8)
    np.save(run / CACHE / PIXELS, array)
    record |= {"channels": channels, "size": side}
    record["bytes"] |= {PIXELS: (run / CACHE / PIXELS).stat().st_size}
    (run / CACHE / IMAGES).write_text(json.dumps(record))
    status, headers, content = visit(serve(), "/thumb/0")
    assert (status, content) == (404, b"there is no such picture\n")
    assert headers["x-content-type-options"] == "nosniff"
    with pytest.raises(ImagesError, match=f"{channels} channels of {side} pixels"):
        open_pixels(run / CACHE)


def test_a_thumbnail_that_would_fill_the_memory(run: Path, serve: Serve) -> None:
    rewrite(run, b"RIFF1234WEBP", "image/webp")
    record = json.loads((run / CACHE / IMAGES).read_text())
    record["thumbnails"]["lengths"][0] = record["bytes"][THUMBS] = 2**35
    with (run / CACHE / THUMBS).open("r+b") as file:
        file.truncate(2**35)
    (run / CACHE / IMAGES).write_text(json.dumps(record))
    assert visit(serve(), "/thumb/0")[0] == 404


def test_a_run_that_trained_no_network_is_finished_when_its_summary_is_there(run: Path, serve: Serve) -> None:
    (run / LIVE).unlink(missing_ok=True)
    server = serve()
    assert json.loads(visit(server, f"/{LIVE}")[2]) == {"state": "waiting"}
    (run / "summary.json").write_text("{}")
    assert json.loads(visit(server, f"/{LIVE}")[2]) == {"state": "finished"}
