"""What the contenders' processes share: requests and answers as JSON lines, a clock that rests between turns, scores.

Runs in every contender's Python, so it needs NumPy alone. A contender brings a class with

    Model(problem, recipe)        builds it; `problem` holds arrays, `recipe` the settings
    model.to_batch(x, y)          NumPy arrays as its own tensors
    model.step(batch)             one training step
    model.predictor()             a function of x [B, D] that gives mean and variance [B, Q]; for regression those of y
"""

import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from problems import PREDICTED_ROWS, in_blocks, minibatches, random_problem, read_problem, scaled, scores

WARM_ROWS = 50
Score = Callable[[], dict[str, float]]
AfterStep = Callable[[Score], bool]  # told how to score the model; whether the training is over


def threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def processor() -> Callable[[], float]:
    """A clock in seconds: the processor's on one thread, so that other programs do not count, else the wall's."""
    return time.process_time if threads() == 1 else time.perf_counter


class Turns:
    """The clock of a training. At each mark but the last it rests: scores are told, and the next turn is waited for."""

    def __init__(
        self,
        marks: list[float],
        tell: Callable[[dict], None],
        wait: Callable[[], Any],
        seconds: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.marks, self.tell, self.wait, self.clock = list(marks), tell, wait, clock
        self.seconds, self.steps, self.since = seconds, 0, clock()
        self.first_step: float | None = None  # when it was taken: the model built and compiled

    def __call__(self, score: Score) -> bool:
        """To be called after each step; whether the training is over."""
        self.steps += 1
        if self.first_step is None:
            self.first_step = self.seconds + self.clock() - self.since
        if self.seconds + self.clock() - self.since < self.marks[0]:
            return False
        return self.rest(score)

    def rest(self, score: Score) -> bool:
        self.stop()
        self.marks = [mark for mark in self.marks if mark > self.seconds]
        if not self.marks:
            return True
        self.tell({**score(), **self.times()})
        self.wait()
        self.since = self.clock()
        return False

    def stop(self) -> None:
        self.seconds += self.clock() - self.since
        self.since = self.clock()

    def times(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "steps": self.steps, "first_step": self.first_step}


class PeakMemory:
    """Within the `with` block the most private memory, in bytes over what there was at its start; Linux only."""

    def __enter__(self) -> "PeakMemory":
        self.first = self.last = private_bytes() or 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.over.wait(0.002):
            self.last = max(self.last, private_bytes() or 0)

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.bytes = self.last - self.first if private_bytes() else None


def private_bytes() -> int | None:
    """Memory of this process that is not a mapped file: those pages are the system's to take back."""
    try:
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return None


class Server:
    """Answers one request after the other; an error is an answer too. A contender may override what it does better."""

    def __init__(self, model: type, first_fit: Callable[[np.ndarray, np.ndarray], Any], versions: dict[str, str]):
        self.new_model, self.first_fit, self.versions = model, first_fit, versions
        self.requests = sys.stdin
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is no answer

    def run(self) -> None:
        self.tell({"versions": self.versions, "threads": threads()})
        while request := self.wait():
            try:
                self.tell({"done": True, **(getattr(self, request.pop("do"))(**request) or {})})
            except Exception as error:
                traceback.print_exc()
                reason = " ".join(str(error).split())
                if len(reason) > 200:  # PyTorch has the cause at the start, TensorFlow at the end
                    reason = f"{reason[:100]} ... {reason[-100:]}"
                self.tell({"done": True, "failure": f"{type(error).__name__}: {reason}"})

    def tell(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self.answers, flush=True)

    def wait(self) -> dict[str, Any] | None:
        line = self.requests.readline()
        if not line:
            sys.exit()
        return json.loads(line)

    def build(self, sizes: dict[str, Any], recipe: dict[str, Any]) -> None:
        """A model of random rows, of which `steps` then takes steps."""
        problem = random_problem(**sizes)
        self.model = self.new_model(problem, recipe)
        self.batch = self.model.to_batch(problem["x_train"], problem["y_train"])
        self.model.step(self.batch)  # compiles
        self.model.step(self.batch)

    def steps(self, seconds: float) -> dict[str, Any]:
        """The shortest of as many steps as fit, at least one."""
        times: list[float] = []
        clock = processor()
        while not times or sum(times) < seconds:
            started = clock()
            self.model.step(self.batch)
            times.append(clock() - started)
        return {"seconds": min(times), "steps": len(times)}

    def step_memory(self, sizes: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
        self.build({"rows": 8, "inputs": 2, "inducing": 4, "classes": 3, "separate": False}, recipe)  # late imports
        with PeakMemory() as memory:
            self.build(sizes, recipe)
        return {"bytes": memory.bytes}

    def train(self, problem: str, recipe: dict[str, Any], marks: list[float], wall: bool = True) -> dict[str, Any]:
        """Answers with scores at every mark, in seconds of its own clock: the wall's or that of `processor`."""
        data = read_problem(problem)
        self.warm_up(data, recipe)
        clock = time.perf_counter if wall else processor()
        turns = Turns(marks, self.tell, self.wait, data["start_seconds"], clock)
        model = self.fit(data, recipe, turns)
        turns.stop()
        return {**scores(model, data), **turns.times()}

    def warm_up(self, data: dict[str, Any], recipe: dict[str, Any]) -> None:
        """A step and a prediction of a tiny model: what a library imports when it is first used is on no clock."""
        rows = {name: data[name][:WARM_ROWS] for name in ("x_train", "y_train", "x_test", "y_test")}
        tiny = data | rows | {"z": data["z"][..., :4, :], "num_data": WARM_ROWS}
        scores(self.fit(tiny, recipe | {"batch": WARM_ROWS // 2}, lambda _: True), tiny)

    def fit(self, data: dict[str, Any], recipe: dict[str, Any], turns: AfterStep) -> Any:
        model = self.new_model(data, recipe)
        x, y = data["x_train"], data["y_train"]
        for rows in minibatches(len(x), recipe["batch"]):
            model.step(model.to_batch(scaled(data, x[rows]), y[rows]))
            if turns(lambda: scores(model, data)):
                break
        return model

    def epoch(self, folder: str, recipe: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
        """A pass over rows on disk: seconds, and bytes over what there was after the imports."""
        x, y, data = self._rows_on_disk(folder, recipe, problem)
        order = np.random.default_rng(0).permutation(len(x)).astype(np.int32)
        with PeakMemory() as memory:
            model = self._compiled(data, recipe, x, y)
            started = time.perf_counter()
            self.one_epoch(model, folder, x, y, order, recipe)
            seconds = time.perf_counter() - started
        return {"seconds": seconds, "bytes": memory.bytes}

    def prediction(self, folder: str, recipe: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
        """The same of predicting rows on disk, once what is compiled has been; as one who writes each block away."""
        x, y, data = self._rows_on_disk(folder, recipe, problem)
        with PeakMemory() as memory:
            predict = self._compiled(data, recipe, x, y).predictor()
            predict(x[:PREDICTED_ROWS])
            started = time.perf_counter()
            for _ in in_blocks(predict, x):
                pass
            seconds = time.perf_counter() - started
        return {"seconds": seconds, "bytes": memory.bytes}

    def _rows_on_disk(self, folder: str, recipe: dict[str, Any], problem: dict[str, Any]) -> tuple[Any, Any, dict]:
        x, y = (np.load(Path(folder) / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
        data = {**problem, "z": np.array(x[: problem["inducing"]]), "num_data": len(x), "classes": 0}
        tiny = self._compiled({**data, "z": data["z"][:4]}, recipe, x[:8], y[:8])  # late imports
        tiny.predictor()(x[:8])
        return x, y, data

    def _compiled(self, data: dict[str, Any], recipe: dict[str, Any], x: np.ndarray, y: np.ndarray) -> Any:
        model = self.new_model(data, recipe)
        model.step(model.to_batch(np.array(x[: recipe["batch"]]), np.array(y[: recipe["batch"]])))
        return model

    def one_epoch(
        self, model: Any, folder: str, x: np.ndarray, y: np.ndarray, order: np.ndarray, recipe: dict[str, Any]
    ) -> None:
        size = recipe["batch"]
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            model.step(model.to_batch(x[rows], y[rows]))

    def install_size(self, packages: list[str]) -> dict[str, Any]:
        """Bytes of the packages and of everything that they require."""
        todo, found = list(packages), {}
        while todo:
            name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
            try:
                package = distribution(name)
            except PackageNotFoundError:  # required on other systems only
                continue
            if name not in found:
                files = [path.locate() for path in package.files or ()]
                found[name] = sum(Path(path).stat().st_size for path in files if Path(path).is_file())
                needs = [each for each in package.requires or () if "extra ==" not in each]
                todo += [re.match(r"[\w.-]+", each)[0] for each in needs]  # pyright: ignore[reportOptionalSubscript]
        return {"bytes": sum(found.values()), "packages": len(found)}

    def small(self) -> None:
        """The first fit of a fresh process: 100 rows of regression, and a prediction."""
        rng = np.random.default_rng(0)
        x = rng.uniform(-2, 2, (100, 2))
        self.first_fit(x, np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(100))
