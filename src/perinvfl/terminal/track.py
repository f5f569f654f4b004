"""Progress for programs: JSON lines, TensorBoard and MLflow. Each follows the records as they are written."""

import dataclasses
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perinvfl.core.extras import how_to_install
from perinvfl.errors import UserError
from perinvfl.runs.progress import Progress, Tasks
from perinvfl.runs.records import Event, read_run

if TYPE_CHECKING:
    from perinvfl.runs.trial import Trial


class Follower(Progress):
    """Sees every evaluation of every trial as its record has it, wherever the trial is at work."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def begin(self, trial: "Trial", rounds_done: int) -> None: ...
    def end(self, trial: "Trial", broken: bool) -> None: ...

    def started(self, trials: "list[Trial]", rounds_done: int) -> None:
        for trial in trials:
            self.begin(trial, rounds_done)

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        for trial in trials:
            run = read_run(self.out / trial.folder)
            self.end(trial, broken=run is not None and (run.broken is not None or run.pruned is not None))


class JsonLines(Follower):
    """One JSON object per line: `skipped`, `start`, `evaluation`, `broken`, `end`; each names the run."""

    def __init__(self, out: Path, say: Callable[[str], None]) -> None:
        super().__init__(out)
        self.say = say
        self.began: dict[str, tuple[float, int]] = {}  # by run: when, and after how many rounds

    def emit(self, event: str, trial: "Trial", **fields: Any) -> None:
        names = {"event": event, "run": trial.id, "label": trial.label, "seed": trial.seed}
        self.say(json.dumps({**names, **fields}, ensure_ascii=False, separators=(",", ":")))

    def skipped(self, trial: "Trial", folder: Path) -> None:
        self.emit("skipped", trial, folder=str(folder))

    def begin(self, trial: "Trial", rounds_done: int) -> None:
        self.began[trial.id] = time.perf_counter(), rounds_done
        folder = str(self.out / trial.folder)
        self.emit("start", trial, folder=folder, rounds=trial.training.rounds, rounds_done=rounds_done)

    def measured(self, trial: "Trial", event: Event) -> None:
        done, (began, before) = event["round"], self.began[trial.id]
        pace = (time.perf_counter() - began) / max(1, done - before)
        left = round(pace * (trial.training.rounds - done), 1)
        self.emit("evaluation", trial, **{k: v for k, v in event.items() if k != "event"}, seconds_left=left)

    def remark(self, trials: "list[Trial]", words: str) -> None:
        for trial in trials:
            self.emit("remark", trial, words=words)

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        self.emit("broken", trial, round=round)

    def tasks(self, count: Tasks) -> None:
        self.say(json.dumps({"event": "tasks", **dataclasses.asdict(count)}, separators=(",", ":")))

    def end(self, trial: "Trial", broken: bool) -> None:
        if not broken:
            self.emit("end", trial, folder=str(self.out / trial.folder))


def scalars(event: Event) -> dict[str, float]:
    """The numbers of an evaluation that a tracker plots over the rounds, as means over clients."""
    found = {}
    risks = [risk for risk in event["risks"] if risk is not None]
    if risks:
        found["risk"] = statistics.fmean(risks)
    for kind in ("personal", "global"):
        for case, values in event.get(kind, {}).items():
            if None not in values:
                found[f"{kind}/{case}"] = statistics.fmean(values)
    return found


class TensorBoard(Follower):
    """Event files in OUT/tensorboard, one folder per run."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise UserError(f"--track tensorboard needs one more package: {how_to_install('track')}.") from None
        self.make: Any = SummaryWriter
        self.writers: dict[str, Any] = {}

    def begin(self, trial: "Trial", rounds_done: int) -> None:
        if trial.id in self.writers:  # begun again, because the node it was on is lost
            self.writers.pop(trial.id).close()
        folder = self.out / "tensorboard" / trial.folder
        # What a killed run logged after its checkpoint will be logged again.
        writer = self.make(str(folder), purge_step=rounds_done + 1 if rounds_done else None)
        writer.add_text("settings", f"```json\n{json.dumps(trial.asked(), indent=2)}\n```")
        self.writers[trial.id] = writer

    def measured(self, trial: "Trial", event: Event) -> None:
        for name, value in scalars(event).items():
            self.writers[trial.id].add_scalar(name, value, event["round"])
        self.writers[trial.id].flush()

    def end(self, trial: "Trial", broken: bool) -> None:
        self.writers.pop(trial.id).close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class Mlflow(Follower):
    """Runs of one MLflow experiment, at MLFLOW_TRACKING_URI, else in OUT/mlflow.db."""

    def __init__(self, out: Path, name: str) -> None:
        super().__init__(out)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent anywhere unasked
        try:
            import mlflow
            import sqlalchemy  # noqa: F401  the database beside the records
        except ModuleNotFoundError:
            raise UserError(f"--track mlflow needs more packages: {how_to_install('track')}.") from None
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it reports every table that it makes
        out.mkdir(parents=True, exist_ok=True)
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(out / 'mlflow.db').resolve()}"
        self.client: Any = mlflow.MlflowClient(tracking_uri=place)
        known = self.client.get_experiment_by_name(name)
        self.experiment = known.experiment_id if known else self.client.create_experiment(name)
        self.runs: dict[str, str] = {}

    def begin(self, trial: "Trial", rounds_done: int) -> None:
        query = f"tags.`perinvfl.run` = '{trial.id}'"
        again = rounds_done or trial.id in self.runs  # or the node it was on is lost
        found = self.client.search_runs([self.experiment], query) if again else []
        if found:  # a resumed run goes on in the MLflow run it had
            run = found[0].info.run_id
            self.client.update_run(run, status="RUNNING")
        else:
            tags = {"perinvfl.run": trial.id}
            run = self.client.create_run(self.experiment, run_name=trial.folder, tags=tags).info.run_id
            for part, settings in json.loads(json.dumps(trial.asked())).items():
                flat = settings.items() if isinstance(settings, dict) else [("", settings)]
                for key, value in flat:
                    self.client.log_param(run, f"{part}.{key}".rstrip("."), str(value))
        self.runs[trial.id] = run

    def measured(self, trial: "Trial", event: Event) -> None:
        for name, value in scalars(event).items():
            self.client.log_metric(self.runs[trial.id], name, value, step=event["round"])

    def end(self, trial: "Trial", broken: bool) -> None:
        self.client.set_terminated(self.runs.pop(trial.id), "FAILED" if broken else "FINISHED")

    def close(self) -> None:
        for run in self.runs.values():
            self.client.set_terminated(run, "KILLED")


@contextmanager
def trackers(names: Sequence[str], out: Path, experiment: str) -> Iterator[list[Progress]]:
    """The trackers asked for, closed whatever happens."""
    with ExitStack() as stack:
        opened: list[Progress] = []
        for name in names:
            tracker = TensorBoard(out) if name == "tensorboard" else Mlflow(out, experiment)
            stack.callback(tracker.close)
            opened.append(tracker)
        yield opened
