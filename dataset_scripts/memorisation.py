"""The published edition of ``hf_memory/memorisation``: a fixed map from keys to values.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/memorisation.py --output_dir out
    python dataset_scripts/memorisation.py --push_to_hub <namespace>/memorisation
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="memorisation",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "vocab256_len32": {"num_train": 256, "test_lengths": (32,)},
        "vocab512_len32": {"num_train": 256, "test_lengths": (32,)},
        "vocab1024_len32": {"num_train": 256, "test_lengths": (32,)},
        "vocab2048_len32": {"num_train": 256, "test_lengths": (32,)},
        "vocab4096_len32": {"num_train": 256, "test_lengths": (32,)},
        "vocab8192_len32": {"num_train": 256, "test_lengths": (32,)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
