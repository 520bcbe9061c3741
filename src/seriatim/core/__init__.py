"""The pure core: state machines that decide order.

No IO, no clock, no threads, no randomness: commands and ``now`` go in, frozen effects come out.
"""
