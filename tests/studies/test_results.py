"""Records as rows: filtered, compared, exported."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.studies import StudyResult
from lowprec.studies.results import compare, filtered, load_rows, write_rows


def test_rows_hold_every_metric(undisturbed: StudyResult) -> None:
    rows = load_rows(undisturbed.folder)
    assert len(rows) == sum(len(record.metrics) for record in undisturbed.records)
    (row,) = filtered(rows, ["recipe==nvfp4", "metric==kl"])
    record = undisturbed.records[2]
    assert row["value"] == record.metrics["kl"].value
    assert [row["low"], row["high"]] == record.details["intervals"]["kl"]
    assert (row["model"], row["on"]) == ("model", "text.txt")
    assert {r["on"] for r in filtered(rows, ["kind=through"])} == {"b200", "h100_sxm"}
    with pytest.raises(LowprecError, match="unknown column 'recip'; did you mean 'recipe'"):
        filtered(rows, ["recip=x"])


def test_two_studies_are_compared_row_by_row(undisturbed: StudyResult, tmp_path: Path) -> None:
    other = shutil.copytree(undisturbed.folder, tmp_path / "other")
    gone = undisturbed.records[1]
    (other / "cells" / f"{gone.name}.json").unlink()
    rows = compare(load_rows(undisturbed.folder), load_rows(other))
    assert len(rows) == len(load_rows(undisturbed.folder))
    for row in rows:
        missing = (row["recipe"], row["kind"]) == ("mxfp8", "accuracy")
        assert row["difference"] == (None if missing else 0)
        assert row["same inputs"] is (None if missing else True)


def test_another_text_of_the_same_name_is_told(undisturbed: StudyResult) -> None:
    here = load_rows(undisturbed.folder)
    changed = [row | {"inputs": "another"} if row["on"] == "text.txt" else row for row in here]
    told = {(row["on"], row["same inputs"]) for row in compare(here, changed)}
    assert told == {("text.txt", False), ("b200", True), ("h100_sxm", True)}
    # What is measured on the same bytes under other recipes has the same inputs.
    assert len({row["inputs"] for row in here if row["kind"] == "accuracy"}) == 1


def test_rows_are_exported(undisturbed: StudyResult, tmp_path: Path) -> None:
    rows = load_rows(undisturbed.folder)
    write_rows(rows, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["value"]) for row in read] == [row["value"] for row in rows]
    with pytest.raises(LowprecError, match=r"rows\.csv: No such file or directory"):
        write_rows(rows, tmp_path / "none" / "rows.csv")
    with pytest.raises(LowprecError, match=r"expected a .csv or .parquet file"):
        write_rows(rows, tmp_path / "rows.txt")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows(rows, tmp_path / "rows.parquet")
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist()[0] == rows[0]


def test_a_damaged_record_is_an_error(undisturbed: StudyResult, tmp_path: Path) -> None:
    other = shutil.copytree(undisturbed.folder, tmp_path / "other")
    next((other / "cells").iterdir()).write_text("{}")
    with pytest.raises(LowprecError, match="damaged; run the study again"):
        load_rows(other)
    with pytest.raises(LowprecError, match="no study's folder"):
        load_rows(tmp_path)
