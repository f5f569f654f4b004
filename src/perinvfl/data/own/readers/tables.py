"""Tables: CSV by the standard library, Parquet by pyarrow."""

import csv
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from perinvfl.core.memory import check_fits, product
from perinvfl.core.naming import name_of, shortened
from perinvfl.data.own.readers.columns import ALL, Column, feature_in, names_in
from perinvfl.data.own.readers.decimal_commas import reading_notes, with_points
from perinvfl.data.own.readers.libraries import need
from perinvfl.data.own.readers.roles import column_roles
from perinvfl.data.own.readers.utf8 import why_not_utf8
from perinvfl.data.own.rows import BadData, Columns, Fault, Found
from perinvfl.errors import UserError

CELL = 64  # bytes of a cell as Python holds it
BATCH = 2**28  # bytes of a piece of a Parquet table
NO_ROWS = "there is a header and no row below it"
TABLES = (".csv", ".tsv", ".parquet", ".pq")


class Cells(NamedTuple):
    """A table as it stands."""

    kind: str
    header: list[str]
    columns: dict[str, Column]
    places: list[str]  # how a person would call each row
    ragged: list[tuple[int, Fault]]  # rows with a cell too many or too few
    delimiter: str = ""  # between the cells of a text file
    commas: tuple[str, ...] = ()  # columns whose decimal commas were read as points
    doubts: tuple[tuple[str, str], ...] = ()  # columns that look like it and were not read so, and why


def read_csv(path: Path, columns: Columns) -> Found:
    cells = whole_table(path, names=(columns.client, columns.context, *columns.categories))
    return found_in(cells, column_roles(path, cells.header, columns))


def csv_cells(path: Path) -> Cells:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = _delimiter(first, path)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            lines = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError:
        raise UserError(f"{path} {why_not_utf8(path)}.") from None
    except csv.Error as error:
        raise BadData(str(path), [Fault(f"line {reader.line_num}", "", f"is not CSV: {error}")]) from None
    if not lines:
        raise BadData(str(path), [Fault("", "", "the file is empty; the first line must name the columns")])
    header = [name.strip() for name in lines[0][1]]
    body = lines[1:]
    ragged = [
        (i, Fault(f"line {line}", "", f"has {len(row)} cells where the first line names {len(header)} columns"))
        for i, (line, row) in enumerate(body)
        if len(row) != len(header)
    ]
    whole = [(row + [""] * len(header))[: len(header)] for _, row in body]
    columns: dict[str, Column] = {name: [row[at] for row in whole] for at, name in enumerate(header)}
    return Cells("CSV table", header, columns, [f"line {line}" for line, _ in body], ragged, delimiter)


def _delimiter(first: str, path: Path) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max((",", ";", "\t"), key=first.count)  # the first of equals


def whole_table(path: Path, names: Collection[str] = ()) -> Cells:
    """All columns of a table as they are trained on: decimal commas as points, but for columns that hold names."""
    if path.suffix.lower() in (".parquet", ".pq"):
        arrow, table = _parquet(path)
        cells = _parquet_cells(arrow, table, table.column_names)
    else:
        cells = csv_cells(path)
    if not cells.places:
        raise BadData(str(path), [Fault("", "", NO_ROWS)])
    return _with_points(cells, names)


def _with_points(cells: Cells, names: Collection[str]) -> Cells:
    texts = {name: column for name, column in cells.columns.items() if isinstance(column, list) and name not in names}
    made = {name: with_points(column, cells.delimiter) for name, column in texts.items()}
    return cells._replace(
        columns={**cells.columns, **{name: pointed.cells for name, pointed in made.items()}},
        commas=tuple(name for name, pointed in made.items() if pointed.read),
        doubts=tuple((name, pointed.doubt) for name, pointed in made.items() if pointed.doubt),
    )


def read_parquet(path: Path, columns: Columns) -> Found:
    arrow, table = _parquet(path)
    if not table.num_rows:
        raise BadData(str(path), [Fault("", "", NO_ROWS)])
    roles = column_roles(path, list(table.column_names), columns)
    return found_in(_parquet_cells(arrow, table, [*roles.features, roles.label, roles.client, roles.context]), roles)


