"""The command line. Every command is a row of :mod:`seriatim.cli.commands` and is imported only when it is used.

::

    main.py, session.py  the group of all commands, global options     commands.py    the table of commands
    store.py             how a command works on a store, and ends      output.py      tables for people, JSON for programs
    parameters.py        what several commands take                    lines.py       input of any length
    display.py           tables and progress                           trace.py       files with captured messages
    run_display.py       what a pipeline at work looks like

Every other module is a command, or a noun with its verbs.
"""
