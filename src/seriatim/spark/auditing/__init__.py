"""In what order did a table arrive?

``audit.py``   finds out, in SQL
``report.py``  gathers what ``page.py`` and ``charts.py`` show of it
"""
