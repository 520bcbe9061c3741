"""``seriatim pipeline``: run and explain declared pipelines, and inspect their state."""
