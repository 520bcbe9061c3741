"""``seriatim messages``: publish and pull."""
