"""`python -m roost.launch`: the command line without its script."""

from roost.launch.cli import main

main()
