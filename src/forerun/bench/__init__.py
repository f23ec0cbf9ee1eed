"""Measurements that cannot lie: pairs in one run, one loop, one counter, the same text asserted before any time is shown."""
