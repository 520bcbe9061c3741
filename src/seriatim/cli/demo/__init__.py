"""``seriatim demo``."""
