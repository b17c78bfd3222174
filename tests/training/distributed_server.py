"""Starts the programs of these tests by fork, so that PyTorch is imported once.

Each line of standard input is a JSON object: {"start": [PROGRAM, ARGUMENT, ...], "environment": {...}, "output":
FILE} is answered by a process number, {"wait": NUMBER} by the exit code of that process.
"""

import json
import os
import sys

import distributed_cases
import distributed_run

PROGRAMS = {"cases": distributed_cases.main, "run": distributed_run.main}


def child(start: list[str], environment: dict[str, str], output: str) -> None:
    """Runs the program to its end, or to that of the interpreter."""
    os.environ.update(environment)
    for number, name in enumerate((os.devnull, f"{output}.out", f"{output}.err")):
        file = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    program, *sys.argv[1:] = start
    PROGRAMS[program]()


def serve() -> None:
    while line := sys.stdin.readline():
        wanted = json.loads(line)
        if "wait" in wanted:
            answer = os.waitstatus_to_exitcode(os.waitpid(wanted["wait"], 0)[1])
        elif not (answer := os.fork()):
            child(**wanted)
            return
        print(answer, flush=True)


if __name__ == "__main__":
    serve()
