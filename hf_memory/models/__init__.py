"""The spine: config, layers, cache, padding, the stack of blocks and its heads. It knows no mixer."""
