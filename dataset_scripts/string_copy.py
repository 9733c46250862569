"""The published edition of ``hf_memory/string_copy``: repeat a string, or what follows an n-gram.

Usage::

    python dataset_scripts/string_copy.py --output_dir out
    python dataset_scripts/string_copy.py --push_to_hub <namespace>/string_copy
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="string_copy",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "len5_20": {"length": (5, 20), "test_lengths": (10, 20, 30, 50, 100)},
        "len5_15": {"length": (5, 15), "test_lengths": (10, 15, 20, 30)},
        "prefix3_len20_50": {"length": (20, 50), "test_lengths": (35, 50, 75, 100)},
        "suffix3_len20_50": {"length": (20, 50), "test_lengths": (35, 50, 75, 100)},
        "prefix3_len20_50_published": {"length": (20, 50), "test_lengths": (35, 50, 75, 100)},
        "suffix3_len20_50_published": {"length": (20, 50), "test_lengths": (35, 50, 75, 100)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
