"""The command line ``hf-memory``, also ``python -m hf_memory.cli``."""
