"""`python -m autogp`: the command line."""

from autogp.cli import app

if __name__ == "__main__":
    app(prog_name="autogp")
