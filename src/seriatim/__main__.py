"""``python -m seriatim`` is the command line."""

from seriatim.cli.main import main

main(prog_name="python -m seriatim")
