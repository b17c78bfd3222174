"""README.md (of a quick run quick.md) in the folder of the results, and its figures, from the JSON file alone."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.figures import slope, write_figures

Part = dict[str, Any]
EARLY, LATE = 0.9, 1.02  # of a budget: what lies outside is told with its time


def write_report(content: dict[str, Any], mode: str, folder: Path) -> Path:
    full = mode == "full"
    figures = write_figures(content["parts"], folder if full else folder / mode)
    path = folder / ("README.md" if full else f"{mode}.md")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(page(content, mode, {name: str(file.relative_to(folder)) for name, file in figures.items()}))
    return path


def page(content: dict[str, Any], mode: str, figures: dict[str, str]) -> str:
    machine = content["machine"]
    versions = "; ".join(
        ", ".join(f"{name} {number}" for name, number in each.items()) for each in content["versions"].values()
    )
    again = "make bench-full" if mode == "full" else "make bench"
    lines = [
        "# Benchmarks",
        f"Made by `{again}` from benchmarks.json; nothing is typed by hand. docs/benchmarks.md explains the method. "
        f"{content['date'][:10]}, {machine['processor']}, {machine['cores']} cores, {content['threads']} threads for "
        f"every contender, {machine['memory']}, {machine['system']}. {versions}. Times of steps, imports "
        "and first fits are the shortest of several, all others of one run.",
    ]
    for name, (title, table) in SECTIONS.items():
        if name in content["parts"]:
            part = content["parts"][name]
            lines += [f"## {title}", *([f"Skipped: {part['skipped']}."] if "skipped" in part else table(part))]
            lines += [f"![{title}]({file})" for key, file in figures.items() if key.startswith(name)]
    return "\n\n".join(lines) + "\n"


def markdown(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def best_peer(times: dict[str, Any], float64: bool = False) -> tuple[str, float] | None:
    """The quickest contender of another library in this precision."""
    found = {
        name: each["seconds"]
        for name, each in times.items()
        if "seconds" in each and not name.startswith("autogp") and ("float64" in name) == float64
    }
    return min(found.items(), key=lambda item: item[1]) if found else None


def step_table(part: Part) -> list[str]:
    contenders = list(part["settings"])
    head = ["M", "kernels", "S", *contenders, "ours / best peer, float32"]
    rows = []
    for case in part["configurations"]:
        times = case["times"]
        ours, peer = times[contenders[0]], best_peer(times)
        ratio = f"{ours['seconds'] / peer[1]:.2f} ({peer[0]})" if peer and "seconds" in ours else "–"
        cells = [_milliseconds(times.get(name)) for name in contenders]
        rows.append([case["inducing"], "separate" if case["separate"] else "shared", case["samples"], *cells, ratio])
    failures = {
        f"{name}: {each['failure']}"
        for case in part["configurations"]
        for name, each in case["times"].items()
        if "failure" in each
    }
    text = f"Milliseconds; B = {part['rows']}, D = {part['inputs']}, Q = {part['classes']}. Goal: at most 0.60."
    return [text, markdown(head, rows), *(f"Failed: {each}." for each in sorted(failures))]


def _milliseconds(times: dict[str, Any] | None) -> str:
    return "–" if times is None else "failed" if "failure" in times else f"{1e3 * times['seconds']:.1f}"


def quality_table(part: Part) -> list[str]:
    levels, reached = part["levels"], part["reached"]
    own = [name for name in reached if name.startswith("autogp")]
    others = [times for name, times in reached.items() if name not in own]
    compared = {part["own"]: [part["own"]], "our run with the ELBO": [name for name in own if "ELBO" in name]}
    head = [
        "contender",
        "first step",
        *(f"NLP {level:.2f}" for level in levels),
        "last NLP",
        "last error",
        "steps",
        "seconds",
    ]
    rows = []
    for name, curve in part["curves"].items():
        cells = ["–" if seconds is None else f"{seconds:.1f}" for seconds in reached[name]]
        last = curve[-1] if curve else None
        end = ["failed", "–", "–", "–"]
        if last:
            end = [f"{last['nlp']:.4f}", f"{100 * last['error']:.2f} %", last["steps"], f"{last['seconds']:.0f}"]
        first = f"{last['first_step']:.1f}" if last and last.get("first_step") else "–"
        rows.append([name, first, *cells, *end])
    for title, names in compared.items():
        ratios = [
            _ratio([reached[name][i] for name in names if name in reached], [times[i] for times in others])
            for i in range(len(levels))
        ]
        rows.append([f"**{title} / best peer**", "", *ratios, "", "", "", ""])
    text = (
        f"{part['set']}, M = {part['inducing']}, seconds from arrays in memory to the test NLP, each contender given "
        f"{part['seconds']:.0f} s; {part['start_seconds']:.1f} s of them are the start (scale, k-means) that all "
        f"share. Goal: a tenth of the best peer's time, start included. {part['note']}"
    )
    return [text.strip(), markdown(head, rows), *(f"Failed: {name}: {why}." for name, why in part["failed"].items())]


def _ratio(own: Iterable[float | None], others: Iterable[float | None]) -> str:
    """Of the shortest times to a level."""
    ours, peers = (min((seconds for seconds in times if seconds), default=None) for times in (own, others))
    return f"{ours / peers:.2f}" if ours and peers else "no peer" if ours else "–"


def equal_time_table(part: Part) -> list[str]:
    lines = [
        "Test NLP in nats per row in the units of y, after so many seconds of each contender's own clock (in brackets "
        "error rate, for regression root mean squared error). A contender that is done earlier, or has nothing to "
        "show until later, says when."
    ]
    for name, case in part["sets"].items():
        if "skipped" in case:
            lines.append(f"{name}: {case['skipped']}.")
            continue
        rows = []
        for contender, curve in case["curves"].items():
            rows.append([contender, *(judged(_point(curve, i, each), each) for i, each in enumerate(case["budgets"]))])
        head = [f"{name}, N = {case['rows']:,}, {case['precision']}", *(f"{budget:g} s" for budget in case["budgets"])]
        lines.append(markdown(head, rows))
    return lines


def _point(curve: list[dict[str, Any]], number: int, budget: float) -> dict[str, Any]:
    """The last point within a budget; without one, what there is to show at all."""
    within = [point for point in curve[: number + 1] if point.get("seconds", 0) <= LATE * budget]
    return within[-1] if within else curve[min(number, len(curve) - 1)]


def judged(point: dict[str, Any], budget: float) -> str:
    if "failure" in point:
        return f"failed ({point['failure']})"
    when = "" if EARLY * budget <= point["seconds"] <= LATE * budget else f", {point['seconds']:.1f} s"
    return f"{point['nlp']:.4f} ({point['error']:.4g}){when}"


def growth_table(part: Part) -> list[str]:
    rows = []
    for letter, case in part["steps"].items():
        for name, seconds in case["seconds"].items():
            span = f"{case['sizes'][0]:,} to {case['sizes'][-1]:,}"
            size = case["bytes"][name]
            rows.append([f"step, {letter}", span, name, slope(case["sizes"], seconds), _memory(case["sizes"], size)])
    files = part["files"]
    millions = []
    for name, curve in files["curves"].items():
        for what, title in (("epoch", "epoch from disk, N"), ("prediction", "prediction, N")):
            times, size = ([each.get(key) for each in curve] for key in (what, f"{what}_bytes"))
            span = f"{files['sizes'][0]:,} to {files['sizes'][-1]:,}"
            rows.append([title, span, name, slope(files["sizes"], times), _memory(files["sizes"], size)])
        last, count = curve[-1], files["sizes"][-1] / 1e6
        sizes = [
            f"{last[key] / 2**20:.0f} MiB" if last.get(key) else "–" for key in ("epoch_bytes", "prediction_bytes")
        ]
        if "epoch" in last:
            millions.append(
                [name, f"{last['epoch'] / count:.1f}", sizes[0], f"{last['prediction'] / count:.2f}", sizes[1]]
            )
        else:
            millions.append([name, "failed", "–", "–", "–"])
    head = ["what grows", "from, to", "contender", "slope of time", "slope of memory"]
    base = ", ".join(f"{letter} = {value}" for letter, value in part["base"].items())
    title = ["contender", "epoch, s per million rows", "memory", "prediction, s per million rows", "memory"]
    return [
        f"A slope of 1 means twice the size, twice the time; it is fitted on logarithms of all sizes. Steps at {base}, "
        f"one of them growing; epochs and predictions of rows on disk, D = {files['inputs']}, M = {files['inducing']}.",
        markdown(head, rows),
        markdown(title, millions),
    ]


def _memory(sizes: list[float], size: list[float | None]) -> str:
    """The slope of memory, where there is enough of it to have one."""
    known = [each for each in size if each is not None]
    return "under 1 MiB" if known and max(known) < 2**20 else slope(sizes, size)


def limit_table(part: Part) -> list[str]:
    rates = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in part["rates"].items())
    lines = [f"Products of 2000 x 2000 matrices run at {rates}."]
    for case in part["configurations"]:
        kind = "separate kernels" if case["separate"] else "shared kernel"
        lines.append(
            f"M = {case['inducing']}, {kind}: {1e3 * case['seconds']:.1f} ms for {case['flops'] / 1e9:.1f} GFLOP at "
            f"the least, {100 * case['share']:.0f} % of the float32 rate."
        )
        for title, times in (("part, by itself", case["parts"]), ("operation, torch's profiler", case["operations"])):
            rows = [
                [name, f"{1e3 * each:.2f}", f"{100 * each / case['seconds']:.0f} %"] for name, each in times.items()
            ]
            lines.append(markdown([title, "ms per step", "of the step"], rows))
    return lines


def cold_table(part: Part) -> list[str]:
    head = ["library", "import, s", "process to first fit on 100 rows, s", "installed, MB", "packages"]
    rows = [
        [name, f"{each['import']:.2f}", f"{each['first_fit']:.2f}", f"{each['bytes'] / 1e6:.0f}", each["packages"]]
        for name, each in part.items()
    ]
    return [markdown(head, rows)]


SECTIONS: dict[str, tuple[str, Callable[[Part], list[str]]]] = {
    "step": ("One training step", step_table),
    "quality": ("Time to quality", quality_table),
    "equal-time": ("Quality at equal time", equal_time_table),
    "growth": ("Growth", growth_table),
    "limit": ("The limit", limit_table),
    "cold": ("Cold start", cold_table),
}
