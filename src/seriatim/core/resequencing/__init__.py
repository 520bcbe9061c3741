"""Resequencing: numbered messages put back in order, per key."""
