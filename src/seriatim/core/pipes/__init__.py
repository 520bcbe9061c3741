"""Pipes: a sender and a receiver that make an unreliable route ordered and complete."""
