"""Measurements of speed and memory; each module is one command."""
