"""An open benchmark of ordered work: ``python -m bench.ordering``."""
