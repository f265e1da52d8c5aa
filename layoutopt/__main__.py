"""`python -m layoutopt`: the command line."""

from layoutopt.cli import run

if __name__ == "__main__":
    run()
