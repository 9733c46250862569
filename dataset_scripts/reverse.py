"""The published edition of ``hf_memory/reverse``: a string backwards.

Usage::

    python dataset_scripts/reverse.py --output_dir out
    python dataset_scripts/reverse.py --push_to_hub <namespace>/reverse
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="reverse",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "len1_40_bits": {"length": (1, 40), "test_lengths": (40, 60, 80, 250, 500)},
        "len127": {"length": 127, "test_lengths": (127, 255)},
        "len255": {"length": 255, "test_lengths": (255, 511)},
        "len511": {"length": 511, "test_lengths": (511, 1023)},
        "len1023": {"length": 1023, "test_lengths": (1023,)},
        "len1_16": {"length": (1, 16), "test_lengths": (8, 16, 24, 32)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
