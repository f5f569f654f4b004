"""A site's own data: its file, or its own client of the benchmark that the experiment names."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.data.own.files import FileSettings
from perinvfl.data.own.fitted import Fitted
from perinvfl.data.own.readers import ARRAYS, TABLES, read_arrays
from perinvfl.data.own.rows import Rows
from perinvfl.data.own.sites import SitesSettings, site_federation, training_rows
from perinvfl.data.registry import build_federation
from perinvfl.errors import UserError
from perinvfl.preparation.program import case_names
from perinvfl.runs.trial import Trial

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # with which torch does not calculate


class UnusableData(UserError):
    """What is wrong with a site's own file, in words for the site alone."""


def load_training_rows(data: Path | None, trial: Trial) -> Rows | None:
    """The training rows of a site's own table; None where there is none that sites have to fit together."""
    if data is None or not isinstance(trial.data, SitesSettings) or not _is_table(data, trial.data):
        return None
    try:
        return training_rows(trial.data, data, trial.seed)
    except UserError as error:
        raise UnusableData(str(error)) from None


def load_site_data(data: Path | None, trial: Trial, client: int, fitted: Fitted | None = None) -> Federation:
    """A federation of this one client, without padding. fitted: what all sites do with the columns of their tables."""
    if data is not None:
        try:
            return _own_file(data, trial.data, trial.seed, fitted)
        except UserError as error:
            raise UnusableData(str(error)) from None
    if isinstance(trial.data, SitesSettings):
        raise UserError('data.benchmark = "sites": this site was started without --data FILE, so it has no data.')
    try:
        whole = build_federation(trial.benchmark, trial.data, trial.seed)  # the others' part is let go at once
    except UserError as error:
        if isinstance(trial.data, FileSettings):
            raise UnusableData(str(error)) from None
        raise
    own = whole.share_of(client)
    groups: Any = whole.notes.get("groups")
    notes: dict[str, object] = {} if groups is None else {"groups": _own_groups(groups, client)}
    return dataclasses.replace(own, notes=notes)


def describe(own: Federation, trial: Trial, scores: bool) -> dict[str, Any]:
    """What a site tells about itself when a run begins: the shape of its data, nothing of what is in them.

    scores: also how a constant answer would do on its test cases, for the table.
    """
    summary: dict[str, Any] = {
        "shape": list(own.shape),
        "task": own.task,
        "outputs": own.outputs,
        "contexts": own.contexts,
        "tests": list(own.tests),
        "cases": case_names(trial.contexts, own),
        "spectrum": list(own.spectrum),
        "batch_fits": trial.training.batch_size <= int(own.sizes.max()),
    }
    if scores:
        held_out = {} if own.validation is None else {"validation": own.validation}
        constant = constant_scores(own.task, own.train, {**own.tests, **held_out})
        summary["constant"] = {name: row[0] for name, row in constant.items()}
        if "groups" in own.notes:
            summary["groups"] = own.notes["groups"]
    return summary


def _own_groups(groups: dict[str, Any], client: int) -> dict[str, Any]:
    """How many samples of each class and background a client's tests hold, and which class it has most of."""
    counts = {case: list(rows[client]) for case, rows in groups["counts"].items()}
    return {"counts": counts, "majority": groups["majority"][client]}


def _is_table(data: Path, settings: SitesSettings) -> bool:
    """Rows to be divided as on one machine; other arrays bring their own tests."""
    return data.is_dir() or data.suffix.lower() in TABLES or bool(settings.held_out)


