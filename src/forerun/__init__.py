"""Lossless speculative decoding: same text, fewer passes."""
