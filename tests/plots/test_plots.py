"""Figures: three files of each kind, the table's own numbers inside, and nothing fetched from anywhere."""

import copy
import json
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest

from perinvfl.cli import call
from perinvfl.core.extras import how_to_install
from perinvfl.core.naming import visible
from perinvfl.plots import charts, figure_data, files
from perinvfl.results.paper import CASES, TABLES
from perinvfl.results.render import as_json
from perinvfl.results.table import make_table
from perinvfl.runs.records import Run, find_runs, pack
from tests.commands import tiny_file

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.1\n'
SEARCHED = '\n[[algorithm]]\nname = "irm_l2"\n'
TESTS = json.dumps([*CASES, "0.9"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, two seeds, the paper's test cases and one more."""
    folder = tmp_path_factory.mktemp("plots")
    file = tiny_file(folder, more=SECOND)
    settings = ["--set", "seeds=[0, 1]", "--set", f"data.tests={TESTS}"]
    assert call(["run", str(file), "--out", str(folder), *settings]) == 0
    return folder / "tiny"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed search of two methods; the file names the β and λ of the first, so only the second's were drawn."""
    folder = tmp_path_factory.mktemp("search")
    file = tiny_file(folder, rounds=3, more=SEARCHED)
    assert call(["sweep", str(file), "--trials", "4", "--out", str(folder)]) == 0
    pack(find_runs(folder / "tiny-sweep"), folder / "search.jsonl.xz")
    return folder / "search.jsonl.xz"


def relabelled(run: Run, label: str, **data: Any) -> Run:
    events = copy.deepcopy(run.events)
    events[0]["asked"]["algorithm"]["label"] = label
    events[0]["asked"]["data"].update(data)
    return Run(run.folder, events)


def check_files(folder: Path, stem: str, words: list[str]) -> None:
    svg = (folder / f"{stem}.svg").read_text()
    written = " ".join(ElementTree.fromstring(svg).itertext())
    png = (folder / f"{stem}.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    page = (folder / f"{stem}.html").read_text()
    for word in words:
        assert word in written and word in page
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and 400 < width < 2000 and 200 < height < 4000
    assert "window.vegaEmbed" in page and len(page) > 500_000
    tags = Tags()
    tags.feed(page)
    assert {"html", "script", "div"} <= set(tags.found)
    assert not {"link", "img", "iframe"} & set(tags.found)
    assert not tags.addresses and "@import" not in page and "url(http" not in page


class Tags(HTMLParser):
    """A page's tags, and every address that one of them would fetch or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]


@pytest.mark.parametrize("kind", ["spectrum", "learning", "clients"])
def test_every_kind_makes_three_files(kind: str, finished: Path, tmp_path: Path) -> None:
    assert call(["plot", str(finished), "--kind", kind, "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"tiny-{kind}.{end}" for end in ("html", "png", "svg")]
    check_files(tmp_path, f"tiny-{kind}", ["PerInvFL", "FedAvg", "random"])


def test_names_of_methods_are_drawn_in_full(finished: Path, tmp_path: Path) -> None:
    first, *others = find_runs(finished)
    long = "Recommended, wwwwwwwww"  # of wide letters
    drawn = charts.make_charts([relabelled(first, "Recommended"), relabelled(others[-1], long)], "clients")
    files.write_chart(drawn["clients"], tmp_path / "wide")
    written = list(ElementTree.fromstring((tmp_path / "wide.svg").read_text()).itertext())
    assert {"Recommended", long} <= set(written), written


def test_a_packed_search_shows_the_effect_of_its_settings(searched: Path) -> None:
    assert call(["plot", str(searched)]) == 0  # all that fits: sensitivity
    figures = searched.parent / "figures"
    assert sorted(path.suffix for path in figures.iterdir()) == [".html", ".png", ".svg"]
    check_files(figures, "tiny-sweep-sensitivity", ["IRM-L2", "β", "λ", "Worst case"])


def test_sensitivity_has_the_tables_numbers_and_only_settings_that_were_searched(searched: Path) -> None:
    runs = find_runs(searched)
    rows = {row["method"]: row for row in as_json(make_table(runs))["rows"]}
    asked = {figure_data.label_of(run): run.start["asked"]["algorithm"] for run in runs}
    values = figure_data.sensitivity_values(figure_data.look_at(runs))
    assert len(values) == 4 * 2 * 2  # trials, settings, measures
    assert {value["method"] for value in values} == {"IRM-L2"}
    for value in values:
        assert value["accuracy"] == rows[value["trial"]]["average" if value["measure"] == "Average" else "worst"]
        assert value["setting"] == asked[value["trial"]][value["field"]]


def test_the_charts_hold_the_tables_numbers(finished: Path) -> None:
    runs = find_runs(finished)
    rows = {row["method"]: row for row in as_json(make_table(runs))["rows"]}
    drawn = charts.make_charts(runs, "all")
    assert list(drawn) == ["spectrum", "learning", "clients"]
    spectrum = inside(drawn["spectrum"])
    assert len(spectrum) == sum(len(row["cases"]) for row in rows.values())
    for value in spectrum:
        cell = rows[value["method"]]["cases"][value["case"]]
        assert value["accuracy"] == cell["mean"]
        assert value["high"] - value["low"] == pytest.approx(2 * cell["std"])
    for method in ("PerInvFL", "FedAvg"):
        last = [value for value in inside(drawn["learning"]) if (value["method"], value["round"]) == (method, 10)]
        clients = [value["accuracy"] for value in inside(drawn["clients"]) if value["method"] == method]
        assert last[0]["accuracy"] == pytest.approx(rows[method]["average"])
        assert fmean(clients) == pytest.approx(rows[method]["average"])
        assert len(clients) == 3


def inside(chart: Any) -> list[dict[str, Any]]:
    """The values of a chart as they stand in its specification."""
    found = [
        entry for entry in re.findall(r'"values": (\[\{.*?\}\])', json.dumps(chart.to_dict())) if "accuracy" in entry
    ]
    values = {json.dumps(value, sort_keys=True) for entry in found for value in json.loads(entry)}
    return [json.loads(value) for value in values]


def test_the_papers_numbers_stand_beside_ours(finished: Path) -> None:
    runs = [relabelled(run, figure_data.label_of(run), benchmark="rc_mnist") for run in find_runs(finished)]
    runs = [Run(run.folder, [{**run.start, "spectrum": list(CASES)}, *run.events[1:]]) for run in runs]
    values = figure_data.spectrum_values(figure_data.look_at(runs))
    drawn = {(value["method"], value["case"]): value["accuracy"] for value in values if value["source"] == "the paper"}
    names = {"PerInvFL": "perinvfl", "FedAvg": "fedavg"}
    published = TABLES["rc_mnist"]
    assert drawn == {(m, case): published[n][i] for m, n in names.items() for i, case in enumerate(CASES)}
    panels = {value["panel"] for value in figure_data.learning_values(figure_data.look_at(runs))}
    assert panels == {"Shifted test data: mean over p = 0.1 … 0.5", "Test data as in training: p = 0.9"}


def test_many_methods_get_a_panel_each_and_shape_only_is_grey(finished: Path, tmp_path: Path) -> None:
    first = find_runs(finished)[0]
    runs = [relabelled(first, f"Way {number}") for number in range(8)]
    runs.append(relabelled(first, "Shape only", grayscale=True))
    many = figure_data.look_at(runs)
    assert many.crowded and many.styles["Shape only"] == figure_data.SHAPE_ONLY and "shape_only" in many.levels
    files.write_chart(charts.spectrum_chart(many), tmp_path / "many")
    check_files(tmp_path, "many", [f"Way {number}" for number in range(8)])
    assert charts.learning_chart(many).to_dict()["columns"] == 3


def test_a_label_cannot_end_the_script_it_stands_in(finished: Path, tmp_path: Path) -> None:
    runs = [relabelled(find_runs(finished)[0], "</script><b>bold")]
    files.write_chart(charts.make_charts(runs, "clients")["clients"], tmp_path / "odd")
    page = (tmp_path / "odd.html").read_text()
    assert page.count("</script>") == 2 and "\\u003c/script>\\u003cb>bold" in page


@pytest.mark.parametrize("odd", ["\x1b[31m", "\x9b", "\u202e", "\0", "\ufffe", "\uffff", "\x07"], ids=ascii)
def test_characters_that_no_figure_may_hold_are_drawn_as_escapes(odd: str, finished: Path, tmp_path: Path) -> None:
    """The library that draws would end the process."""
    name = f"a{odd}b"
    chart = charts.make_charts([relabelled(find_runs(finished)[0], name)], "learning")["learning"]
    svg, _, page = files.write_chart(chart, tmp_path / "figure")
    assert visible(name) in "".join(ElementTree.fromstring(svg.read_text()).itertext())
    assert odd[0] not in svg.read_text() + page.read_text().rpartition("const spec = ")[2]


@pytest.mark.parametrize(
    "kind, which, words",
    [
        ("spectrum", "searched", "one chosen run per method"),
        ("learning", "searched", "--kind sensitivity"),
        ("sensitivity", "finished", "perinvfl sweep"),
        ("all", "missing", "is not a folder"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(
    kind: str, which: str, words: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path("missing") if which == "missing" else request.getfixturevalue(which)
    capsys.readouterr()
    assert call(["plot", str(place), "--kind", kind]) == 2
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"altair", "vl_convert"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from perinvfl.cli import call
sys.exit(call(sys.argv[1:]))
"""


def test_without_the_extra_one_sentence_says_what_to_install(finished: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCK, "plot", str(finished)], capture_output=True, text=True)
    assert done.returncode == 2
    assert how_to_install("plot") in done.stderr and done.stderr.count("\n") == 1
    assert not (finished / "figures").exists()
