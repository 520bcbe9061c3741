"""The engine: joins the pure core and a store. Its first part is here: ``commit.py``, group commit."""
