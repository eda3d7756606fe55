"""Measurements that are printed, never asserted."""
