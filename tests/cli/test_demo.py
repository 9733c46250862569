"""The demo: every cell once, finished ones not again, and failures told once the others have ended."""

import json
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hf_memory.cli import demo
from hf_memory.cli.app import app
from hf_memory.experiments.results import read_rows
from hf_memory.storage import claim
from hf_memory.studies import workers
from hf_memory.studies.workers import Ended, Reached, Started

runner = CliRunner()


def rows_of(folder: str) -> list[Path]:
    return sorted(Path(folder, "rows").glob("*.jsonl"))


class InlinePool:
    """Runs pieces in this process, since a worker needs seconds to start; a test marked slow runs the workers."""

    def __init__(self, work, workers):
        self.work = work
        self.ran: list[demo.Cell] = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def run(self, pieces):
        for piece in pieces:
            self.ran.append(piece)
            yield Started(piece)
            steps: list[int] = []
            try:
                value, error = self.work(piece, steps.append), ""
            except ValueError as failure:
                value, error = None, f"Traceback of {failure}"
            yield from (Reached(piece, step) for step in steps)
            yield Ended(piece, value, error, 2.0)


@pytest.fixture
def pool(monkeypatch):
    """The pools that the demo has made."""
    pools: list[InlinePool] = []

    def make(work, workers):
        pools.append(InlinePool(work, workers))
        return pools[-1]

    monkeypatch.setattr(demo, "Pool", make)
    monkeypatch.setattr(demo, "MIXERS", ("lstm", "attention"))
    return pools


def test_cells_are_the_mixers_on_both_tasks():
    cells = [demo.Cell(study, mixer, True, Path("out")) for study in (0, 1) for mixer in demo.MIXERS]
    assert [cell.experiment().mixer for cell in cells] == ["lstm", "lru", "delta_net", "attention"] * 2
    assert len({cell.path for cell in cells}) == 8


def test_every_cell_runs_once_and_the_second_time_nothing_is_run(pool, capsys):
    rows = demo.run_demo("out", 2, smoke=True)
    cells = pool[0].ran
    assert [cell.name for cell in cells] == [
        f"{mixer} on {task}" for task in ("bit_parity", "mqar") for mixer in demo.MIXERS
    ]
    assert [row.length for row in rows if row.split != "validation"] == [32, 48, 64, 128, 256] * 2 + [32, 64, 128] * 2
    assert {row.steps for row in rows} == {5}
    assert sorted(path.name for path in Path("out/checkpoints").iterdir()) == [
        "bit_parity-attention", "bit_parity-lstm", "mqar-attention", "mqar-lstm",
    ]  # fmt: skip
    told = capsys.readouterr().err
    assert f"lstm on bit_parity: token accuracy {rows[1].value():.3f} at 32, {rows[5].value():.3f} at 256 (2 s)" in told
    assert "100%" in told
    assert "20/20" in told
    times = {path: path.stat().st_mtime_ns for path in rows_of("out")}
    page = Path("out/report/index.html").read_text()
    assert demo.run_demo("out", 2, smoke=True) == rows
    assert pool[1].ran == []
    assert {path: path.stat().st_mtime_ns for path in rows_of("out")} == times
    assert "Four mixers on two memory tasks" in page
    assert capsys.readouterr().err.count("(finished before)") == 4


def test_a_failed_cell_is_told_after_the_others_have_ended(pool, monkeypatch):
    def work(cell, beat):
        if cell.name == "lstm on bit_parity":
            raise ValueError("broken")
        return run_cell(cell, beat)

    run_cell = demo.run_cell
    monkeypatch.setattr(demo, "run_cell", work)
    with pytest.raises(RuntimeError) as error:
        demo.run_demo("out", 2, smoke=True)
    assert str(error.value) == "not finished: lstm on bit_parity\nlstm on bit_parity:\nTraceback of broken"
    assert len(rows_of("out")) == 3
    assert not Path("out/report").exists()


def test_worker_of_a_dead_parent_stops_and_releases_its_claim(monkeypatch):
    cell = demo.Cell(0, "lstm", True, Path("out"))
    gone = SimpleNamespace(is_alive=lambda: False)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: gone)
    with pytest.raises(SystemExit):
        demo.run_cell(cell, workers._Pulse(SimpleNamespace()))
    assert rows_of("out") == []
    with claim(cell.path) as mine:
        assert mine


def test_a_cell_that_is_run_elsewhere_is_waited_for(monkeypatch):
    cell, waited = demo.Cell(0, "lstm", True, Path("out")), []
    with claim(cell.path):
        monkeypatch.setattr(demo.time, "sleep", lambda seconds: cell.path.write_text("rows of another"))
        assert demo.run_cell(cell, waited.append) is False
    assert waited == [0]


def test_number_of_workers_is_at_least_one():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        demo.run_demo("out", 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_goes_on_where_it_was_stopped():
    first = runner.invoke(app, ["demo", "--smoke", "--output-dir", "out"])
    assert first.exit_code == 0, first.output
    rows = rows_of("out")
    assert len(rows) == 8
    times = {path: path.stat().st_mtime_ns for path in rows[1:]}
    rows[0].unlink()
    again = runner.invoke(app, ["demo", "--smoke", "--output_dir", "out"])
    assert again.exit_code == 0, again.output
    assert rows_of("out") == rows
    assert {path: path.stat().st_mtime_ns for path in rows[1:]} == times
    assert (Path("out/report/index.html")).is_file()
    assert json.loads(rows[0].read_text().splitlines()[0])["rows"] > 1
    assert read_rows(rows[0])[0].steps == 5
