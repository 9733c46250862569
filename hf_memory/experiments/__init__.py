"""One run: training, evaluation, generation, metrics, and the rows that are left of it.

This file imports nothing, so that :mod:`hf_memory.experiments.metrics` loads without torch.
"""
