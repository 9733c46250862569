"""The Hub: checkpoints with their code and cards, datasets, and result rows."""
