"""Audits: in what order did a table arrive?

``audit.py``   the audit, in SQL
``report.py``  gathers what ``page.py`` and ``charts.py`` show of it
"""
