"""``seriatim store``: check, back up, restore and diagnose a store, and count what it holds."""
