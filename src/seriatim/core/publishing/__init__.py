"""Publishing: batches per key, flow control, message limits."""
