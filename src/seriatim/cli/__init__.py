"""The command line. Every command is a row of :mod:`seriatim.cli.commands` and is imported only when it is used."""
