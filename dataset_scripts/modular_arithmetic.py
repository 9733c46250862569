"""The published edition of ``hf_memory/modular_arithmetic``: the value of an expression modulo m.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/modular_arithmetic.py --output_dir out
    python dataset_scripts/modular_arithmetic.py --push_to_hub <namespace>/modular_arithmetic
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="modular_arithmetic",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "plain_1_19": {"length": (1, 19), "test_lengths": (19, 31, 63, 127)},
        "plain_1_79": {"length": (1, 79), "test_lengths": (79, 127)},
        "plain_1_20": {"length": (1, 20), "test_lengths": (20, 50, 125, 250)},
        "brackets_2_37": {"num_train": 100_000, "test_lengths": (37, 61, 125, 253)},
        "brackets_2_157": {"length": (2, 157), "test_lengths": (157, 253)},
        "brackets_1_40": {"length": (1, 40), "test_lengths": (40, 100, 250, 500)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
