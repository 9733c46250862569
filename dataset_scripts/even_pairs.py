"""The published edition of ``hf_memory/even_pairs``: whether the first and the last bit differ.

Usage::

    python dataset_scripts/even_pairs.py --output_dir out
    python dataset_scripts/even_pairs.py --push_to_hub <namespace>/even_pairs
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="even_pairs",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "len3_40": {"length": (3, 40), "test_lengths": (40, 64, 128, 256)},
        "len2_39": {"length": (2, 39), "test_lengths": (39, 63, 127, 255)},
        "len1_40_separator": {"length": (1, 40), "test_lengths": (40, 100, 250, 500)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
