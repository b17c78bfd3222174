"""What a run tells while it goes on: lines at intervals, a bar that waits, and silence where none is asked for."""

import io
import math
import signal
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from learnable import Problem
from rich.console import Console

from autogp import GPRegressor
from autogp.training import PlainLines, Progress, ProgressBar, Settings, train
from autogp.training import progress as callbacks
from autogp.training.progress import Interrupts, progress_display

PROGRESS = Progress(
    step=30,
    total_steps=100,
    epoch=3.0,
    epoch_end=True,
    objective="elbo",
    value=-0.51234,
    score=-0.41234,
    nlp=0.71234,
    rows_per_second=12345.6,
    seconds=70.0,
    seconds_left=163.4,
    gain=math.nan,
    least_gain=math.nan,
    skipped=0,
    predictor=Mock(),
)


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: self.now))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_has_nlp_speed_and_time_left():
    assert PROGRESS.line() == "epoch 3.0, nlp 0.7123, 12,346 rows/s, 2 min 43 s left"


def test_line_of_a_run_without_a_known_end_tells_what_ends_it():
    line = replace(PROGRESS, seconds_left=math.nan, gain=0.0123, least_gain=5e-4).line()
    assert line == "epoch 3.0, nlp 0.7123, 12,346 rows/s, gains 0.012, ends below 0.0005"


def test_share_goes_by_time_or_by_the_gain_that_is_left():
    assert PROGRESS.share == pytest.approx(70 / 233.4)
    converging = replace(PROGRESS, seconds_left=math.nan, gain=0.1, least_gain=1e-3)
    assert converging.share == pytest.approx(1 / 3)
    assert [replace(converging, gain=gain).share for gain in (5.0, -0.1, math.nan)] == [0.0, 1.0, 0.0]


def test_nlp_is_in_the_units_of_the_targets():
    x = np.linspace(0, 6, 80)[:, None]
    y = 1000 * np.sin(x[:, 0]) + 100 * np.random.default_rng(0).normal(size=80)
    seen = []
    model = GPRegressor(20, likelihood="gaussian", random_state=0, verbose=False).fit(x, y, callbacks=[seen.append])
    assert seen[-1].nlp == pytest.approx(np.log(y.std()) - model.history_[-1]["score"])
    assert math.isnan(seen[-1].seconds_left)
    assert seen[-1].gain < seen[-1].least_gain


def test_a_notebook_has_one_line_that_is_written_over(monkeypatch):
    clock = Clock(monkeypatch)
    Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    stream = Notebook()
    monkeypatch.setattr(sys, "stderr", stream)
    display: Any = progress_display("auto")
    for second in range(4):
        clock.now += 1.0
        display(replace(PROGRESS, seconds=float(second)))
    display.close()
    assert stream.getvalue() == 2 * f"\rtraining: {PROGRESS.line()}" + "\n"


def test_line_leaves_out_a_score_that_is_not_there_and_counts_skipped_steps():
    line = replace(PROGRESS, nlp=math.nan, skipped=2).line()
    assert "nlp" not in line
    assert line.endswith(", 2 steps skipped")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599.9, "1 h 00 min"), (7321.0, "2 h 02 min")],
)
def test_time_left_is_in_the_units_that_suit(seconds, text):
    assert f", {text} left" in replace(PROGRESS, seconds_left=seconds).line()


def test_plain_lines_come_at_intervals(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = PlainLines(stream, interval=30.0)
    for seconds in range(0, 100, 5):
        clock.now = 1000.0 + seconds
        lines(PROGRESS)
    lines.close()
    assert stream.getvalue() == 3 * f"training: {PROGRESS.line()}\n"


def test_plain_lines_of_a_run_tell_its_state(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    problem = Problem("softmax")

    def tick(progress: Progress) -> None:
        clock.now += 10.0

    settings = Settings(max_epochs=3, batch_size=65)  # twelve steps
    train(problem.model(), problem.source, settings, callbacks=[tick, PlainLines(stream)])
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [f"training: epoch {epoch}" for epoch in (0.8, 1.5, 2.2, 3.0)]
    for line in lines[1:]:
        for part in ("nlp ", " rows/s", " left"):
            assert part in line


def test_bar_is_silent_below_its_delay_and_then_shows_the_line():
    stream = Terminal()
    bar = ProgressBar(Console(file=stream, force_terminal=True, width=150), delay=2.0)
    bar(replace(PROGRESS, seconds=1.9))
    bar.close()
    assert stream.getvalue() == ""
    bar(replace(PROGRESS, seconds=2.0))
    bar(PROGRESS)
    bar.close()
    assert "nlp 0.7123" in stream.getvalue()
    assert "2 min 43 s left" in stream.getvalue()
    bar.close()  # closing twice does no harm


def test_display_suits_where_standard_error_goes(monkeypatch):
    assert progress_display(False) is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(progress_display(True), ProgressBar)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    display = progress_display(True)
    assert isinstance(display, PlainLines)
    assert display.stream is sys.stderr
    assert display.interval == 30.0
    monkeypatch.setattr(sys, "stderr", None)  # as in a program without a console
    assert progress_display(True) is None


@pytest.mark.parametrize("verbose", [True, False])
def test_quick_fit_prints_nothing(capfd, verbose):
    problem = Problem("softmax")
    train(problem.model(), problem.source, Settings(max_epochs=2), verbose=verbose)
    assert capfd.readouterr() == ("", "")


# -- signals ---------------------------------------------------------------------------------------------------------


def test_signals_are_noted_within_the_block_and_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts() as interrupts:
        assert interrupts.received is None
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_second_signal_is_obeyed_at_once():
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_run_in_another_thread_leaves_signals_alone(tmp_path):
    problem, results = Problem("softmax"), []

    def work() -> None:
        results.append(train(problem.model(), problem.source, Settings(max_epochs=2), folder=tmp_path))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        assert signal.getsignal(signal.SIGINT) is before
        time.sleep(0.001)
    thread.join()
    assert results[0].stopped == "max_epochs"
