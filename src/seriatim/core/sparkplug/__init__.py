"""Sparkplug: the sessions of edge nodes, their messages in order, and rebirth requests."""
