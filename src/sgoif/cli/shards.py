"""`sgoif features` and `sgoif judge`: images in tar files, by as many processes as there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgoif.cli.options import AsJson, Device
from sgoif.cli.terminal import add_row, message, new_table, print_json, print_sentence, results, with_progress

if TYPE_CHECKING:
    from sgoif.audit.progress import Progress
    from sgoif.sharded import Extracted, Judged

NAMED = 5
UNREAD = 2


def features_command(
    shards: Annotated[
        list[str],
        typer.Argument(
            help="WebDataset tar files, ranges in quotes such as 'train-{000..999}.tar', or addresses that fsspec opens"
            " (s3://, gs://, hf://)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for one Parquet file a shard; all machines must see it.")],
    backbone: Annotated[
        str, typer.Option(help="Pretrained network: lite0, lite1, lite2, timm:NAME, torchvision:NAME or hf:NAME.")
    ] = "lite0",
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images the network sees, in pixels.", show_default="its own")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the features of images in tar files; under torchrun every process takes its share of the files.

    Files that are there already are not computed again. A shard that cannot be read does not stop the others; the exit
    code is 2 then, and the next run tries it again.
    """
    from sgoif.device.selection import choose_device
    from sgoif.distributed.launch import choose_gpu
    from sgoif.images.text import plural, shown
    from sgoif.sharded.extraction import extract_shards, share

    choose_gpu()
    rank, world = share()

    def work(show: Progress) -> Extracted:
        chosen = (shards, out, backbone, image_size, choose_device(device))
        if rank:
            return extract_shards(*chosen)
        show.stage("shards", 0)
        return extract_shards(*chosen, show.advance)

    done = with_progress(work)
    who = f"process {rank} of {world}: " if world > 1 else ""
    for address, why in done.failed[:NAMED]:
        message(f"sgoif: {shown(address)} was left out: {why}")
    if as_json:
        print_json({**vars(done), "rank": rank, "world": world, "out": out})
    else:
        failed = f"; {plural(len(done.failed), 'shard')} could not be read: run this again" if done.failed else ""
        print_sentence(
            f"{who}{plural(done.shards, 'shard')}, {done.before:,} of them there before: {plural(done.images, 'image')}"
            f" written, {done.left_out:,} left out{failed}"
        )
    raise typer.Exit(UNREAD if done.failed else 0)


def judge_command(
    features: Annotated[Path, typer.Argument(help="Folder that sgoif features has written.")],
    out: Annotated[Path, typer.Option(help="Folder for the table and the summary; all machines must see it.")],
    part_rows: Annotated[
        int, typer.Option(help="Images judged together at most; memory grows with them, time with their square.")
    ] = 1_000_000,
    class_names: Annotated[
        Path | None, typer.Option(help="JSON file with a list of names, for labels that are numbers.")
    ] = None,
    fdr: Annotated[float, typer.Option(help="Share of right labels that may be among those called wrong.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the heads.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find wrong labels by such features, part by part; under torchrun every process takes its share of the parts.

    The folder gets issues.parquet with all images, the worst first, issues.csv with the first million, skipped.csv
    and summary.json. Interrupted runs go on where they were.
    """
    from sgoif.device.selection import choose_device
    from sgoif.distributed.launch import choose_gpu
    from sgoif.sharded.extraction import share
    from sgoif.sharded.judging import judge_features, read_class_names

    choose_gpu()
    rank, _ = share()
    names = None if class_names is None else read_class_names(class_names)

    def work(show: Progress) -> Judged:
        chosen = {"part_rows": part_rows, "class_names": names, "fdr": fdr, "seed": seed}
        return judge_features(features, out, **chosen, device=choose_device(device), show=show if rank == 0 else None)  # type: ignore[arg-type]

    found = with_progress(work)
    if not found.summary:  # the first process has written and tells
        return
    if as_json:
        print_json({**found.summary, "out": found.out})
        return
    rate = found.summary["noise_rate"]
    print_sentence(
        f"{rate['estimate']:.1%} of {found.summary['images']:,} labels look wrong ({rate['low']:.1%} to"
        f" {rate['high']:.1%}); {found.summary['selected']:,} are surely wrong; {found.summary['skipped']:,} images"
        " were left out"
    )
    listing = new_table("the most suspicious labels", ("key", "shard", "label", "suggested"), ("wrong with",))
    for row in found.worst:
        texts = (row["key"], row["shard"], row["given_label"], row["predicted_label"])
        add_row(listing, texts, (f"{row['probability_wrong']:.0%}",))
    results().print(listing)
