"""Lanes: each key's queue in a subscription, its leases and retries, and the order of turns."""