def _own_file(data: Path, settings: Any, seed: int, fitted: Fitted | None) -> Federation:
    """A site's file. Arrays bring their own tests, unless contexts of them are to be held out."""
    if isinstance(settings, SitesSettings) and _is_table(data, settings):
        arrays = not data.is_dir() and data.suffix.lower() not in TABLES
        if arrays and any(key.startswith("test/") for key in _read_arrays(data)):
            raise UserError(
                f"{data} has tests of its own (test/NAME/x), and data.test_contexts holds contexts out; use "
                "only one of the two."
            )
        federation = site_federation(settings, data, seed, fitted)
        return dataclasses.replace(federation, spectrum=settings.spectrum or federation.spectrum)
    return read_own_arrays(
        data, getattr(settings, "task", "binary"), getattr(settings, "outputs", 1), getattr(settings, "spectrum", ())
    )


def read_own_arrays(path: Path, task: Task, outputs: int, spectrum: tuple[str, ...]) -> Federation:
    """A file of arrays, .npz or .safetensors: x [M, ...], y [M], perhaps context [M]; test/NAME/x and test/NAME/y."""
    arrays = _read_arrays(path)
    train = _split(path, arrays, "", task, outputs)
    names = list(dict.fromkeys(key.split("/")[1] for key in arrays if key.startswith("test/") and key.count("/") == 2))
    tests = {name: _split(path, arrays, f"test/{name}/", task, outputs) for name in names}
    for name, test in tests.items():
        if test.x.shape[1:] != train.x.shape[1:]:
            raise UserError(f"{path}: test/{name}/x has samples of another shape than those of x.")
    missing = [name for name in spectrum if name not in tests]
    if missing:
        raise UserError(f"{path}: data.spectrum names the test case {missing[0]}, and there is no test/{missing[0]}/x.")
    contexts = int(train.context.max()) + 1
    one = {name: _one_client(test) for name, test in tests.items()}
    return Federation("site", task, outputs, contexts, _one_client(train), one, tuple(spectrum) or tuple(tests))


def _read_arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix.lower() not in ARRAYS:
        raise UserError(
            f"{path}: the site's data must be a .npz or .safetensors file, a table ({', '.join(TABLES)}) or a folder."
        )
    if not path.exists():
        raise UserError(f"{path} does not exist; give the site's arrays, its table or its folder of photographs.")
    arrays = read_arrays(path)
    try:
        tensors = {name: torch.as_tensor(values) for name, values in arrays.items()}
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} holds something other than numbers: {error}.") from None
    return {name: tensor.double() if tensor.dtype in UNSIGNED else tensor for name, tensor in tensors.items()}


def _split(path: Path, arrays: dict[str, Tensor], prefix: str, task: Task, outputs: int) -> Split:
    for key in ("x", "y"):
        if prefix + key not in arrays:
            raise UserError(f"{path} has no array {prefix}{key}; x [samples, ...] and y [samples] are needed.")
    x, y = arrays[prefix + "x"].float(), arrays[prefix + "y"]
    if y.dim() != 1 or x.dim() < 2 or x.shape[0] != y.shape[0] or y.shape[0] == 0:
        raise UserError(
            f"{path}: {prefix}x is {list(x.shape)} and {prefix}y {list(y.shape)}; must be [samples, ...] and [samples]."
        )
    context = arrays.get(prefix + "context", torch.zeros(y.shape[0])).long()
    if context.shape != y.shape or int(context.min()) < 0 or int(context.max()) >= len(y):
        raise UserError(f"{path}: {prefix}context must be one whole number per sample, counted from 0.")
    if not bool(torch.isfinite(x).all()) or not bool(torch.isfinite(y.float()).all()):
        raise UserError(f"{path}: {prefix}x and {prefix}y must be finite numbers.")
    if task == "multiclass":
        if bool((y.long() != y).any()) or int(y.min()) < 0 or int(y.max()) >= outputs:
            raise UserError(f"{path}: {prefix}y must be classes 0 to {outputs - 1}.")
        return Split(x, y.long(), context)
    if task == "binary" and bool(((y != 0) & (y != 1)).any()):
        raise UserError(f"{path}: {prefix}y must be 0 or 1.")
    return Split(x, y.float(), context)


def _one_client(split: Split) -> Split:
    return Split(*(part[None] for part in split))
