"""How fast messages go through in order, beside others that do the same: ``python -m bench.ordered_drain``.

N messages of 200 bytes, published and consumed at once, at most one in flight per key, and everything fsynced before it is
acknowledged. Keys are uniform, or Zipf with exponent 1 (the commonest of 1,000 keys has 13.4 % of all messages). Publishing may
run 20,000 messages ahead of consuming, for everybody alike.
"""
