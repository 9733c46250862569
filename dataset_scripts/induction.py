"""The published edition of ``hf_memory/induction``: the token that followed a trigger.

Usage::

    python dataset_scripts/induction.py --output_dir out
    python dataset_scripts/induction.py --push_to_hub <namespace>/induction
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="induction",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "len256": {"length": 256, "test_lengths": (64, 128, 256, 512, 1024, 2048, 4096)},
        "len256_all": {"length": 256, "test_lengths": (64, 256, 1024, 4096)},
        "len64": {"length": 64, "test_lengths": (64, 128, 256, 1024)},
        "len64_8_triggers": {"length": 64, "test_lengths": (64, 128, 256, 1024)},
        "len256_long": {"length": 256, "test_lengths": (256,)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
