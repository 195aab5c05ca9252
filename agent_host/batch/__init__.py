"""Batches: many tasks, each as a session of its own, that are begun, retried and gone on with until each has ended."""