def _parquet(path: Path) -> tuple[Any, Any]:
    arrow = need("pyarrow", "tables", "A Parquet table")
    parquet = need("pyarrow.parquet", "tables", "A Parquet table")
    try:
        with parquet.ParquetFile(path) as file:
            table = arrow.Table.from_batches(list(_batches(path, file)), file.schema_arrow)
            table.validate(full=True)  # text is UTF-8, and no value lies outside the file
            return arrow, table
    except (arrow.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise UserError(
            f"{path} is not a Parquet file: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None


def _batches(path: Path, file: Any) -> Iterator[Any]:
    """The table piece by piece, each no larger than can be held: a few bytes may stand for many rows."""
    about = file.metadata
    check_fits(CELL * product((about.num_rows, about.num_columns)), f"{path}: {about.num_rows:,} rows")
    # No single value is longer than its group of rows. What is known of single columns is not asked for: pyarrow ends
    # the process where that is damaged.
    longest = max((about.row_group(group).total_byte_size for group in range(about.num_row_groups)), default=1)
    for batch in file.iter_batches(batch_size=max(1, min(65_536, BATCH // max(1, longest)))):
        check_fits(2 * batch.nbytes, f"{path}, unpacked,")  # and once more as Python's own values
        yield batch


def _parquet_cells(arrow: Any, table: Any, used: Sequence[str]) -> Cells:
    names = list(table.column_names)  # one may stand twice, which is said elsewhere
    columns = {}
    for name in names:
        if name in used:
            column = table.column(names.index(name))
            try:
                columns[name] = _parquet_column(arrow, column)
            except (arrow.ArrowException, ArithmeticError, LookupError, ValueError):
                raise UserError(
                    f'Parquet table: column "{shortened(name)}" ({column.type}) holds values that cannot be read; '
                    "write them as text."
                ) from None
    return Cells("Parquet table", list(table.column_names), columns, [f"row {i + 1}" for i in range(len(table))], [])


def _parquet_column(arrow: Any, column: Any) -> Column:
    """Numbers without gaps as a tensor, anything else as text; a missing value is an empty text."""
    kind = column.type
    numeric = arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)
    if numeric and not column.null_count:
        try:
            return torch.tensor(column.cast(arrow.float64()).to_numpy(), dtype=torch.float64)
        except arrow.ArrowInvalid:  # whole numbers that no float holds: ids, which as text stay apart
            pass
    return ["" if value is None else name_of(value) for value in column.to_pylist()]


def table_cells(path: Path, used: Sequence[str]) -> Cells:
    """A table as it stands; of a Parquet table the named columns alone."""
    parquet = path.suffix.lower() in (".parquet", ".pq")
    return _parquet_cells(*_parquet(path), used) if parquet else csv_cells(path)


def found_in(table: Cells, roles: Columns) -> Found:
    """What a table holds, column by column."""
    cells, places, ragged = table.columns, table.places, table.ragged
    faults, faulty = [fault for _, fault in ragged], {i for i, _ in ragged}
    columns = []
    for name in roles.features:
        feature = feature_in(name, cells[name], places, faulty, roles)
        columns.append(feature)
        faults += [fault for _, fault in feature.wrong]
        faulty |= {i for rows, _ in feature.wrong for i in rows}
    named = {}
    for role, name in (("client", roles.client), ("context", roles.context)):
        named[role], wrong = names_in(role, name, cells[name] if name else [ALL] * len(places), places, faulty)
        faults += [fault for _, fault in wrong]
        faulty |= {i for rows, _ in wrong for i in rows}
    return Found(
        kind=table.kind,
        x=torch.stack([feature.values for feature in columns], 1),
        labels=cells[roles.label],
        client=named["client"],
        context=named["context"],
        features=roles.features,
        place=lambda i: places[i],
        faults=tuple(faults),
        faulty=frozenset(faulty),
        levels=tuple(feature.levels for feature in columns),
        notes=_notes(table, (*roles.features, roles.label)),
    )


def _notes(table: Cells, used: Sequence[str]) -> tuple[str, ...]:
    read = [name for name in table.commas if name in used]
    return reading_notes(read, {name: doubt for name, doubt in table.doubts if name in used})
