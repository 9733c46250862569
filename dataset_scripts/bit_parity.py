"""The published edition of ``hf_memory/bit_parity``: running parity of a bit string.

Usage::

    python dataset_scripts/bit_parity.py --output_dir out
    python dataset_scripts/bit_parity.py --push_to_hub <namespace>/bit_parity
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="bit_parity",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "iid_32": {"length": 32, "test_lengths": (32, 48, 64, 128, 256)},
        "iid_16": {"length": 16, "test_lengths": (16, 24)},
        "iid_64": {"length": 64, "test_lengths": (64, 96)},
        "iid_128": {"length": 128, "test_lengths": (128, 192)},
        "iid_256": {"length": 256, "test_lengths": (256, 384)},
        "iid_3_40": {"length": (3, 40), "test_lengths": (40, 64, 128, 256)},
        "iid_2_39_last": {"length": (2, 39), "test_lengths": (39, 63, 127, 255)},
        "iid_3_40_last": {"length": (3, 40), "test_lengths": (40, 64, 128, 256)},
        "iid_1_40_separator": {"length": (1, 40), "test_lengths": (40, 100, 250, 500)},
        "ones12_len16": {"length": 16, "test_lengths": (16, 24)},
        "ones12_len32": {"length": 32, "test_lengths": (32, 48)},
        "ones4_len32": {"length": 32, "test_lengths": (32, 48)},
        "ones20_len32": {"length": 32, "test_lengths": (32, 48)},
        "ones12_len32_pool1820": {"length": 32, "test_lengths": (32,)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
