"""Audits: in what order did a table arrive?

``audit.py``   the audit, in SQL
``report.py``  gathers the data that ``page.py`` and ``charts.py`` show
"""
