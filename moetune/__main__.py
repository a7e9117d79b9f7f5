"""Run the command line with `python -m moetune`."""

from moetune.cli import main

main()
