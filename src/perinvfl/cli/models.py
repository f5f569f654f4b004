"""`perinvfl export`, `predict` and `diagnose`: commands about the models of finished runs."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perinvfl.cli.options import Format, Method, Seed, TextOrJson, pick_of
from perinvfl.core.naming import find_client
from perinvfl.core.saying import hand_over, say
from perinvfl.errors import UserError
from perinvfl.terminal.console import wide_console
from perinvfl.terminal.tables import show_diagnosis


class ModelFormat(StrEnum):
    safetensors = "safetensors"
    onnx = "onnx"
    pt2 = "pt2"


RunFolder = Annotated[
    Path, typer.Argument(help="Folder with runs, such as runs/demo; --method and --seed say which one.")
]
Client = Annotated[str | None, typer.Option("--client", help="The client, by name or by number counted from 1.")]
Shared = Annotated[bool, typer.Option("--global", help="The model that all clients share, instead of a personal one.")]


def export(
    run: RunFolder,
    client: Client = None,
    shared: Shared = False,
    method: Method = None,
    seed: Seed = None,
    format: Annotated[
        ModelFormat | None, typer.Option("--format", help="File format; by default that of the file's name, else onnx.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file; by default one named after the client.")
    ] = None,
) -> None:
    """Write one client's model, with its pre-processing, to a file, and a model card beside it."""
    from perinvfl.core.files import write_atomically
    from perinvfl.export.card import model_card
    from perinvfl.export.formats import FORMATS, write_model
    from perinvfl.export.module import describe
    from perinvfl.runs.loaded import open_run

    ending = out.suffix.removeprefix(".") if out is not None else ""
    form = format.value if format is not None else ending if ending in FORMATS else "onnx"
    if ending and ending != form:
        raise UserError(f"{out}: the name of a model in the format {form} must end in .{form}.")
    if client is not None and shared:
        raise UserError("--client and --global exclude each other; give one of them.")
    opened = open_run(run, pick_of(method, seed))
    which = _which(opened.clients, client, shared)
    described, module = describe(opened, which, shared)
    stem = "global" if shared else f"client-{which + 1}"
    path = out or opened.run.folder / f"{stem}.{form}"
    write_model(module, described, form, path)
    card = path.with_name(path.name + ".md")
    write_atomically(card, model_card(opened, described, which, path).encode())
    say(path)
    say(card)


def predict(
    model: Annotated[
        Path, typer.Argument(help="File made by export, or a folder with runs; --method and --seed say which one.")
    ],
    input: Annotated[
        Path, typer.Argument(help="Samples: a table, an array x in .npz or .safetensors, or a folder of photographs.")
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help=".csv or .npz; by default CSV on the screen.")] = None,
    client: Client = None,
    shared: Shared = False,
    method: Method = None,
    seed: Seed = None,
    build: Annotated[
        str,
        typer.Option("--build", help="For a model of your own: the code to run that builds it, as my_module:build."),
    ] = "",
    id: Annotated[str, typer.Option("--id", help="Column of the input that names the rows, kept in the output.")] = "",
    client_column: Annotated[
        str,
        typer.Option(
            "--client-column",
            help="Column of the input that names each row's client: each row is predicted by its own client's model.",
        ),
    ] = "",
) -> None:
    """Predict the samples of a file with an exported model, or with the models of a run."""
    from perinvfl.export.formats import Predictor, read_model
    from perinvfl.export.module import describe
    from perinvfl.export.predict import answers_of, as_csv, unusable_in_words, write_answers
    from perinvfl.runs.loaded import open_run

    if not model.is_dir():
        if client is not None or client_column or shared or method or seed:
            named = "--client, --client-column, --global, --method and --seed"
            raise UserError(f"{named} go with a folder of runs; {model} holds one model.")
        made = answers_of(read_model(model, build), input, id)
    elif client_column:
        if client is not None or shared:
            raise UserError("--client-column says whose model answers; leave --client and --global out.")
        from perinvfl.export.by_client import answers_by_client

        made = answers_by_client(open_run(model, pick_of(method, seed)), input, id, client_column)
    else:
        opened = open_run(model, pick_of(method, seed))
        made = answers_of(Predictor(*describe(opened, _which(opened.clients, client, shared), shared)), input, id)
    if out is None:
        hand_over(as_csv(made), end="")
    else:
        write_answers(made, out)
        say(out)
    for line in (*made.inputs.notes, *made.notes, *unusable_in_words(made.inputs)):
        say(line, stderr=True)


def diagnose(run: RunFolder, format: Format = TextOrJson.text, method: Method = None, seed: Seed = None) -> None:
    """Show what each client's model relies on: risk and calibration by context, invariance, shortcuts, shift."""
    from perinvfl.diagnose import diagnose as look
    from perinvfl.runs.picking import single_run

    found = look(single_run(run, pick_of(method, seed)).folder)
    if format is TextOrJson.json:
        hand_over(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        show_diagnosis(wide_console(), found)


def _which(names: list[str], client: str | None, shared: bool) -> int:
    if client is None and not shared:
        raise UserError(f"--client is missing; clients are {', '.join(names)} (or --global for the shared model).")
    return 0 if client is None else find_client(client, names)
