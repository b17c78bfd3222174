"""autogp beside GPflow, GPyTorch and scikit-learn.

    python -m benchmarks [--quick | --full] [--parts NAME ...] [--threads N] [--results FOLDER] [--libraries NAME ...]

Each part that finishes is added to FOLDER/benchmarks.json; a run that was broken off goes on from there. Tables and
figures are made from that file alone (`--table` makes nothing else). Peers' environments are in the folder that
AUTOGP_PEERS names (`make bench` creates them), data sets in that of AUTOGP_DATA; what is not at hand is left out.
"""

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks import part_cold, part_equal_time, part_growth, part_limit, part_quality, part_step
from benchmarks.contenders import LIBRARIES, at_hand
from benchmarks.report import write_report
from benchmarks.run import MODES, Results, Run

PARTS = {
    "step": part_step.run,
    "quality": part_quality.run,
    "equal-time": part_equal_time.run,
    "growth": part_growth.run,
    "limit": part_limit.run,
    "cold": part_cold.run,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    for name, text in zip(MODES, (argparse.SUPPRESS, "ten minutes", "three hours"), strict=True):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=text)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), metavar="NAME")
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    parser.add_argument("--results", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--table", action="store_true", help="only make table and figures")
    options = parser.parse_args(arguments)
    results = Results(options.results / "benchmarks.json")
    chosen = options.mode or "quick"
    if not options.table:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(chosen, options.threads, Path(folder), tuple(options.libraries))
            for library in options.libraries:
                if not at_hand(library):
                    run.say(f"{library} is left out: {LIBRARIES[library][0]} does not have it")
            for name in results.begin(run, options.parts, list(PARTS)):
                run.say(f"part {name}")
                results.finish(chosen, name, PARTS[name](run), run.versions)
                write_report(results.content[chosen], chosen, options.results)
    if chosen not in results.content:
        raise SystemExit(f"{results.path} has no results of a {chosen} run: leave out --table to make one")
    print(write_report(results.content[chosen], chosen, options.results).read_text())


if __name__ == "__main__":
    main()
