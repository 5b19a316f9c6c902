"""An audit from beginning to end: images, what a network says of their labels, tables and a page.

    from sgoif.audit.audit import audit
    from sgoif.audit.settings import AuditSettings
    result = audit(AuditSettings("photos/"))
    result.table.to_pandas()

It can be stopped at any moment; `audit(settings, resume=True)` goes on where it was, and on a finished run writes the
outputs again.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from sgoif.audit.checked import read_checked
from sgoif.audit.choice import CHOICE, Choice, Goal, Method, short_look
from sgoif.audit.errors import AuditError, AuditInterrupted
from sgoif.audit.finetuning import choose_sizes, wanted_backbone
from sgoif.audit.frozen import FrozenRun, frozen_features, frozen_identity
from sgoif.audit.interruption import Interruption
from sgoif.audit.live_status import told_stages
from sgoif.audit.models import resolve
from sgoif.audit.network_run import NetworkRun, found_by
from sgoif.audit.plan import LEAST_TRAINED, hold_out, make_plan
from sgoif.audit.progress import Progress
from sgoif.audit.results import AuditResult, Found, write_results
from sgoif.audit.run_directory import RunDirectory, claimed, identity
from sgoif.audit.settings import AuditSettings
from sgoif.backbones import Backbone
from sgoif.core.data import isolated_random_state
from sgoif.core.score_table import ScoreTable
from sgoif.core.serialization import check_writable
from sgoif.core.types import Array, Indices
from sgoif.device.selection import choose_device
from sgoif.distributed.communicator import Communicator
from sgoif.distributed.launch import choose_gpu, joined
from sgoif.errors import ModelError, SgoifError
from sgoif.findings.record import read_findings
from sgoif.images import Collection, Pixels, open_images, prepare


def audit(settings: AuditSettings, progress: Progress | None = None, *, resume: bool = False) -> AuditResult:
    """Audit the labels of a set of images; `AuditInterrupted` says what was saved when a signal ends it.

    Of several processes (`sgoif.audit.processes`) all return when the first has written; only that one has a table.
    """
    interruption = Interruption()
    choose_gpu()
    device = choose_device(settings.device)
    resolve(settings.model, device)
    if settings.weights is not None and not settings.weights.is_file():
        raise ModelError(f"--weights {settings.weights}: there is no such file")
    if settings.checked is not None and not settings.checked.is_file():
        raise AuditError(f"--checked {settings.checked}: there is no such file")
    if settings.baseline is not None:
        read_findings(settings.baseline)
    for option in ("sarif", "junit"):
        if (path := getattr(settings, option)) is not None:
            check_writable(path.absolute(), f"--{option}")
    with joined(device) as communicator, claimed(settings, resume, communicator) as directory, interruption.watching():
        show = Progress() if progress is None or communicator.rank else progress
        try:
            with isolated_random_state(device):
                return _Audit(directory, interruption, show, communicator).run()
        except (KeyboardInterrupt, RuntimeError) as stop:
            if not isinstance(stop, KeyboardInterrupt) and (interruption.asked is None or communicator.size == 1):
                raise  # else another process was quicker to leave, which ends what this one waits for
            raise AuditInterrupted(directory.stopped(), interruption.asked or 2) from stop
        finally:
            show.close()


class _Audit:
    """An audit under way."""

    def __init__(
        self, directory: RunDirectory, interruption: Interruption, show: Progress, communicator: Communicator
    ) -> None:
        self.directory, self.interruption, self.show = directory, interruption, show
        self.communicator, self.start = communicator, time.monotonic()
        self.settings = settings = directory.settings
        settings.raise_if_pointless()
        self.backbone = None if settings.from_scratch_asked else wanted_backbone(settings)
        if settings.automatic and communicator.size > 1:
            raise AuditError(
                "several processes train one network together: give --finetune or --from-scratch, or start one process"
            )
        self.collection: Collection = open_images(settings.path, **settings.options)
        split(settings, self.collection.labels)  # too few images are noticed before they are read
        self._prepared: dict[int | None, Pixels] = {}

    def run(self) -> AuditResult:
        """Judge labels as the settings ask, or in the way that serves these images best."""
        if not self.settings.automatic:
            return self._with_network(self.settings, [])
        shown = self.show
        with told_stages(self.directory.path, shown) as stages:
            self.show = stages
            choice, frozen = self._choose()
            self.show.say(choice.sentence())
            if choice.method == "frozen":
                result = self._with_features(frozen or self._frozen(), [choice.sentence()])
                stages.write("finished")
                return result
        self.show = shown
        return self._with_network(asking(self.settings, choice.method), [choice.sentence()])

    def _choose(self) -> tuple[Choice, FrozenRun | None]:
        """Train heads on features, look briefly at networks, and compare; what was chosen before is kept."""
        directory, device = self.directory, choose_device(self.settings.device)
        assert self.backbone is not None
        own = frozen_identity(self.settings, self.collection.digest(), self.backbone)
        kept = directory.load_part(CHOICE, own)
        if kept is not None:
            return Choice(kept["method"], kept["agreement"]), None
        frozen = self._frozen()
        _, held = split(self.settings, frozen.pixels.labels, frozen.pixels.repeated())
        agreement: dict[Method, float] = {"frozen": frozen.agreement(held)}
        ways: tuple[Method, ...] = ("scratch", "finetuned") if device.type == "cuda" else ("scratch",)
        for way in ways:
            settings = asking(self.settings, way)
            seen, resolution = self._pixels(settings)
            parts = split(settings, seen.labels, seen.repeated())
            plan = make_plan(settings, len(parts[0]), resolution=resolution)
            goal = Goal(max(agreement.values()), frozen.most_right)
            agreement[way] = short_look(settings, plan, seen, parts, goal, self.show, self._network(settings))
        choice = Choice.of(agreement)
        directory.save_part(CHOICE, choice.record(), own)
        return choice, frozen

    def _frozen(self) -> FrozenRun:
        assert self.backbone is not None
        pixels, _ = self._pixels(self.settings)
        device = choose_device(self.settings.device)
        return FrozenRun(self.directory, self.collection, pixels, self.backbone, device, self.show)

    def _with_features(self, frozen: FrozenRun, why: Sequence[str]) -> AuditResult:
        """Judge by features and heads."""
        checked = self._checked(frozen.pixels, frozen.crossfit.held)
        self.show.stage("judging labels", 0)
        with self.directory.explained():
            found, features = frozen.found(checked), frozen.features.of_all()
            return self._write(frozen.pixels, found, features, why, time.monotonic() - self.start)

    def _with_network(self, settings: AuditSettings, why: Sequence[str]) -> AuditResult:
        """Train a network to the end and judge by it."""
        directory, communicator = self.directory, self.communicator
        pixels, resolution = self._pixels(settings)
        rows, held = split(settings, pixels.labels, pixels.repeated())
        checked = self._checked(pixels, held)
        plan = make_plan(settings, len(rows), communicator.size, resolution)
        directory.identity = identity(settings, plan, pixels)
        with ExitStack() as ending:
            run = NetworkRun(
                directory=directory,
                settings=settings,
                plan=plan,
                pixels=pixels,
                split=(rows, held),
                backbone=self._network(settings),
                communicator=communicator,
                interruption=self.interruption,
                show=self.show,
                began=self.start,
            )
            training, live, seconds = run.train(ending)
            live.tell("judging", training, seconds, now=True)
            written = AuditResult(directory.path, ScoreTable({}), {})

            def write() -> None:
                nonlocal written
                if communicator.rank == 0:
                    self.show.stage("judging labels", 0)
                    with directory.explained():
                        found = found_by(training, pixels, held, checked)
                        written = self._write(pixels, found, self._features(pixels), why, seconds)

            communicator.run_and_sync_errors(write)
            live.tell("finished", training, seconds, now=True)
            return written

    def _network(self, settings: AuditSettings) -> Backbone | None:
        """The pretrained network that is to be trained further, if one is."""
        return self.backbone if settings.finetune else None

    def _pixels(self, settings: AuditSettings) -> tuple[Pixels, int | None]:
        """The images at the size that a network is trained on, and the pixels a side that a pretrained one looks at."""
        resolution, size = None, None if settings.automatic else settings.image_size
        if settings.finetune:
            assert self.backbone is not None
            resolution, size = choose_sizes(settings, self.backbone, self.collection.store)
        if size in self._prepared:
            return self._prepared[size], resolution
        self.show.stage("reading images", len(self.collection.names))

        def read() -> None:
            found = prepare(self.collection, self.directory.cache, size=size, progress=self.show.advance)
            self._prepared = {size: found}  # in the place of what had another size

        def first() -> None:
            if self.communicator.rank == 0:
                self.directory.record(self.collection.digest())
                read()

        self.communicator.run_and_sync_errors(first)
        # What the first has prepared is only opened.
        self.communicator.run_and_sync_errors(lambda: read() if self.communicator.rank else None)
        return self._prepared[size], resolution

    def _checked(self, pixels: Pixels, held: Indices) -> dict[int, int] | None:
        if self.settings.checked is None:
            return None
        checked = read_checked(self.settings.checked, self.collection, pixels, held.tolist())
        self.show.say(f"{len(checked)} checked labels of held-out images are used")
        return checked

    def _features(self, pixels: Pixels) -> Array | None:
        """Features of a pretrained network, which are in the cache where it was tried and another was chosen."""
        if not self.settings.automatic:
            return None
        assert self.backbone is not None
        device = choose_device(self.settings.device)
        try:
            found = frozen_features(self.settings, self.collection, pixels, self.backbone, device, self.show)
        except SgoifError as error:
            self.show.say(f"what needs features is not looked for: {error}")
            return None
        return found.of_all()

    def _write(
        self, pixels: Pixels, found: Found, features: Array | None, why: Sequence[str], seconds: float
    ) -> AuditResult:
        return write_results(self.directory, self.collection, pixels, found, features, why, self.show, seconds)


def asking(settings: AuditSettings, method: Method) -> AuditSettings:
    """Settings that ask for a network to be trained; a size that was asked for is that of the backbone."""
    if method == "scratch":
        return replace(settings, from_scratch=True, backbone=AuditSettings.backbone, image_size=None)
    return replace(settings, finetune=True)


def split(settings: AuditSettings, labels: Indices, copies: Sequence[int] = ()) -> tuple[Indices, Indices]:
    """Rows to train on and to hold out; raises where there are too few to judge labels by."""
    rows, held = hold_out(labels, settings.holdout, settings.seed, copies)
    if len(rows) < LEAST_TRAINED:
        raise AuditError(
            f"{len(labels)} images are too few to audit: {len(held)} are held out and {len(rows)} remain to train on,"
            f" but labels can be judged from {LEAST_TRAINED} on. Add images, or look through these by eye"
        )
    return rows, held
