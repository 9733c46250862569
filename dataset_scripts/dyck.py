"""The published edition of ``hf_memory/dyck``: balanced brackets.

Usage::

    python dataset_scripts/dyck.py --output_dir out
    python dataset_scripts/dyck.py --push_to_hub <namespace>/dyck
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="dyck",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "len32": {"length": 32, "test_lengths": (32, 48, 64, 128, 256)},
        "len32_type_swap": {"length": 32, "test_lengths": (32, 48, 64, 128, 256)},
        "len32_balanced": {"length": 32, "test_lengths": (32, 48, 64, 128, 256)},
        "len32_crossed": {"length": 32, "test_lengths": (32, 48, 64, 128, 256)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
