"""A mixer and a task of another package."""
