"""``python -m hf_memory.cli`` is the command ``hf-memory``."""

from hf_memory.cli.app import main

if __name__ == "__main__":
    main()
