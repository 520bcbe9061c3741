"""Whole-engine simulation: the real engine, link, publisher and client in a world without threads, sockets and clocks.

A *program* is data: a plan (how many processes, how slow disk and link are, the options of the subscriptions) and a list of
steps, all drawn from a seed. It runs on one event loop in virtual time and always in the same way, so a seed that fails can
be replayed, and shrunk to a short script.

::

    loop.py       the event loop; simulated processes that are stopped, continued and killed
    disk.py       a disk that outlives processes, its faults, and the writer in the place of the engine's thread
    network.py    connections in memory that delay, fill up and are cut
    world.py      all of that put together, and what the real modules use of it
    program.py    plans, steps and programs as data
    verbs.py      what steps do
    deletions.py  the same for topics and subscriptions that are deleted while they are in use
    wrong.py      calls that must be refused
    handlers.py   what handlers do with their messages
    operations.py what operators did, and when it may have taken effect
    truth.py      what is true about leases, whoever believes what
    rules.py      the rules of giving out messages, held against every lease
    letters.py    what must be true of dead letters
    judge.py      what must hold afterwards
    run.py        one program from its first step to its judgement
    shrink.py     short scripts of long programs
    __main__.py   the command line: ``make simulate SEEDS=20000``
    take_outs.py  proof of worth: mends are taken out, and the simulation has to find that

How it works
    Every callback, timer and task belongs to the process in whose context it was made, and the loop asks the process before it
    runs it. So a stopped process does nothing at all and a killed one never again, to the letter of SIGSTOP and SIGKILL.

    The engine gets its operating system by name, and ``World.entered`` replaces just these names: ``open_store``, the wall
    clock, the writer's thread, the listening socket and ``connect``. Everything else is the code that users run.

    Steps are begun one after another, after pauses that are often 0, and nobody waits for them: so they race. A step may be
    cancelled after a number of turns of the loop or a time. Chance inside the world depends on what it is for (a message and
    its attempt, say), so a step that is left out disturbs the others as little as possible.

How it is judged
    When the steps are over the world is healed. Every call must come to an end. When nothing is on its way any more, what
    each process sees of the store is compared with what a new process reads from the disk. That one lifts all pauses and
    drains everything. The checker of the nemesis (``tests/nemesis/checker.py``) reads the histories. Every lease that an owner
    of the store gave out is held against the rules of delivery, and every dead letter against its leases. Errors that are not
    of our tree, exceptions that reach the loop, lines in the log that only a mistake can cause, tasks that are left: all are
    findings.

How to add a verb
    Write an async function in ``verbs.py`` with ``@verb(weight, *draws)``: its first argument is the ``Actor`` (a process and
    its ``PubSub``), or the ``World`` with ``is_worldly=True``; the others are drawn, one for each of ``draws``, and have to be
    plain data with a short ``repr``. It may raise any ``SeriatimError``. What it publishes or takes out it has to ``record``.
    Adding a verb changes the program of every seed: a seed replays what it did in the tree that its record names, and no other.

Not simulated: SQLite and PostgreSQL themselves, the operating system's sockets and signals, the Pub/Sub server, the blocking
API and ``Queue`` (which need threads), clocks that differ between processes. Every other verb of ``PubSub``, ``Topic``,
``Subscription`` and ``Message`` is used, but for three that need files: ``backup``, ``add_outbox`` and ``remove_outbox`` are
only called wrongly here, because the simulated disk has neither files nor SQL. ``tests/store``, ``tests/outbox`` and
``tests/power_loss`` use them on real ones.
"""
