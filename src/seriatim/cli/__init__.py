"""The command line. It is organised as its commands are: a module or a folder for each group of them.

::

    main.py            the program: global options, and how a failure is shown
    commands.py        the table of all commands; each is imported when it is used
    command_groups.py  groups of commands, and suggestions for mistyped names
    common/            what commands share
    the rest           commands: ``seriatim topics`` is topics.py, ``seriatim messages pull`` is messages/pull.py
"""
