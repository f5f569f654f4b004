"""`perinvfl list`: what an experiment file may name, in short; `perinvfl list NAME` shows one of them in full."""

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.core.saying import hand_over
from perinvfl.errors import UserError
from perinvfl.results.finished import published_names
from perinvfl.runs.catalogue import Entry, Setting, read_catalogue
from perinvfl.runs.presets import demo_file, preset_file, preset_line, preset_names
from perinvfl.terminal.console import wide_console

MODELS = {
    "mlp": ("multi-layer perceptron", ("hidden", "blind_to")),
    "linear": ("one linear layer without bias", ("blind_to",)),
    "resnet18": (
        "ResNet-18 for images of three colours",
        ("norm", "width", "stem", "convolution", "kernels", "weights", "blind_to"),
    ),
    "module": ("a torch.nn.Module of your own", ("build",)),
}
DEMO = "demo"  # the experiment file of `perinvfl demo`, as it is, to be copied
PURPOSES = {
    "shift": "models that hold where data differ from training",
    "shared": "one model for all clients",
    "personal": "a model for each client",
    "pooled": "all data in one place, to see what federation costs",
}
SECTIONS = {
    "contexts": "how contexts are inferred where data name none",
    "model": "the network and its size",
    "training": "rounds, batches, device",
    "federation": "training across machines",
}


def complete_name(incomplete: str) -> list[str]:
    """For the shell: what `perinvfl list` may be followed by."""
    return [name for name in _known() if name.startswith(incomplete)]


def show_catalogue(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An algorithm, benchmark, section, model, preset or setting to show in full, or my_module:Algorithm.",
            autocompletion=complete_name,
        ),
    ] = None,
) -> None:
    """List what an experiment file can name, one line each; with a NAME, show it with all its settings."""
    console = wide_console()
    if name is None:
        _show_all(console)
        return
    asked = name.strip("[]")
    if asked in _known():
        _show_one(console, asked)
    elif ":" in asked:
        _show_own(console, asked)
    else:
        near = _near(asked.lower())
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `perinvfl list` names them."
        raise UserError(f'"{name}" is not an algorithm, benchmark, section, model, preset or setting{hint}')


def _show_all(console: Console) -> None:
    catalogue = read_catalogue()
    groups = {
        **{f"Algorithms: {words}": _algorithms_for(purpose) for purpose, words in PURPOSES.items()},
        "Benchmarks": {name: entry.title for name, entry in catalogue.benchmarks.items()},
        "Models": {name: words for name, (words, _) in MODELS.items()},
        "Sections of an experiment file": {f"[{name}]": SECTIONS[name] for name in catalogue.sections},
    }
    for title, lines in groups.items():
        console.print(title, style="bold")
        for name, words in lines.items():
            console.print(f"  {name:<18}{words}", soft_wrap=True)
    console.print("Presets, for `perinvfl run --preset METHOD-TABLE`", style="bold")
    methods: dict[str, list[str]] = {}
    for method, _, table in (name.partition("-") for name in preset_names()):
        methods.setdefault(table, []).append(method)
    for table, names in methods.items():
        console.print(f"  ...-{table}: {', '.join(names)}", soft_wrap=True)
    console.print("Published tables, for `perinvfl table NAME`", style="bold")
    console.print(f"  {', '.join(published_names())}", soft_wrap=True)
    console.print("`perinvfl list NAME` shows one of them with all its settings.")


def _show_one(console: Console, name: str) -> None:
    """Everything that goes by this name: `model` is a section, `weights` a setting of two sections."""
    catalogue = read_catalogue()
    if name in catalogue.algorithms:
        entry = catalogue.algorithms[name]
        _show_settings(console, f"algorithm {name}: {_titled(entry)}", entry.settings, entry.about)
    if name in catalogue.benchmarks:
        _show_settings(
            console, f"benchmark {name}: {catalogue.benchmarks[name].title}", catalogue.benchmarks[name].settings
        )
    if name in catalogue.sections:
        _show_settings(console, f"[{name}]: {SECTIONS[name]}", catalogue.sections[name].settings)
    if name in MODELS:
        words, own = MODELS[name]
        settings = tuple(map(catalogue.sections["model"].setting, own))
        _show_settings(console, f'[model] kind = "{name}": {words}', settings)
    if name in preset_names():
        console.print(f"preset {name}: {preset_line(name)}", style="bold")
        console.print(preset_file(name).read_text(encoding="utf-8").partition("\n")[2])
    if name == DEMO:
        hand_over(demo_file().read_text(encoding="utf-8"), end="")
    for setting, owners in _owners(name):
        _show_settings(console, f"setting of {', '.join(owners)}", (setting,))


def _show_own(console: Console, name: str) -> None:
    """An algorithm in a module of the user's own."""
    from perinvfl.runs.declared import entry_of
    from perinvfl.runs.experiment import algorithm_named

    entry = entry_of(algorithm_named(name, "name"))
    _show_settings(console, f"algorithm {name}: {_titled(entry)}", entry.settings, entry.about)


def _near(name: str) -> list[str]:
    """At most four names to have meant: those that contain it, the shortest first, then those spelled alike."""
    within = sorted((known for known in _known() if name in known.lower()), key=len)
    return list(dict.fromkeys([*within, *difflib.get_close_matches(name, _known(), n=4, cutoff=0.6)]))[:4]


def _algorithms_for(purpose: str) -> dict[str, str]:
    found = read_catalogue().algorithms.items()
    return {name: _titled(entry) for name, entry in found if entry.purpose == purpose}


def _titled(entry: Entry) -> str:
    return entry.title if entry.paper in ("", "-") else f"{entry.title} ({entry.paper})"


def _known() -> list[str]:
    catalogue = read_catalogue()
    entries = [*catalogue.algorithms.items(), *catalogue.benchmarks.items(), *catalogue.sections.items()]
    settings = sorted({setting.name for _, entry in entries for setting in entry.settings})
    return list(dict.fromkeys([*(name for name, _ in entries), *MODELS, *preset_names(), DEMO, *settings]))


def _owners(name: str) -> list[tuple[Setting, list[str]]]:
    """What has a setting of this name; settings that are declared alike stand together."""
    catalogue = read_catalogue()
    sections = {f"[{section}]": entry for section, entry in catalogue.sections.items()}
    found: list[tuple[Setting, list[str]]] = []
    for owner, entry in (catalogue.algorithms | catalogue.benchmarks | sections).items():
        for setting in entry.settings:
            alike = next((owners for other, owners in found if other == setting), None)
            if setting.name == name and alike is not None:
                alike.append(owner)
            elif setting.name == name:
                found.append((setting, [owner]))
    return found


def _show_settings(console: Console, title: str, settings: Sequence[Setting], about: str = "") -> None:
    console.print(title, style="bold", soft_wrap=True)
    if about:
        console.print(about, markup=False)
    if not settings:
        console.print("There is nothing to set.")
        return
    shown = RichTable(expand=False)
    heads = ("setting", "symbol", "default", "allowed", "search range", "meaning")
    rows = [(s.name, s.symbol, s.default_text, s.allowed, s.search, s.meaning) for s in settings]
    used = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    for place in used:
        shown.add_column(heads[place], overflow="fold")
    for row in rows:
        shown.add_row(*(row[place] for place in used))
    console.print(shown)
