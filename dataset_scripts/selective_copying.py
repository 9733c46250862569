"""The published edition of ``hf_memory/selective_copying``: symbols scattered among blanks, repeated in order.

Usage::

    python dataset_scripts/selective_copying.py --output_dir out
    python dataset_scripts/selective_copying.py --push_to_hub <namespace>/selective_copying
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="selective_copying",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "blanks_50": {"length": (1, 50), "test_lengths": (10, 20, 30, 40, 50, 60, 75, 100, 150, 200, 300, 400, 500)},
        "pattern_10": {"length": (1, 10), "test_lengths": (2, 4, 6, 8, 10, 11, 12, 15, 20, 30, 50, 75, 100)},
        "blanks_20": {"length": (1, 20), "test_lengths": (5, 10, 20, 40, 80, 200)},
        "pattern_5": {"length": (1, 5), "test_lengths": (3, 4, 5, 6, 8, 10, 20)},
        "mad_16_of_256": {"length": 224, "test_lengths": (224,)},
        "mad_16_of_256_subset": {"length": 224, "test_lengths": (224,)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
